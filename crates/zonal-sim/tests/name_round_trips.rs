//! Round trips of operations on names, counted on a cell without faults: a regression here slows
//! down every network.
//!
//! A round trip is a request and its reply.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::message_counts::on_a_cell;
use zonal_client::names::ListingPage;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, list, lookup, make_dir, name, open, who};
use zonal_types::limits::CACHE_TERM_MS;

#[test]
fn a_name_that_cannot_be_there_costs_nothing_where_the_directory_was_made_here() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        // Without a poll for events the client may cache nothing.
        client
            .background()
            .poll_events(&client.link_to(zonal_types::ShardId(1)), 0)
            .await?;
        let (dir, _) = cell.count(make_dir(client, cell.home, "made")).await?;
        assert_eq!(cell.count(lookup(client, dir, "f")).await?.1, 0, "absent");
        let (opened, trips) = cell.count(create(client, dir, "f", true)).await?;
        assert_eq!(trips, 1, "create and open");
        client.begin().release(opened.file.ino).await?;
        assert_eq!(cell.count(lookup(client, dir, "f")).await?.1, 1, "there");
        assert_eq!(cell.count(lookup(client, dir, "g")).await?.1, 0, "absent");
        client.begin().unlink(&who(), dir, name("f")?).await?;
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
            .background()
            .poll_events(&client.link_to(zonal_types::ShardId(1)), 0)
            .await?;
        let dir = make_dir(client, cell.home, "dir").await?;
        create(client, dir, "f", true).await?;
        let kept = ListingPage {
            is_kept: true,
            ..ListingPage::new(0, 9, true)
        };
        client.begin().readdir(&who(), dir, kept).await?;
        assert!(client.begin().getattr(dir).await?.1 > 0 && client.keeps_listing(dir));
        client.stop_caching();
        let dir = make_dir(client, cell.home, "other").await?;
        create(client, dir, "f", true).await?;
        let (listed, _end) = client.begin().readdir(&who(), dir, kept).await?;
        let entry = &listed.first().expect("f").entry;
        assert_eq!((entry.entry_ms, entry.attr_ms), (0, 0));
        assert!(!client.keeps_listing(dir));
        let ((_, attr_ms), trips) = cell.count(client.begin().getattr(dir)).await?;
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
        client.background().poll_events(&link, 0).await?;
        // The client asks for a first-level directory.
        let home = make_dir(client, cell.home, "dir").await?;
        create(client, home, "f", true).await?;
        let ((made, _), trips) = cell.count(client.begin().getattr(home)).await?;
        let one = 4_096 + 32;
        assert_eq!((made.size, trips), (one, 0), "after the creation");
        make_dir(client, home, "d").await?;
        client.begin().unlink(&who(), home, name("f")?).await?;
        let ((removed, _), trips) = cell.count(client.begin().getattr(home)).await?;
        assert_eq!((removed.size, removed.nlink, trips), (one, 3, 0));
        assert!(removed.mtime > made.mtime);
        // The client asks for attributes that the reply of a change leaves out.
        let mode = Some(0o700);
        let change = zonal_wire::AttrChange {
            mode,
            ..Default::default()
        };
        client.begin().setattr(&who(), home, change).await?;
        let ((changed, _), trips) = cell.count(client.begin().getattr(home)).await?;
        assert_eq!((changed.mode, trips), (0o700, 1));
        // The client also asks for changes of another client.
        create(client, home, "g", true).await?;
        let other = cell.world.connect(0, SimRng::new(3)).await?;
        let world = cell.world.clone();
        let (mine, at) = (client.clone(), client.link_to(zonal_types::ShardId(1)));
        world.spawn_program(0, async move {
            for _ in 0..2 {
                mine.background().poll_events(&at, 60_000).await.ok();
            }
        });
        create(&other, home, "h", true).await?;
        let (seen, _) = client.begin().getattr(home).await?;
        assert_eq!(seen.size, 4_096 + 3 * 32);
        Ok(())
    });
}

