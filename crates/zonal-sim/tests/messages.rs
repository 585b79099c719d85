//! Round trips of the hot operations, counted on a cell without faults: a regression here is one on every network.
//!
//! One zone, three targets, no event polls and no housekeeping beside the operations, so every message is theirs.
//! A round trip is a request and its reply.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

use std::cell::RefCell;
use std::rc::Rc;
use zonal_client::Reserve;
use zonal_client::directories::Part;
use zonal_client::read::ReadInto;
use zonal_sim::Plant;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::Rng;
use zonal_sim::workload::{SimClient, create, list, lookup, make_dir, name, open, who};
use zonal_sim::world::{Size, World};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::flags::{O_RDONLY, O_WRONLY};

const MIB: usize = 1 << 20;

/// Runs a program on a fresh cell to its end.
fn on_a_cell<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    program: impl FnOnce(Counter) -> P + 'static,
) {
    let size = Size::new(1, 3, 1);
    let world = World::build(size, Plant::None, false, Rng::new(1)).expect("a cell");
    let outcome = Rc::new(RefCell::new(None));
    let (inner, result) = (world.clone(), outcome.clone());
    world.spawn_program(0, async move {
        let done = async {
            let client = Rc::new(inner.connect(0, Rng::new(2)).await?);
            let home = make_dir(&client, Ino::ROOT, "home").await?;
            program(Counter {
                world: inner,
                client,
                home,
            })
            .await
        };
        *result.borrow_mut() = Some(done.await);
    });
    let limit = world.clock.now().plus_ms(60_000);
    assert!(
        world.clock.run(limit, || world.running() == 0),
        "the program did not end"
    );
    assert_eq!(outcome.take(), Some(Ok(())));
}

struct Counter {
    world: Rc<World>,
    client: Rc<SimClient>,
    home: Ino,
}

impl Counter {
    /// What an operation returns, and its round trips.
    async fn count<T>(
        &self,
        operation: impl Future<Output = Result<T, ErrorCode>>,
    ) -> Result<(T, u64), ErrorCode> {
        let before = self.world.network.messages();
        let value = operation.await?;
        let messages = self.world.network.messages() - before;
        assert_eq!(messages % 2, 0, "every request was answered");
        Ok((value, messages / 2))
    }
}

#[test]
fn a_name_that_cannot_be_there_costs_nothing_where_the_directory_was_made_here() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        // Without a poll for events nothing may be believed.
        client
            .poll_events(&client.link_to(zonal_types::ShardId(1)), 0)
            .await?;
        let (dir, _) = cell.count(make_dir(client, cell.home, "made")).await?;
        assert_eq!(cell.count(lookup(client, dir, "f")).await?.1, 0, "absent");
        let (opened, trips) = cell.count(create(client, dir, "f", true)).await?;
        assert_eq!(trips, 1, "create and open");
        client.release(opened.file.ino).await?;
        assert_eq!(cell.count(lookup(client, dir, "f")).await?.1, 1, "there");
        assert_eq!(cell.count(lookup(client, dir, "g")).await?.1, 0, "absent");
        client.unlink(&who(), dir, name("f")?).await?;
        assert_eq!(
            cell.count(lookup(client, dir, "f")).await?.1,
            1,
            "what was there once is asked for"
        );
        Ok(())
    });
}

#[test]
fn where_the_kernel_cannot_be_told_nothing_is_kept() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        client
            .poll_events(&client.link_to(zonal_types::ShardId(1)), 0)
            .await?;
        let dir = make_dir(client, cell.home, "dir").await?;
        create(client, dir, "f", true).await?;
        let kept = Part {
            is_kept: true,
            ..Part::new(0, 9, true)
        };
        client.readdir(&who(), dir, kept).await?;
        assert!(client.getattr(dir).await?.1 > 0 && client.keeps_listing(dir));
        client.stop_caching();
        let dir = make_dir(client, cell.home, "other").await?;
        create(client, dir, "f", true).await?;
        let (listed, _end) = client.readdir(&who(), dir, kept).await?;
        let entry = &listed.first().expect("f").entry;
        assert_eq!((entry.entry_ms, entry.attr_ms), (0, 0));
        assert!(!client.keeps_listing(dir));
        let ((_, attr_ms), trips) = cell.count(client.getattr(dir)).await?;
        assert_eq!((attr_ms, trips), (0, 1));
        assert_eq!(cell.count(lookup(client, dir, "g")).await?.1, 1, "absent");
        Ok(())
    });
}

