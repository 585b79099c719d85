//! Junctions: directories whose home differs from their parent's.
//!
//! They are keys beside the map, in the same log, with an index by path. So making one costs the
//! same whatever their number, and holders of the map need no update.
//!
//! *Invariants*:
//! 1. Each junction has one key by inode and one by path, which agree.
//! 2. `version` rises with each record that changes a junction; `count` is the number of junctions.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::describe::Described;
use zonal_types::{Codec, ErrorCode, Ino, KvChange, KvRead, ZoneId, codec_struct};
pub use zonal_wire::Junction;

/// Prefix of the keys of junctions: behind all keys of the root shard, and behind the manager's
/// other keys.
pub const JUNCTION_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf4];
/// Tag of the record about all junctions.
const HEAD: u8 = 0;
/// Tag of keys by inode; the inode follows.
const BY_INO: u8 = 1;
/// Tag of keys by path; the path, a zero byte and the inode follow.
const BY_PATH: u8 = 2;

codec_struct! {
    /// The record about all junctions.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct JunctionsHead {
        /// Rises with each record that changes junctions.
        version: u64,
        /// Number of junctions.
        count: u64,
    }
}

/// A change of a junction, ordered by the root shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JunctionChange {
    /// A first-level directory was made.
    Add {
        /// The directory.
        ino: Ino,
        /// Its path.
        path: String,
        /// Its home.
        zone: ZoneId,
    },
    /// The directory was renamed.
    Move {
        /// The directory.
        ino: Ino,
        /// Its new path.
        path: String,
    },
    /// The directory was removed.
    Remove {
        /// The directory.
        ino: Ino,
    },
}

impl JunctionChange {
    fn ino(&self) -> Ino {
        match self {
            Self::Add { ino, .. } | Self::Move { ino, .. } | Self::Remove { ino } => *ino,
        }
    }
}

fn key(kind: u8) -> Vec<u8> {
    let mut key = JUNCTION_KEY.to_vec();
    key.push(kind);
    key
}

/// Key of [`JunctionsHead`].
#[must_use]
pub fn head_key() -> Vec<u8> {
    key(HEAD)
}

fn key_by_ino(ino: Ino) -> Vec<u8> {
    let mut key = key(BY_INO);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

fn key_by_path(path: &str, ino: Ino) -> Vec<u8> {
    let mut key = key(BY_PATH);
    key.extend_from_slice(path.as_bytes());
    key.push(0);
    key.extend_from_slice(&ino.0.to_be_bytes());
    key
}

/// The path and the inode in a key by path.
fn named_by(key: &[u8]) -> Option<(&str, Ino)> {
    let rest = key.strip_prefix(&JUNCTION_KEY)?.strip_prefix(&[BY_PATH])?;
    let (path, ino) = rest.split_at_checked(rest.len().checked_sub(8)?)?;
    let path = std::str::from_utf8(path.strip_suffix(&[0])?).ok()?;
    Some((path, Ino(u64::from_be_bytes(ino.try_into().ok()?))))
}

fn decode(ino: Ino, value: &[u8]) -> Result<Junction, ErrorCode> {
    let (path, zone) =
        <(String, ZoneId)>::from_bytes(value).map_err(|_error| ErrorCode::Corrupt)?;
    Ok(Junction { ino, path, zone })
}

/// Reads the record about all junctions.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn head(kv: &dyn KvRead) -> Result<JunctionsHead, ErrorCode> {
    match kv.get(&key(HEAD))? {
        Some(bytes) => JunctionsHead::from_bytes(&bytes).map_err(|_error| ErrorCode::Corrupt),
        None => Ok(JunctionsHead::default()),
    }
}

/// The junction of a directory.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn by_ino(kv: &dyn KvRead, ino: Ino) -> Result<Option<Junction>, ErrorCode> {
    let found = kv.get(&key_by_ino(ino))?;
    found.map(|value| decode(ino, &value)).transpose()
}

/// Junctions with this path: at most one in a sound cell.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn by_path(kv: &dyn KvRead, path: &str) -> Result<Vec<Junction>, ErrorCode> {
    let (first, last) = (key_by_path(path, Ino(0)), key_by_path(path, Ino(u64::MAX)));
    let mut found = Vec::new();
    scan_paths(kv, &first, &last, &mut |junction| {
        found.push(junction);
        true
    })?;
    Ok(found)
}

/// A page of at most `limit` junctions after `after`, ordered by path; the flag is true for the
/// last page.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn page(
    kv: &dyn KvRead,
    after: Option<(&str, Ino)>,
    limit: usize,
) -> Result<(Vec<Junction>, bool), ErrorCode> {
    let first = match after {
        Some((path, ino)) => {
            let mut key = key_by_path(path, ino);
            key.push(0);
            key
        }
        None => key(BY_PATH),
    };
    let (mut found, mut is_end) = (Vec::new(), true);
    scan_paths(kv, &first, &key(BY_PATH + 1), &mut |junction| {
        is_end = found.len() < limit;
        if is_end {
            found.push(junction);
        }
        is_end
    })?;
    Ok((found, is_end))
}

