//! Copies that differ from the right ones, as a check found: each is noted as missing. Its target
//! fills it from a right one, once clients know the note.

use super::{Result, has_room, make_missing, relocation_of};
use crate::inode::Inode;
use zonal_types::{Column, DataId, ErrorCode, LayoutGen, limits::BLOCK_BYTES};
use zonal_zonemap::ZoneMap;

/// Notes copies of a file as missing. `copies`: their objects, and the blocks that the file counts
/// for each. False where all are under way already.
///
/// # Errors
/// `Io` where a column would keep no copy in service. `NoSpace` without room for a record.
/// `NotReady` where the map does not know a set.
pub(crate) fn refill(
    inode: &mut Inode,
    map: &ZoneMap,
    data_id: DataId,
    copies: &[(Column, u64)],
) -> Result<bool> {
    let mut layout = inode.layout.clone();
    let mut blocks = 0_u64;
    let mut components = layout.components.iter().enumerate();
    let found = components.find(|(_, component)| component.data_id == data_id);
    let Some((at, mut component)) = found.map(|(at, component)| (at, component.clone())) else {
        return Ok(false);
    };
    for (object, counted) in copies.iter().copied() {
        let is_known = object.0 < zonal_layout::object_count(&component);
        if !is_known || relocation_of(&component, object).is_some() {
            continue;
        }
        if !has_room(&component) {
            return Err(ErrorCode::NoSpace);
        }
        let place = map.slot_of_place(&component, object);
        let place = place.map(|of| (of.set, of.number));
        make_missing(
            &mut component,
            map,
            object,
            place.ok_or(ErrorCode::NotReady)?,
        );
        let column = object.0 % component.count.max(1);
        if map
            .whole_places(&layout, &component, column, true)
            .is_empty()
        {
            return Err(ErrorCode::Io);
        }
        blocks = blocks.saturating_add(counted);
    }
    let own = layout.components.get_mut(at).ok_or(ErrorCode::Corrupt)?;
    if *own == component {
        return Ok(false);
    }
    *own = component;
    layout.layout_gen = LayoutGen(layout.layout_gen.0.saturating_add(1));
    inode.layout = layout;
    // The file counts a missing object once it is filled.
    let bytes = blocks.saturating_mul(BLOCK_BYTES as u64);
    inode.count_allocated(i64::try_from(bytes).map_or(0, |bytes| -bytes));
    Ok(true)
}
