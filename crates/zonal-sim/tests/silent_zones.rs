//! Zones whose servers stand still: the root is listed beside them, soon, and users of the zones
//! wait for them as ever. All times are the simulator's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it should be"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{patient_at, run_on};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_client::names::{ListingPage, LookupResult};
use zonal_sim::workload::{SimClient, make_dir, name, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::limits::{ROOT_ANSWER_MS, ROOT_CONFIRM_MS, ROOT_SILENCE_MS};
use zonal_types::{ErrorCode, Ino, ZoneId};

const ZONES: u16 = 4;
/// First-level directories of a zone.
const DIRS: usize = 3;
const DEADLINE_MS: u64 = 10_000;
/// For messages on their way.
const SLACK_MS: u64 = 100;

struct RootOfZones {
    world: Rc<World>,
    client: SimClient,
}

/// The name of a first-level directory.
fn dir_name(zone: u16, number: usize) -> String {
    format!("z{zone}-{number}")
}

/// Runs a program on a cell with first-level directories in several zones.
fn on_zones<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    program: impl FnOnce(RootOfZones) -> P + 'static,
) {
    run_on(CellSize::new(ZONES, 1, 2), |world| async move {
        let client = patient_at(&world, 0, DEADLINE_MS).await?;
        for zone in 1..=ZONES {
            for number in 0..DIRS {
                let made = name(&dir_name(zone, number))?;
                let (modes, home) = ((0o755, 0), Some(ZoneId(zone)));
                let call = client.begin();
                call.mkdir(&who(), Ino::ROOT, made, modes, home).await?;
            }
        }
        program(RootOfZones { world, client }).await
    });
}

impl RootOfZones {
    fn now_ms(&self) -> u64 {
        self.world.clock.now().0 / 1_000_000
    }

    /// Makes all servers of some zones stand still, or go on.
    fn pause(&self, zones: &[u16], is_paused: bool) {
        let map = self.world.map.borrow();
        for index in 0..self.world.server_count() {
            let address = self.world.address_of(index);
            let node = map.nodes.iter().find(|node| node.address == address);
            let is_root = map.shards[0].node == node.unwrap().id;
            if !is_root && zones.contains(&node.unwrap().zone.0) {
                self.world.pause(index, is_paused);
            }
        }
    }

    /// Lists the root; returns whether each entry has attributes, and the time, ms.
    async fn list(&self) -> Result<(BTreeMap<String, bool>, u64), ErrorCode> {
        let since = self.now_ms();
        let part = ListingPage::new(0, 200, true);
        let (entries, end) = self.client.begin().readdir(&who(), Ino::ROOT, part).await?;
        assert!(end);
        let entries = entries.into_iter();
        let entries = entries.map(|item| (item.name.to_string(), item.entry.attr.is_some()));
        Ok((entries.collect(), self.now_ms() - since))
    }

    /// Stats all entries of a zone, as a part of a listing; returns the outcomes and the time, ms.
    async fn stat_listed(&self, zone: u16) -> Result<(Vec<Option<ErrorCode>>, u64), ErrorCode> {
        let (since, mut outcomes) = (self.now_ms(), Vec::new());
        for number in 0..DIRS {
            let call = self.client.begin().of_listing();
            let entry = name(&dir_name(zone, number))?;
            outcomes.push(call.lookup(&who(), Ino::ROOT, entry).await.err());
        }
        Ok((outcomes, self.now_ms() - since))
    }

    /// All entries, of which those of some zones have no attributes.
    fn without(silent: &[u16]) -> BTreeMap<String, bool> {
        let zones = (1..=ZONES).flat_map(|zone| (0..DIRS).map(move |number| (zone, number)));
        let entries = zones.map(|(zone, number)| {
            let is_known = !silent.contains(&zone);
            (dir_name(zone, number), is_known)
        });
        entries.collect()
    }
}

