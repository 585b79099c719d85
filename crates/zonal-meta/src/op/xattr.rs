//! Extended attributes: `user.*`, `trusted.*`, `security.*`, the two POSIX ACLs, and `zonal.layout`
//! (a directory's policy or a file's layout as text, never listed).

use super::relocations::leaving_copies::staying;
use super::relocations::{self, WantedCopies};
use super::{Result, policy};
use crate::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use crate::inode::{FLAG_OWN_POLICY, Inode};
use crate::keys;
use crate::permission::{READ, S_ISGID, S_ISVTX, WRITE, check, is_owner, is_root};
use crate::tx::Tx;
use std::fmt::Write;
use zonal_types::limits::{
    XATTR_INODE_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, xattr_flags,
};
use zonal_types::{
    Blob, Credentials, ErrorCode, FileKind, Ino, Placement, Redundancy, StripePolicy, StripeSetId,
    ZoneId,
};
use zonal_wire::MetaReply;
use zonal_wire::meta::flags::{XATTR_CREATE, XATTR_REPLACE};

/// Name of the attribute that shows a layout as text.
pub const LAYOUT_NAME: &[u8] = b"zonal.layout";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
    Layout,
}

impl Class {
    fn of(name: &[u8]) -> Result<Self> {
        if name.len() > XATTR_NAME_BYTES_MAX {
            return Err(ErrorCode::Range);
        }
        if name.contains(&0) {
            return Err(ErrorCode::Invalid);
        }
        let class = match name {
            ACCESS_NAME => Self::AccessAcl,
            DEFAULT_NAME => Self::DefaultAcl,
            LAYOUT_NAME => Self::Layout,
            b"user." | b"trusted." | b"security." => return Err(ErrorCode::Invalid),
            _ if name.starts_with(b"user.") => Self::User,
            _ if name.starts_with(b"trusted.") => Self::Trusted,
            _ if name.starts_with(b"security.") => Self::Security,
            _ => return Err(ErrorCode::NotSupported),
        };
        Ok(class)
    }

