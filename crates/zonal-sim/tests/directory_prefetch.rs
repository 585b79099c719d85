//! Walks through trees: directories that are listed one after the other are prefetched together.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::directory_listing::{chmod, listed};
use common::message_counts::{Counter, on_a_cell};
use zonal_client::names::ListingPage;
use zonal_sim::workload::{SimClient, create, make_dir, who};
use zonal_types::{ErrorCode, Ino, ShardId};

/// Longer than prefetching stops after a change.
const QUIET_NS: u64 = 600_000_000;

/// Longer than a lease that is not renewed.
const LEASE_NS: u64 = 6_000_000_000;

/// A directory with directories of two files each, which their maker has forgotten.
async fn tree(cell: &Counter, dirs: usize) -> Result<(Ino, Vec<Ino>), ErrorCode> {
    let client = &cell.client;
    client
        .background()
        .poll_events(&client.link_to(ShardId(1)), 0)
        .await?;
    let top = make_dir(client, cell.home, &format!("top{dirs}")).await?;
    let mut made = Vec::new();
    for number in 0..dirs {
        let dir = make_dir(client, top, &format!("d{number}")).await?;
        for file in ["a", "b"] {
            let ino = create(client, dir, file, true).await?.file.ino;
            client.begin().release(ino).await?;
        }
        made.push(dir);
    }
    cell.world.clock.sleep(QUIET_NS).await;
    Ok((top, made))
}

/// The directories in `top`, in the order of their shard.
async fn told(client: &SimClient, top: Ino) -> Result<Vec<(String, Ino)>, ErrorCode> {
    let part = ListingPage::new(0, 1000, true);
    let (entries, end) = client.begin().readdir(&who(), top, part).await?;
    assert!(end);
    let dirs = entries.into_iter();
    let dirs = dirs.map(|item| (item.name.to_string(), item.entry.ino));
    Ok(dirs.collect())
}

/// Number of round trips of a walk through these directories.
async fn walked(cell: &Counter, dirs: &[(String, Ino)]) -> Result<u64, ErrorCode> {
    let mut trips = 0;
    for (_name, dir) in dirs {
        trips += cell.count(listed(&cell.client, *dir)).await?.1;
    }
    Ok(trips)
}

/// Some directories of a tree. The first was listed, and the others were prefetched with it.
async fn begun(cell: &Counter, count: usize) -> Result<Vec<Ino>, ErrorCode> {
    let (top, dirs) = tree(cell, count).await?;
    listed(&cell.client, top).await?;
    listed(&cell.client, dirs[0]).await?;
    Ok(dirs)
}

#[test]
fn a_walk_takes_one_round_trip_for_many_directories() {
    on_a_cell(|cell| async move {
        // More directories than the client keeps.
        for (count, trips) in [(40, 3), (480, 30)] {
            let (top, _dirs) = tree(&cell, count).await?;
            let mut dirs = told(&cell.client, top).await?;
            assert_eq!(walked(&cell, &dirs).await?, trips, "as they are told");
            dirs.sort();
            assert_eq!(walked(&cell, &dirs).await?, 0, "leases go on");
            cell.world.clock.sleep(LEASE_NS).await;
            assert_eq!(told(&cell.client, top).await?.len(), count);
            let by_name = walked(&cell, &dirs).await?;
            // The order of the walk is known from the second directory on.
            assert!((trips..trips + 3).contains(&by_name), "{by_name} by name");
        }
        Ok(())
    });
}

#[test]
fn empty_directories_are_prefetched() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        client
            .background()
            .poll_events(&client.link_to(ShardId(1)), 0)
            .await?;
        let top = make_dir(client, cell.home, "empty").await?;
        for number in 0..240 {
            make_dir(client, top, &format!("d{number}")).await?;
        }
        cell.world.clock.sleep(QUIET_NS).await;
        let dirs = told(client, top).await?;
        assert_eq!(walked(&cell, &dirs).await?, 15);
        Ok(())
    });
}

