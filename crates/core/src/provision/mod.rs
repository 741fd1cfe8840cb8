//! What to create for a claim, where, and under which name; and when to delete it again.

pub mod migration;
pub mod name;
pub mod params;
pub mod topology;