#[test]
fn a_directory_after_ones_own_change_costs_nothing() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        let link = client.link_to(zonal_types::ShardId(1));
        client.poll_events(&link, 0).await?;
        // A first-level one is asked for.
        let home = make_dir(client, cell.home, "dir").await?;
        create(client, home, "f", true).await?;
        let ((made, _), trips) = cell.count(client.getattr(home)).await?;
        let one = 4_096 + 32;
        assert_eq!((made.size, trips), (one, 0), "after the creation");
        make_dir(client, home, "d").await?;
        client.unlink(&who(), home, name("f")?).await?;
        let ((removed, _), trips) = cell.count(client.getattr(home)).await?;
        assert_eq!((removed.size, removed.nlink, trips), (one, 3, 0));
        assert!(removed.mtime > made.mtime);
        // What the reply of a change does not tell is asked for.
        let mode = Some(0o700);
        let change = zonal_wire::AttrChange {
            mode,
            ..Default::default()
        };
        client.setattr(&who(), home, change).await?;
        let ((changed, _), trips) = cell.count(client.getattr(home)).await?;
        assert_eq!((changed.mode, trips), (0o700, 1));
        // So is what another client changes.
        create(client, home, "g", true).await?;
        let other = cell.world.connect(0, Rng::new(3)).await?;
        let world = cell.world.clone();
        let (mine, at) = (client.clone(), client.link_to(zonal_types::ShardId(1)));
        world.spawn_program(0, async move {
            for _ in 0..2 {
                mine.poll_events(&at, 60_000).await.ok();
            }
        });
        create(&other, home, "h", true).await?;
        let (seen, _) = client.getattr(home).await?;
        assert_eq!(seen.size, 4_096 + 3 * 32);
        Ok(())
    });
}

#[test]
fn names_cost_one_round_trip_each() {
    on_a_cell(|cell| async move {
        let (client, home) = (&cell.client, cell.home);
        let (opened, trips) = cell.count(create(client, home, "f", true)).await?;
        assert_eq!(trips, 1, "create and open");
        let ino = opened.file.ino;
        assert_eq!(
            cell.count(client.release(ino)).await?.1,
            0,
            "closes are gathered"
        );
        assert_eq!(
            cell.count(lookup(client, home, "f")).await?.1,
            1,
            "look-up with attributes"
        );
        assert_eq!(
            cell.count(lookup(client, home, "absent")).await?.1,
            1,
            "look-up of nothing"
        );
        assert_eq!(cell.count(client.getattr(ino)).await?.1, 1, "attributes");
        assert_eq!(
            cell.count(open(client, ino)).await?.1,
            1,
            "open with layout"
        );
        assert_eq!(cell.count(make_dir(client, home, "d")).await?.1, 1, "mkdir");
        let (from, to) = ((home, name("f")?), (home, name("g")?));
        assert_eq!(
            cell.count(client.rename(&who(), from, to, 0)).await?.1,
            1,
            "rename"
        );
        assert_eq!(
            cell.count(client.hard_link(&who(), ino, home, name("h")?))
                .await?
                .1,
            1,
            "link"
        );
        assert_eq!(
            cell.count(client.unlink(&who(), home, name("g")?)).await?.1,
            1,
            "unlink"
        );
        Ok(())
    });
}

#[test]
fn a_listing_with_attributes_is_one_round_trip() {
    on_a_cell(|cell| async move {
        for index in 0..100 {
            let opened = create(&cell.client, cell.home, &format!("f{index}"), true).await?;
            cell.client.release(opened.file.ino).await?;
        }
        let root = who();
        let listing = cell
            .client
            .readdir(&root, cell.home, Part::new(0, 1000, true));
        let ((entries, end), trips) = cell.count(listing).await?;
        assert_eq!((entries.len(), end, trips), (100, true, 1));
        assert!(entries.iter().all(|entry| entry.entry.attr.is_some()));
        assert_eq!(cell.count(list(&cell.client, cell.home, 1000)).await?.1, 1);
        Ok(())
    });
}

