//! Copies that a file is to have: gives it more, or has some go
//! (docs/rfcs/2026-11-27-relocations.md).

use super::destinations::{self, Candidates};
use super::{leaving_copies, make_missing, settle_all};
use crate::inode::Inode;
use crate::op::{Result, new_inode};
use crate::tx::Tx;
use zonal_layout::places_of_column;
use zonal_types::limits::RELOCATIONS_MAX;
use zonal_types::{
    Column, Component, ErrorCode, Layout, LayoutGen, Redundancy, Relocation, StripePolicy,
};
use zonal_zonemap::ZoneMap;

/// The copies that a file's layout is to have.
#[derive(Debug, Clone, Copy)]
pub(in crate::op) struct WantedCopies<'a> {
    pub(in crate::op) policy: &'a StripePolicy,
    /// The policy names the copies in the file's own zone; else they stay as they are.
    pub(in crate::op) has_copies: bool,
    /// It names the copy in another zone, or that there is none.
    pub(in crate::op) has_zone: bool,
}

/// The change of a component's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyChange {
    None,
    More,
    /// These stay: so many in the file's own zone, and the one in another zone.
    Fewer(u16, bool),
}

impl WantedCopies<'_> {
    /// The change of a component. Copies that go count no more.
    ///
    /// # Errors
    /// `NotSupported` where it is to have more of the one kind, and fewer of the other.
    fn change_of(&self, component: &Component) -> Result<CopyChange> {
        let (now, wanted) = (leaving_copies::staying(component), self.policy.redundancy);
        let (of_zone, also) = (now.zone_copies(), now.also_zone().is_some());
        let copies = if self.has_copies {
            wanted.zone_copies()
        } else {
            of_zone
        };
        let wants_also = if self.has_zone {
            wanted.also_zone().is_some()
        } else {
            also
        };
        let has_more = copies > of_zone || (wants_also && !also);
        let has_fewer = copies < of_zone || (also && !wants_also);
        match (has_more, has_fewer) {
            (false, false) => Ok(CopyChange::None),
            (true, false) => Ok(CopyChange::More),
            (false, true) => Ok(CopyChange::Fewer(copies, wants_also)),
            (true, true) => Err(ErrorCode::NotSupported),
        }
    }
}

/// Gives a file more copies of its columns, which their targets fill; or has copies go.
///
/// # Errors
/// `Busy` while objects of the file move, or a copy that stays is not whole. `Range` where there
/// are too few nodes, no other zone takes a copy now, or the records have no room. `NotSupported`
/// where copies are to go that are before others, or some go and others come.
pub(in crate::op) fn set_copies(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    wanted: WantedCopies<'_>,
) -> Result<bool> {
    let mut layout = inode.layout.clone();
    settle_all(&mut layout, tx.env.map);
    for component in &mut layout.components {
        let change = wanted.change_of(component)?;
        let is_moving = |of: &Relocation| of.state.is_under_way();
        if change != CopyChange::None && component.relocations.iter().any(is_moving) {
            return Err(ErrorCode::Busy);
        }
        match change {
            CopyChange::None => {}
            CopyChange::More => add_copies(tx, component, &inode.layout, wanted.policy)?,
            CopyChange::Fewer(copies, also) => {
                let stay = (copies, also);
                leaving_copies::begin(component, &inode.layout, tx.env.map, stay)?;
            }
        }
    }
    leaving_copies::advance(&mut layout, tx.env.map, None);
    if layout == inode.layout {
        return Ok(false);
    }
    layout.layout_gen = LayoutGen(layout.layout_gen.0.saturating_add(1));
    inode.layout = layout;
    Ok(true)
}

fn add_copies(
    tx: &mut Tx<'_>,
    component: &mut Component,
    layout: &Layout,
    policy: &StripePolicy,
) -> Result<()> {
    let candidates = destinations::all(tx.env.map);
    let before = zonal_layout::object_count(component);
    component.redundancy = raised(tx, component, policy)?;
    let map = tx.env.map;
    if !map.knows_sets(component) {
        return Err(ErrorCode::NotReady);
    }
    for object in before..zonal_layout::object_count(component) {
        place_missing(component, map, Column(object), layout, &candidates)?;
    }
    match component.relocations.len() > RELOCATIONS_MAX {
        true => Err(ErrorCode::Range),
        false => Ok(()),
    }
}

/// The redundancy of a component with the copies that a policy has more.
fn raised(tx: &mut Tx<'_>, component: &Component, policy: &StripePolicy) -> Result<Redundancy> {
    let (mut redundancy, wanted) = (component.redundancy, policy.redundancy);
    let (now, copies) = (redundancy.zone_copies(), wanted.zone_copies());
    let also = redundancy.also_zone().map(|(zone, _)| zone);
    if copies > now {
        let map = tx.env.map;
        let set = map.set(component.set).ok_or(ErrorCode::NotReady)?;
        let step = match redundancy.step() {
            0 => map.copy_step(set, copies, component.data_id),
            step => step,
        };
        redundancy = redundancy.with_zone_copies(copies, step);
    }
    if also.is_none() && wanted.also_zone().is_some() {
        let set = new_inode::also_set(tx, policy, component.zone, component.data_id)?;
        let set = set.ok_or(ErrorCode::Range)?;
        redundancy = redundancy.with_also_zone(set.zone, set.set);
    }
    Ok(redundancy)
}

/// Notes a new object as missing, at its computed place or, where that has no room for one more
/// copy, at another one.
fn place_missing(
    component: &mut Component,
    map: &ZoneMap,
    object: Column,
    layout: &Layout,
    candidates: &Candidates,
) -> Result<()> {
    // Until it has a place, it counts as missing at its computed one.
    let computed = map.slot_of_place(component, object);
    let computed = computed.map(|at| (at.set, at.number));
    let before = component.relocations.len();
    make_missing(component, map, object, computed.ok_or(ErrorCode::Corrupt)?);
    if is_sound(component, map, object) {
        return Ok(());
    }
    component.relocations.truncate(before);
    let place = candidates.choose(component, layout, map, (object, 0));
    let (place, _target) = place.map_err(|_why| ErrorCode::Range)?;
    make_missing(component, map, object, place);
    Ok(())
}

/// True where an object's place is on a target that takes files, and on no node with another copy.
fn is_sound(component: &Component, map: &ZoneMap, object: Column) -> bool {
    let node_of = |place| {
        let target = map.slot_of_place(component, place)?.slot.target;
        let found = map.target(target)?;
        let is_good = found.state.takes_files()
            && !map.is_out(target)
            && !map.has_leftover(component, object, target);
        Some((found.node, is_good))
    };
    let column = object.0 % component.count.max(1);
    let mut others = places_of_column(component, column).filter(|place| *place != object);
    node_of(object).is_some_and(|(node, is_good)| {
        is_good && others.all(|other| node_of(other).is_none_or(|(other, _)| other != node))
    })
}
