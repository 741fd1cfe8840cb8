//! The seeded world: the shipped controllers over an in-memory API and driver, with faults.
