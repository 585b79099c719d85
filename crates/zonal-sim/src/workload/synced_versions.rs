//! A program that writes versions of files, syncs them, and expects them to survive losses of
//! power.
//!
//! Unsynced changes may be lost, even a file's name, so the program ignores failures of single
//! operations.

use super::{SimClient, create, lookup, open, read_all, who};
use crate::checker::close_to_open::content;
use crate::checker::durability;
use crate::rng::SimRng;
use crate::world::World;
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Files of the program.
const FILES: usize = 6;

#[derive(Debug, Clone, Copy, Default)]
struct ExpectedFile {
    synced: u64,
    written: u64,
}

/// The program.
pub struct DurableProgram {
    world: Rc<World>,
    client: Rc<SimClient>,
    dir: Ino,
    rng: SimRng,
    known: [ExpectedFile; FILES],
}

impl DurableProgram {
    /// Begins in a directory that is durable already.
    #[must_use]
    pub fn new(world: Rc<World>, client: Rc<SimClient>, dir: Ino, rng: SimRng) -> Self {
        Self {
            world,
            client,
            dir,
            rng,
            known: [ExpectedFile::default(); FILES],
        }
    }

    /// Length of a file: each has its own, some small, some striped.
    fn bytes(file: usize) -> usize {
        [800, 4096, 30_000, 70_400, 200_000, 1_200_000][file % FILES]
    }

    async fn step(&mut self, file: usize) -> Result<(), ErrorCode> {
        let text = format!("f{file}");
        let opened = create(&self.client, self.dir, &text, false).await?;
        let version = self.known[file].written + 1;
        self.known[file].written = version;
        let bytes = content(version, Self::bytes(file));
        let mut outcome = Ok(());
        // Writes consecutive pieces, or every second piece first, so that many ranges travel
        // together.
        let (length, turns) = match self.rng.chance(300) {
            true => (self.rng.between(100, 9_000) as usize, 2),
            false => (64 << 10, 1),
        };
        for turn in 0..turns {
            for (index, piece) in bytes.chunks(length).enumerate() {
                if index % turns == turn {
                    let offset = (index * length) as u64;
                    let wrote = self
                        .client
                        .begin()
                        .write(&opened.file, offset, piece, false)
                        .await;
                    outcome = outcome.and(wrote);
                }
            }
            if turn + 1 < turns {
                outcome = outcome.and(self.client.begin().flush(&opened.file).await);
            }
        }
        if outcome.is_ok() && self.rng.chance(600) {
            outcome = self.client.begin().fsync(&opened.file).await;
            if outcome.is_ok() {
                self.known[file].synced = version;
            }
        }
        let released = self.client.begin().release(opened.file.ino).await;
        outcome.and(released)
    }

    /// Runs `steps` steps, and keeps the state that later checks need.
    pub async fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let file = self.rng.below(FILES as u64) as usize;
            self.step(file).await.ok();
            self.world.count_operation();
            let pause = self.rng.below(100_000_000);
            self.world.clock.sleep(pause).await;
        }
    }

    /// Checks all files by a client with empty caches.
    ///
    /// # Errors
    /// A synced version was lost.
    pub async fn check(&self, client: &SimClient) -> Result<(), String> {
        for (file, known) in self.known.iter().enumerate() {
            if known.synced == 0 {
                continue;
            }
            let text = format!("f{file}");
            let found = lookup(client, self.dir, &text).await;
            let found = found.map_err(|code| format!("invariant 3: look-up of {text}: {code}"))?;
            let found =
                found.ok_or_else(|| format!("invariant 3: {text} was synced and is gone"))?;
            let opened = open(client, found.attr.ino).await;
            let opened = opened.map_err(|code| format!("invariant 3: open of {text}: {code}"))?;
            let seen = read_all(client, &opened.file).await;
            let seen = seen.map_err(|code| format!("invariant 3: read of {text}: {code}"))?;
            client.begin().release(found.attr.ino).await.ok();
            let bytes = Self::bytes(file);
            if let Some(broken) =
                durability::check(&text, &seen, bytes, known.synced, known.written)
            {
                return Err(broken);
            }
        }
        Ok(())
    }

    /// Removes the files.
    pub async fn remove(&self, client: &SimClient) {
        for file in 0..FILES {
            if let Ok(text) = super::name(&format!("f{file}")) {
                client.begin().unlink(&who(), self.dir, text).await.ok();
            }
        }
    }
}
