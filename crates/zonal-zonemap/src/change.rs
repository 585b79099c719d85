//! Map changes: the difference between two versions of the map, as it is stored and sent.

use crate::map::{MAP_FORMAT, Node, PartitionRange, Shard, StripeSet, Target, Zone, ZoneMap};
use thiserror::Error;
use zonal_types::{
    CellId, MapVersion, NodeId, ShardId, StripeSetId, TargetId, ZoneId, codec_enum, codec_struct,
};

codec_struct! {
    /// The fields of a map besides its lists.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Head {
        /// Format version of the map.
        format: u16,
        /// The cell.
        cell: CellId,
        /// Map version; strictly increasing.
        version: MapVersion,
        /// Nodes that keep the map.
        managers: Vec<NodeId>,
        /// Width of a new stripe set: slots at most.
        set_width: u16,
        /// Number of the next stripe set.
        next_set: StripeSetId,
        /// Stripe sets over all zones that new files take in turn.
        cell_sets: Vec<StripeSetId>,
    }
}

codec_enum! {
    /// An item of one of the map's lists.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Item {
        /// A zone.
        Zone = 1 {
            /// The zone.
            zone: Zone,
        },
        /// A node.
        Node = 2 {
            /// The node.
            node: Node,
        },
        /// A target.
        Target = 3 {
            /// The target.
            target: Target,
        },
        /// A shard.
        Shard = 4 {
            /// The shard.
            shard: Shard,
        },
        /// A run of partitions.
        Partitions = 5 {
            /// The run.
            range: PartitionRange,
        },
        /// A stripe set.
        Set = 6 {
            /// The stripe set.
            set: StripeSet,
        },
    }
}

codec_struct! {
    /// Key of an item: the tag of its kind and its number in that list.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct ItemKey {
        /// As [`Item::tag`].
        kind: u8,
        /// The item's number.
        id: u32,
    }
}

impl Item {
    /// The item's key.
    #[must_use]
    pub fn key(&self) -> ItemKey {
        let id = match self {
            Self::Zone { zone } => u32::from(zone.id.0),
            Self::Node { node } => node.id.0,
            Self::Target { target } => target.id.0,
            Self::Shard { shard } => shard.id.0,
            Self::Partitions { range } => range.first.0,
            Self::Set { set } => set.id.0,
        };
        ItemKey {
            kind: self.tag(),
            id,
        }
    }
}

codec_struct! {
    /// The change from one version to a later one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MapChange {
        /// The version that the change applies to.
        from: MapVersion,
        /// The head after the change.
        head: Head,
        /// Items that are new or changed.
        puts: Vec<Item>,
        /// Items that are removed.
        gone: Vec<ItemKey>,
    }
}

impl MapChange {
    /// True where the change alters nothing but the version of a map with this head.
    pub(crate) fn is_empty(&self, before: &Head) -> bool {
        let head = Head {
            version: self.head.version,
            ..before.clone()
        };
        self.puts.is_empty() && self.gone.is_empty() && self.head == head
    }
}

/// Why a change does not fit a map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChangeMismatch {
    /// The change applies to another version, or does not lead to a later one.
    #[error("a change from map version {from} to {to} does not fit version {have}")]
    Version {
        /// The version of the map at hand.
        have: MapVersion,
        /// The version that the change applies to.
        from: MapVersion,
        /// The version that the change leads to.
        to: MapVersion,
    },
    /// The change belongs to another format or cell.
    #[error("the change belongs to another cell or format")]
    Foreign,
    /// The change removes an item that does not exist.
    #[error("the change removes an item that the map does not have: {0:?}")]
    Unknown(ItemKey),
    /// The result breaks an invariant.
    #[error("the changed map breaks an invariant: {0}")]
    Broken(String),
}

/// Compares two versions of a list: items that are new or changed, and keys of items that are
/// removed.
fn differ<T: Clone + PartialEq, K: Ord>(
    (before, after): (&[T], &[T]),
    key: impl Fn(&T) -> K,
    item: impl Fn(T) -> Item,
    change: &mut MapChange,
) {
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => key(old).cmp(&key(new)),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return,
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        match (was, is) {
            (Some(was), None) => change.gone.push(item(was.clone()).key()),
            (was, Some(is)) if was != Some(is) => change.puts.push(item(is.clone())),
            _ => {}
        }
    }
}

fn put<T, K: Ord>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> K) {
    match list.binary_search_by(|known| key(known).cmp(&key(&item))) {
        Ok(index) => list[index] = item,
        Err(index) => list.insert(index, item),
    }
}

fn remove<T>(list: &mut Vec<T>, id: u32, key: impl Fn(&T) -> u32) -> bool {
    let found = list.binary_search_by_key(&id, key);
    found.is_ok_and(|index| {
        list.remove(index);
        true
    })
}

impl ZoneMap {
    /// The map's fields besides its lists.
    #[must_use]
    pub fn head(&self) -> Head {
        Head {
            format: self.format,
            cell: self.cell,
            version: self.version,
            managers: self.managers.clone(),
            set_width: self.set_width,
            next_set: self.next_set,
            cell_sets: self.cell_sets.clone(),
        }
    }