fn scan_paths(
    kv: &dyn KvRead,
    first: &[u8],
    last: &[u8],
    visit: &mut dyn FnMut(Junction) -> bool,
) -> Result<(), ErrorCode> {
    let mut is_damaged = false;
    kv.scan(first, last, &mut |key, value| {
        let named = named_by(key).zip(ZoneId::from_bytes(value).ok());
        let Some(((path, ino), zone)) = named else {
            is_damaged = true;
            return false;
        };
        let path = path.to_owned();
        visit(Junction { ino, path, zone })
    })?;
    match is_damaged {
        true => Err(ErrorCode::Corrupt),
        false => Ok(()),
    }
}

/// All junctions, by inode.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn all(kv: &dyn KvRead) -> Result<Vec<Junction>, ErrorCode> {
    let (mut found, mut failed) = (Vec::new(), None);
    kv.scan(&key(BY_INO), &key(BY_PATH), &mut |key, value| {
        match of_entry(key, value) {
            Some(Ok(junction)) => found.push(junction),
            Some(Err(code)) => failed = Some(code),
            None => {}
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(found), Err)
}

/// Decodes a store entry as a junction; `None` where it is another kind of entry.
#[must_use]
pub fn of_entry(key: &[u8], value: &[u8]) -> Option<Result<Junction, ErrorCode>> {
    let rest = key.strip_prefix(&JUNCTION_KEY)?.strip_prefix(&[BY_INO])?;
    let ino = rest.try_into().map(|ino| Ino(u64::from_be_bytes(ino)));
    Some(match ino {
        Ok(ino) => decode(ino, value),
        Err(_length) => Err(ErrorCode::Corrupt),
    })
}

/// Plans the key-value changes of junction changes. `zone_of` returns the home of a renamed
/// directory that has no junction.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn plan(
    kv: &dyn KvRead,
    changes: Vec<JunctionChange>,
    zone_of: &dyn Fn(Ino) -> Option<ZoneId>,
) -> Result<Vec<KvChange>, ErrorCode> {
    // Each touched junction: before and after.
    let mut touched: BTreeMap<Ino, (Option<Junction>, Option<Junction>)> = BTreeMap::new();
    for change in changes {
        let ino = change.ino();
        let (_, now) = match touched.entry(ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let found = by_ino(kv, ino)?;
                place.insert((found.clone(), found))
            }
        };
        *now = match change {
            JunctionChange::Add { path, zone, .. } => Some(Junction { ino, path, zone }),
            JunctionChange::Move { path, .. } => {
                let zone = now.as_ref().map(|now| now.zone).or_else(|| zone_of(ino));
                zone.map(|zone| Junction { ino, path, zone })
            }
            JunctionChange::Remove { .. } => None,
        };
    }
    let mut out = Vec::new();
    let mut all = head(kv)?;
    for (ino, (before, now)) in touched {
        if before == now {
            continue;
        }
        if let Some(before) = &before {
            out.push(KvChange::remove(key_by_path(&before.path, ino)));
            all.count = all.count.saturating_sub(1);
        }
        match now {
            Some(now) => {
                out.push(KvChange::put(
                    key_by_path(&now.path, ino),
                    now.zone.to_bytes(),
                ));
                let value = (now.path, now.zone).to_bytes();
                out.push(KvChange::put(key_by_ino(ino), value));
                all.count += 1;
            }
            None => out.push(KvChange::remove(key_by_ino(ino))),
        }
    }
    if !out.is_empty() {
        all.version += 1;
        out.push(KvChange::put(key(HEAD), all.to_bytes()));
    }
    Ok(out)
}

/// A junction as a check reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJunction {
    /// The junction.
    pub junction: Junction,
    /// Both keys exist and agree.
    pub is_whole: bool,
}

/// Collects junctions from a store's entries, damaged ones too.
#[derive(Debug, Default)]
pub struct JunctionListing {
    by_ino: BTreeMap<Ino, Option<Junction>>,
    by_path: BTreeSet<(Ino, String, ZoneId)>,
}

impl JunctionListing {
    /// Reads all junctions of a store.
    ///
    /// # Errors
    /// Those of the store.
    pub fn read(kv: &dyn KvRead) -> Result<Vec<ListedJunction>, ErrorCode> {
        let mut listing = Self::default();
        kv.scan(&key(BY_INO), &key(BY_PATH + 1), &mut |key, value| {
            listing.take(key, value);
            true
        })?;
        Ok(listing.finish())
    }

