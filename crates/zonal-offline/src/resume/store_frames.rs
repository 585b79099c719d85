//! Encodes the saved state of a store as frames of a file.

use super::checksummed_file::{Frames, Writer};
use super::{Compared, FACTS, Facts, PART, SavedPart};
use crate::external_sort::{SortedRun, Sorter};
use crate::facts::ShardContents;
use crate::store_scan::TargetContents;
use std::io::{self, ErrorKind};
use std::path::Path;
use zonal_fsck::FindingKind;
use zonal_fsck::directory_tree::{Directory, DirectoryTree};
use zonal_fsck::junctions::{FirstLevel, RootEntry};
use zonal_object::ObjectId;
use zonal_types::{Ino, codec_enum};

/// Items in one frame.
const ITEMS: usize = 1024;

codec_enum! {
    /// A frame. The head is the first one; items are in the order in which they were found.
    #[derive(Debug)]
    enum Frame {
        /// Values of which there is one.
        Head = 1 {
            /// Sorted runs.
            runs: Vec<SortedRun>,
            /// Records read.
            records: u64,
            /// Number of inodes, objects or compared blocks.
            count: u64,
            /// There were more directories than the check of cycles keeps.
            is_cut: bool,
        },
        /// Entries of the root: inode, name, cookie.
        RootEntries = 2 { items: Vec<(Ino, (String, u64))> },
        /// First-level directories: inode, whether it is detached.
        FirstLevel = 3 { items: Vec<(Ino, bool)> },
        /// Directories: inode, directory and cookie of its entry.
        Directories = 4 { items: Vec<(Ino, (Ino, u64))> },
        /// Damaged blocks.
        Damaged = 5 { items: Vec<(ObjectId, u64)> },
        /// Runs of lost blocks.
        Lost = 6 { items: Vec<(ObjectId, (u64, u64))> },
        /// Findings.
        Told = 7 { items: Vec<FindingKind> },
    }
}

fn put_items<T, U>(
    file: &mut Writer,
    items: &[T],
    as_stored: impl Fn(&T) -> U,
    frame: impl Fn(Vec<U>) -> Frame,
) -> io::Result<()> {
    items
        .chunks(ITEMS)
        .try_for_each(|items| file.put(&frame(items.iter().map(&as_stored).collect())))
}

fn put_told(file: &mut Writer, told: &[FindingKind]) -> io::Result<()> {
    put_items(file, told, Clone::clone, |items| Frame::Told { items })
}

fn put_damaged(file: &mut Writer, damaged: &[(ObjectId, u64)]) -> io::Result<()> {
    put_items(
        file,
        damaged,
        |item| *item,
        |items| Frame::Damaged { items },
    )
}

fn head(runs: Vec<SortedRun>, records: u64, count: u64) -> Frame {
    Frame::Head {
        runs,
        records,
        count,
        is_cut: false,
    }
}

pub(super) fn put_facts(
    file: &mut Writer,
    runs: Vec<SortedRun>,
    records: u64,
    told: &[FindingKind],
) -> io::Result<()> {
    file.put(&head(runs, records, 0))?;
    put_told(file, told)
}

pub(super) fn put_shard(
    file: &mut Writer,
    runs: Vec<SortedRun>,
    records: u64,
    seen: &ShardContents,
    told: &[FindingKind],
) -> io::Result<()> {
    file.put(&Frame::Head {
        runs,
        records,
        count: seen.inodes,
        is_cut: seen.tree.is_cut,
    })?;
    put_items(
        file,
        &seen.root_entries,
        |entry| (entry.ino, (entry.name.clone(), entry.cookie)),
        |items| Frame::RootEntries { items },
    )?;
    put_items(
        file,
        &seen.first_level,
        |directory| (directory.ino, directory.is_detached),
        |items| Frame::FirstLevel { items },
    )?;
    put_items(
        file,
        seen.tree.directories(),
        |directory| (directory.ino, (directory.dir, directory.cookie)),
        |items| Frame::Directories { items },
    )?;
    put_told(file, told)
}

pub(super) fn put_target(
    file: &mut Writer,
    runs: Vec<SortedRun>,
    records: u64,
    seen: &TargetContents,
    told: &[FindingKind],
) -> io::Result<()> {
    file.put(&head(runs, records, seen.objects))?;
    put_damaged(file, &seen.damaged)?;
    put_items(
        file,
        &seen.lost,
        |(object, first, end)| (*object, (*first, *end)),
        |items| Frame::Lost { items },
    )?;
    put_told(file, told)
}