#[test]
fn a_stream_costs_one_round_trip_a_stripe_unit() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            for index in 0..6 {
                client
                    .write(file, index * MIB as u64, &vec![7; MIB], false)
                    .await?;
            }
            client.flush(file).await
        };
        assert_eq!(
            cell.count(write).await?.1,
            6 + 1,
            "six units and one report, with the first bytes"
        );
        let mut buffer = vec![0; 3 * MIB];
        let (got, trips) = cell.count(client.read(file, 0, &mut buffer)).await?;
        assert_eq!(
            (got, trips),
            (3 * MIB, 3 + 1),
            "a row is read from all targets, the first bytes from the shard"
        );
        let second = client.read(file, 3 * MIB as u64, &mut buffer);
        assert_eq!(cell.count(second).await?, (3 * MIB, 3), "the next row");
        assert!(buffer.iter().all(|byte| *byte == 7));
        Ok(())
    });
}

/// A message takes so long in [`Counter::time`].
const DELAY_NS: u64 = 1_000_000;

impl Counter {
    /// What an operation returns, and its time in messages that follow one another.
    async fn time<T>(
        &self,
        operation: impl Future<Output = Result<T, ErrorCode>>,
    ) -> Result<(T, u64), ErrorCode> {
        self.world.network.set_faults(LinkFaults {
            delay_min: DELAY_NS,
            delay_max: DELAY_NS,
            ..LinkFaults::NONE
        });
        let before = self.world.clock.now().0;
        let value = operation.await?;
        let took = self.world.clock.now().0 - before;
        self.world.network.set_faults(LinkFaults::NONE);
        Ok((value, took / DELAY_NS))
    }
}

#[test]
fn all_targets_of_a_row_are_asked_at_once() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            for index in 0..3 {
                client
                    .write(file, index * MIB as u64, &vec![7; MIB], false)
                    .await?;
            }
            Ok(())
        };
        assert_eq!(cell.time(write).await?.1, 0, "writes wait for nobody");
        let flush = cell.time(client.flush(file)).await?.1;
        assert_eq!(flush, 2 + 2, "all writes, then the report");
        let fsync = cell.time(client.fsync(file)).await?.1;
        assert_eq!(fsync, 2, "all targets and the shard");
        let mut buffer = vec![0; 3 * MIB];
        for (count, what) in [(1, "a target and the shard"), (3, "all of them")] {
            let row = client.read(file, 0, &mut buffer[..count * MIB]);
            let (got, took) = cell.time(row).await?;
            assert_eq!((got, took), (count * MIB, 2), "{what}");
        }
        let root = who();
        let shrink = client.truncate(&root, file.ino, 5, true, false);
        let (_, took) = cell.time(shrink).await?;
        assert_eq!(took, 3 * 2, "the shard, all columns, the shard");
        Ok(())
    });
}

#[test]
fn small_writes_are_gathered() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            for index in 0..100 {
                client.write(file, index * 4096, &[1; 4096], false).await?;
            }
            client.flush(file).await
        };
        assert_eq!(
            cell.count(write).await?.1,
            2,
            "100 writes: one to a target, one report"
        );
        assert_eq!(
            cell.count(client.flush(file)).await?.1,
            0,
            "nothing to flush"
        );
        let write = async {
            client.write(file, 4096, &[2; 4096], false).await?;
            client.fsync(file).await
        };
        assert_eq!(
            cell.count(write).await?.1,
            3,
            "write, target's flush, report with the shard's flush"
        );
        Ok(())
    });
}

