//! Generated operations against a plain model of a tree; whole trees compared, with restarts in
//! between.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use std::collections::BTreeMap;
use zonal_testkit::Rng;
use zonal_types::{ErrorCode, FileKind, Ino};
use zonal_wire::meta::flags::{RENAME_EXCHANGE, RENAME_NOREPLACE};

#[derive(Debug, Clone)]
enum Node {
    File {
        size: u64,
        mode: u32,
        nlink: u32,
    },
    Dir {
        entries: BTreeMap<String, usize>,
        parent: usize,
        mode: u32,
    },
}

/// Nodes by index; 0 is the top directory.
struct Model {
    nodes: Vec<Option<Node>>,
    inos: Vec<Ino>,
}

type Outcome = Result<(), ErrorCode>;

impl Model {
    fn dir(&self, index: usize) -> &BTreeMap<String, usize> {
        match self.nodes[index].as_ref().unwrap() {
            Node::Dir { entries, .. } => entries,
            Node::File { .. } => panic!(),
        }
    }
    fn dir_mut(&mut self, index: usize) -> &mut BTreeMap<String, usize> {
        match self.nodes[index].as_mut().unwrap() {
            Node::Dir { entries, .. } => entries,
            Node::File { .. } => panic!(),
        }
    }
    fn is_dir(&self, index: usize) -> bool {
        matches!(self.nodes[index], Some(Node::Dir { .. }))
    }
    fn dirs(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|index| self.is_dir(*index))
            .collect()
    }
    fn files(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|index| matches!(self.nodes[*index], Some(Node::File { .. })))
            .collect()
    }
    fn add(&mut self, dir: usize, name: &str, node: Node, ino: Ino) {
        self.nodes.push(Some(node));
        self.inos.push(ino);
        let index = self.nodes.len() - 1;
        self.dir_mut(dir).insert(name.into(), index);
    }
    fn drop_name(&mut self, index: usize) {
        let gone = match self.nodes[index].as_mut().unwrap() {
            Node::File { nlink, .. } => {
                *nlink -= 1;
                *nlink == 0
            }
            Node::Dir { .. } => true,
        };
        if gone {
            self.nodes[index] = None;
        }
    }
    fn unlink(&mut self, dir: usize, name: &str) -> Outcome {
        let index = *self.dir(dir).get(name).ok_or(ErrorCode::NotFound)?;
        if self.is_dir(index) {
            return Err(ErrorCode::IsDirectory);
        }
        self.dir_mut(dir).remove(name);
        self.drop_name(index);
        Ok(())
    }
    fn rmdir(&mut self, dir: usize, name: &str) -> Outcome {
        let index = *self.dir(dir).get(name).ok_or(ErrorCode::NotFound)?;
        if !self.is_dir(index) {
            return Err(ErrorCode::NotDirectory);
        }
        if !self.dir(index).is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.dir_mut(dir).remove(name);
        self.drop_name(index);
        Ok(())
    }
    fn is_inside(&self, mut at: usize, ancestor: usize) -> bool {
        loop {
            if at == ancestor {
                return true;
            }
            match self.nodes[at].as_ref().unwrap() {
                Node::Dir { parent, .. } if at != 0 => at = *parent,
                _ => return false,
            }
        }
    }
    fn set_parent(&mut self, index: usize, to: usize) {
        if let Some(Node::Dir { parent, .. }) = self.nodes[index].as_mut() {
            *parent = to;
        }
    }
    fn rename(&mut self, from: (usize, &str), to: (usize, &str), flags: u32) -> Outcome {
        let source = *self.dir(from.0).get(from.1).ok_or(ErrorCode::NotFound)?;
        let target = self.dir(to.0).get(to.1).copied();
        let exchange = flags == RENAME_EXCHANGE;
        if target.is_some() && flags == RENAME_NOREPLACE {
            return Err(ErrorCode::Exists);
        }
        if target.is_none() && exchange {
            return Err(ErrorCode::NotFound);
        }
        if self.is_dir(source) && self.is_inside(to.0, source) {
            return Err(ErrorCode::Invalid);
        }
        if let Some(target) = target {
            if self.is_dir(target) && self.is_inside(from.0, target) {
                return Err(if exchange {
                    ErrorCode::Invalid
                } else {
                    ErrorCode::NotEmpty
                });
            }
            if source == target {
                return Ok(());
            }
            if exchange {
                self.dir_mut(from.0).insert(from.1.into(), target);
                self.dir_mut(to.0).insert(to.1.into(), source);
                self.set_parent(source, to.0);
                self.set_parent(target, from.0);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(ErrorCode::NotDirectory),
                (false, true) => return Err(ErrorCode::IsDirectory),
                (true, true) if !self.dir(target).is_empty() => return Err(ErrorCode::NotEmpty),
                _ => {}
            }
            self.drop_name(target);
        }
        self.dir_mut(from.0).remove(from.1);
        self.dir_mut(to.0).insert(to.1.into(), source);
        self.set_parent(source, to.0);
        Ok(())
    }
}

