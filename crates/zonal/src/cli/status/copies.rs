//! The part of `zonal status` about copies: targets that are out or down, and files with stale
//! copies. It names the failures that would leave these files without a whole copy.
//!
//! Cost: each shard is asked in parallel for its files with marks, at most [`FILES_ASKED_MAX`] of
//! them. So files that were not changed since a target went out are not counted here.

use crate::cell::connection::CellHandle;
use crate::cell::node_states::{down_nodes, targets_of};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use zonal_fsck::survival::{SoleHolders, TargetService};
use zonal_types::{Ino, NodeId, TargetId};
use zonal_wire::{Header, KnownState, MetaReply, MetaRequest, Service};
use zonal_zonemap::{Shard, ZoneMap};

/// Files with stale copies that a shard is asked for.
const FILES_ASKED_MAX: usize = 1024;

/// Copies that are not in service, as far as they are known without a look at all files.
#[derive(Debug, Default)]
pub struct CopySummary {
    /// Targets that are out.
    out: BTreeSet<TargetId>,
    /// Targets of nodes that are down.
    down: BTreeSet<TargetId>,
    /// Files with stale copies.
    stale_files: u64,
    /// True where there may be more: a shard has many, or did not answer.
    is_part: bool,
    /// Files with stale copies that would have no whole copy without a target, or without a node.
    by_target: BTreeMap<TargetId, u64>,
    by_node: BTreeMap<NodeId, u64>,
}

/// The single points of failure of a shard's files with stale copies; whether these are all.
type OfShard = (Vec<SoleHolders>, bool);

impl CopySummary {
    /// Asks all shards.
    pub fn look(cell: &CellHandle, map: &ZoneMap, states: &BTreeMap<NodeId, KnownState>) -> Self {
        let down = targets_of(map, &down_nodes(states));
        let service = &TargetService::new(map, down.clone(), BTreeSet::new());
        let targets = map.targets.iter().map(|target| target.id);
        let mut summary = Self {
            out: targets.filter(|target| map.is_out(*target)).collect(),
            down,
            ..Self::default()
        };
        std::thread::scope(|scope| {
            let shards = map.shards.iter();
            let asking: Vec<_> = shards
                .map(|shard| scope.spawn(move || of_shard(cell, map, shard, service)))
                .collect();
            for thread in asking {
                match thread.join() {
                    Ok((files, is_all)) => summary.add(files, is_all),
                    Err(_panic) => summary.is_part = true,
                }
            }
        });
        summary
    }

    fn add(&mut self, files: Vec<SoleHolders>, is_all: bool) {
        self.is_part |= !is_all;
        for sole in files {
            self.stale_files += 1;
            for target in sole.targets {
                *self.by_target.entry(target).or_default() += 1;
            }
            for node in sole.nodes {
                *self.by_node.entry(node).or_default() += 1;
            }
        }
    }

    /// Lines for people; none where nothing is wrong.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let away = self.out.union(&self.down);
        let away: Vec<String> = away.map(TargetId::to_string).collect();
        if away.is_empty() && self.stale_files == 0 {
            return lines;
        }
        if !away.is_empty() {
            lines.push(format!("targets that are out or down: {}", away.join(", ")));
        }
        let least = if self.is_part { "at least " } else { "" };
        lines.push(format!(
            "files with stale copies: {least}{}",
            self.stale_files
        ));
        let (target, node) = (worst(&self.by_target), worst(&self.by_node));
        if let (Some((target, with_target)), Some((node, with_node))) = (target, node) {
            lines.push(format!(
                "of these, one more failure would take {least}{with_target} with target {target}, \
                 {least}{with_node} with node {node}"
            ));
        }
        let node = node.map_or("N".to_owned(), |(node, _)| node.to_string());
        lines.push(format!(
            "names of all files: `zonal files --lost`, `zonal files --endangered`, and \
             `zonal files --if-lost node:{node}` before one more failure"
        ));
        lines
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        let out = self.out.iter().map(|target| target.0);
        let down = self.down.iter().map(|target| target.0);
        let target = worst(&self.by_target);
        let node = worst(&self.by_node);
        json!({
            "targets_out": out.collect::<Vec<_>>(),
            "targets_down": down.collect::<Vec<_>>(),
            "stale_files": self.stale_files,
            "is_part": self.is_part,
            "worst_target": target.map(|(id, files)| json!({"target": id.0, "files": files})),
            "worst_node": node.map(|(id, files)| json!({"node": id.0, "files": files})),
        })
    }
}

/// The place whose loss would take most files, the first of equal ones.
fn worst<Id: Copy + Ord>(files: &BTreeMap<Id, u64>) -> Option<(Id, u64)> {
    let places = files.iter().map(|(id, files)| (*id, *files));
    places.min_by_key(|(id, files)| (std::cmp::Reverse(*files), *id))
}

fn of_shard(
    cell: &CellHandle,
    map: &ZoneMap,
    shard: &Shard,
    service: &TargetService<'_>,
) -> OfShard {
    let (mut found, mut after) = (Vec::new(), Ino(0));
    while found.len() < FILES_ASKED_MAX {
        let mut header = Header::request(Service::Meta, cell.id);
        header.epoch = shard.epoch;
        let target = TargetId(0);
        let request = MetaRequest::StaleFiles { target, after };
        let reply = cell.call_shard(map, shard, header, &request);
        let Ok(MetaReply::Files { files, next }) = reply else {
            return (found, false);
        };
        // The reply has no sizes: all columns count.
        let sole =
            |(_, data): &(_, zonal_types::FileData)| service.sole_holders(&data.layout, u64::MAX);
        found.extend(files.iter().map(sole));
        match next {
            Some(next) if next > after => after = next,
            _ => return (found, true),
        }
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sole(target: u32, node: u32) -> SoleHolders {
        SoleHolders {
            targets: [TargetId(target)].into(),
            nodes: [NodeId(node)].into(),
        }
    }

    #[test]
    fn the_worst_failure_is_named_with_its_files() {
        let mut summary = CopySummary::default();
        assert!(summary.lines().is_empty());
        summary.add(vec![sole(3, 7), sole(2, 7), sole(3, 6)], true);
        assert_eq!(worst(&summary.by_target), Some((TargetId(3), 2)));
        let text = summary.lines().join("\n");
        assert!(text.contains("2 with target 3, 2 with node 7"), "{text}");
        assert!(text.contains("--if-lost node:7"), "{text}");
        assert!(!text.contains("at least"), "{text}");
        summary.add(Vec::new(), false);
        let text = summary.lines().join("\n");
        assert!(text.contains("stale copies: at least 3"), "{text}");
    }

    #[test]
    fn targets_that_are_away_are_named_without_stale_files() {
        let summary = CopySummary {
            out: [TargetId(2)].into(),
            down: [TargetId(1), TargetId(2)].into(),
            ..CopySummary::default()
        };
        let text = summary.lines().join("\n");
        assert!(
            text.starts_with("targets that are out or down: 1, 2\n"),
            "{text}"
        );
        assert!(!text.contains("of these"), "{text}");
        assert_eq!(summary.json()["worst_node"], Value::Null);
    }
}
