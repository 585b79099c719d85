//! The metadata shard: a state machine that turns requests into effects.