    /// Takes a store entry; ignores those of other kinds.
    pub fn take(&mut self, at: &[u8], value: &[u8]) {
        let rest = at.strip_prefix(&JUNCTION_KEY).unwrap_or_default();
        if let Some((&BY_INO, ino)) = rest.split_first()
            && let Ok(ino) = ino.try_into()
        {
            let ino = Ino(u64::from_be_bytes(ino));
            self.by_ino.insert(ino, decode(ino, value).ok());
        }
        if let Some((path, ino)) = named_by(at) {
            // Zone 0 stands for an unreadable zone; no junction has it.
            let zone = ZoneId::from_bytes(value).unwrap_or(ZoneId(0));
            self.by_path.insert((ino, path.to_owned(), zone));
        }
    }

    /// Returns the junctions. Where the keys of a directory disagree, each key yields an entry of
    /// its own.
    #[must_use]
    pub fn finish(mut self) -> Vec<ListedJunction> {
        let mut all = Vec::new();
        for (ino, junction) in self.by_ino {
            let junction = junction.unwrap_or(Junction {
                ino,
                path: String::new(),
                zone: ZoneId(0),
            });
            let pair = (ino, junction.path.clone(), junction.zone);
            all.push(ListedJunction {
                is_whole: self.by_path.remove(&pair),
                junction,
            });
        }
        let left = self.by_path.into_iter();
        all.extend(left.map(|(ino, path, zone)| ListedJunction {
            junction: Junction { ino, path, zone },
            is_whole: false,
        }));
        all
    }
}

/// Plans the changes that make a store have exactly these junctions, whatever it has now.
///
/// # Errors
/// Those of the store.
pub fn anew(kv: &dyn KvRead, wanted: &[Junction]) -> Result<Vec<KvChange>, ErrorCode> {
    let mut keys: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for junction in wanted {
        let (path, zone) = (&junction.path, junction.zone);
        keys.insert(key_by_path(path, junction.ino), zone.to_bytes());
        let value = (path.clone(), zone).to_bytes();
        keys.insert(key_by_ino(junction.ino), value);
    }
    let version = head(kv).unwrap_or_default().version + 1;
    let count = wanted.len() as u64;
    let mut out = Vec::new();
    kv.scan(&key(HEAD), &key(u8::MAX), &mut |at, value| {
        match keys.remove(at) {
            Some(same) if same == value => {}
            Some(other) => out.push(KvChange::put(at.to_vec(), other)),
            None if at == key(HEAD) => {}
            None => out.push(KvChange::remove(at.to_vec())),
        }
        true
    })?;
    out.extend(keys.into_iter().map(|(at, value)| KvChange::put(at, value)));
    let counted = head(kv).is_ok_and(|head| head.count == count);
    if !out.is_empty() || !counted {
        let head = JunctionsHead { version, count };
        out.push(KvChange::put(key(HEAD), head.to_bytes()));
    }
    Ok(out)
}

