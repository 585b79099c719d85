//! Files with two copies on servers that are killed: any one node may be away from a reader, also
//! where it hangs.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, kill, said, signal, zonal};
use copied_files::{NODES, SHAPE, connect, make_dir, pattern};
use native_files::{read, write};
use std::time::{Duration, Instant};

/// A read passes over a silent copy long before the deadline of a request, 10 s.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn any_one_node_may_be_away_from_readers_of_two_copies() {
    let cell = Cell::with_shape("copies", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/once", "none");
    write(&native, "/twice/file", &pattern(1));
    write(&native, "/once/file", &pattern(2));

    for (turn, node) in NODES.into_iter().enumerate() {
        let pid = cell.pid(node);
        // A hung server takes a reader's time once, a dead one none.
        let native = connect(&cell);
        signal(pid, "STOP");
        let since = Instant::now();
        let hung = read(&native, "/twice/file");
        let took = since.elapsed();
        signal(pid, "CONT");
        assert!(hung.unwrap() == pattern(1 + turn), "{node} hangs");
        assert!(took < SOON, "{node} hangs: {took:?}");

        kill(pid, "KILL");
        let left = read(&native, "/twice/file").unwrap();
        assert!(left == pattern(1 + turn), "{node} is dead");
        if turn == 0 {
            let lone = read(&native, "/once/file");
            assert!(lone.is_err(), "a file with one copy is striped over {node}");
        }
        let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
        assert_eq!(code(&up), 0, "{}", said(&up));
        // The other nodes take what is written next, and so does this one.
        write(&native, "/twice/file", &pattern(2 + turn));
        let written = read(&native, "/twice/file").unwrap();
        assert!(written == pattern(2 + turn), "{node} is back");
        // The write may have gone on without it: then it fills its copy first.
        let followed = cell.command(&["recovery", "--follow"]).output().unwrap();
        assert_eq!(code(&followed), 0, "{}", said(&followed));
    }
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