    /// A map with this head and without items.
    pub(crate) fn empty(head: Head) -> Self {
        let mut map = Self::new(head.cell);
        map.take_head(head);
        map
    }

    fn take_head(&mut self, head: Head) {
        self.format = head.format;
        self.version = head.version;
        self.managers = head.managers;
        self.set_width = head.set_width;
        self.next_set = head.next_set;
        self.cell_sets = head.cell_sets;
    }

    /// Inserts or replaces an item.
    pub(crate) fn put(&mut self, item: Item) {
        match item {
            Item::Zone { zone } => put(&mut self.zones, zone, |zone| zone.id),
            Item::Node { node } => put(&mut self.nodes, node, |node| node.id),
            Item::Target { target } => put(&mut self.targets, target, |target| target.id),
            Item::Shard { shard } => put(&mut self.shards, shard, |shard| shard.id),
            Item::Partitions { range } => put(&mut self.partitions, range, |range| range.first),
            Item::Set { set } => put(&mut self.sets, set, |set| set.id),
        }
    }

    /// The item with this key.
    pub(crate) fn item(&self, key: ItemKey) -> Option<Item> {
        let id = key.id;
        match key.kind {
            1 => {
                let zone = self.zone(ZoneId(u16::try_from(id).ok()?));
                zone.cloned().map(|zone| Item::Zone { zone })
            }
            2 => self
                .node(NodeId(id))
                .cloned()
                .map(|node| Item::Node { node }),
            3 => {
                let target = self.target(TargetId(id)).cloned();
                target.map(|target| Item::Target { target })
            }
            4 => self
                .shard(ShardId(id))
                .cloned()
                .map(|shard| Item::Shard { shard }),
            5 => {
                let mut ranges = self.partitions.iter();
                let range = ranges.find(|range| range.first.0 == id).copied();
                range.map(|range| Item::Partitions { range })
            }
            6 => self
                .set(StripeSetId(id))
                .cloned()
                .map(|set| Item::Set { set }),
            _ => None,
        }
    }

    fn remove(&mut self, key: ItemKey) -> bool {
        let id = key.id;
        match key.kind {
            1 => remove(&mut self.zones, id, |zone| zone.id.0.into()),
            2 => remove(&mut self.nodes, id, |node| node.id.0),
            3 => remove(&mut self.targets, id, |target| target.id.0),
            4 => remove(&mut self.shards, id, |shard| shard.id.0),
            5 => remove(&mut self.partitions, id, |range| range.first.0),
            6 => remove(&mut self.sets, id, |set| set.id.0),
            _ => false,
        }
    }

    /// The change from this map to `next`.
    #[must_use]
    pub fn change_to(&self, next: &Self) -> MapChange {
        let mut change = MapChange {
            from: self.version,
            head: next.head(),
            puts: Vec::new(),
            gone: Vec::new(),
        };
        let out = &mut change;
        let lists = (&self.zones[..], &next.zones[..]);
        differ(lists, |zone| zone.id, |zone| Item::Zone { zone }, out);
        let lists = (&self.nodes[..], &next.nodes[..]);
        differ(lists, |node| node.id, |node| Item::Node { node }, out);
        let lists = (&self.targets[..], &next.targets[..]);
        differ(
            lists,
            |target| target.id,
            |target| Item::Target { target },
            out,
        );
        let lists = (&self.shards[..], &next.shards[..]);
        differ(lists, |shard| shard.id, |shard| Item::Shard { shard }, out);
        let lists = (&self.partitions[..], &next.partitions[..]);
        differ(
            lists,
            |range| range.first,
            |range| Item::Partitions { range },
            out,
        );
        let lists = (&self.sets[..], &next.sets[..]);
        differ(lists, |set| set.id, |set| Item::Set { set }, out);
        change
    }

    /// Applies a change to a copy of the map. A caller that applies changes of others checks the
    /// last result ([`ZoneMap::check`]).
    ///
    /// # Errors
    /// See [`ChangeMismatch`]; this map stays as it is.
    pub fn changed(&self, change: &MapChange) -> Result<Self, ChangeMismatch> {
        let mut map = self.clone();
        map.take_change(change)?;
        Ok(map)
    }

    /// Applies a change in place. After an error the caller must drop the map.
    pub(crate) fn take_change(&mut self, change: &MapChange) -> Result<(), ChangeMismatch> {
        let head = &change.head;
        if head.cell != self.cell || head.format != MAP_FORMAT {
            return Err(ChangeMismatch::Foreign);
        }
        if change.from != self.version || head.version <= self.version {
            return Err(ChangeMismatch::Version {
                have: self.version,
                from: change.from,
                to: head.version,
            });
        }
        self.take_head(head.clone());
        for key in &change.gone {
            if !self.remove(*key) {
                return Err(ChangeMismatch::Unknown(*key));
            }
        }
        change.puts.iter().for_each(|item| self.put(item.clone()));
        Ok(())
    }
}
