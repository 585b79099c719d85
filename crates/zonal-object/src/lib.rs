//! The storage target: a state machine over an extent store with checksums. No I/O.
//!
//! A shell holds a [`Target`] in a mutex beside its log engine and segment files, and drives it so
//! (an *append* is done in the critical section of the call that made the record; reads and writes
//! of segments are done outside of it):
//!
//! 1. Start: open the engine, collect the notes of its log ([`replay_checks`] tells what to verify
//!    in segments where records were not known to be synced), [`Target::open`], delete again what
//!    [`Target::unfinished_deletes`] lists.
//! 2. Read: [`Target::plan_read`]; read the plan's parts into one buffer; [`ReadPlan::finish`]. On
//!    [`Damage`] plan again; an equal plan means real damage.
//! 3. Write: [`Target::plan_write`]; segment writes, [`WritePlan::checksum`], old blocks where
//!    asked; [`Target::commit_write`], append. A write that is not committed must be aborted.
//! 4. Truncate, punch, allocate: [`Edit`] and [`Target::edit_step`] until done; deletion:
//!    [`Delete`] and [`Target::delete_step`].
//! 5. Checkpoint: [`Target::plan_checkpoint`], its writes, [`Target::commit_checkpoint`], append;
//!    repeat until few blocks are pending. Then in one critical section [`Target::freeze`], apply
//!    those changes without a record, and freeze the engine. Segments and engine durable:
//!    [`Target::checkpoint_done`].
//! 6. `Overloaded`, and `NoSpace` where [`Target::reclaimable`] is not 0: run a checkpoint, try
//!    again.
//!
//! An append that fails leaves the target ahead of its log: the shell must stop serving it.
#![forbid(unsafe_code)]

mod attempts;
mod bases;
pub mod bits;
pub mod check;
pub mod checkpoint;
pub mod chunk;
pub mod delete;
pub mod describe;
mod draft;
pub mod edit;
mod fences;
mod gone;
pub mod ids;
pub mod key;
pub mod list;
pub mod map;
pub mod note;
mod pending;
mod prefetch;
pub mod read;
pub mod repair;
mod sealed;
mod space;
pub mod target;
mod untold;
pub mod write;

pub use check::{Broken, KnownObject, Survey, Told};
pub use checkpoint::CheckpointPlan;
pub use delete::{Delete, DeleteStep};
pub use edit::{Edit, Step};
pub use ids::{Attempt, Cut, Extent, ObjectId, Place, Sender, TargetConfig};
pub use map::DataMap;
pub use note::{BlockCheck, Record, replay_checks};
pub use prefetch::prefetch;
pub use read::{Damage, ReadPlan, SegmentRead};
pub use target::{ObjectStat, Outcome, Target, TargetSpace};
pub use write::{Committed, Planned, SegmentWrite, WritePlan, WriteRequest, ranges_of_one_record};