    /// Linux's `xattr_permission` and the owner's checks of ACLs and security attributes.
    fn check(self, tx: &Tx<'_>, who: &Credentials, inode: &Inode, write: bool) -> Result<()> {
        let refusal = if write {
            ErrorCode::NotPermitted
        } else {
            ErrorCode::NoData
        };
        match self {
            Self::Trusted if !is_root(who) => Err(refusal),
            Self::Security if write && !is_root(who) => Err(ErrorCode::NotPermitted),
            Self::User => {
                if !matches!(inode.kind, FileKind::File | FileKind::Directory) {
                    return Err(refusal);
                }
                if write && inode.is_dir() && inode.mode & S_ISVTX != 0 && !is_owner(who, inode) {
                    return Err(ErrorCode::NotPermitted);
                }
                check(tx, who, inode, if write { WRITE } else { READ })
            }
            Self::AccessAcl | Self::DefaultAcl if inode.kind == FileKind::Symlink => {
                Err(ErrorCode::NotSupported)
            }
            Self::AccessAcl | Self::DefaultAcl | Self::Layout if write && !is_owner(who, inode) => {
                Err(ErrorCode::NotPermitted)
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn get(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, name: &[u8]) -> Result {
    let inode = tx.inode(ino)?;
    let class = Class::of(name)?;
    class.check(tx, who, &inode, false)?;
    if class == Class::Layout {
        let targets = policy::targets(tx, &inode, inode.policy);
        let nodes = policy::nodes(tx, &inode, inode.policy);
        let text = layout_text(&inode, (targets, nodes)).ok_or(ErrorCode::NoData)?;
        return Ok(MetaReply::Text {
            text: Blob(text.into_bytes()),
        });
    }
    if inode.xattrs & !xattr_flags::LAYOUT == 0 {
        return Err(ErrorCode::NoData);
    }
    let value = tx.get(&keys::xattr(ino, name))?.ok_or(ErrorCode::NoData)?;
    Ok(MetaReply::Text { text: Blob(value) })
}

pub(crate) fn list(tx: &mut Tx<'_>, who: &Credentials, ino: Ino) -> Result {
    let inode = tx.inode(ino)?;
    let mut names = Vec::new();
    if inode.xattrs & !xattr_flags::LAYOUT != 0 {
        for (name, _size) in stored(tx, ino)? {
            if is_root(who) || !name.starts_with(b"trusted.") {
                names.push(Blob(name));
            }
        }
    }
    Ok(MetaReply::Names { names })
}

/// Stored names with the sizes of their values.
fn stored(tx: &Tx<'_>, ino: Ino) -> Result<Vec<(Vec<u8>, usize)>> {
    let (start, end) = keys::xattrs(ino);
    let found = tx.range(&start, &end)?.into_iter();
    found
        .map(|(key, value)| {
            let name = key.get(keys::XATTR_NAME_AT..).ok_or(ErrorCode::Corrupt)?;
            Ok((name.to_vec(), value.len()))
        })
        .collect()
}

pub(crate) fn set(
    tx: &mut Tx<'_>,
    who: &Credentials,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    flags: u32,
) -> Result {
    let mut inode = tx.inode(ino)?;
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(ErrorCode::Invalid);
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(ErrorCode::TooBig);
    }
    let class = Class::of(name)?;
    class.check(tx, who, &inode, true)?;
    if class == Class::Layout {
        let policy = parse_policy(value)?;
        if !inode.is_dir() {
            let policy = policy.unwrap_or_default();
            let wanted = WantedCopies {
                policy: &policy,
                has_copies: has_word(value, "redundancy="),
                has_zone: has_word(value, "also_zone="),
            };
            if inode.is_file() && relocations::set_copies(tx, &mut inode, wanted)? {
                inode.changed(tx.now.wall);
                tx.save(inode);
            }
            return Ok(MetaReply::Done);
        }
        // An inherited count may be larger, from a directory above where there is a larger zone; a
        // new one may not.
        let before = inode.policy.map_or(0, |policy| policy.count);
        let count = policy.map_or(0, |policy| policy.count);
        if count != before && usize::from(count) > policy::targets(tx, &inode, policy) {
            return Err(ErrorCode::Range);
        }
        let copies = |policy: StripePolicy| policy.redundancy.zone_copies();
        let (before, now) = (inode.policy.map_or(1, copies), policy.map_or(1, copies));
        if now > before && usize::from(now) > policy::nodes(tx, &inode, policy) {
            return Err(ErrorCode::Range);
        }
        policy::check_also_zone(tx, &inode, policy)?;
        policy::apply(tx, &mut inode, policy)?;
        tx.save(inode);
        return Ok(MetaReply::Done);
    }
    let key = keys::xattr(ino, name);
    let before = tx.get(&key)?;
    match (&before, flags) {
        (Some(_), flags) if flags & XATTR_CREATE != 0 => return Err(ErrorCode::Exists),
        (None, flags) if flags & XATTR_REPLACE != 0 => return Err(ErrorCode::NoData),
        _ => {}
    }
    let value = match class {
        Class::AccessAcl | Class::DefaultAcl => prepare_acl(who, &mut inode, class, value)?,
        _ => Some(value.to_vec()),
    };
    let Some(value) = value else {
        return drop_value(tx, inode, name, key);
    };
    let others: usize = stored(tx, ino)?
        .iter()
        .filter(|(other, _)| other != name)
        .map(|(other, size)| other.len() + size)
        .sum();
    if others + name.len() + value.len() > XATTR_INODE_BYTES_MAX {
        return Err(ErrorCode::NoSpace);
    }
    tx.put(key, value);
    inode.xattrs |= flag_of(name);
    inode.changed(tx.now.wall);
    tx.save(inode);
    Ok(MetaReply::Done)
}

/// Checks an ACL to be set. The access ACL sets the mode; `None`: the mode alone expresses the
/// rest.
fn prepare_acl(
    who: &Credentials,
    inode: &mut Inode,
    class: Class,
    value: &[u8],
) -> Result<Option<Vec<u8>>> {
    let acl = Acl::parse(value)?;
    if class == Class::DefaultAcl {
        return match acl {
            Some(_) if !inode.is_dir() => Err(ErrorCode::Access),
            acl => Ok(acl.map(|acl| acl.to_bytes())),
        };
    }
    let Some(acl) = acl else {
        return Ok(None);
    };
    let mut mode = inode.mode & !0o777 | acl.mode_bits();
    if !is_root(who) && !who.in_group(inode.gid) {
        mode &= !S_ISGID;
    }
    inode.mode = mode;
    Ok((!acl.is_minimal()).then(|| acl.to_bytes()))
}

pub(crate) fn remove(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, name: &[u8]) -> Result {
    let mut inode = tx.inode(ino)?;
    let class = Class::of(name)?;
    if name == xattr_flags::CAPABILITY_NAME {
        // The kernel sends this before a write. Where a process asks for it, the kernel has checked
        // its permission.
        check(tx, who, &inode, WRITE)?;
    } else {
        class.check(tx, who, &inode, true)?;
    }
    if class == Class::Layout {
        if !inode.is_dir() || !inode.has(FLAG_OWN_POLICY) {
            return Err(ErrorCode::NoData);
        }
        policy::apply(tx, &mut inode, None)?;
        tx.save(inode);
        return Ok(MetaReply::Done);
    }
    let key = keys::xattr(ino, name);
    // Linux allows the removal of an absent ACL.
    let is_acl = matches!(class, Class::AccessAcl | Class::DefaultAcl);
    if !is_acl && tx.get(&key)?.is_none() {
        return Err(ErrorCode::NoData);
    }
    drop_value(tx, inode, name, key)
}

fn drop_value(tx: &mut Tx<'_>, mut inode: Inode, name: &[u8], key: Vec<u8>) -> Result {
    if tx.get(&key)?.is_some() {
        tx.remove(key);
    }
    let names = stored(tx, inode.ino)?;
    let flags = names.iter().filter(|(other, _)| other != name);
    let flags = flags.fold(0, |flags, (other, _)| flags | flag_of(other));
    inode.xattrs = inode.xattrs & xattr_flags::LAYOUT | flags;
    inode.changed(tx.now.wall);
    tx.save(inode);
    Ok(MetaReply::Done)
}

/// The kinds of attribute that a name stands for.
#[must_use]
pub fn flag_of(name: &[u8]) -> u8 {
    match name {
        ACCESS_NAME => xattr_flags::ACL_ACCESS,
        DEFAULT_NAME => xattr_flags::ACL_DEFAULT,
        xattr_flags::CAPABILITY_NAME => xattr_flags::SECURITY | xattr_flags::CAPABILITY,
        _ if name.starts_with(b"user.") => xattr_flags::USER,
        _ if name.starts_with(b"trusted.") => xattr_flags::TRUSTED,
        _ => xattr_flags::SECURITY,
    }
}

fn redundancy_words(redundancy: Redundancy) -> String {
    let copies = match redundancy.zone_copies() {
        1 => "none".to_owned(),
        copies => format!("copies:{copies}"),
    };
    let also = match redundancy.also_zone() {
        None => "none".to_owned(),
        Some((ZoneId::CELL, _)) => "any".to_owned(),
        Some((zone, _)) => zone.to_string(),
    };
    format!("redundancy={copies} also_zone={also}")
}

fn parse_copies(word: &str) -> Result<Redundancy> {
    if word == "none" {
        return Ok(Redundancy::None);
    }
    let copies = word.strip_prefix("copies:").and_then(|of| of.parse().ok());
    copies
        .and_then(Redundancy::of_copies)
        .ok_or(ErrorCode::Invalid)
}

/// The other zone for a copy: `ZoneId::CELL` for any.
fn parse_also_zone(word: &str) -> Result<Option<ZoneId>> {
    match word {
        "none" => Ok(None),
        "any" => Ok(Some(ZoneId::CELL)),
        number => match number.parse().map(ZoneId) {
            Ok(ZoneId::CELL) | Err(_) => Err(ErrorCode::Invalid),
            Ok(zone) => Ok(Some(zone)),
        },
    }
}

/// `targets`, `nodes`: over how many a file of the directory may lie.
fn layout_text(inode: &Inode, (targets, nodes): (usize, usize)) -> Option<String> {
    if inode.is_dir() {
        let policy = inode.policy.unwrap_or_default();
        let origin = match (inode.policy, inode.has(FLAG_OWN_POLICY)) {
            (None, _) => "default",
            (_, true) => "own",
            _ => "inherited",
        };
        let StripePolicy { unit, count, .. } = policy;
        let (home, placement) = (inode.home, policy.placement.word());
        let redundancy = redundancy_words(policy.redundancy);
        let own = format!("unit={unit} count={count} {redundancy} placement={placement}");
        return Some(format!(
            "{own} origin={origin} zone={home} targets={targets} nodes={nodes}"
        ));
    }
    let mut text = String::new();
    for component in &inode.layout.components {
        let gap = if text.is_empty() { "" } else { "; " };
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "{gap}unit={} count={} {} zone={} set={} start={} data={}",
            component.unit,
            component.count,
            redundancy_words(staying(component)),
            component.zone,
            component.set,
            component.start_column,
            component.data_id
        );
    }
    (!text.is_empty()).then_some(text)
}

/// True where a policy as text names this field.
fn has_word(text: &[u8], name: &str) -> bool {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    words.any(|word| word.starts_with(name))
}

/// Parses `unit=65536 count=2 redundancy=copies:2 placement=zone` (each may be missing; `count=0`
/// or `all`: all targets). Empty: no policy.
fn parse_policy(text: &[u8]) -> Result<Option<StripePolicy>> {
    let text = std::str::from_utf8(text).map_err(|_error| ErrorCode::Invalid)?;
    let (mut policy, mut also_zone) = (StripePolicy::default(), None);
    let mut words = text.split_ascii_whitespace().peekable();
    if words.peek().is_none() {
        return Ok(None);
    }
    for word in words {
        match word.split_once('=').ok_or(ErrorCode::Invalid)? {
            ("unit", value) => policy.unit = value.parse().map_err(|_error| ErrorCode::Invalid)?,
            ("count", "all") => policy.count = 0,
            ("count", value) => {
                policy.count = value.parse().map_err(|_error| ErrorCode::Invalid)?;
            }
            ("placement", word) => {
                policy.placement = Placement::of_word(word).ok_or(ErrorCode::Invalid)?;
            }
            ("redundancy", word) => policy.redundancy = parse_copies(word)?,
            ("also_zone", word) => also_zone = parse_also_zone(word)?,
            // Fields that a listing shows besides. They are ignored here, so that a copied value
            // can be set as it is.
            ("origin" | "zone" | "targets" | "nodes", _) => {}
            _ => return Err(ErrorCode::Invalid),
        }
    }
    if let Some(zone) = also_zone {
        // The shard chooses the set when it makes a file.
        policy.redundancy = policy.redundancy.with_also_zone(zone, StripeSetId(0));
    }
    Ok(Some(policy))
}