#[test]
fn a_small_file_is_its_shards_alone() {
    on_a_cell(|cell| async move {
        let (opened, trips) = cell
            .count(create(&cell.client, cell.home, "f", true))
            .await?;
        assert_eq!(trips, 1, "create");
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            client.write(file, 0, &[2; 4096], false).await?;
            client.fsync(file).await
        };
        assert_eq!(cell.count(write).await?.1, 1, "bytes, durable");
        let mut buffer = [0; 8192];
        let read = cell.count(client.read(file, 0, &mut buffer)).await?;
        assert_eq!(read, (4096, 1), "one question");
        let root = who();
        let empty = client.truncate(&root, file.ino, 0, true, false);
        assert_eq!(cell.count(empty).await?.1, 1, "no column is told");
        Ok(())
    });
}

#[test]
fn a_small_file_is_opened_and_read_with_one_question() {
    on_a_cell(|cell| async move {
        let root = who();
        let client = &cell.client;
        let mut inos = Vec::new();
        for index in 0..10 {
            let opened = create(client, cell.home, &format!("f{index}"), true).await?;
            client.write(&opened.file, 0, &[index; 4096], false).await?;
            client.release(opened.file.ino).await?;
            inos.push(opened.file.ino);
        }
        client.keep_house().await;
        // Bytes that come with an open are kept under a lease, which is only given to who hears of events.
        let map = client.map();
        let shard = map.shard_of(cell.home.partition()).expect("a shard");
        client.poll_events(&client.link_to(shard.id), 0).await?;
        let mut buffer = [0; 4096];
        let read = async {
            for ino in &inos {
                let opened = client.open(&root, *ino, O_RDONLY).await?;
                assert_eq!(client.read(&opened.file, 0, &mut buffer).await?, 4096);
                client.touch(*ino).await?;
                client.release(*ino).await?;
            }
            Ok(())
        };
        assert_eq!(cell.count(read).await?.1, 10, "one each");
        assert_eq!(buffer, [9; 4096]);
        let kept = async {
            client.keep_house().await;
            Ok(())
        };
        assert_eq!(cell.count(kept).await?.1, 2, "ten closes, ten access times");
        // What is written since the open is not hidden by the bytes that came with it.
        let opened = client.open(&root, inos[0], O_RDONLY).await?;
        client.write_through(&opened.file, 1, &[77], false).await?;
        let read = client.read(&opened.file, 0, &mut buffer);
        assert_eq!(cell.count(read).await?, (4096, 1), "asked for again");
        assert_eq!(buffer[..3], [0, 77, 0]);
        // Who opened it to write gets none.
        let opened = client.open(&root, inos[1], O_WRONLY).await?;
        let read = client.read(&opened.file, 0, &mut buffer);
        assert_eq!(cell.count(read).await?, (4096, 1));
        Ok(())
    });
}

#[test]
fn sizes_and_appends() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        assert_eq!(
            cell.count(client.append(file, b"line", false)).await?.1,
            2,
            "ticket, end with the bytes"
        );
        client.write_through(file, 4, &[1; 4092], false).await?;
        assert_eq!(
            cell.count(client.append(file, b"line", false)).await?.1,
            3,
            "ticket, write, end"
        );
        let root = who();
        let grow = client.truncate(&root, file.ino, 1 << 30, true, false);
        assert_eq!(cell.count(grow).await?.1, 1, "growing tells the shard only");
        let shrink = client.truncate(&root, file.ino, 2, true, false);
        assert_eq!(
            cell.count(shrink).await?.1,
            1 + 3 + 1,
            "shrinking tells every column, then confirms"
        );
        let reserve = client.reserve(file, 0, 100, Reserve::Punch, true);
        assert_eq!(cell.count(reserve).await?.1, 2, "size, report with zeros");
        let reserve = client.reserve(file, 4096, 100, Reserve::Punch, true);
        assert_eq!(cell.count(reserve).await?.1, 3, "size, one column, report");
        Ok(())
    });
}

