//! Edits of administrators: adding and renaming zones, removing nodes.
//!
//! Invariants: an edit gives no two zones one name; a node leaves only where no shard, target or
//! map needs it.

use super::{EditError, insert};
use crate::map::{Zone, ZoneMap};
use zonal_types::{NodeId, ZoneId, is_title};

impl ZoneMap {
    pub(super) fn insert_zone(&mut self, id: ZoneId, name: &str) {
        let name = match name.is_empty() {
            true => format!("zone{id}"),
            false => name.to_owned(),
        };
        let zone = Zone {
            id,
            name,
            default_sets: Vec::new(),
        };
        insert(&mut self.zones, zone, |zone| zone.id);
    }

    pub(super) fn add_zone(&mut self, id: ZoneId, name: &str) -> Result<(), EditError> {
        if id == ZoneId(0) || id == ZoneId::CELL {
            return Err(EditError::Unknown { what: "zone" });
        }
        if self.zone(id).is_some() {
            return Err(EditError::ZoneTaken { zone: id });
        }
        self.insert_zone(id, name);
        let name = self.zone(id).map_or("", |zone| &zone.name).to_owned();
        self.check_name(id, &name)
    }

    pub(super) fn rename_zone(&mut self, id: ZoneId, name: &str) -> Result<(), EditError> {
        self.check_name(id, name)?;
        let found = self.zones.iter_mut().find(|zone| zone.id == id);
        let zone = found.ok_or(EditError::Unknown { what: "zone" })?;
        name.clone_into(&mut zone.name);
        Ok(())
    }

    /// Checks that a zone may have a name.
    fn check_name(&self, id: ZoneId, name: &str) -> Result<(), EditError> {
        if !is_title(name) {
            return Err(EditError::Title);
        }
        if name.is_empty() || name.bytes().all(|letter| letter.is_ascii_digit()) {
            return Err(EditError::ZoneName);
        }
        let is_others = |zone: &&Zone| zone.id != id && zone.name == name;
        match self.zones.iter().find(is_others) {
            Some(other) => Err(EditError::ZoneTaken { zone: other.id }),
            None => Ok(()),
        }
    }

    /// The reason why a node cannot leave the map; `None` where it can.
    #[must_use]
    pub fn needs_node(&self, node: NodeId) -> Option<String> {
        if self.managers.contains(&node) {
            return Some("the zone map and the root's shard".to_owned());
        }
        let mut shards = self.shards.iter();
        if let Some(shard) = shards.find(|shard| shard.replicas.contains(&node)) {
            return Some(match shard.replicas.len() {
                1 => format!("shard {}, which no other node has", shard.id),
                _ => format!("a replica of shard {}", shard.id),
            });
        }
        let mut targets = self.targets.iter();
        let target = targets.find(|target| target.node == node)?;
        Some(format!("target {}", target.id))
    }

    pub(super) fn remove_node(&mut self, node: NodeId) -> Result<(), EditError> {
        if self.node(node).is_none() {
            return Err(EditError::Unknown { what: "node" });
        }
        if let Some(holds) = self.needs_node(node) {
            return Err(EditError::NodeInUse { node, holds });
        }
        self.nodes.retain(|known| known.id != node);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::MapEdit;
    use super::*;
    use zonal_types::{CellId, ShardId, TargetId};
    use zonal_wire::JoinTarget;

    fn join(node: u32, shard: Option<u32>, target: Option<u32>) -> MapEdit {
        let target = target.map(|id| JoinTarget {
            target: TargetId(id),
            uuid: [id as u8; 16],
            capacity: 1,
        });
        MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{}", 7000 + node),
            shard: shard.map(ShardId),
            targets: target.into_iter().collect(),
        }
    }

    fn map() -> ZoneMap {
        let joins = [
            join(1, Some(0), None),
            join(2, Some(1), None),
            join(3, None, None),
            join(4, None, Some(4)),
            join(5, None, None),
        ];
        let replicas = MapEdit::SetReplicas {
            shard: ShardId(1),
            replicas: vec![NodeId(2), NodeId(3)],
        };
        let map = ZoneMap::new(CellId([1; 16])).edited(&joins).unwrap();
        map.unwrap().edited(&[replicas]).unwrap().unwrap()
    }

    #[test]
    fn zones_are_added_and_renamed_and_no_two_have_one_name() {
        let add = |zone, name: &str| MapEdit::AddZone {
            zone: ZoneId(zone),
            name: name.to_owned(),
        };
        let rename = |zone, name: &str| MapEdit::RenameZone {
            zone: ZoneId(zone),
            name: name.to_owned(),
        };
        let map = map().edited(&[add(7, ""), add(9, "row b")]);
        let map = map.unwrap().unwrap();
        let name = |map: &ZoneMap, zone| map.zone(ZoneId(zone)).unwrap().name.clone();
        assert_eq!(
            (name(&map, 7), name(&map, 9)),
            ("zone7".into(), "row b".into())
        );
        assert!(map.check().is_empty());
        let renamed = map.edited(&[rename(9, "row c")]).unwrap().unwrap();
        assert_eq!(name(&renamed, 9), "row c");
        assert_eq!(map.edited(&[rename(9, "row b")]), Ok(None));
        let taken = |zone| Err(EditError::ZoneTaken { zone: ZoneId(zone) });
        assert_eq!(map.edited(&[rename(7, "row b")]), taken(9));
        assert_eq!(map.edited(&[add(9, "other")]), taken(9));
        assert_eq!(map.edited(&[add(10, "row b")]), taken(9));
        for edit in [rename(7, ""), rename(7, "12")] {
            assert_eq!(map.edited(&[edit]), Err(EditError::ZoneName));
        }
        assert_eq!(map.edited(&[add(8, "a\nb")]), Err(EditError::Title));
        let unknown = Err(EditError::Unknown { what: "zone" });
        for edit in [add(0, "a"), add(ZoneId::CELL.0, "a"), rename(33, "a")] {
            assert_eq!(map.edited(&[edit]), unknown);
        }
    }

    #[test]
    fn a_node_leaves_only_where_nothing_needs_it() {
        let map = map();
        let remove = |node| map.edited(&[MapEdit::RemoveNode { node: NodeId(node) }]);
        for (node, holds) in [
            (1, "the zone map and the root's shard"),
            (2, "a replica of shard 1"),
            (3, "a replica of shard 1"),
            (4, "target 4"),
        ] {
            let holds = holds.to_owned();
            let node_id = NodeId(node);
            let error = EditError::NodeInUse {
                node: node_id,
                holds,
            };
            assert_eq!(remove(node), Err(error));
        }
        assert_eq!(remove(6), Err(EditError::Unknown { what: "node" }));
        let left = remove(5).unwrap().unwrap();
        assert!(left.node(NodeId(5)).is_none() && left.check().is_empty());
    }
}
