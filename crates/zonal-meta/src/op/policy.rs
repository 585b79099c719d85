//! Layout policy: how new files of a directory are laid out.

use super::Result;
use crate::inode::{FLAG_OWN_POLICY, Inode};
use crate::permission::is_owner;
use crate::tx::Tx;
use zonal_types::limits::{SLOTS_MAX, xattr_flags};
use zonal_types::{Credentials, ErrorCode, Ino, Placement, StripePolicy, ZoneId};
use zonal_wire::MetaReply;
use zonal_zonemap::Target;

/// Sets a directory's policy. `None` copies the parent's present one; later changes of the parent
/// do not follow.
pub(crate) fn set_policy(
    tx: &mut Tx<'_>,
    who: &Credentials,
    ino: Ino,
    policy: Option<StripePolicy>,
) -> Result {
    let mut dir = tx.inode(ino)?;
    if !dir.is_dir() {
        return Err(ErrorCode::NotDirectory);
    }
    if !is_owner(who, &dir) {
        return Err(ErrorCode::NotPermitted);
    }
    apply(tx, &mut dir, policy)?;
    tx.save(dir);
    Ok(MetaReply::Done)
}

/// Number of targets over which a new file in `dir` can be striped by this policy: those of its
/// home zone. In the root, those of the largest zone.
pub(crate) fn targets(tx: &Tx<'_>, dir: &Inode, policy: Option<StripePolicy>) -> usize {
    let map = tx.env.map;
    match policy.unwrap_or_default().placement {
        Placement::Zone => {}
        Placement::Cell => {
            let serves = |target: &&Target| target.state.takes_files();
            let serving = map.targets.iter().filter(serves).count();
            return serving.min(usize::from(map.set_width));
        }
        Placement::Node => return 1,
    }
    let zones = map.zones.iter();
    let zones = zones.filter(|zone| dir.ino == Ino::ROOT || zone.id == dir.home);
    let sets = zones.flat_map(|zone| map.default_sets(zone.id));
    sets.map(|set| set.slots.len()).max().unwrap_or(0)
}

/// Nodes over which copies of a column may lie, in the widest zone that the policy may be for.
pub(crate) fn nodes(tx: &Tx<'_>, dir: &Inode, policy: Option<StripePolicy>) -> usize {
    let map = tx.env.map;
    if policy.unwrap_or_default().placement == Placement::Cell {
        return map.storing_nodes(ZoneId::CELL);
    }
    let zones = map.zones.iter();
    let zones = zones.filter(|zone| dir.ino == Ino::ROOT || zone.id == dir.home);
    zones
        .map(|zone| map.storing_nodes(zone.id))
        .max()
        .unwrap_or(0)
}

/// Refuses a new copy in another zone that no file could get.
///
/// # Errors
/// `Range` for a zone that is not in the cell, the only zone, or one without targets. `Invalid` for
/// files that lie over all zones.
pub(crate) fn check_also_zone(
    tx: &Tx<'_>,
    dir: &Inode,
    policy: Option<StripePolicy>,
) -> Result<()> {
    let also_zone = |policy: StripePolicy| Some(policy.redundancy.also_zone()?.0);
    let (before, now) = (dir.policy.and_then(also_zone), policy.and_then(also_zone));
    let Some(wanted) = now.filter(|_| now != before) else {
        return Ok(());
    };
    if policy.is_some_and(|policy| policy.placement == Placement::Cell) {
        return Err(ErrorCode::Invalid);
    }
    let map = tx.env.map;
    let own = |zone: ZoneId| dir.ino != Ino::ROOT && zone == dir.home;
    let mut zones = map.zones.iter().map(|zone| zone.id);
    let can_take = zones.any(|zone| {
        let is_wanted = match wanted {
            ZoneId::CELL => dir.ino == Ino::ROOT || !own(zone),
            wanted => zone == wanted && !own(zone),
        };
        is_wanted && map.storing_nodes(zone) > 0
    });
    let is_alone = map.zones.len() < 2;
    match can_take && !is_alone {
        true => Ok(()),
        false => Err(ErrorCode::Range),
    }
}

/// Sets or removes the policy of a directory that the caller may change.
pub(crate) fn apply(tx: &mut Tx<'_>, dir: &mut Inode, policy: Option<StripePolicy>) -> Result<()> {
    if let Some(policy) = policy
        && (!policy.is_valid() || usize::from(policy.count) > SLOTS_MAX)
    {
        return Err(ErrorCode::Invalid);
    }
    let inherited = match tx.find(dir.parent)? {
        Some(parent) if dir.ino != Ino::ROOT => parent.policy,
        _ => None,
    };
    dir.set(FLAG_OWN_POLICY, policy.is_some());
    dir.xattrs = if policy.is_some() {
        dir.xattrs | xattr_flags::LAYOUT
    } else {
        dir.xattrs & !xattr_flags::LAYOUT
    };
    dir.policy = policy.or(inherited);
    dir.changed(tx.now.wall);
    Ok(())
}
