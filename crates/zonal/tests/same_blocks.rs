//! Clients that write the same blocks of files with copies at the same time, without locks: all
//! copies end with the same bytes.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, said};
use copied_files::{SHAPE, connect, make_dir};
use native_files::read;
use std::time::{Duration, Instant};
use zonal_native::{Native, OpenOptions, User};

/// How long the clients write.
const WRITES_FOR: Duration = Duration::from_secs(4);
const CLIENTS: u64 = 3;
const FILES: [&str; 2] = ["/twice/f", "/thrice/f"];
const BLOCK: u64 = 4_096;
/// Blocks that all clients write, behind the bytes that the shard keeps. They lie in two stripe
/// units.
const BLOCKS: u64 = 8;
const FIRST: u64 = 14;

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (self.0 >> 33) % bound
    }
}

/// Writes blocks, odd ranges and holes of all files, and flushes each.
fn write_for_a_while(native: &Native, client: u64) -> u64 {
    let user = User::root();
    let options = || OpenOptions::new().write(true).create(0o644);
    let files = FILES.map(|path| native.open(&user, path, options()).unwrap());
    let mut numbers = Numbers(client);
    let over = Instant::now() + WRITES_FOR;
    let mut writes = 0;
    while Instant::now() < over {
        let file = &files[usize::try_from(numbers.below(2)).unwrap()];
        let at = (FIRST + numbers.below(BLOCKS)) * BLOCK;
        let byte = u8::try_from(1 + client * 80 + writes % 80).unwrap();
        match numbers.below(10) {
            0..6 => file.pwrite(at, &[byte; 4_096]).unwrap(),
            6..9 => {
                let length = usize::try_from(1 + numbers.below(9_000)).unwrap();
                file.pwrite(at + numbers.below(BLOCK), &vec![byte; length])
                    .unwrap();
            }
            _ => file.punch(at + numbers.below(100), BLOCK).unwrap(),
        }
        file.flush().unwrap();
        writes += 1;
    }
    for file in files {
        file.close().unwrap();
    }
    writes
}

#[test]
fn copies_are_equal_after_writers_of_the_same_blocks() {
    let cell = Cell::with_shape("blocks", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/thrice", "copies:3");
    for path in FILES {
        native_files::write(&native, path, &vec![7; 200_000]);
    }
    let writes: u64 = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let native = connect(&cell);
                scope.spawn(move || write_for_a_while(&native, client))
            })
            .collect();
        begun.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // Clients ask different copies first.
    for path in FILES {
        let seen: Vec<_> = (0..4)
            .map(|_| read(&connect(&cell), path).unwrap())
            .collect();
        assert!(seen.iter().all(|bytes| *bytes == seen[0]), "{path}");
    }
    println!("{writes} writes");
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
