//! Invariant 8: every queue, cache and buffer stays within its written bound. Checked repeatedly
//! during a run.

use crate::workload::SimClient;
use crate::world::World;
use zonal_types::limits::STORAGE_IO_BYTES_MAX;

/// Most background tasks of a shard.
const OWN_TASKS: u64 = 5;

fn within(what: &str, value: u64, bound: u64) -> Option<String> {
    (value > bound).then(|| format!("invariant 8: {what}: {value}, at most {bound} allowed"))
}

/// Compares each gauge with its bound, the gauge of the same name with `_max`.
fn of_gauges(gauges: &[(&'static str, u64)]) -> Vec<String> {
    let bound_of = |name: &str| {
        let bound = format!("{name}_max");
        let found = gauges.iter().find(|(known, _)| *known == bound);
        found.map(|(_, bound)| *bound)
    };
    let checked = gauges.iter().filter_map(|(name, value)| {
        let bound = bound_of(name)?;
        within(name, *value, bound)
    });
    checked.collect()
}

/// Checks all running servers.
pub fn check_servers(world: &World) {
    for node in world.meta_nodes() {
        let gauges = node.all_gauges();
        of_gauges(&gauges)
            .iter()
            .for_each(|text| world.report(text));
        let waiting = gauges.iter().find(|(name, _)| *name == "waiting_requests");
        let waiting = waiting.map_or(0, |(_, value)| *value);
        let broken = [
            within(
                "requests that wait, of those under way",
                waiting,
                node.running(),
            ),
            // One wait for each request, and one for each background task.
            within("waits", node.waits(), node.running() + OWN_TASKS),
        ];
        broken.iter().flatten().for_each(|text| world.report(text));
    }
    for node in world.storage_nodes() {
        let (_free, (pending, bound)) = node.space();
        if let Some(text) = within("bytes of pending blocks", pending, bound) {
            world.report(text);
        }
    }
}

/// Checks a client.
pub fn check_client(world: &World, client: &SimClient) {
    for (name, value, bound) in client.gauges() {
        if let Some(text) = within(name, value, bound) {
            world.report(text);
        }
    }
    let options = client.options();
    // The last write is accepted before anything is sent.
    let bound = options.write_behind_bytes + 2 * STORAGE_IO_BYTES_MAX;
    if let Some(text) = within("gathered bytes", client.dirty_bytes() as u64, bound as u64) {
        world.report(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_past_its_bound_is_found() {
        let good = [("opens", 3), ("opens_max", 3), ("inodes", 900)];
        assert!(of_gauges(&good).is_empty());
        let bad = [("opens", 4), ("opens_max", 3)];
        assert_eq!(of_gauges(&bad).len(), 1);
    }
}