#[test]
fn a_walk_that_reads_files_is_as_fast() {
    on_a_cell(|cell| async move {
        let (top, _dirs) = tree(&cell, 40).await?;
        let client = &cell.client;
        let dirs = told(client, top).await?;
        let (mut trips, mut files) = (0, Vec::new());
        for (_name, dir) in &dirs {
            let (found, more) = cell.count(listed(client, *dir)).await?;
            trips += more;
            let file = found["a"].1;
            client.begin().touch(file);
            files.push(file);
            cell.world.clock.sleep(10_000_000).await;
            if files.len().is_multiple_of(10) {
                client.background().keep_house().await;
            }
        }
        assert_eq!(trips, 3);
        // A changed directory is not answered from an earlier prefetch.
        cell.world.clock.sleep(QUIET_NS).await;
        told(client, top).await?;
        listed(client, dirs[0].1).await?;
        cell.world.clock.sleep(2_000_000_000).await;
        client.begin().touch(files[1]);
        client.background().keep_house().await;
        let asked = client.begin().getattr(files[1]).await?.0.atime;
        let part = ListingPage::new(0, 200, true);
        let (entries, _end) = client.begin().readdir(&who(), dirs[1].1, part).await?;
        let mut attrs = entries.iter().filter_map(|item| item.entry.attr);
        let listed = attrs.find(|attr| attr.ino == files[1]);
        assert_eq!(listed.expect("the file").atime, asked);
        Ok(())
    });
}

#[test]
fn prefetch_begins_with_the_second_directory_of_a_walk() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 20).await?;
        let client = &cell.client;
        listed(client, top).await?;
        cell.world.clock.sleep(2_000_000_000).await;
        listed(client, dirs[3]).await?;
        assert_eq!(cell.count(listed(client, dirs[4])).await?.1, 1, "a second");
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 0, "a walk");
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 0, "again");
        cell.world.clock.sleep(40_000_000_000).await;
        listed(client, dirs[7]).await?;
        assert_eq!(cell.count(listed(client, dirs[8])).await?.1, 1, "a second");
        // Without attributes no listing is kept.
        let root = who();
        let call = client.begin();
        let bare = call.readdir(&root, dirs[6], ListingPage::new(0, 200, false));
        assert_eq!(cell.count(bare).await?.1, 1);
        Ok(())
    });
}

#[test]
fn prefetched_listings_end_with_their_lease() {
    on_a_cell(|cell| async move {
        let dirs = begun(&cell, 4).await?;
        let client = &cell.client;
        cell.world.clock.sleep(4_500_000_000).await;
        assert_eq!(cell.count(listed(client, dirs[1])).await?.1, 1);
        Ok(())
    });
}

#[test]
fn a_part_without_room_for_all_entries_continues_where_it_ended() {
    on_a_cell(|cell| async move {
        let dirs = begun(&cell, 3).await?;
        let client = &cell.client;
        let root = who();
        let call = client.begin();
        let one = call.readdir(&root, dirs[1], ListingPage::new(0, 1, true));
        let ((entries, end), trips) = cell.count(one).await?;
        assert_eq!((entries.len(), end, trips), (1, false, 0));
        let rest = ListingPage::new(entries[0].cookie, 1, true);
        let (entries, _end) = client.begin().readdir(&root, dirs[1], rest).await?;
        assert_eq!(entries.len(), 1);
        Ok(())
    });
}

#[test]
fn a_change_of_ones_own_is_listed() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 8).await?;
        let client = &cell.client;
        listed(client, top).await?;
        let first = listed(client, dirs[0]).await?;
        assert_eq!(cell.count(listed(client, dirs[1])).await?.1, 0, "ahead");
        create(client, dirs[2], "c", true).await?;
        assert!(listed(client, dirs[2]).await?.contains_key("c"));
        cell.world.clock.sleep(QUIET_NS).await;
        listed(client, dirs[3]).await?;
        let file = first["a"].1;
        chmod(client, file, 0o601).await?;
        assert_eq!(listed(client, dirs[0]).await?["a"].0, 0o601);
        // A client that changes something prefetches nothing.
        assert_eq!(cell.count(listed(client, dirs[4])).await?.1, 1);
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 1);
        Ok(())
    });
}
