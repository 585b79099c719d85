//! The zone map: zones, nodes, targets, shards, partitions, stripe sets, junctions.
