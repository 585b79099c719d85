//! Files that lose their names while clients have them open, or open them then, beside restarts of
//! the shard and clients that die.
//!
//! A client with an open file reads the bytes that were written. No other client keeps the file
//! alive.
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

use common::{SHARD, run_on};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_client::names::NewFile;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, lookup, make_dir, name, open, read_all, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::NewKind;

const CLIENTS: usize = 3;
const STEPS: u64 = 60;
/// Names in the directory.
const NAMES: u64 = 3;
/// Longer than an unused session lasts, with its last poll for events.
const EXPIRED_NS: u64 = 100_000_000_000;

/// A file, and what is known about it.
#[derive(Default)]
struct ExpectedFile {
    bytes: Vec<u8>,
    /// How often each client has it open.
    opens: [u32; CLIENTS],
}

struct Story {
    world: Rc<World>,
    clients: Vec<Rc<SimClient>>,
    dir: Ino,
    files: BTreeMap<Ino, ExpectedFile>,
    names: BTreeMap<String, Ino>,
    rng: SimRng,
}

impl Story {
    fn held(&mut self, by: Option<usize>) -> Option<Ino> {
        let has = |known: &ExpectedFile| {
            let of = known.opens.iter().enumerate();
            let mut of =
                of.filter(|(index, count)| **count > 0 && by.is_none_or(|by| by == *index));
            of.next().is_some()
        };
        let held: Vec<Ino> = self
            .files
            .iter()
            .filter(|(_, known)| has(known))
            .map(|(ino, _)| *ino)
            .collect();
        let at = self.rng.below(held.len().max(1) as u64) as usize;
        held.get(at).copied()
    }

    fn opened(&mut self, by: usize, ino: Ino) {
        self.files.entry(ino).or_default().opens[by] += 1;
    }

    async fn make(&mut self, by: usize, text: &str) -> Result<(), ErrorCode> {
        let made = create(&self.clients[by], self.dir, text, false).await?;
        let ino = made.file.ino;
        self.opened(by, ino);
        self.names.insert(text.to_owned(), ino);
        self.fill(by, ino).await
    }

    async fn make_nameless(&mut self, by: usize) -> Result<(), ErrorCode> {
        let made = self.clients[by]
            .begin()
            .tmpfile(&who(), self.dir, (0o600, 0), false)
            .await?;
        let ino = made.file.ino;
        self.opened(by, ino);
        self.fill(by, ino).await
    }

    /// Writes to an empty file: few bytes, which its shard keeps, or many.
    async fn fill(&mut self, by: usize, ino: Ino) -> Result<(), ErrorCode> {
        let length = if self.rng.chance(500) { 100 } else { 20_000 };
        let Some(known) = self
            .files
            .get_mut(&ino)
            .filter(|known| known.bytes.is_empty())
        else {
            return Ok(());
        };
        known.bytes = vec![(ino.0 % 250) as u8 + 1; length];
        let file = self.clients[by].file(ino).ok_or(ErrorCode::BadHandle)?;
        self.clients[by]
            .begin()
            .write(&file, 0, &known.bytes, false)
            .await?;
        self.clients[by].begin().flush(&file).await
    }

    async fn step(&mut self) -> Result<(), ErrorCode> {
        let by = self.rng.below(CLIENTS as u64) as usize;
        let client = self.clients[by].clone();
        let text = format!("f{}", self.rng.below(NAMES));
        match self.rng.below(100) {
            0..20 => self.make(by, &text).await?,
            20..26 => self.make_nameless(by).await?,
            26..46 => {
                // By number: its name may be gone.
                if let Some(ino) = self.held(None) {
                    open(&client, ino).await?;
                    self.opened(by, ino);
                }
            }
            46..54 => {
                if let Some(found) = lookup(&client, self.dir, &text).await? {
                    open(&client, found.attr.ino).await?;
                    self.opened(by, found.attr.ino);
                }
            }
            54..66 => {
                let gone = client.begin().unlink(&who(), self.dir, name(&text)?).await;
                assert_eq!(gone.is_ok(), self.names.remove(&text).is_some(), "{gone:?}");
            }
            66..76 => self.replace(by, &text).await?,
            76..95 => {
                if let Some(ino) = self.held(Some(by)) {
                    client.begin().release(ino).await?;
                    self.opened_less(by, ino);
                }
            }
            _ if by > 0 => self.kill_client(by).await?,
            _ => self.world.clock.sleep(2_000_000_000).await,
        }
        Ok(())
    }

