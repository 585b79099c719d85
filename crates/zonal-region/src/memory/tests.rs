//! Buffers, holds, regions and mappings together, as a client and a server use them.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::client_mappings::{MapError, Mappings};
use crate::region::WARM_MAX;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::dup;
use std::sync::atomic::{AtomicBool, Ordering};

const BUFFER: usize = 64 << 10;
const MAX: u64 = 1 << 30;

fn regions(buffers: u32) -> Regions {
    Regions::new(BUFFER, buffers)
}

fn place(memory: &Memory) -> usize {
    memory.as_ptr().addr()
}

#[test]
fn buffers_are_reused_and_ordinary_memory_is_the_fallback() {
    let regions = regions(2);
    let (first, second) = (regions.take(BUFFER), regions.take(100));
    assert_eq!((first.len(), second.len()), (BUFFER, 100));
    assert!(place(&first).abs_diff(place(&second)) == BUFFER);
    assert!(regions.take_shared(1).is_none());
    let own = regions.take(BUFFER);
    assert!(regions.hold(&own).is_none());
    let at = place(&first);
    drop(first);
    assert_eq!(place(&regions.take(5)), at);
    assert!(regions.take_shared(BUFFER + 1).is_none());
}

#[test]
fn a_buffer_under_a_hold_is_not_reused_after_its_owner_is_dropped() {
    let regions = regions(1);
    let memory = regions.take(BUFFER);
    let hold = regions.hold(&memory[4096..8192]).unwrap();
    assert_eq!((hold.offset(), hold.length()), (4096, 4096));
    drop(memory);
    assert!(regions.take_shared(1).is_none());
    hold.release();
    assert!(regions.take_shared(1).is_some());
}

#[test]
fn an_unreleased_hold_retires_the_region_and_keeps_the_bytes() {
    let regions = regions(4);
    let mut memory = regions.take(BUFFER);
    memory.fill(7);
    let other = regions.take(BUFFER);
    let hold = regions.hold(&memory).unwrap();
    let region = Arc::clone(hold.region());
    let mappings = Mappings::default();
    let mapping = mappings.of(&dup(&region).unwrap(), MAX).unwrap();
    let part = mapping.part(hold.offset(), hold.length()).unwrap();
    drop(hold);
    assert!(region.is_retired());
    // Memory of the old region is held no more, and new memory lies elsewhere.
    assert!(regions.hold(&other).is_none());
    drop(memory);
    for _ in 0..8 {
        let mut next = regions.take(BUFFER);
        let hold = regions.hold(&next).unwrap();
        assert_ne!(hold.region().number(), region.number());
        hold.release();
        next.fill(9);
    }
    drop((region, other, regions));
    assert_eq!(part.as_slice(), [7; BUFFER]);
}

#[test]
fn a_server_sees_and_fills_a_clients_memory() {
    let regions = regions(3);
    let _first = regions.take(BUFFER);
    let mut memory = regions.take(BUFFER);
    memory[10..15].copy_from_slice(b"hello");
    let hold = regions.hold(&memory[10..15]).unwrap();
    let mappings = Mappings::default();
    let file = dup(hold.region()).unwrap();
    let mapping = mappings.of(&file, MAX).unwrap();
    // Another connection, the same region.
    let again = mappings.of(&dup(hold.region()).unwrap(), MAX).unwrap();
    assert!(Arc::ptr_eq(&mapping, &again));
    let mut part = mapping.part(hold.offset(), hold.length()).unwrap();
    assert_eq!(part.as_slice(), b"hello");
    part.as_mut_slice().copy_from_slice(b"world");
    hold.release();
    assert_eq!(&memory[10..15], b"world");
    for (offset, length) in [
        (3 * BUFFER as u64, 1),
        (3 * BUFFER as u64 - 1, 2),
        (u64::MAX, 1),
        (0, u32::MAX),
        (u64::MAX, u32::MAX),
    ] {
        assert!(mapping.part(offset, length).is_none());
    }
}

