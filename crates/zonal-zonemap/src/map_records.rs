//! The map in a store: its head under one key, each item under a key of its own. So a change writes
//! only what it changes.

use crate::change::{Head, Item, ItemKey, MapChange};
use crate::map::{MAP_FORMAT, ZoneMap};
use zonal_types::describe::Described;
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, Reader};

/// Key of the map's head, and prefix of its items' keys. Behind all keys of the root shard, whose
/// own keys end with tag 0x71.
pub const MAP_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf0];
/// End of the map's keys (exclusive).
const MAP_END: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf1];

fn key(item: ItemKey) -> Vec<u8> {
    let mut key = MAP_KEY.to_vec();
    key.push(item.kind);
    key.extend_from_slice(&item.id.to_be_bytes());
    key
}

/// True for a key of the map.
#[must_use]
pub fn is_of_map(key: &[u8]) -> bool {
    key.starts_with(&MAP_KEY)
}

impl MapChange {
    /// The key-value changes of this map change.
    #[must_use]
    pub fn to_store(&self) -> Vec<KvChange> {
        let puts = self.puts.iter();
        let puts = puts.map(|item| KvChange::put(key(item.key()), item.to_bytes()));
        let gone = self.gone.iter().map(|gone| KvChange::remove(key(*gone)));
        let head = KvChange::put(MAP_KEY.to_vec(), self.head.to_bytes());
        gone.chain(puts).chain([head]).collect()
    }
}

impl ZoneMap {
    /// The key-value changes that write the whole map into an empty store.
    #[must_use]
    pub fn to_store(&self) -> Vec<KvChange> {
        Self::unknown(self.cell).change_to(self).to_store()
    }

    /// Loads the map from a store, if it has one.
    ///
    /// # Errors
    /// `WrongVersion` for another format; `Corrupt`; those of the store.
    pub fn load(kv: &dyn KvRead) -> Result<Option<Self>, ErrorCode> {
        let mut assembly = Assembly::default();
        let mut failed = None;
        kv.scan(&MAP_KEY, &MAP_END, &mut |key, value| {
            failed = assembly.take(key, value).err();
            failed.is_none()
        })?;
        failed.map_or(Ok(assembly.finish()), Err)
    }
}

/// Assembles a map from a store's entries in key order.
#[derive(Debug, Default)]
pub struct Assembly {
    map: Option<ZoneMap>,
}

impl Assembly {
    /// Takes an entry; false where it is not one of the map's.
    ///
    /// # Errors
    /// `WrongVersion` for a map of another format, which its first field tells; `Corrupt`.
    pub fn take(&mut self, at: &[u8], value: &[u8]) -> Result<bool, ErrorCode> {
        if !is_of_map(at) {
            return Ok(false);
        }
        if at == MAP_KEY {
            let format = u16::get(&mut Reader::new(value)).map_err(|_error| ErrorCode::Corrupt)?;
            if format != MAP_FORMAT {
                return Err(ErrorCode::WrongVersion);
            }
            let head = Head::from_bytes(value).map_err(|_error| ErrorCode::Corrupt)?;
            self.map = Some(ZoneMap::empty(head));
            return Ok(true);
        }
        let item = Item::from_bytes(value).map_err(|_error| ErrorCode::Corrupt)?;
        if key(item.key()) != at {
            return Err(ErrorCode::Corrupt);
        }
        self.map.as_mut().ok_or(ErrorCode::Corrupt)?.put(item);
        Ok(true)
    }

    /// The map, if the store had one.
    #[must_use]
    pub fn finish(self) -> Option<ZoneMap> {
        self.map
    }
}

/// A printable map entry; `None` where it is another kind of entry, or damaged.
#[must_use]
pub fn describe(at: &[u8], value: &[u8]) -> Option<Described> {
    if at == MAP_KEY {
        let head = Head::from_bytes(value).ok()?;
        let shown = Described::new("zone map").with("version", head.version.0);
        let shown = shown.with("cell", head.cell.to_string());
        let shown = shown.with("set_width", u64::from(head.set_width));
        let shown = shown.with("next_set", head.next_set.0);
        let sets = head.cell_sets.iter().map(|set| set.to_string());
        let sets = sets.collect::<zonal_types::describe::Field>();
        return Some(shown.with("cell_sets", sets));
    }
    is_of_map(at).then_some(())?;
    let item = Item::from_bytes(value).ok()?;
    (key(item.key()) == at).then_some(())?;
    let field = |text: String| zonal_types::describe::Field::from(text);
    let shown = Described::new(match &item {
        Item::Zone { .. } => "zone of the map",
        Item::Node { .. } => "node of the map",
        Item::Target { .. } => "target of the map",
        Item::Shard { .. } => "shard of the map",
        Item::Partitions { .. } => "partitions of the map",
        Item::Set { .. } => "stripe set of the map",
    });
    let shown = shown.with("number", item.key().id);
    Some(match item {
        Item::Zone { zone } => {
            let sets = zone.default_sets.iter().map(|set| set.to_string());
            shown.with("name", zone.name.as_str()).with(
                "default_sets",
                sets.collect::<zonal_types::describe::Field>(),
            )
        }
        Item::Node { node } => shown
            .with("zone", node.zone.0)
            .with("address", node.address.as_str())
            .with("state", node.state.name()),
        Item::Target { target } => shown
            .with("node", target.node.0)
            .with("capacity", target.capacity)
            .with("state", target.state.name()),
        Item::Shard { shard } => shown
            .with("zone", shard.zone.0)
            .with("node", shard.node.0)
            .with("epoch", shard.epoch.0),
        Item::Partitions { range } => shown
            .with("count", range.count)
            .with("shard", range.shard.0),
        Item::Set { set } => shown
            .with("zone", set.zone.0)
            .with("open", field(set.is_open.to_string()))
            .with("slots", set.slots.len() as u64),
    })
}