pub(super) fn put_compared(file: &mut Writer, compared: &Compared) -> io::Result<()> {
    file.put(&head(Vec::new(), 0, compared.blocks))?;
    put_damaged(file, &compared.damaged)
}

/// Items of the frames behind a head.
#[derive(Default)]
struct StoreItems {
    root_entries: Vec<RootEntry>,
    first_level: Vec<FirstLevel>,
    tree: DirectoryTree,
    damaged: Vec<(ObjectId, u64)>,
    lost: Vec<(ObjectId, u64, u64)>,
    told: Vec<FindingKind>,
}

impl StoreItems {
    /// Adds the items of a frame. Findings of a store's result are left out.
    fn take(&mut self, frame: Frame, kind: &str) -> io::Result<()> {
        match frame {
            Frame::Head { .. } => return Err(ErrorKind::InvalidData.into()),
            Frame::RootEntries { items } => {
                let items = items.into_iter();
                self.root_entries
                    .extend(items.map(|(ino, (name, cookie))| RootEntry { ino, name, cookie }));
            }
            Frame::FirstLevel { items } => {
                let items = items.into_iter();
                self.first_level
                    .extend(items.map(|(ino, is_detached)| FirstLevel { ino, is_detached }));
            }
            Frame::Directories { items } => items
                .into_iter()
                .for_each(|(ino, (dir, cookie))| self.tree.push(Directory { ino, dir, cookie })),
            Frame::Damaged { items } => self.damaged.extend(items),
            Frame::Lost { items } => {
                let items = items.into_iter();
                self.lost
                    .extend(items.map(|(object, (first, end))| (object, first, end)));
            }
            Frame::Told { items } if kind == FACTS => self.told.extend(items),
            Frame::Told { .. } => {}
        }
        Ok(())
    }
}

/// Loads the state of a store from a file, with the names of the sorted runs that it needs.
///
/// The findings of a shard's facts are read at once. Those of a store's result are read later, when
/// it is their turn ([`told`]).
pub(super) fn load(
    dir: &Path,
    name: &str,
    key: u64,
    kind: &str,
    is_target: bool,
) -> io::Result<(SavedPart, Vec<String>)> {
    let mut file = Frames::open(dir, name, key)?;
    let Some(Frame::Head {
        runs,
        records,
        count,
        is_cut,
    }) = file.next()?
    else {
        return Err(ErrorKind::InvalidData.into());
    };
    if !runs.iter().all(|run| run.is_whole(dir)) {
        return Err(ErrorKind::InvalidData.into());
    }
    let names = runs.iter().map(|run| run.name.clone()).collect();
    let mut items = StoreItems::default();
    while let Some(frame) = file.next()? {
        items.take(frame, kind)?;
    }
    let StoreItems {
        root_entries,
        first_level,
        mut tree,
        damaged,
        lost,
        told,
    } = items;
    tree.is_cut = is_cut;
    let sorter = Sorter::of_kept(dir, "kept", runs);
    let kept = if kind == FACTS {
        SavedPart::Facts(Facts {
            facts: sorter,
            told,
            records,
        })
    } else if kind == PART && is_target {
        let seen = TargetContents {
            data: sorter,
            objects: count,
            damaged,
            lost,
        };
        SavedPart::Target(seen, records)
    } else if kind == PART {
        let seen = ShardContents {
            data: sorter,
            tree,
            first_level,
            root_entries,
            inodes: count,
        };
        SavedPart::Shard(Box::new(seen), records)
    } else {
        SavedPart::Compared(Compared {
            blocks: count,
            damaged,
        })
    };
    Ok((kept, names))
}

/// Passes the findings of a store's saved result to `tell`, in order.
pub(super) fn told(
    dir: &Path,
    name: &str,
    key: u64,
    tell: &mut dyn FnMut(FindingKind),
) -> io::Result<()> {
    let mut file = Frames::open(dir, name, key)?;
    while let Some(frame) = file.next()? {
        if let Frame::Told { items } = frame {
            items.into_iter().for_each(&mut *tell);
        }
    }
    Ok(())
}