#[test]
fn memory_that_could_end_a_server_is_not_mapped() {
    let mappings = Mappings::default();
    let file = |bytes: u64, seals: SealFlags, flags: MemfdFlags| {
        let file = memfd_create("test", flags | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        mappings.of(&file, MAX).map(drop)
    };
    let none = MemfdFlags::empty();
    assert_eq!(file(4096, SealFlags::SHRINK, none), Ok(()));
    assert_eq!(file(4096, SealFlags::GROW, none), Err(MapError::Seal));
    assert_eq!(file(4096, SealFlags::empty(), none), Err(MapError::Seal));
    let too_long = |bytes| Err(MapError::Length { bytes, max: MAX });
    assert_eq!(file(0, SealFlags::SHRINK, none), too_long(0));
    assert_eq!(file(MAX + 1, SealFlags::SHRINK, none), too_long(MAX + 1));
    // Where no pages of this size are available, an access would end the process.
    let huge = memfd_create("test", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING);
    if let Ok(huge) = huge {
        fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
        assert_eq!(mappings.of(&huge, MAX).map(drop), Err(MapError::Kind));
    }
    let disk = std::fs::File::open("/proc/self/exe").unwrap().into();
    let (pipe, _write) = rustix::pipe::pipe().unwrap();
    for other in [disk, pipe] {
        assert_eq!(mappings.of(&other, MAX).map(drop), Err(MapError::Kind));
    }
}

#[test]
fn most_of_the_free_memory_is_given_back() {
    let buffers = 2 * WARM_MAX as u32;
    let regions = regions(buffers);
    let mut all: Vec<Memory> = (0..buffers).map(|_| regions.take(BUFFER)).collect();
    all.iter_mut().for_each(|memory| memory.fill(1));
    let hold = regions.hold(&all[0]).unwrap();
    let region = Arc::clone(hold.region());
    hold.release();
    let blocks = |region: &Region| rustix::fs::fstat(region).unwrap().st_blocks as u64 * 512;
    assert_eq!(blocks(&region), u64::from(buffers) * BUFFER as u64);
    all.clear();
    assert_eq!(blocks(&region), (WARM_MAX * BUFFER) as u64);
    let all: Vec<Memory> = (0..buffers)
        .filter_map(|_| regions.take_shared(1))
        .collect();
    assert_eq!(all.len(), buffers as usize);
}

/// A client that shrinks its memory at the last moment before it seals it.
#[test]
fn a_file_shrunk_before_its_seal_is_not_mapped_beyond_its_end() {
    // Limited by time: a round takes some microseconds, and a busy machine's time slices many more.
    let end = Instant::now() + Duration::from_secs(1);
    for round in (0..).take_while(|_| Instant::now() < end) {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        let sent = dup(&file).unwrap();
        let mappings = Mappings::default();
        let (is_ready, goes) = (AtomicBool::new(false), AtomicBool::new(false));
        let mapping = std::thread::scope(|scope| {
            scope.spawn(|| {
                is_ready.store(true, Ordering::SeqCst);
                while !goes.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                for _ in 0..round % 20 {
                    std::hint::spin_loop();
                }
                ftruncate(&file, 4096).unwrap();
                fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            });
            while !is_ready.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            goes.store(true, Ordering::SeqCst);
            mappings.of(&sent, MAX)
        });
        if mapping.is_ok() {
            assert_eq!(mappings.bytes(), 4096);
        }
    }
}

#[test]
fn a_retired_region_keeps_only_memory_in_use() {
    let regions = regions(8);
    let mut all: Vec<Memory> = (0..6).map(|_| regions.take(BUFFER)).collect();
    all.iter_mut().for_each(|memory| memory.fill(1));
    let hold = regions.hold(&all[0]).unwrap();
    let region = Arc::clone(hold.region());
    all.truncate(3);
    drop(hold);
    let blocks = || rustix::fs::fstat(&region).unwrap().st_blocks as usize * 512;
    assert_eq!(blocks(), 3 * BUFFER);
    all.clear();
    // A retired buffer may still be in use.
    assert_eq!(blocks(), BUFFER);
}