/// A printable junction entry; `None` where it is another kind of entry, or damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    if let Some(junction) = of_entry(key, value) {
        let junction = junction.ok()?;
        let shown = Described::new("junction").with("ino", junction.ino.0);
        return Some(
            shown
                .with("path", junction.path.as_str())
                .with("zone", junction.zone.0),
        );
    }
    if let Some((path, ino)) = named_by(key) {
        let shown = Described::new("junction by path").with("path", path);
        let zone = ZoneId::from_bytes(value).ok()?;
        return Some(shown.with("ino", ino.0).with("zone", zone.0));
    }
    (key.strip_prefix(&JUNCTION_KEY)? == [HEAD]).then_some(())?;
    let head = JunctionsHead::from_bytes(value).ok()?;
    let shown = Described::new("junctions").with("version", head.version);
    Some(shown.with("count", head.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kv = BTreeMap<Vec<u8>, Vec<u8>>;

    fn make(kv: &mut Kv, changes: &[JunctionChange]) -> usize {
        let planned = plan(kv, changes.to_vec(), &|_ino| Some(ZoneId(7))).unwrap();
        for change in &planned {
            change.apply_to(kv);
        }
        planned.len()
    }

    fn add(ino: u64, path: &str) -> JunctionChange {
        JunctionChange::Add {
            ino: Ino(ino),
            path: path.into(),
            zone: ZoneId(1),
        }
    }

    fn paths(kv: &Kv) -> Vec<String> {
        let (found, is_end) = page(kv, None, 100).unwrap();
        assert!(is_end);
        let mut by_ino: Vec<Junction> = all(kv).unwrap();
        by_ino.sort_by(|one, other| (&one.path, one.ino).cmp(&(&other.path, other.ino)));
        assert_eq!(by_ino, found, "both keys say the same");
        assert_eq!(head(kv).unwrap().count, found.len() as u64);
        assert!(kv.iter().all(|(key, value)| describe(key, value).is_some()));
        found.into_iter().map(|junction| junction.path).collect()
    }

    #[test]
    fn junctions_are_added_moved_and_removed() {
        let mut kv = Kv::new();
        assert_eq!(make(&mut kv, &[add(1, "/a")]), 3);
        assert_eq!(make(&mut kv, &[add(1, "/a")]), 0, "as it was");
        make(&mut kv, &[add(2, "/b"), add(3, "/a\u{e9}")]);
        assert_eq!(paths(&kv), ["/a", "/a\u{e9}", "/b"]);
        // Two directories swap their paths.
        let moved = |ino, path: &str| JunctionChange::Move {
            ino: Ino(ino),
            path: path.into(),
        };
        make(&mut kv, &[moved(1, "/b"), moved(2, "/a")]);
        assert_eq!(by_path(&kv, "/a").unwrap()[0].ino, Ino(2));
        assert_eq!(by_path(&kv, "/b").unwrap()[0].ino, Ino(1));
        assert_eq!(by_path(&kv, "/").unwrap(), []);
        assert_eq!(by_ino(&kv, Ino(1)).unwrap().unwrap().zone, ZoneId(1));
        // One directory replaces another; a missing one is added again.
        let gone = JunctionChange::Remove { ino: Ino(2) };
        make(&mut kv, &[gone.clone(), moved(1, "/a"), moved(9, "/z")]);
        assert_eq!(paths(&kv), ["/a", "/a\u{e9}", "/z"]);
        assert_eq!(by_ino(&kv, Ino(9)).unwrap().unwrap().zone, ZoneId(7));
        let version = head(&kv).unwrap().version;
        assert_eq!(make(&mut kv, &[gone]), 0);
        assert_eq!(head(&kv).unwrap().version, version);
    }

    #[test]
    fn paging_lists_each_junction_once() {
        let mut kv = Kv::new();
        let many: Vec<JunctionChange> = (0..25)
            .map(|ino| add(ino, &format!("/{}", ino / 2)))
            .collect();
        make(&mut kv, &many);
        let (mut seen, mut after): (Vec<Junction>, Option<(String, Ino)>) = (Vec::new(), None);
        loop {
            let last = after.as_ref().map(|(path, ino)| (path.as_str(), *ino));
            let (found, is_end) = page(&kv, last, 7).unwrap();
            after = found.last().map(|last| (last.path.clone(), last.ino));
            seen.extend(found);
            if is_end {
                break;
            }
        }
        assert_eq!(seen, page(&kv, None, 25).unwrap().0);
        assert_eq!((seen.len(), page(&kv, None, 25).unwrap().1), (25, true));
        assert_eq!(by_path(&kv, "/3").unwrap().len(), 2);
    }

    #[test]
    fn damaged_junctions_are_found_and_rebuilt() {
        let mut sound = Kv::new();
        make(&mut sound, &[add(1, "/a"), add(2, "/b")]);
        let wanted = all(&sound).unwrap();
        let whole = JunctionListing::read(&sound).unwrap();
        assert!(whole.len() == 2 && whole.iter().all(|of| of.is_whole));
        assert_eq!(anew(&sound, &wanted), Ok(Vec::new()));
        for (at, _) in sound.clone() {
            for value in [None, Some(&b""[..]), Some(&[9; 40][..])] {
                let mut bad = sound.clone();
                match value {
                    Some(value) => bad.insert(at.clone(), value.to_vec()),
                    None => bad.remove(&at),
                };
                let listed = JunctionListing::read(&bad).unwrap();
                let is_head = at == key(HEAD);
                assert_eq!(listed.iter().all(|of| of.is_whole), is_head, "{at:?}");
                for change in anew(&bad, &wanted).unwrap() {
                    change.apply_to(&mut bad);
                }
                assert_eq!(JunctionListing::read(&bad).unwrap(), whole);
                assert_eq!(paths(&bad), ["/a", "/b"]);
            }
        }
    }

    #[test]
    fn damaged_keys_are_refused_or_ignored() {
        let mut kv = Kv::new();
        make(&mut kv, &[add(1, "/a")]);
        for (at, _) in kv.clone() {
            for value in [&b""[..], &[0xff; 3], &[0xff; 40]] {
                let mut bad = kv.clone();
                bad.insert(at.clone(), value.to_vec());
                let read = (head(&bad), by_ino(&bad, Ino(1)), page(&bad, None, 9));
                assert!(read.0.is_err() || read.1.is_err() || read.2.is_err());
            }
        }
        kv.insert([&key(BY_PATH)[..], b"short"].concat(), vec![1, 0]);
        assert_eq!(page(&kv, None, 9), Err(ErrorCode::Corrupt));
        kv.insert([&key(BY_INO)[..], b"short"].concat(), vec![1, 0]);
        assert_eq!(all(&kv), Err(ErrorCode::Corrupt));
    }
}
