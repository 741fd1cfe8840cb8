//! Longshore's vocabulary and decisions: pure, no clock, no client, no lock.
