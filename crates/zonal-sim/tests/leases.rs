//! Leases on names and attributes: they live as long as the session that renews them, and never
//! show anything older than a request would.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::directory_listing::{chmod, listed};
use common::message_counts::{Counter, on_a_cell};
use std::rc::Rc;
use zonal_client::names::LookupResult;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, name, who};
use zonal_types::{ErrorCode, Ino, ShardId};

const SECOND: u64 = 1_000_000_000;

/// Runs a program on a fresh cell with a client that keeps its leases for some ms after their use.
fn with_leases<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    kept_ms: u64,
    program: impl FnOnce(Counter) -> P + 'static,
) {
    on_a_cell(move |mut cell| async move {
        let rng = SimRng::new(6);
        let keep =
            move |options: &mut zonal_client::ClientOptions| options.keep_leases_ms = kept_ms;
        cell.client = Rc::new(cell.world.connect_with(0, rng, keep).await?);
        cell.client.begin().getattr(cell.home).await?;
        program(cell).await
    });
}

/// Two directories of two files each in a directory, which the client has walked.
async fn walked_tree(cell: &Counter) -> Result<(Ino, Vec<Ino>), ErrorCode> {
    renew(cell).await?;
    let maker = cell.world.connect(0, SimRng::new(7)).await?;
    let top = make_dir(&maker, cell.home, "top").await?;
    let mut files = Vec::new();
    for dir in ["a", "b"] {
        let dir = make_dir(&maker, top, dir).await?;
        for file in ["x", "y"] {
            let ino = create(&maker, dir, file, true).await?.file.ino;
            maker.begin().release(ino).await?;
            files.push(ino);
        }
    }
    maker.begin().close().await?;
    go_on(cell, 1).await?;
    walk(&cell.client, top).await?;
    Ok((top, files))
}

/// Lists a tree of two levels and looks every name up.
async fn walk(client: &SimClient, top: Ino) -> Result<(), ErrorCode> {
    let root = who();
    for dir in listed(client, top).await? {
        let (dir, ino) = (dir.0, dir.1.1);
        client.begin().lookup(&root, top, name(&dir)?).await?;
        client.begin().getattr(ino).await?;
        for file in listed(client, ino).await?.keys() {
            client.begin().lookup(&root, ino, name(file)?).await?;
        }
        client.begin().lookup(&root, ino, name("absent")?).await?;
    }
    Ok(())
}

/// Polls once for events, as a mount does all the time.
async fn renew(cell: &Counter) -> Result<(), ErrorCode> {
    let link = cell.client.link_to(ShardId(1));
    let call = cell.client.background();
    let wait_ms = call.poll_wait_ms(&link);
    call.poll_events(&link, wait_ms).await.map(drop)
}

/// Renews for some simulated time.
async fn go_on(cell: &Counter, seconds: u64) -> Result<(), ErrorCode> {
    let end = cell.world.clock.now().0 + seconds * SECOND;
    while cell.world.clock.now().0 < end {
        renew(cell).await?;
    }
    Ok(())
}

#[test]
fn a_second_walk_asks_nothing_while_the_session_is_renewed() {
    with_leases(900_000, |cell| async move {
        let (top, _files) = walked_tree(&cell).await?;
        for seconds in [7, 420] {
            go_on(&cell, seconds).await?;
            let trips = cell.count(walk(&cell.client, top)).await?.1;
            assert_eq!(trips, 0, "after {seconds} s");
        }
        Ok(())
    });
}

#[test]
fn a_listing_of_the_root_asks_no_shard_about_a_leased_directory() {
    with_leases(900_000, |cell| async move {
        renew(&cell).await?;
        cell.client.begin().getattr(cell.home).await?;
        listed(&cell.client, Ino::ROOT).await?;
        go_on(&cell, 7).await?;
        let trips = cell.count(listed(&cell.client, Ino::ROOT)).await?.1;
        assert_eq!(
            trips, 1,
            "to the root's shard, whose leases are not renewed here"
        );
        Ok(())
    });
}

#[test]
fn leases_that_nobody_uses_are_not_renewed() {
    with_leases(30_000, |cell| async move {
        let (top, _files) = walked_tree(&cell).await?;
        go_on(&cell, 60).await?;
        assert!(cell.count(walk(&cell.client, top)).await?.1 > 0);
        Ok(())
    });
}

#[test]
fn leases_that_were_not_renewed_in_time_are_void() {
    with_leases(900_000, |cell| async move {
        let (top, files) = walked_tree(&cell).await?;
        go_on(&cell, 2).await?;
        cell.world.clock.sleep(6 * SECOND).await;
        // Another client need not wait for a client that renews nothing.
        let other = cell.world.connect(0, SimRng::new(8)).await?;
        chmod(&other, files[0], 0o641).await?;
        renew(&cell).await?;
        let (attr, _ms) = cell.client.begin().getattr(files[0]).await?;
        assert_eq!(attr.mode, 0o641);
        assert!(cell.count(walk(&cell.client, top)).await?.1 > 0);
        Ok(())
    });
}

#[test]
fn a_client_that_is_gone_delays_a_change_by_its_last_lease() {
    with_leases(900_000, |cell| async move {
        let (_top, files) = walked_tree(&cell).await?;
        go_on(&cell, 20).await?;
        let (other, before) = (
            cell.world.connect(0, SimRng::new(8)).await?,
            cell.world.clock.now().0,
        );
        chmod(&other, files[0], 0o641).await?;
        let took = (cell.world.clock.now().0 - before) / 1_000_000;
        assert!((1_000..=5_600).contains(&took), "{took} ms");
        Ok(())
    });
}

#[test]
fn own_changes_are_seen_at_once() {
    with_leases(900_000, |cell| async move {
        let (top, _files) = walked_tree(&cell).await?;
        let (client, root) = (&cell.client, who());
        let dirs = listed(client, top).await?;
        let (a, b) = (dirs["a"].1, dirs["b"].1);
        let before = listed(client, a).await?;
        create(client, a, "new", true).await?;
        assert_eq!(listed(client, a).await?.len(), 3);
        chmod(client, before["x"].1, 0o600).await?;
        assert_eq!(listed(client, a).await?["x"].0, 0o600);
        client.begin().unlink(&root, a, name("x")?).await?;
        assert!(!listed(client, a).await?.contains_key("x"));
        let looked = client.begin().lookup(&root, a, name("x")?).await?;
        assert!(matches!(looked, LookupResult::Absent(_)));
        let (from, to) = ((a, name("y")?), (b, name("x")?));
        client.begin().rename(&root, from, to, 0).await?;
        assert_eq!(listed(client, b).await?["x"].1, before["y"].1);
        assert_eq!(listed(client, a).await?.len(), 1);
        let link = client.begin();
        link.hard_link(&root, before["y"].1, a, name("z")?).await?;
        assert_eq!(client.begin().getattr(before["y"].1).await?.0.nlink, 2);
        Ok(())
    });
}
