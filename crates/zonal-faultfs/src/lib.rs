//! A disk with faults, for tests: a FUSE file system over a folder.
//!
//! It passes everything through to the folder below. On request it does the following:
//!
//! * It fails reads, writes and flushes of chosen files and ranges (EIO).
//! * It fills up at a byte budget (ENOSPC).
//! * It acknowledges flushes without doing them.
//! * It flips bits of bytes that are read.
//!
//! It remembers the writes since the last flush of each file, so it can make the states that a
//! power loss may leave. Each unit of an unflushed write has arrived or not, independently; names
//! up to any one of their changes. With `record on` it remembers everything, and makes the states
//! of any earlier moment as well.
//!
//! It never flushes the folder below: the folder serves one run of a test. All files bypass the
//! page cache (FOPEN_DIRECT_IO), so that each call of a program arrives here.
#![forbid(unsafe_code)]

pub mod control;
pub mod crash_image;
pub mod disk;
pub mod faults;
mod fs;
pub mod history;

pub use disk::FaultDisk;
pub use fs::mount;
pub use zonal_fuse::FuseSession;
