//! Cluster loops and sidecars: bind, provision, attach, schedule.