#[test]
fn a_hole_in_an_existing_file_costs_one_question_once() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        let home = cell.home;
        let opened = create(client, home, "f", true).await?;
        let hole = client.write_through(&opened.file, MIB as u64, &[1; 100], false);
        assert_eq!(cell.count(hole).await?.1, 2, "it was made here");
        let (ino, root) = (opened.file.ino, who());
        client.release(ino).await?;
        client.keep_house().await;
        let file = open(client, ino).await?.file;
        let end = (MIB + 100) as u64;
        let follows = client.write_through(&file, end, &[2; 100], false);
        assert_eq!(cell.count(follows).await?.1, 2, "no hole");
        for (at, trips) in [(2, 3), (4, 2), (6, 2)] {
            let hole = client.write_through(&file, at * MIB as u64, &[3; 100], false);
            assert_eq!(cell.count(hole).await?.1, trips, "unit {at}");
        }
        let grow = client.truncate(&root, ino, 1 << 30, true, false);
        assert_eq!(cell.count(grow).await?.1, 1);
        client.release(ino).await?;
        client.keep_house().await;
        // It is written behind what columns may not have heard of: they hear of that first (refused; size, columns, confirmed).
        let file = open(client, ino).await?.file;
        let reserve = client.reserve(&file, 2 << 30, 100, Reserve::Allocate, false);
        assert_eq!(cell.count(reserve).await?.1, 1 + 1 + 3 + 1 + 3);
        // Else as many as without a hole: the question tells the size, too.
        let opened = create(client, home, "g", true).await?;
        client.write(&opened.file, 0, &[1; 9000], false).await?;
        client.release(opened.file.ino).await?;
        client.keep_house().await;
        let file = open(client, opened.file.ino).await?.file;
        let reserve = client.reserve(&file, 2 << 30, 100, Reserve::Allocate, false);
        assert_eq!(cell.count(reserve).await?.1, 3);
        Ok(())
    });
}

#[test]
fn a_file_that_is_not_open_is_made_longer_with_one_question() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        let opened = create(client, cell.home, "f", true).await?;
        client.write(&opened.file, 0, &[1; 9000], false).await?;
        client.release(opened.file.ino).await?;
        client.keep_house().await;
        let root = who();
        for size in [1 << 20, 1 << 21, 1 << 22] {
            let grow = client.truncate(&root, opened.file.ino, size, false, false);
            assert_eq!(cell.count(grow).await?.1, 1);
        }
        Ok(())
    });
}

#[test]
fn a_range_in_one_piece_can_go_past_the_buffer() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        let (opened, _) = cell.count(create(client, cell.home, "f", true)).await?;
        let data: Vec<u8> = (0..2 * MIB).map(|at| (at / 5) as u8).collect();
        client.write(&opened.file, 0, &data, false).await?;
        let mut buffer = vec![0; 2 * MIB];
        let mut sink = Vec::new();
        // Not yet acknowledged: our own bytes are laid over.
        let read = client.read_into(&opened.file, 0, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB));
        client.flush(&opened.file).await?;
        let unit = MIB as u64;
        let read = client.read_into(&opened.file, unit, &mut buffer[..MIB], Some(&mut sink));
        let (into, trips) = cell.count(read).await?;
        assert_eq!((into, trips), (ReadInto::Sink, 1));
        assert!(sink == data[MIB..]);
        // The first bytes are the shard's.
        let read = client.read_into(&opened.file, 0, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB));
        assert!(buffer[..MIB] == data[..MIB]);
        // Two pieces, and the end of the file.
        sink.clear();
        let read = client.read_into(&opened.file, 0, &mut buffer, Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(2 * MIB));
        assert!(buffer == data && sink.is_empty());
        let behind = (MIB + MIB / 2) as u64;
        let read = client.read_into(&opened.file, behind, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB / 2));
        assert!(buffer[..MIB / 2] == data[MIB + MIB / 2..] && sink.is_empty());
        // A hole at the end is shorter at its target than in the file.
        let who = who();
        client
            .truncate(&who, opened.file.ino, 4 * MIB as u64, true, false)
            .await?;
        let read = client.read_into(
            &opened.file,
            3 * MIB as u64,
            &mut buffer[..MIB],
            Some(&mut sink),
        );
        assert_eq!(read.await?, ReadInto::Buffer(MIB));
        assert!(buffer[..MIB].iter().all(|byte| *byte == 0) && sink.is_empty());
        Ok(())
    });
}
