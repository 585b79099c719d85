//! A program with a directory of its own, compared with the exact model step by step.

use super::{SimClient, create, list, lookup, name, open, read_all, who};
use crate::checker::tree_model::{Id, TreeModel};
use crate::rng::SimRng;
use crate::world::World;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_types::{ErrorCode, FileKind, Ino};

/// Names that the program uses in each directory.
const NAMES: u64 = 6;
/// Most directories and files, so that names collide.
const NODES: usize = 24;
/// Largest file: a little more than two stripe units.
const BYTES: u64 = (2 << 20) + 70_000;

/// The program.
pub struct TreeProgram {
    world: Rc<World>,
    client: Rc<SimClient>,
    rng: SimRng,
    tree: TreeModel,
}

type Outcome = Result<(), String>;

fn same<T>(
    doing: &str,
    got: Result<T, ErrorCode>,
    want: Result<(), ErrorCode>,
) -> Result<Option<T>, String> {
    match (got, want) {
        (Ok(value), Ok(())) => Ok(Some(value)),
        (Err(got), Err(want)) if got == want => Ok(None),
        (got, want) => Err(format!(
            "{doing}: got {:?}, the model says {want:?}",
            got.map(|_value| ())
        )),
    }
}

impl TreeProgram {
    /// Begins in the empty directory `top`.
    #[must_use]
    pub fn new(world: Rc<World>, client: Rc<SimClient>, top: Ino, rng: SimRng) -> Self {
        Self {
            world,
            client,
            rng,
            tree: TreeModel::new(top),
        }
    }

    /// Runs `steps` steps and compares the whole tree with the model.
    ///
    /// # Errors
    /// A difference from the model.
    pub async fn run(mut self, steps: u64) -> Outcome {
        for step in 0..steps {
            let outcome = self.step().await;
            outcome.map_err(|what| format!("step {step}: {what}"))?;
            self.world.count_operation();
            let pause = self.rng.below(20_000_000);
            self.world.clock.sleep(pause).await;
        }
        for dir in self.tree.dirs() {
            self.compare_dir(dir).await?;
        }
        for file in self.tree.files() {
            self.compare_file(file, true).await?;
        }
        Ok(())
    }

    fn dir(&mut self) -> Id {
        let dirs = self.tree.dirs();
        self.rng.pick(&dirs).copied().unwrap_or(0)
    }

