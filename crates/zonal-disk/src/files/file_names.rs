//! Names of the files of a store's folder, segments apart.

use super::{identity, power_loss, start_marks};

/// Locked while a process has the store open.
pub(crate) const LOCK: &str = "lock";
/// The circular log.
pub(crate) const LOG: &str = "log";
/// The index.
pub(crate) const INDEX: &str = "index.redb";
/// Checksums of the index's blocks.
pub(crate) const SUMS: &str = "index.sums";
/// The two files of the index's copy. The last bit of a cycle's number selects its file.
pub(crate) const COPIES: [&str; 2] = ["copy.0", "copy.1"];
/// The vote of a group's member, and its name while it is written.
pub(crate) const VOTE: [&str; 2] = ["vote", "vote.new"];
/// Files of a store besides its segments.
pub(crate) const FILES: [&str; 10] = [
    identity::FILE_NAME,
    LOCK,
    LOG,
    INDEX,
    SUMS,
    COPIES[0],
    COPIES[1],
    power_loss::FILE_NAME,
    start_marks::FILE_NAME,
    VOTE[0],
];
