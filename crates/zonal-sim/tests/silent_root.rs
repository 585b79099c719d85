//! A zone that is cut off from the root's shard: its clients read the root's names in the mirror of
//! their zone. Names that others changed since are old there until the cut is healed. All times are
//! the simulator's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it should be"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{patient_at, run_on};
use std::rc::Rc;
use zonal_client::names::{ListingPage, LookupResult};
use zonal_sim::workload::{SimClient, create, make_dir, name, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::limits::{CACHE_TERM_MS, ROOT_NAME_MS, ROOT_PROBE_MS};
use zonal_types::{ErrorCode, Ino, ZoneId};

const DEADLINE_MS: u64 = 10_000;
/// For messages on their way.
const SLACK_MS: u64 = 100;

/// A cell of two zones, and a client in the first one.
struct CutZone {
    world: Rc<World>,
    client: SimClient,
    /// Another client, which is never cut off.
    other: SimClient,
}

impl CutZone {
    fn now_ms(&self) -> u64 {
        self.world.clock.now().0 / 1_000_000
    }

    async fn sleep_ms(&self, ms: u64) {
        self.world.clock.sleep(ms * 1_000_000).await;
    }

    fn root_address(&self) -> String {
        let map = self.world.map.borrow();
        let root = map.shards.iter().find(|shard| shard.id.0 == 0);
        map.node(root.unwrap().node).unwrap().address.clone()
    }

    /// Cuts the first zone off from the root's shard, or heals it.
    fn cut(&self, is_cut: bool) {
        let root = self.root_address();
        let map = self.world.map.borrow().clone();
        let nodes = map.nodes.iter();
        let own = nodes.filter(|node| node.zone == ZoneId(1) && node.address != root);
        let own = own.map(|node| node.address.clone());
        for address in own.chain([self.world.client_name(0)]) {
            self.world.network.cut(&address, &root, is_cut);
        }
    }

    /// The inode of a name of the root, and the time of the look-up, ms.
    async fn look_up(&self, text: &str) -> (Result<Option<Ino>, ErrorCode>, u64) {
        let since = self.now_ms();
        let call = self.client.begin();
        let found = call.lookup(&who(), Ino::ROOT, name(text).unwrap()).await;
        let found = found.map(|found| match found {
            LookupResult::Found(found) => Some(found.attr.ino),
            LookupResult::Absent(_) => None,
        });
        (found, self.now_ms() - since)
    }

    async fn listed(&self) -> Result<Vec<String>, ErrorCode> {
        let part = ListingPage::new(0, 200, true);
        let (entries, end) = self.client.begin().readdir(&who(), Ino::ROOT, part).await?;
        assert!(end);
        let mut names: Vec<String> = entries.iter().map(|item| item.name.to_string()).collect();
        names.sort();
        Ok(names)
    }

    async fn rename_by_other(&self, from: &str, to: &str) -> Result<(), ErrorCode> {
        let (from, to) = ((Ino::ROOT, name(from)?), (Ino::ROOT, name(to)?));
        self.other.begin().rename(&who(), from, to, 0).await
    }
}

/// Makes a first-level directory in the second zone.
async fn make_far(client: &SimClient, text: &str) -> Result<Ino, ErrorCode> {
    let call = client.begin();
    let (modes, home) = ((0o755, 0), Some(ZoneId(2)));
    let made = call
        .mkdir(&who(), Ino::ROOT, name(text)?, modes, home)
        .await;
    made.map(|found| found.attr.ino)
}

#[test]
fn a_zone_that_is_cut_off_reads_the_names_that_were_and_is_fresh_soon_after() {
    run_on(CellSize::new(2, 1, 2), |world| async move {
        let client = patient_at(&world, 0, DEADLINE_MS).await?;
        let other = patient_at(&world, 1, DEADLINE_MS).await?;
        let zone = CutZone {
            world,
            client,
            other,
        };
        let own = make_dir(&zone.client, Ino::ROOT, "own").await?;
        let far = make_far(&zone.client, "far").await?;
        create(&zone.client, Ino::ROOT, "file", true).await?;
        // The first file of a zone needs the manager.
        create(&zone.client, own, "first", true).await?;
        zone.world
            .meta_nodes()
            .iter()
            .for_each(|node| node.mirror_root());
        // Two rounds, and the end of all leases.
        zone.sleep_ms(2_000 + CACHE_TERM_MS).await;

        zone.cut(true);
        zone.rename_by_other("far", "moved").await?;
        make_far(&zone.other, "new").await?;
        zone.sleep_ms(2 * CACHE_TERM_MS).await;
        let (found, took) = zone.look_up("own").await;
        assert_eq!(found, Ok(Some(own)));
        assert!(took <= ROOT_NAME_MS + 3 * SLACK_MS, "{took} ms");
        let (found, took) = zone.look_up("own").await;
        assert_eq!(found, Ok(Some(own)));
        assert!(took <= SLACK_MS, "{took} ms");
        create(&zone.client, own, "made-in-the-cut", true).await?;
        assert_eq!(zone.listed().await?, ["far", "own"]);
        // An old name leads to the same directory.
        assert_eq!(zone.look_up("far").await.0, Ok(Some(far)));
        for text in ["moved", "new", "file", "absent"] {
            let (found, _took) = zone.look_up(text).await;
            assert_eq!(found, Err(ErrorCode::TimedOut), "{text}");
        }
        let made = make_dir(&zone.client, Ino::ROOT, "no").await;
        assert_eq!(made, Err(ErrorCode::TimedOut));
        // No directory is removed behind its zone's back.
        let removed = zone
            .other
            .begin()
            .rmdir(&who(), Ino::ROOT, name("own")?)
            .await;
        assert!(removed.is_err());

        zone.cut(false);
        zone.sleep_ms(1_000).await;
        let (found, took) = zone.look_up("moved").await;
        assert_eq!(found, Ok(Some(far)));
        assert!(took <= ROOT_PROBE_MS, "{took} ms");
        assert_eq!(zone.look_up("far").await.0, Ok(None));
        assert!(zone.look_up("new").await.0?.is_some());
        assert!(zone.look_up("file").await.0?.is_some());
        assert_eq!(zone.look_up("own").await.0, Ok(Some(own)));
        Ok(())
    });
}
