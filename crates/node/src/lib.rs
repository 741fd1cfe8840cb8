//! Node loops: volume manager, driver registration, mounts, pods as processes.