    fn opened_less(&mut self, by: usize, ino: Ino) {
        if let Some(known) = self.files.get_mut(&ino) {
            known.opens[by] -= 1;
        }
    }

    async fn replace(&mut self, by: usize, text: &str) -> Result<(), ErrorCode> {
        let client = self.clients[by].clone();
        let new = NewFile {
            kind: NewKind::File,
            mode: 0o644,
            umask: 0,
        };
        let made = client
            .begin()
            .make(&who(), self.dir, name("new")?, new)
            .await?;
        let (from, to) = ((self.dir, name("new")?), (self.dir, name(text)?));
        client.begin().rename(&who(), from, to, 0).await?;
        self.names.insert(text.to_owned(), made.attr.ino);
        Ok(())
    }

    async fn kill_client(&mut self, index: usize) -> Result<(), ErrorCode> {
        self.world.kill_client(index);
        self.files
            .values_mut()
            .for_each(|known| known.opens[index] = 0);
        let made = Rc::new(self.world.connect(index, self.rng.fork(7)).await?);
        self.world.serve_client(index, &made, &Rc::default());
        self.clients[index] = made;
        Ok(())
    }

    /// A client with an open file can read it and look at it.
    async fn look(&self) -> Result<(), ErrorCode> {
        for (ino, known) in &self.files {
            for (client, count) in self.clients.iter().zip(known.opens) {
                if count == 0 {
                    continue;
                }
                let attr = client.begin().getattr(*ino).await?.0;
                let has_name = self.names.values().any(|named| named == ino);
                assert_eq!(attr.nlink, u32::from(has_name), "{ino}");
                let file = client.file(*ino).ok_or(ErrorCode::BadHandle)?;
                assert!(read_all(client, &file).await? == known.bytes, "{ino}");
            }
        }
        Ok(())
    }

    /// Kills and restarts the shard a while from now.
    fn restart_soon(&mut self) {
        let (world, after) = (self.world.clone(), self.rng.below(3_000_000));
        self.world.spawn_program(0, async move {
            world.clock.sleep(after).await;
            world.kill(SHARD);
            world.clock.sleep(50_000_000).await;
            world.start(SHARD);
        });
    }
}

async fn story(world: Rc<World>, seed: u64) -> Result<(), ErrorCode> {
    let mut rng = SimRng::new(seed);
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        let client = Rc::new(world.connect(index, rng.fork(index as u64)).await?);
        world.serve_client(index, &client, &Rc::default());
        clients.push(client);
    }
    let dir = make_dir(&clients[0], Ino::ROOT, "home").await?;
    let mut story = Story {
        world: world.clone(),
        clients,
        dir,
        files: BTreeMap::new(),
        names: BTreeMap::new(),
        rng,
    };
    for _ in 0..STEPS {
        if story.rng.chance(80) {
            story.restart_soon();
        }
        story.step().await?;
        // Longer than a removal can be taken back.
        let pause = [0, 3_000_000, 1_500_000_000][story.rng.below(3) as usize];
        world.clock.sleep(pause).await;
        story.look().await?;
    }
    for (ino, known) in &story.files {
        for (client, count) in story.clients.iter().zip(known.opens) {
            for _ in 0..count {
                client.begin().release(*ino).await?;
            }
        }
    }
    world.clock.sleep(EXPIRED_NS).await;
    for node in world.meta_nodes() {
        let gauges = node.gauges();
        let left = gauges
            .iter()
            .filter(|(name, count)| ["opens", "orphans"].contains(name) && *count > 0);
        let left: Vec<_> = left.collect();
        assert!(left.is_empty(), "held still: {left:?}");
    }
    Ok(())
}

#[test]
fn an_open_file_lives_whatever_becomes_of_its_name() {
    for seed in 0..60 {
        println!("seed {seed}");
        run_on(CellSize::new(1, 3, CLIENTS as u64), move |world| {
            story(world, seed)
        });
    }
}
