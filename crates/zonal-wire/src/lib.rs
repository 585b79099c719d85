//! Frames and messages between clients, managers, shards and targets.