#[test]
fn a_listing_shows_all_names_and_waits_once_for_all_silent_zones() {
    on_zones(|root| async move {
        assert_eq!(root.list().await?.0, RootOfZones::without(&[]));
        root.pause(&[2, 3], true);
        let (entries, took) = root.list().await?;
        assert_eq!(entries, RootOfZones::without(&[2, 3]));
        assert!(took <= ROOT_ANSWER_MS + SLACK_MS, "{took} ms");
        // The first stat asks both zones once more, the others do not wait.
        let silent = vec![Some(ErrorCode::TimedOut); DIRS];
        let (outcomes, took) = root.stat_listed(2).await?;
        assert_eq!(outcomes, silent);
        assert!(took <= ROOT_CONFIRM_MS + SLACK_MS, "{took} ms");
        let (outcomes, took) = root.stat_listed(3).await?;
        assert_eq!(outcomes, silent);
        assert!(took <= SLACK_MS, "{took} ms");
        let (outcomes, took) = root.stat_listed(4).await?;
        assert!(
            outcomes == vec![None; DIRS] && took <= SLACK_MS,
            "{took} ms"
        );
        let (entries, took) = root.list().await?;
        assert_eq!(entries, RootOfZones::without(&[2, 3]));
        assert!(took <= SLACK_MS, "known to be silent: {took} ms");
        root.pause(&[2, 3], false);
        root.world.clock.sleep(ROOT_SILENCE_MS * 1_000_000).await;
        assert_eq!(root.list().await?.0, RootOfZones::without(&[]));
        assert_eq!(root.stat_listed(2).await?.0, vec![None; DIRS]);
        Ok(())
    });
}

#[test]
fn a_listing_by_a_new_client_reaches_zones_behind_a_silent_one() {
    on_zones(|root| async move {
        root.pause(&[2], true);
        let client = patient_at(&root.world, 1, DEADLINE_MS).await?;
        let fresh = RootOfZones { client, ..root };
        let (entries, took) = fresh.list().await?;
        assert_eq!(entries, RootOfZones::without(&[2]));
        assert!(took <= ROOT_ANSWER_MS + SLACK_MS, "{took} ms");
        Ok(())
    });
}

#[test]
fn users_of_a_zone_wait_for_a_server_that_listings_know_to_be_silent() {
    on_zones(|root| async move {
        root.pause(&[2], true);
        root.list().await?;
        let (outcomes, _took) = root.stat_listed(2).await?;
        assert_eq!(outcomes, vec![Some(ErrorCode::TimedOut); DIRS]);
        let (inner, since) = (root.world.clone(), root.now_ms());
        let back = async {
            inner.clock.sleep(6_000_000_000).await;
            root.pause(&[2], false);
        };
        let users = async {
            let call = root.client.begin();
            let looked = call
                .lookup(&who(), Ino::ROOT, name(&dir_name(2, 0))?)
                .await?;
            let LookupResult::Found(found) = looked else {
                return Err(ErrorCode::NotFound);
            };
            make_dir(&root.client, found.attr.ino, "below").await
        };
        let (made, ()) = both(users, back).await;
        made?;
        assert!(root.now_ms() - since >= 6_000, "it has waited");
        assert_eq!(
            root.list().await?.0,
            RootOfZones::without(&[]),
            "known by its answer"
        );
        Ok(())
    });
}

#[test]
fn the_capacity_of_the_cell_has_the_last_figures_of_a_silent_zone() {
    on_zones(|root| async move {
        let whole = root.client.begin().statfs(Ino::ROOT).await?;
        root.pause(&[2, 3], true);
        for limit in [ROOT_ANSWER_MS + SLACK_MS, SLACK_MS] {
            let since = root.now_ms();
            let known = root.client.begin().statfs(Ino::ROOT).await?;
            let took = root.now_ms() - since;
            assert_eq!(known.total, whole.total);
            assert!(took <= limit, "{took} ms");
        }
        let client = patient_at(&root.world, 1, DEADLINE_MS).await?;
        let since = root.now_ms();
        let part = client.begin().statfs(Ino::ROOT).await?;
        assert_eq!(part.total, whole.total / 2, "never known: left out");
        let took = root.now_ms() - since;
        assert!(took <= 2 * ROOT_ANSWER_MS + SLACK_MS, "{took} ms");
        Ok(())
    });
}

/// Runs two futures side by side.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        use std::task::Poll;
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = other.as_mut().poll(context)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (left, right) => {
                (first, second) = (left, right);
                Poll::Pending
            }
        }
    })
    .await
}
