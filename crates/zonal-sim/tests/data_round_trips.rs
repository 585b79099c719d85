//! Round trips of reads, writes and sizes, counted on a cell without faults: a regression here
//! slows down every network.
//!
//! A round trip is a request and its reply.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::message_counts::on_a_cell;
use zonal_client::Reserve;
use zonal_client::data::ReadInto;
use zonal_sim::workload::{create, open, who};
use zonal_wire::meta::flags::{O_RDONLY, O_WRONLY};

const MIB: usize = 1 << 20;

#[test]
fn a_stream_costs_one_round_trip_a_stripe_unit() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            for index in 0..6 {
                client
                    .begin()
                    .write(file, index * MIB as u64, &vec![7; MIB], false)
                    .await?;
            }
            client.begin().flush(file).await
        };
        assert_eq!(
            cell.count(write).await?.1,
            6 + 1,
            "six units and one report, with the first bytes"
        );
        let mut buffer = vec![0; 3 * MIB];
        let (got, trips) = cell
            .count(client.begin().read(file, 0, &mut buffer))
            .await?;
        assert_eq!(
            (got, trips),
            (3 * MIB, 3 + 1),
            "a row is read from all targets, the first bytes from the shard"
        );
        let call = client.begin();
        let second = call.read(file, 3 * MIB as u64, &mut buffer);
        assert_eq!(cell.count(second).await?, (3 * MIB, 3), "the next row");
        assert!(buffer.iter().all(|byte| *byte == 7));
        Ok(())
    });
}

#[test]
fn all_targets_of_a_row_are_asked_at_once() {
    on_a_cell(|cell| async move {
        let opened = create(&cell.client, cell.home, "f", true).await?;
        let (client, file) = (&cell.client, &*opened.file);
        let write = async {
            for index in 0..3 {
                client
                    .begin()
                    .write(file, index * MIB as u64, &vec![7; MIB], false)
                    .await?;
            }
            Ok(())
        };
        assert_eq!(cell.time(write).await?.1, 0, "writes wait for nobody");
        let flush = cell.time(client.begin().flush(file)).await?.1;
        assert_eq!(flush, 2 + 2, "all writes, then the report");
        let fsync = cell.time(client.begin().fsync(file)).await?.1;
        assert_eq!(fsync, 2, "all targets and the shard");
        let mut buffer = vec![0; 3 * MIB];
        for (count, what) in [(1, "a target and the shard"), (3, "all of them")] {
            let call = client.begin();
            let row = call.read(file, 0, &mut buffer[..count * MIB]);
            let (got, took) = cell.time(row).await?;
            assert_eq!((got, took), (count * MIB, 2), "{what}");
        }
        let root = who();
        let call = client.begin();
        let shrink = call.truncate(&root, file.ino, 5, true, false);
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
                client
                    .begin()
                    .write(file, index * 4096, &[1; 4096], false)
                    .await?;
            }
            client.begin().flush(file).await
        };
        assert_eq!(
            cell.count(write).await?.1,
            2,
            "100 writes: one to a target, one report"
        );
        assert_eq!(
            cell.count(client.begin().flush(file)).await?.1,
            0,
            "nothing to flush"
        );
        let write = async {
            client.begin().write(file, 4096, &[2; 4096], false).await?;
            client.begin().fsync(file).await
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
            client.begin().write(file, 0, &[2; 4096], false).await?;
            client.begin().fsync(file).await
        };
        assert_eq!(cell.count(write).await?.1, 1, "bytes, durable");
        let mut buffer = [0; 8192];
        let read = cell
            .count(client.begin().read(file, 0, &mut buffer))
            .await?;
        assert_eq!(read, (4096, 1), "one question");
        let root = who();
        let call = client.begin();
        let empty = call.truncate(&root, file.ino, 0, true, false);
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
            client
                .begin()
                .write(&opened.file, 0, &[index; 4096], false)
                .await?;
            client.begin().release(opened.file.ino).await?;
            inos.push(opened.file.ino);
        }
        client.background().keep_house().await;
        // Bytes that come with an open are cached under a lease. The shard gives it only to clients
        // that poll for events.
        let map = client.map();
        let shard = map.shard_of(cell.home.partition()).expect("a shard");
        client
            .background()
            .poll_events(&client.link_to(shard.id), 0)
            .await?;
        let mut buffer = [0; 4096];
        let read = async {
            for ino in &inos {
                let opened = client.begin().open(&root, *ino, O_RDONLY).await?;
                assert_eq!(
                    client.begin().read(&opened.file, 0, &mut buffer).await?,
                    4096
                );
                client.begin().touch(*ino);
                client.begin().release(*ino).await?;
            }
            Ok(())
        };
        assert_eq!(cell.count(read).await?.1, 10, "one each");
        assert_eq!(buffer, [9; 4096]);
        let kept = async {
            client.background().keep_house().await;
            Ok(())
        };
        assert_eq!(cell.count(kept).await?.1, 2, "ten closes, ten access times");
        // Bytes that come with an open must not hide later writes.
        let opened = client.begin().open(&root, inos[0], O_RDONLY).await?;
        client
            .begin()
            .write_through(&opened.file, 1, &[77], false)
            .await?;
        let call = client.begin();
        let read = call.read(&opened.file, 0, &mut buffer);
        assert_eq!(cell.count(read).await?, (4096, 1), "asked for again");
        assert_eq!(buffer[..3], [0, 77, 0]);
        // An open for writing gets no bytes.
        let opened = client.begin().open(&root, inos[1], O_WRONLY).await?;
        let call = client.begin();
        let read = call.read(&opened.file, 0, &mut buffer);
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
            cell.count(client.begin().append(file, b"line", false))
                .await?
                .1,
            2,
            "ticket, end with the bytes"
        );
        client
            .begin()
            .write_through(file, 4, &[1; 4092], false)
            .await?;
        assert_eq!(
            cell.count(client.begin().append(file, b"line", false))
                .await?
                .1,
            3,
            "ticket, write, end"
        );
        let root = who();
        let call = client.begin();
        let grow = call.truncate(&root, file.ino, 1 << 30, true, false);
        assert_eq!(cell.count(grow).await?.1, 1, "growing tells the shard only");
        let call = client.begin();
        let shrink = call.truncate(&root, file.ino, 2, true, false);
        assert_eq!(
            cell.count(shrink).await?.1,
            1 + 3 + 1,
            "shrinking tells every column, then confirms"
        );
        let call = client.begin();
        let reserve = call.reserve(file, 0, 100, Reserve::Punch, true);
        assert_eq!(cell.count(reserve).await?.1, 2, "size, report with zeros");
        let call = client.begin();
        let reserve = call.reserve(file, 4096, 100, Reserve::Punch, true);
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
        let call = client.begin();
        let hole = call.write_through(&opened.file, MIB as u64, &[1; 100], false);
        assert_eq!(cell.count(hole).await?.1, 2, "it was made here");
        let (ino, root) = (opened.file.ino, who());
        client.begin().release(ino).await?;
        client.background().keep_house().await;
        let file = open(client, ino).await?.file;
        let end = (MIB + 100) as u64;
        let call = client.begin();
        let follows = call.write_through(&file, end, &[2; 100], false);
        assert_eq!(cell.count(follows).await?.1, 2, "no hole");
        for (at, trips) in [(2, 3), (4, 2), (6, 2)] {
            let call = client.begin();
            let hole = call.write_through(&file, at * MIB as u64, &[3; 100], false);
            assert_eq!(cell.count(hole).await?.1, trips, "unit {at}");
        }
        let call = client.begin();
        let grow = call.truncate(&root, ino, 1 << 30, true, false);
        assert_eq!(cell.count(grow).await?.1, 1);
        client.begin().release(ino).await?;
        client.background().keep_house().await;
        // The range lies behind an end that columns may not have heard of, so they hear of it first
        // (refused; size, columns, confirmed).
        let file = open(client, ino).await?.file;
        let call = client.begin();
        let reserve = call.reserve(&file, 2 << 30, 100, Reserve::Allocate, false);
        assert_eq!(cell.count(reserve).await?.1, 1 + 1 + 3 + 1 + 3);
        // Otherwise as many as without a hole: the request tells the size, too.
        let opened = create(client, home, "g", true).await?;
        client
            .begin()
            .write(&opened.file, 0, &[1; 9000], false)
            .await?;
        client.begin().release(opened.file.ino).await?;
        client.background().keep_house().await;
        let file = open(client, opened.file.ino).await?.file;
        let call = client.begin();
        let reserve = call.reserve(&file, 2 << 30, 100, Reserve::Allocate, false);
        assert_eq!(cell.count(reserve).await?.1, 3);
        Ok(())
    });
}