#[test]
fn a_write_by_one_who_may_not_keep_set_id_bits_costs_nothing_where_there_are_none() {
    on_a_cell(|cell| async move {
        let (client, shard) = (&cell.client, zonal_types::ShardId(1));
        client
            .background()
            .poll_events(&client.link_to(shard), 0)
            .await?;
        let file = create(client, cell.home, "f", true).await?.file;
        let write = async |offset: u64| {
            let took = !client.has_no_privileges(&file)
                && client.begin().take_privileges(&who(), &file).await?;
            client.begin().write(&file, offset, b"data", true).await?;
            Ok(took)
        };
        for offset in [0, 4, 8] {
            assert_eq!(cell.count(write(offset)).await?, (false, 0), "none");
        }
        let mode = |mode| zonal_wire::AttrChange {
            mode: Some(mode),
            ..Default::default()
        };
        client
            .begin()
            .setattr(&who(), file.ino, mode(0o6755))
            .await?;
        assert_eq!(cell.count(write(12)).await?, (true, 2), "asked for, taken");
        assert_eq!(client.begin().getattr(file.ino).await?.0.mode, 0o755);
        assert_eq!(cell.count(write(16)).await?, (false, 1), "known again");
        assert_eq!(cell.count(write(20)).await?, (false, 0), "none");
        // Made by another client.
        let other = cell.world.connect(0, SimRng::new(3)).await?;
        let world = cell.world.clone();
        let (mine, at) = (client.clone(), client.link_to(shard));
        world.spawn_program(0, async move {
            for _ in 0..9 {
                mine.background().poll_events(&at, 60_000).await.ok();
            }
        });
        for round in 0..3 {
            other
                .begin()
                .setattr(&who(), file.ino, mode(0o4755))
                .await?;
            assert!(write(24).await?, "round {round}");
            assert_eq!(other.begin().getattr(file.ino).await?.0.mode, 0o755);
        }
        // All leases are over, so that no event comes.
        world.clock.sleep((CACHE_TERM_MS + 1_000) * 1_000_000).await;
        assert_eq!(cell.count(write(28)).await?, (false, 1), "granted again");
        world.clock.sleep((CACHE_TERM_MS + 1_000) * 1_000_000).await;
        other
            .begin()
            .setattr(&who(), file.ino, mode(0o4755))
            .await?;
        assert!(write(32).await?, "after the term");
        // Of several names.
        other
            .begin()
            .hard_link(&who(), file.ino, cell.home, name("g")?)
            .await?;
        for round in 0..3 {
            other
                .begin()
                .setattr(&who(), file.ino, mode(0o2755))
                .await?;
            assert!(write(36).await?, "two names, round {round}");
        }
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
            cell.count(client.begin().release(ino)).await?.1,
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
        assert_eq!(
            cell.count(client.begin().getattr(ino)).await?.1,
            1,
            "attributes"
        );
        assert_eq!(
            cell.count(open(client, ino)).await?.1,
            1,
            "open with layout"
        );
        assert_eq!(cell.count(make_dir(client, home, "d")).await?.1, 1, "mkdir");
        let (from, to) = ((home, name("f")?), (home, name("g")?));
        assert_eq!(
            cell.count(client.begin().rename(&who(), from, to, 0))
                .await?
                .1,
            1,
            "rename"
        );
        assert_eq!(
            cell.count(client.begin().hard_link(&who(), ino, home, name("h")?))
                .await?
                .1,
            1,
            "link"
        );
        assert_eq!(
            cell.count(client.begin().unlink(&who(), home, name("g")?))
                .await?
                .1,
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
            cell.client.begin().release(opened.file.ino).await?;
        }
        let root = who();
        let call = cell.client.begin();
        let listing = call.readdir(&root, cell.home, ListingPage::new(0, 1000, true));
        let ((entries, end), trips) = cell.count(listing).await?;
        assert_eq!((entries.len(), end, trips), (100, true, 1));
        assert!(entries.iter().all(|entry| entry.entry.attr.is_some()));
        assert_eq!(cell.count(list(&cell.client, cell.home, 1000)).await?.1, 1);
        Ok(())
    });
}
