//! The layout of a new file.

use crate::stripe::{LayoutError, check_component};
use zonal_types::{
    Column, Component, ComponentKind, DataId, Layout, LayoutGen, Redundancy, StripePolicy,
    StripeSetId, ZoneId,
};

/// One striped component over the whole file, with the directory's `policy`, in a set of `width`
/// slots.
///
/// `step`: slots from one copy of a column to the next, where the policy has copies. A set with
/// fewer slots than copies gives as many copies as it has slots.
///
/// The start column rotates with the data id. Ids are given in sequence, so files smaller than a
/// stripe unit are spread over the targets. [`on_slot`] keeps the file on one target.
///
/// # Errors
/// `BadComponent` for an invalid policy or a set without slots.
pub fn new_layout(
    policy: &StripePolicy,
    set: StripeSetId,
    (width, step): (u16, u16),
    zone: ZoneId,
    data_id: DataId,
) -> Result<Layout, LayoutError> {
    if width == 0 || !policy.is_valid() {
        return Err(LayoutError::BadComponent { start: 0 });
    }
    let count = match policy.count {
        0 => width,
        some => some.min(width),
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "less than the width, a u16"
    )]
    let start_column = Column((data_id.0 % u64::from(width)) as u16);
    Ok(Layout {
        layout_gen: LayoutGen(1),
        components: vec![Component {
            kind: ComponentKind::Striped,
            start: 0,
            end: u64::MAX,
            data_id,
            zone,
            set,
            start_column,
            count,
            unit: policy.unit,
            span: 0,
            redundancy: match policy.redundancy.zone_copies().min(width) {
                1 => Redundancy::None,
                copies => Redundancy::Copies { copies, step },
            },
            relocations: Vec::new(),
        }],
        stale: Vec::new(),
    })
}

/// Keeps a new file whole on one slot of its set.
///
/// # Errors
/// `BadComponent` where the layout has not one component.
pub fn on_slot(mut layout: Layout, slot: Column) -> Result<Layout, LayoutError> {
    let [component] = layout.components.as_mut_slice() else {
        return Err(LayoutError::BadComponent { start: 0 });
    };
    component.start_column = slot;
    component.count = 1;
    Ok(layout)
}

/// Gives a new file one more copy, in a set of another zone.
///
/// # Errors
/// `BadComponent` where the layout has not one component, or the set is its own.
pub fn with_also_zone(
    mut layout: Layout,
    zone: ZoneId,
    set: StripeSetId,
) -> Result<Layout, LayoutError> {
    let [component] = layout.components.as_mut_slice() else {
        return Err(LayoutError::BadComponent { start: 0 });
    };
    component.redundancy = component.redundancy.with_also_zone(zone, set);
    check_component(component)?;
    Ok(layout)
}

/// A layout of one component that leaves the first `bytes` of the file to its shard (0: none).
///
/// # Errors
/// `BadComponent` where the shard may not keep that many.
pub fn with_inline(mut layout: Layout, bytes: u32) -> Result<Layout, LayoutError> {
    if let ([component], true) = (layout.components.as_mut_slice(), bytes > 0) {
        component.kind = ComponentKind::StripedInline { bytes };
        check_component(component)?;
    }
    Ok(layout)
}
