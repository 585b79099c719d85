//! Clients that write the same blocks of files with copies at the same time, without locks: all
//! copies end with the same bytes.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, kill, said, zonal};
use copied_files::{NODES, SHAPE, connect, make_dir};
use native_files::read;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zonal_native::{Native, OpenOptions, User};

/// How long the clients write.
const WRITES_FOR: Duration = Duration::from_secs(6);
const CLIENTS: u64 = 3;
const FILES: [&str; 2] = ["/twice/f", "/thrice/f"];
const BLOCK: u64 = 4_096;
/// Blocks that all clients write, behind the bytes that the shard keeps. Only the last writes of a
/// block show a difference: so there are many, each written a few times.
const BLOCKS: u64 = 500;
const FIRST: u64 = 1;

/// The turns of all clients: each writes the same block.
struct Turns {
    begin: Barrier,
    is_over: AtomicBool,
}

/// Writes blocks, odd ranges and holes, in each turn the same ones as the others at the same time.
fn write_in_turns(native: &Native, client: u64, turns: &Turns) -> u64 {
    let user = User::root();
    let options = || OpenOptions::new().write(true).create(0o644);
    let files = FILES.map(|path| native.open(&user, path, options()).unwrap());
    let over = Instant::now() + WRITES_FOR;
    for turn in 0.. {
        if client == 0 && Instant::now() >= over {
            turns.is_over.store(true, Ordering::SeqCst);
        }
        turns.begin.wait();
        if turns.is_over.load(Ordering::SeqCst) {
            for file in files {
                file.close().unwrap();
            }
            return turn;
        }
        let file = &files[usize::try_from(turn % 2).unwrap()];
        let at = (FIRST + turn / 2 % BLOCKS) * BLOCK;
        let byte = u8::try_from(1 + client * 80 + turn % 80).unwrap();
        match (turn / 2 + client) % 10 {
            0..7 => file.pwrite(at, &[byte; 4_096]).unwrap(),
            7..9 => file.pwrite(at + 77 * client, &[byte; 5_001]).unwrap(),
            _ => file.punch(at + 100 * client, BLOCK).unwrap(),
        }
        file.flush().unwrap();
        turns.begin.wait();
    }
    0
}

/// The bytes of a file, read while these nodes are away.
fn read_without(cell: &Cell, away: &[&str], path: &str) -> Vec<u8> {
    for node in away {
        kill(cell.pid(node), "KILL");
    }
    let bytes = read(&connect(cell), path).unwrap();
    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    bytes
}

#[test]
fn copies_are_equal_after_writers_of_the_same_blocks() {
    let cell = Cell::with_shape("blocks", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/thrice", "copies:3");
    let length = usize::try_from((FIRST + BLOCKS + 2) * BLOCK).unwrap();
    for path in FILES {
        native_files::write(&native, path, &vec![7; length]);
    }
    let turns = Turns {
        begin: Barrier::new(usize::try_from(CLIENTS).unwrap()),
        is_over: AtomicBool::new(false),
    };
    let count = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (native, turns) = (connect(&cell), &turns);
                scope.spawn(move || write_in_turns(&native, client, turns))
            })
            .collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).max()
    });
    assert!(count > Some(BLOCKS), "{count:?} turns");
    let [twice, thrice] = FILES;
    // Without any one node the other one of each block has to answer.
    let all: Vec<Vec<u8>> = NODES.map(|away| read_without(&cell, &[away], twice)).into();
    let differing = |all: &[Vec<u8>]| {
        let blocks = (0..length).step_by(4_096);
        let of =
            |bytes: &[u8], at: usize| bytes.get(at..(at + 4_096).min(length)).map(<[u8]>::to_vec);
        let differs = |at: &usize| all.iter().any(|bytes| of(bytes, *at) != of(&all[0], *at));
        blocks.filter(differs).count()
    };
    assert_eq!(
        differing(&all),
        0,
        "blocks differ of two copies, {count:?} turns"
    );
    let all: Vec<Vec<u8>> = NODES
        .map(|left| {
            let away: Vec<&str> = NODES.into_iter().filter(|node| *node != left).collect();
            read_without(&cell, &away, thrice)
        })
        .into();
    assert_eq!(
        differing(&all),
        0,
        "blocks differ of three copies, {count:?} turns"
    );
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
