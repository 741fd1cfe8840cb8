//! The driver's wire: CSI and plugin registration, client, error classes, fake driver.