#[test]
fn a_file_that_is_not_open_is_made_longer_with_one_question() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        let opened = create(client, cell.home, "f", true).await?;
        client
            .begin()
            .write(&opened.file, 0, &[1; 9000], false)
            .await?;
        client.begin().release(opened.file.ino).await?;
        client.background().keep_house().await;
        let root = who();
        for size in [1 << 20, 1 << 21, 1 << 22] {
            let call = client.begin();
            let grow = call.truncate(&root, opened.file.ino, size, false, false);
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
        client.begin().write(&opened.file, 0, &data, false).await?;
        let mut buffer = vec![0; 2 * MIB];
        let mut sink = Vec::new();
        // Not yet acknowledged: the client's own bytes are laid over.
        let call = client.begin();
        let read = call.read_into(&opened.file, 0, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB));
        client.begin().flush(&opened.file).await?;
        let unit = MIB as u64;
        let call = client.begin();
        let read = call.read_into(&opened.file, unit, &mut buffer[..MIB], Some(&mut sink));
        let (into, trips) = cell.count(read).await?;
        assert_eq!((into, trips), (ReadInto::Sink, 1));
        assert!(sink == data[MIB..]);
        // The first bytes are the shard's.
        let call = client.begin();
        let read = call.read_into(&opened.file, 0, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB));
        assert!(buffer[..MIB] == data[..MIB]);
        // Two pieces, and the end of the file.
        sink.clear();
        let call = client.begin();
        let read = call.read_into(&opened.file, 0, &mut buffer, Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(2 * MIB));
        assert!(buffer == data && sink.is_empty());
        let behind = (MIB + MIB / 2) as u64;
        let call = client.begin();
        let read = call.read_into(&opened.file, behind, &mut buffer[..MIB], Some(&mut sink));
        assert_eq!(read.await?, ReadInto::Buffer(MIB / 2));
        assert!(buffer[..MIB / 2] == data[MIB + MIB / 2..] && sink.is_empty());
        // A hole at the end is shorter at its target than in the file.
        let who = who();
        client
            .begin()
            .truncate(&who, opened.file.ino, 4 * MIB as u64, true, false)
            .await?;
        let call = client.begin();
        let read = call.read_into(
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
