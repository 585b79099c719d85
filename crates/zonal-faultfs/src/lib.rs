//! A disk that fails, for tests: a FUSE file system over a folder.
//!
//! It passes everything through to the folder below and, when told to, refuses reads, writes and
//! flushes of chosen files and ranges (EIO), fills up at a byte budget (ENOSPC), acknowledges
//! flushes and does nothing, and flips bits of what is read. It remembers what was written since
//! the last flush of each file, so it can make what a loss of power may leave: each unit of an
//! unflushed write arrived or not, each by itself; names up to any one of their changes. With
//! `record on` it remembers everything, and makes such states for any earlier moment as well.
//!
//! Nothing below is ever flushed: the folder is for one run of a test. All files go round the page
//! cache (FOPEN_DIRECT_IO), so that each call of a program arrives here.
#![forbid(unsafe_code)]

pub mod control;
pub mod crash_image;
pub mod disk;
pub mod faults;
mod fs;
pub mod history;

pub use disk::FaultDisk;
pub use fs::mount;
pub use zonal_fuse::Session;
