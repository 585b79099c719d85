//! Planted bugs of metadata processes, beside the driver.

use crate::clock::VirtualClock;
use crate::planted_bugs::Plant;
use std::cell::Cell;
use std::pin::pin;
use std::task::Poll;
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{KvChange, Relocation, RelocationState, TargetId};
use zonal_wire::{Header, MetaReply, MetaRequest, NO_SLOT};

/// Applies the planted bug to a request.
pub(super) fn change(plant: Plant, header: &mut Header, request: &mut MetaRequest) {
    if plant == Plant::ShardForgetsReplies {
        header.slot = NO_SLOT;
    }
    if plant == Plant::ClosesNameOwners
        && let MetaRequest::ReleaseLocks { handle, number, .. } = request
    {
        (*handle, *number) = (None, u64::MAX);
    }
    if plant == Plant::TakeBacksNameOwners
        && let MetaRequest::CancelLock { ino, range, .. } = request
    {
        let (ino, mut range) = (*ino, *range);
        range.number = u64::MAX;
        *request = MetaRequest::Unlock { ino, range };
    }
    let MetaRequest::ReportWrite {
        truncate_seq,
        allocated_delta,
        ..
    } = request
    else {
        return;
    };
    if plant == Plant::TruncationsAreForgotten {
        *truncate_seq = u64::MAX;
    }
    if plant == Plant::AllocatedIsMiscounted && *allocated_delta > 0 {
        *allocated_delta += BLOCK_BYTES as i64;
    }
}

/// A planted bug: makes a question of a mark, and returns the targets that are to be marked.
pub(super) fn forget_mark(
    plant: Plant,
    header: &mut Header,
    request: &mut MetaRequest,
) -> Vec<TargetId> {
    match request {
        MetaRequest::MarkStale { ino, targets } if plant == Plant::MarksAreForgotten => {
            let (ino, targets) = (*ino, std::mem::take(targets));
            header.slot = NO_SLOT;
            *request = MetaRequest::GetAttr { ino, data: true };
            targets
        }
        _ => Vec::new(),
    }
}

/// Adds marks that were not kept to a reply.
pub(super) fn pretend_mark(mut reply: MetaReply, mut targets: Vec<TargetId>) -> MetaReply {
    if let MetaReply::Attr {
        data: Some(data), ..
    } = &mut reply
    {
        targets.append(&mut data.layout.stale);
        targets.sort_unstable();
        targets.dedup();
        data.layout.stale = targets;
    }
    reply
}

/// A planted bug: the file's state lacks the relocations and the new copies that are to be filled.
pub(super) fn hide_relocations(plant: Plant, mut reply: MetaReply) -> MetaReply {
    if plant == Plant::RelocationsAreHidden
        && let MetaReply::Attr {
            data: Some(data), ..
        }
        | MetaReply::Opened { data, .. } = &mut reply
    {
        for component in &mut data.layout.components {
            let is_hidden = [RelocationState::Filling, RelocationState::Missing];
            let is_told = |of: &Relocation| !is_hidden.contains(&of.state);
            component.relocations.retain(is_told);
        }
    }
    reply
}

/// Returns the effect after the planted bug: each fortieth effect loses its first change.
pub(super) fn lose_change(
    plant: Plant,
    effects: &Cell<u64>,
    mut effect: Vec<KvChange>,
) -> Vec<KvChange> {
    if plant == Plant::ShardLosesChanges && effect.len() > 1 {
        effects.set(effects.get() + 1);
        if effects.get().is_multiple_of(40) {
            effect.remove(0);
        }
    }
    effect
}

/// The output of a future within `ms` milliseconds; `None` afterwards.
pub(super) async fn by_deadline<T>(
    future: impl Future<Output = T>,
    clock: &VirtualClock,
    ms: u32,
) -> Option<T> {
    let (mut future, mut sleep) = (pin!(future), pin!(clock.sleep(u64::from(ms) * 1_000_000)));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
