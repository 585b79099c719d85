//! The storage target: a state machine over an extent store with checksums. No I/O.
//!
//! A shell holds a [`StorageTarget`] in a mutex, beside its log engine and segment files. It
//! *appends* a record in the critical section of the call that made the record. It reads and writes
//! segments outside of it. It drives the target like this:
//!
//! 1. Start: open the engine and collect the notes of its log. [`replay_checks`] names the blocks
//!    to verify in segments, for records that were not known to be synced. Then
//!    [`StorageTarget::open`]; repeat the deletions that [`StorageTarget::unfinished_deletes`]
//!    lists.
//! 2. Read: [`StorageTarget::plan_read`]; read the plan's parts into one buffer;
//!    [`ReadPlan::finish`]. On [`Damage`] plan again: an equal plan means real damage.
//! 3. Write: [`StorageTarget::plan_write`]; segment writes; [`WritePlan::checksum`]; read old
//!    blocks where the plan has any; [`StorageTarget::commit_write`]; append. A write that is not
//!    committed must be aborted.
//! 4. Truncate, punch, allocate: [`Edit`] and [`StorageTarget::edit_step`] until done.
//! 5. Delete: [`Delete`] and [`StorageTarget::delete_step`] until done.
//! 6. Checkpoint: [`StorageTarget::plan_checkpoint`], its writes,
//!    [`StorageTarget::commit_checkpoint`], append; repeat until few blocks are pending. Then in
//!    one critical section call [`StorageTarget::freeze`], apply its changes without a record, and
//!    freeze the engine. Once segments and engine are durable, call
//!    [`StorageTarget::checkpoint_done`].
//! 7. On `Overloaded`, and on `NoSpace` where [`StorageTarget::reclaimable`] is not 0: run a
//!    checkpoint and try again.
//!
//! A failed append leaves the target ahead of its log: the shell must stop serving it.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

mod attempts;
mod change_orders;
pub mod check;
pub mod checkpoint;
pub mod chunk;
mod content_digest;
pub mod data_map;
pub mod delete;
pub mod describe;
pub mod edit;
mod fences;
pub mod ids;
mod index_value;
pub mod index_walk;
pub mod key;
pub mod note;
mod object_update;
mod old_blocks;
mod pending_blocks;
mod prefetch;
pub mod read;
mod recent_deletes;
pub mod repair;
mod space;
pub mod target;
pub mod unit_bitmap;
mod unreported_truncations;
pub mod write;

pub use check::{KnownObject, Survey, SurveyItem, TargetDefect};
pub use checkpoint::CheckpointPlan;
pub use content_digest::{PendingContents, content_digest};
pub use data_map::DataMap;
pub use delete::{Delete, DeleteStep};
pub use edit::{Edit, EditStep};
pub use ids::{ChangeAttempt, Extent, ObjectId, Place, Sender, TargetConfig, Truncation};
pub use note::{BlockCheck, EffectRecord, replay_checks};
pub use prefetch::prefetch;
pub use read::{Damage, ReadPlan, SegmentRead};
pub use target::{ChangeOutcome, ObjectStat, StorageTarget, TargetSpace};
pub use write::{
    Committed, SegmentWrite, WriteDecision, WritePlan, WriteRequest, ranges_of_one_record,
};
