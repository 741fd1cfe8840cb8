//! The local CSI drivers: image files on loop devices.