struct Run {
    cell: Cell,
    client: Client,
    model: Model,
    random: Rng,
}

impl Run {
    fn new(seed: u64, hash_bits: u32) -> Self {
        let mut cell = Cell::with(hash_bits, false);
        let mut client = cell.client(1);
        let top = client.mkdir(&mut cell, Ino::ROOT, "top").unwrap();
        let entries = BTreeMap::new();
        let node = Node::Dir {
            entries,
            parent: 0,
            mode: 0o755,
        };
        let model = Model {
            nodes: vec![Some(node)],
            inos: vec![top],
        };
        Self {
            cell,
            client,
            model,
            random: Rng(seed),
        }
    }

    fn pick(&mut self, from: &[usize]) -> Option<usize> {
        if from.is_empty() {
            return None;
        }
        let index = self.random.index(from.len());
        Some(from[index])
    }

    /// A directory, and a name that may or may not exist there.
    fn place(&mut self) -> (usize, String) {
        let dirs = self.model.dirs();
        let dir = self.pick(&dirs).unwrap();
        (dir, format!("n{}", self.random.below(6)))
    }

    fn step(&mut self) {
        let (dir, name) = self.place();
        let at = self.model.inos[dir];
        let exists = self.model.dir(dir).contains_key(&name);
        let refuse = |new: Result<Ino, ErrorCode>| assert_eq!(new, Err(ErrorCode::Exists));
        match self.random.below(12) {
            0 | 1 => {
                let mode = self.random.below(0o1000) as u32;
                let made = self.client.create(&mut self.cell, at, &name, mode);
                if exists {
                    return refuse(made);
                }
                self.model.add(
                    dir,
                    &name,
                    Node::File {
                        size: 0,
                        mode,
                        nlink: 1,
                    },
                    made.unwrap(),
                );
            }
            2 | 3 => {
                let mode = self.random.below(0o1000) as u32;
                let made = self.client.mkdir_mode(&mut self.cell, at, &name, mode);
                if exists {
                    return refuse(made);
                }
                let entries = BTreeMap::new();
                let node = Node::Dir {
                    entries,
                    parent: dir,
                    mode,
                };
                self.model.add(dir, &name, node, made.unwrap());
            }
            4 => {
                let expected = self.model.unlink(dir, &name);
                assert_eq!(self.client.unlink(&mut self.cell, at, &name), expected);
            }
            5 => {
                let expected = self.model.rmdir(dir, &name);
                assert_eq!(self.client.rmdir(&mut self.cell, at, &name), expected);
            }
            6..=8 => {
                let (to_dir, to_name) = self.place();
                let flags =
                    [0, 0, RENAME_EXCHANGE, RENAME_NOREPLACE][self.random.below(4) as usize];
                let to_at = self.model.inos[to_dir];
                let expected = self.model.rename((dir, &name), (to_dir, &to_name), flags);
                let (from, to) = ((at, name.as_str()), (to_at, to_name.as_str()));
                let got = self.client.rename(&mut self.cell, from, to, flags);
                assert_eq!(got, expected, "{from:?} {to:?} {flags}");
            }
            9 => {
                let files = self.model.files();
                let Some(file) = self.pick(&files) else {
                    return;
                };
                let made = self
                    .client
                    .link(&mut self.cell, self.model.inos[file], at, &name);
                if exists {
                    assert_eq!(made, Err(ErrorCode::Exists));
                    return;
                }
                made.unwrap();
                self.model.dir_mut(dir).insert(name, file);
                if let Some(Node::File { nlink, .. }) = self.model.nodes[file].as_mut() {
                    *nlink += 1;
                }
            }
            10 => self.resize(),
            _ => {
                let mode = self.random.below(0o1000) as u32;
                self.client.chmod(&mut self.cell, at, mode).unwrap();
                if let Some(Node::Dir { mode: old, .. }) = self.model.nodes[dir].as_mut() {
                    *old = mode;
                }
            }
        }
    }

