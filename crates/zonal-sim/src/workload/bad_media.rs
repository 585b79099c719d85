//! A program on disks that are bad or full: operations may fail with matching errors, but never
//! give wrong bytes.

use super::{SimClient, create, lookup, name, open, read_all, who};
use crate::checker::versions;
use crate::coverage::FaultKind;
use crate::rng::SimRng;
use crate::world::World;
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Files of the program.
const FILES: usize = 8;
/// Kinds of damage that a run may have.
const DAMAGES: [FaultKind; 5] = [
    FaultKind::FlippedBit,
    FaultKind::MisdirectedWrite,
    FaultKind::LostWrite,
    FaultKind::MisdirectedRead,
    FaultKind::ReadError,
];

#[derive(Debug, Clone, Copy, Default)]
struct ExpectedFile {
    ino: Ino,
    /// The file has this version or a newer one.
    low: u64,
    high: u64,
    bytes: usize,
    /// Length of the longest version.
    longest: usize,
    /// Length of the beginning that has version `low` or a newer one.
    low_bytes: usize,
}

/// The program.
pub struct MediaProgram {
    world: Rc<World>,
    client: Rc<SimClient>,
    dir: Ino,
    rng: SimRng,
    files: [Option<ExpectedFile>; FILES],
    next: u64,
}

type Outcome = Result<(), String>;

fn text(code: ErrorCode) -> String {
    code.to_string()
}

impl MediaProgram {
    /// Begins in an empty directory.
    #[must_use]
    pub fn new(world: Rc<World>, client: Rc<SimClient>, dir: Ino, rng: SimRng) -> Self {
        Self {
            world,
            client,
            dir,
            rng,
            files: [None; FILES],
            next: 1,
        }
    }

    /// Runs `steps` steps.
    ///
    /// # Errors
    /// A forbidden outcome.
    pub async fn run(&mut self, steps: u64) -> Outcome {
        for _ in 0..steps {
            let file = self.rng.below(FILES as u64) as usize;
            match self.rng.below(100) {
                0..50 => self.write(file).await?,
                50..90 => self.read(&self.client.clone(), file).await?,
                _ => self.remove(file).await?,
            }
            self.world.count_operation();
            let pause = self.rng.below(100_000_000);
            self.world.clock.sleep(pause).await;
        }
        Ok(())
    }

    fn met(&self, fault: FaultKind) -> bool {
        self.world.network.coverage().of(fault) > 0
    }

    /// Allows errors about damage where there was some, and about space where a target was full.
    fn forgive(&self, doing: &str, code: ErrorCode) -> Outcome {
        let met = self.world.network.coverage();
        let is_damaged = DAMAGES.iter().any(|fault| met.of(*fault) > 0);
        match code {
            ErrorCode::Corrupt | ErrorCode::Io if is_damaged => Ok(()),
            ErrorCode::NoSpace if met.of(FaultKind::FullDisk) > 0 => Ok(()),
            code => Err(format!("invariant 5: {doing}: {code}")),
        }
    }

    async fn write(&mut self, file: usize) -> Outcome {
        let opened = create(&self.client, self.dir, &format!("f{file}"), false).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(ErrorCode::NoSpace) if self.met(FaultKind::FullShard) => return Ok(()),
            Err(code) => return Err(format!("invariant 5: create: {code}")),
        };
        let ino = opened.file.ino;
        let bytes = [904, 4_096, 70_000, 300_000][self.rng.below(4) as usize];
        let version = self.next;
        self.next += 1;
        let mut known = self.files[file].unwrap_or_default();
        (known.ino, known.high) = (ino, version);
        known.longest = known.longest.max(bytes);
        self.files[file] = Some(known);
        let content = versions::content(ino, version, bytes);
        let mut outcome = self
            .client
            .begin()
            .write(&opened.file, 0, &content, false)
            .await;
        if outcome.is_ok() && self.rng.chance(500) {
            outcome = self.client.begin().fsync(&opened.file).await;
        }
        let released = self.client.begin().release(ino).await;
        match outcome.and(released) {
            Ok(()) => {
                if known.longest <= bytes {
                    known.low = version;
                    known.low_bytes = bytes;
                }
                known.bytes = known.bytes.max(bytes);
                self.files[file] = Some(known);
                Ok(())
            }
            Err(code) => self.forgive("write", code),
        }
    }

    async fn read(&self, client: &SimClient, file: usize) -> Outcome {
        let Some(known) = self.files[file] else {
            return Ok(());
        };
        let opened = open(client, known.ino).await.map_err(text)?;
        let seen = read_all(client, &opened.file).await;
        client.begin().release(known.ino).await.map_err(text)?;
        let seen = match seen {
            Ok(seen) => seen,
            Err(code) => return self.forgive("read", code),
        };
        if seen.len() < known.bytes {
            return Err(format!(
                "invariant 3: f{file} has {} bytes, {} were there",
                seen.len(),
                known.bytes
            ));
        }
        match versions::check(known.ino, &seen, (known.low, known.low_bytes), known.high) {
            Some(broken) => Err(format!("f{file}: {broken}")),
            None => Ok(()),
        }
    }

    async fn remove(&mut self, file: usize) -> Outcome {
        let at = name(&format!("f{file}")).map_err(text)?;
        match self.client.begin().unlink(&who(), self.dir, at).await {
            Ok(()) | Err(ErrorCode::NotFound) => {
                self.files[file] = None;
                Ok(())
            }
            // A full or damaged target must not prevent removal.
            Err(code) => Err(format!("invariant 9: unlink: {code}")),
        }
    }

    /// Checks all files by a client with empty caches.
    ///
    /// # Errors
    /// A forbidden outcome.
    pub async fn check(&self, client: &SimClient) -> Outcome {
        for file in 0..FILES {
            self.read(client, file).await?;
            let found = lookup(client, self.dir, &format!("f{file}")).await;
            let found = found.map_err(text)?.map(|found| found.attr.ino);
            if found != self.files[file].map(|known| known.ino) {
                return Err(format!("invariant 2: f{file} is {found:?}"));
            }
        }
        Ok(())
    }
}

/// Checks that there is room again after everything was removed.
///
/// # Errors
/// An operation failed.
pub async fn write_anew(client: &SimClient, dir: Ino) -> Outcome {
    let opened = create(client, dir, "anew", true).await.map_err(text)?;
    let ino = opened.file.ino;
    let content = versions::content(ino, 1, 500_000);
    let wrote = client.begin().write(&opened.file, 0, &content, false).await;
    let wrote = wrote.and(client.begin().fsync(&opened.file).await);
    wrote.map_err(|code| format!("invariant 9: a write after everything was removed: {code}"))?;
    let seen = read_all(client, &opened.file).await.map_err(text)?;
    client.begin().release(ino).await.map_err(text)?;
    let at = name("anew").map_err(text)?;
    client.begin().unlink(&who(), dir, at).await.map_err(text)?;
    match versions::check(ino, &seen, (1, seen.len()), 1) {
        None if seen.len() == content.len() => Ok(()),
        broken => Err(format!("after everything was removed: {broken:?}")),
    }
}
