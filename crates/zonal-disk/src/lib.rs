//! Files below a shard or a target: log, key-value store, segments.