    fn resize(&mut self) {
        let files = self.model.files();
        let Some(file) = self.pick(&files) else {
            return;
        };
        let ino = self.model.inos[file];
        let new = self.random.below(10_000);
        let write = self.random.below(2) == 0;
        if write {
            self.client.report(&mut self.cell, ino, new).unwrap();
        } else {
            self.client
                .truncate(&mut self.cell, ino, new, u64::MAX)
                .unwrap();
        }
        if let Some(Node::File { size, .. }) = self.model.nodes[file].as_mut() {
            *size = if write { new.max(*size) } else { new };
        }
    }

    fn compare(&mut self, dir: usize) {
        let ino = self.model.inos[dir];
        let listed = self.client.list(&mut self.cell, ino);
        let listed: BTreeMap<String, Ino> = listed
            .into_iter()
            .map(|entry| (entry.name.to_string(), entry.entry.ino))
            .collect();
        let expected = self.model.dir(dir).clone();
        let expected_inos: BTreeMap<String, Ino> = expected
            .iter()
            .map(|(name, index)| (name.clone(), self.model.inos[*index]))
            .collect();
        assert_eq!(listed, expected_inos);
        let subdirectories = expected
            .values()
            .filter(|index| self.model.is_dir(**index))
            .count();
        let attr = self.client.attr(&mut self.cell, ino).unwrap();
        assert_eq!(attr.nlink as usize, 2 + subdirectories);
        if let Some(Node::Dir { mode, .. }) = &self.model.nodes[dir] {
            assert_eq!(attr.mode, *mode);
        }
        for index in expected.into_values() {
            match self.model.nodes[index].clone().unwrap() {
                Node::Dir { .. } => self.compare(index),
                Node::File { size, mode, nlink } => {
                    let attr = self
                        .client
                        .attr(&mut self.cell, self.model.inos[index])
                        .unwrap();
                    assert_eq!((attr.size, attr.mode, attr.nlink), (size, mode, nlink));
                    assert_eq!(attr.kind, FileKind::File);
                }
            }
        }
    }
}

fn run(seed: u64, hash_bits: u32) {
    let mut run = Run::new(seed, hash_bits);
    for step in 0..400 {
        run.cell.pass_ms(7);
        run.step();
        if step % 40 == 39 {
            run.compare(0);
            run.cell.assert_sound();
        }
        if run.random.below(50) == 0 {
            run.cell.restart(1);
            let request = zonal_wire::MetaRequest::Reclaim {
                opens: vec![],
                locks: vec![],
            };
            let top = run.model.inos[0];
            run.client.call(&mut run.cell, top, &request).unwrap();
        }
    }
}

#[test]
fn trees_equal_the_models() {
    for seed in 0..30 {
        run(seed, 55);
    }
}

#[test]
fn trees_equal_the_models_where_names_collide() {
    for seed in 100..115 {
        run(seed, 2);
    }
}
