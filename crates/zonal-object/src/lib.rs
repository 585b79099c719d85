//! The storage target: a state machine over an extent store with checksums.