    fn file(&mut self) -> Option<Id> {
        let files = self.tree.files();
        self.rng.pick(&files).copied()
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(NAMES))
    }

    async fn step(&mut self) -> Outcome {
        let full = self.tree.dirs().len() + self.tree.files().len() >= NODES;
        match self.rng.below(100) {
            0..12 if !full => self.create().await,
            12..18 if !full => self.mkdir().await,
            0..26 => self.unlink().await,
            26..30 => self.rmdir().await,
            30..40 => self.rename().await,
            40..44 => self.link().await,
            44..64 => self.write().await,
            64..76 => self.read().await,
            76..84 => self.truncate().await,
            84..90 => self.append().await,
            90..93 => self.fsync().await,
            93..97 => {
                let dir = self.dir();
                self.compare_dir(dir).await
            }
            _ => match self.file() {
                Some(file) => self.compare_file(file, false).await,
                None => Ok(()),
            },
        }
    }

    async fn create(&mut self) -> Outcome {
        let (dir, text) = (self.dir(), self.name());
        let want = self.tree.may_make(dir, &text);
        let got = create(&self.client, self.tree.ino(dir), &text, true).await;
        if let Some(opened) = same(&format!("create {text}"), got, want)? {
            let ino = opened.found.attr.ino;
            self.tree.made(dir, &text, ino, false);
            self.release(ino).await?;
        }
        Ok(())
    }

    async fn mkdir(&mut self) -> Outcome {
        let (dir, text) = (self.dir(), self.name());
        let want = self.tree.may_make(dir, &text);
        let checked = name(&text).map_err(|code| code.to_string())?;
        let got = self
            .client
            .begin()
            .mkdir(&who(), self.tree.ino(dir), checked, (0o755, 0), None)
            .await;
        if let Some(found) = same(&format!("mkdir {text}"), got, want)? {
            self.tree.made(dir, &text, found.attr.ino, true);
        }
        Ok(())
    }

    async fn unlink(&mut self) -> Outcome {
        let (dir, text) = (self.dir(), self.name());
        let ino = self.tree.ino(dir);
        let want = self.tree.unlink(dir, &text);
        let checked = name(&text).map_err(|code| code.to_string())?;
        let got = self.client.begin().unlink(&who(), ino, checked).await;
        same(&format!("unlink {text}"), got, want).map(|_| ())
    }

    async fn rmdir(&mut self) -> Outcome {
        let (dir, text) = (self.dir(), self.name());
        let ino = self.tree.ino(dir);
        let want = self.tree.rmdir(dir, &text);
        let checked = name(&text).map_err(|code| code.to_string())?;
        let got = self.client.begin().rmdir(&who(), ino, checked).await;
        same(&format!("rmdir {text}"), got, want).map(|_| ())
    }

    async fn rename(&mut self) -> Outcome {
        let (from, text) = (self.dir(), self.name());
        let (to, new_text) = (self.dir(), self.name());
        if let Some(moved) = self.tree.names(from).get(&text)
            && self.tree.is_dir(*moved)
            && self.tree.is_above(*moved, to)
        {
            return Ok(());
        }
        // A non-empty directory above the source cannot be replaced; the model leaves open which
        // error comes first.
        if let Some(over) = self.tree.names(to).get(&new_text)
            && self.tree.is_dir(*over)
            && self.tree.is_above(*over, from)
        {
            return Ok(());
        }
        let (from_ino, to_ino) = (self.tree.ino(from), self.tree.ino(to));
        let want = self.tree.rename((from, &text), (to, &new_text));
        let (old, new) = (name(&text), name(&new_text));
        let (Ok(old), Ok(new)) = (old, new) else {
            return Ok(());
        };
        let got = self
            .client
            .begin()
            .rename(&who(), (from_ino, old), (to_ino, new), 0)
            .await;
        same(&format!("rename {text} to {new_text}"), got, want).map(|_| ())
    }

    async fn link(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        let (dir, text) = (self.dir(), self.name());
        let (ino, dir_ino) = (self.tree.ino(file), self.tree.ino(dir));
        let want = self.tree.link(file, dir, &text);
        let checked = name(&text).map_err(|code| code.to_string())?;
        let got = self
            .client
            .begin()
            .hard_link(&who(), ino, dir_ino, checked)
            .await;
        same(&format!("link {text}"), got, want).map(|_| ())
    }

    async fn open(
        &self,
        file: Id,
    ) -> Result<std::sync::Arc<zonal_client::File<crate::net::SimNet>>, String> {
        let opened = open(&self.client, self.tree.ino(file)).await;
        Ok(opened.map_err(|code| format!("open: {code}"))?.file)
    }

    async fn release(&self, ino: Ino) -> Outcome {
        let released = self.client.begin().release(ino).await;
        released.map_err(|code| format!("close: {code}"))
    }

    async fn write(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        let opened = self.open(file).await?;
        for _ in 0..self.rng.between(1, 3) {
            let length = match self.rng.below(4) {
                0 => self.rng.between(1, 200),
                1 => 4096 * self.rng.between(1, 40),
                _ => self.rng.between(1, 100_000),
            };
            let mut offset = self.rng.below(BYTES - length);
            if self.rng.chance(400) {
                offset -= offset % 4096;
            }
            if self.rng.chance(600) {
                offset = offset.min(self.tree.content(file).len() as u64);
            }
            let seed = self.rng.bits();
            let bytes: Vec<u8> = (0..length)
                .map(|index| (seed >> (index % 8 * 8)) as u8 ^ (index / 8) as u8)
                .collect();
            let wrote = self
                .client
                .begin()
                .write(&opened, offset, &bytes, false)
                .await;
            wrote.map_err(|code| format!("write of {length} at {offset}: {code}"))?;
            if let Some(content) = self.tree.content_mut(file) {
                let end = (offset + length) as usize;
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[offset as usize..end].copy_from_slice(&bytes);
            }
            if self.rng.chance(200) {
                self.compare_range(file, &opened).await?;
            }
        }
        self.release(opened.ino).await
    }

    async fn read(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        let opened = self.open(file).await?;
        for _ in 0..self.rng.between(1, 3) {
            self.compare_range(file, &opened).await?;
        }
        self.release(opened.ino).await
    }

    async fn compare_range(
        &mut self,
        file: Id,
        opened: &zonal_client::File<crate::net::SimNet>,
    ) -> Outcome {
        let content = self.tree.content(file);
        let offset = self.rng.below(content.len() as u64 + 1000);
        let length = self.rng.between(1, 150_000);
        let mut buffer = vec![0xaa; length as usize];
        let got = self.client.begin().read(opened, offset, &mut buffer).await;
        let got = got.map_err(|code| format!("read of {length} at {offset}: {code}"))?;
        let from = (offset as usize).min(content.len());
        let to = (from + length as usize).min(content.len());
        differ("read", &buffer[..got], &content[from..to], from)
    }

    async fn truncate(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        let size = if self.rng.chance(600) {
            self.rng.below(self.tree.content(file).len() as u64 + 1)
        } else {
            self.rng.below(BYTES)
        };
        let ino = self.tree.ino(file);
        let by_handle = self.rng.chance(500);
        let opened = if by_handle {
            Some(self.open(file).await?)
        } else {
            None
        };
        let truncated = self
            .client
            .begin()
            .truncate(&who(), ino, size, by_handle, false)
            .await;
        let attr = truncated.map_err(|code| format!("truncate to {size}: {code}"))?;
        if let Some(content) = self.tree.content_mut(file) {
            content.resize(size as usize, 0);
        }
        if attr.size != size {
            return Err(format!("truncate to {size} answers size {}", attr.size));
        }
        match opened {
            Some(opened) => self.release(opened.ino).await,
            None => Ok(()),
        }
    }

    async fn append(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        if self.tree.content(file).len() as u64 > BYTES {
            return Ok(());
        }
        let opened = self.open(file).await?;
        let length = self.rng.between(1, 9_000) as usize;
        let bytes = vec![self.rng.bits() as u8 | 1; length];
        let at = self.client.begin().append(&opened, &bytes, false).await;
        let at = at.map_err(|code| format!("append of {length}: {code}"))?;
        if let Some(content) = self.tree.content_mut(file) {
            if at != content.len() as u64 {
                return Err(format!(
                    "append went to {at}, the file has {} bytes",
                    content.len()
                ));
            }
            content.extend_from_slice(&bytes);
        }
        self.release(opened.ino).await
    }

    async fn fsync(&mut self) -> Outcome {
        let Some(file) = self.file() else {
            return Ok(());
        };
        let opened = self.open(file).await?;
        let synced = self.client.begin().fsync(&opened).await;
        synced.map_err(|code| format!("fsync: {code}"))?;
        self.release(opened.ino).await
    }

    async fn compare_dir(&mut self, dir: Id) -> Outcome {
        let batch = self.rng.between(1, 10) as u32;
        let listed = list(&self.client, self.tree.ino(dir), batch).await;
        let listed = listed.map_err(|code| format!("readdir: {code}"))?;
        let count = listed.len();
        let listed: BTreeMap<String, Ino> = listed.into_iter().collect();
        let names = self.tree.names(dir);
        let want: BTreeMap<String, Ino> = names
            .iter()
            .map(|(text, id)| (text.clone(), self.tree.ino(*id)))
            .collect();
        if listed != want || count != want.len() {
            return Err(format!(
                "readdir gives {listed:?} ({count}), the model has {want:?}"
            ));
        }
        let text = self.name();
        let found = lookup(&self.client, self.tree.ino(dir), &text).await;
        let found = found
            .map_err(|code| format!("lookup: {code}"))?
            .map(|found| found.attr);
        let want = names.get(&text).copied();
        if found.map(|attr| attr.ino) != want.map(|id| self.tree.ino(id)) {
            return Err(format!(
                "lookup of {text} gives {found:?}, the model has {want:?}"
            ));
        }
        let attr = self.client.begin().getattr(self.tree.ino(dir)).await;
        let (attr, _) = attr.map_err(|code| format!("stat of a directory: {code}"))?;
        if attr.kind != FileKind::Directory || attr.nlink != self.tree.links(dir) {
            return Err(format!(
                "stat: {attr:?}, the model has {} links",
                self.tree.links(dir)
            ));
        }
        Ok(())
    }

    async fn compare_file(&mut self, file: Id, whole: bool) -> Outcome {
        let attr = self.client.begin().getattr(self.tree.ino(file)).await;
        let (attr, _) = attr.map_err(|code| format!("stat: {code}"))?;
        let content = self.tree.content(file);
        if attr.size != content.len() as u64 || attr.nlink != self.tree.links(file) {
            return Err(format!(
                "stat: {attr:?}, the model has {} bytes and {} links",
                content.len(),
                self.tree.links(file)
            ));
        }
        if !whole {
            return Ok(());
        }
        let opened = self.open(file).await?;
        let all = read_all(&self.client, &opened).await;
        let all = all.map_err(|code| format!("read: {code}"))?;
        differ("read of all", &all, content, 0)?;
        self.release(opened.ino).await
    }
}

fn differ(doing: &str, got: &[u8], want: &[u8], from: usize) -> Outcome {
    if got.len() != want.len() {
        return Err(format!(
            "{doing} at {from}: {} bytes, the model has {}",
            got.len(),
            want.len()
        ));
    }
    match got.iter().zip(want).position(|(got, want)| got != want) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{doing}: byte {} is {:#04x}, the model has {:#04x}",
            from + at,
            got[at],
            want[at]
        )),
    }
}
