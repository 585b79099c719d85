//! Invariant 2 (names, link counts) and contents: a tree that a single client uses behaves exactly
//! like this model.
//!
//! Every operation must have the result of the model, so a change that is executed twice or never
//! shows, too (session slots).

use std::collections::BTreeMap;
use zonal_types::{ErrorCode, Ino};

/// Number of a node in the model.
pub type Id = usize;

/// A directory or a file.
#[derive(Debug, Clone)]
pub enum ModelNode {
    /// A directory.
    Dir {
        /// Its entries.
        names: BTreeMap<String, Id>,
        /// The parent directory.
        parent: Id,
    },
    /// A file.
    File {
        /// Its bytes.
        content: Vec<u8>,
        /// Number of its names.
        links: u32,
    },
}

/// The model. Node 0 is the top directory.
#[derive(Debug, Default)]
pub struct TreeModel {
    nodes: BTreeMap<Id, (Ino, ModelNode)>,
    next: Id,
}

impl TreeModel {
    /// A model of an empty directory.
    #[must_use]
    pub fn new(top: Ino) -> Self {
        let mut tree = Self::default();
        tree.add(
            top,
            ModelNode::Dir {
                names: BTreeMap::new(),
                parent: 0,
            },
        );
        tree
    }

    fn add(&mut self, ino: Ino, node: ModelNode) -> Id {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, (ino, node));
        id
    }

    /// All directories.
    #[must_use]
    pub fn dirs(&self) -> Vec<Id> {
        let is_dir = |(id, (_, node)): (&Id, &(Ino, ModelNode))| {
            matches!(node, ModelNode::Dir { .. }).then_some(*id)
        };
        self.nodes.iter().filter_map(is_dir).collect()
    }

    /// All files.
    #[must_use]
    pub fn files(&self) -> Vec<Id> {
        let is_file = |(id, (_, node)): (&Id, &(Ino, ModelNode))| {
            matches!(node, ModelNode::File { .. }).then_some(*id)
        };
        self.nodes.iter().filter_map(is_file).collect()
    }

    /// Inode number of a node.
    #[must_use]
    pub fn ino(&self, id: Id) -> Ino {
        self.nodes.get(&id).map_or(Ino(0), |(ino, _)| *ino)
    }

    /// The node.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&ModelNode> {
        self.nodes.get(&id).map(|(_, node)| node)
    }

    /// Names of a directory.
    #[must_use]
    pub fn names(&self, dir: Id) -> BTreeMap<String, Id> {
        match self.node(dir) {
            Some(ModelNode::Dir { names, .. }) => names.clone(),
            _ => BTreeMap::new(),
        }
    }

    fn names_mut(&mut self, dir: Id) -> Option<&mut BTreeMap<String, Id>> {
        match self.nodes.get_mut(&dir) {
            Some((_, ModelNode::Dir { names, .. })) => Some(names),
            _ => None,
        }
    }

    /// Bytes of a file.
    #[must_use]
    pub fn content(&self, id: Id) -> &[u8] {
        match self.node(id) {
            Some(ModelNode::File { content, .. }) => content,
            _ => &[],
        }
    }

    /// Bytes of a file, mutable.
    pub fn content_mut(&mut self, id: Id) -> Option<&mut Vec<u8>> {
        match self.nodes.get_mut(&id) {
            Some((_, ModelNode::File { content, .. })) => Some(content),
            _ => None,
        }
    }

    /// Number of links, like in `stat`.
    #[must_use]
    pub fn links(&self, id: Id) -> u32 {
        match self.node(id) {
            Some(ModelNode::File { links, .. }) => *links,
            Some(ModelNode::Dir { names, .. }) => {
                let dirs = names.values().filter(|id| self.is_dir(**id)).count();
                2 + dirs as u32
            }
            None => 0,
        }
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self, id: Id) -> bool {
        matches!(self.node(id), Some(ModelNode::Dir { .. }))
    }

    /// The answer that the cell must give where a client makes `name`.
    ///
    /// # Errors
    /// `Exists`.
    pub fn may_make(&self, dir: Id, name: &str) -> Result<(), ErrorCode> {
        if self.names(dir).contains_key(name) {
            return Err(ErrorCode::Exists);
        }
        Ok(())
    }

    /// A file or directory was made.
    pub fn made(&mut self, dir: Id, name: &str, ino: Ino, is_dir: bool) {
        let node = if is_dir {
            ModelNode::Dir {
                names: BTreeMap::new(),
                parent: dir,
            }
        } else {
            ModelNode::File {
                content: Vec::new(),
                links: 1,
            }
        };
        let id = self.add(ino, node);
        if let Some(names) = self.names_mut(dir) {
            names.insert(name.to_owned(), id);
        }
    }

    /// Unlinks a name.
    ///
    /// # Errors
    /// The error that the cell must return.
    pub fn unlink(&mut self, dir: Id, name: &str) -> Result<(), ErrorCode> {
        let id = *self.names(dir).get(name).ok_or(ErrorCode::NotFound)?;
        if self.is_dir(id) {
            return Err(ErrorCode::IsDirectory);
        }
        if let Some(names) = self.names_mut(dir) {
            names.remove(name);
        }
        self.drop_link(id);
        Ok(())
    }

    fn drop_link(&mut self, id: Id) {
        if let Some((_, ModelNode::File { links, .. })) = self.nodes.get_mut(&id) {
            *links -= 1;
            if *links == 0 {
                self.nodes.remove(&id);
            }
        }
    }

    /// Removes a directory.
    ///
    /// # Errors
    /// The error that the cell must return.
    pub fn rmdir(&mut self, dir: Id, name: &str) -> Result<(), ErrorCode> {
        let id = *self.names(dir).get(name).ok_or(ErrorCode::NotFound)?;
        if !self.is_dir(id) {
            return Err(ErrorCode::NotDirectory);
        }
        if !self.names(id).is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        if let Some(names) = self.names_mut(dir) {
            names.remove(name);
        }
        self.nodes.remove(&id);
        Ok(())
    }

    /// Links a file once more.
    ///
    /// # Errors
    /// `Exists`.
    pub fn link(&mut self, file: Id, dir: Id, name: &str) -> Result<(), ErrorCode> {
        self.may_make(dir, name)?;
        if let Some((_, ModelNode::File { links, .. })) = self.nodes.get_mut(&file) {
            *links += 1;
        }
        if let Some(names) = self.names_mut(dir) {
            names.insert(name.to_owned(), file);
        }
        Ok(())
    }

    /// Whether `above` is `dir` or one of its ancestors.
    #[must_use]
    pub fn is_above(&self, above: Id, mut dir: Id) -> bool {
        loop {
            if dir == above {
                return true;
            }
            match self.node(dir) {
                Some(ModelNode::Dir { parent, .. }) if *parent != dir => dir = *parent,
                _ => return false,
            }
        }
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// The error that the cell must return.
    pub fn rename(&mut self, from: (Id, &str), to: (Id, &str)) -> Result<(), ErrorCode> {
        let id = *self.names(from.0).get(from.1).ok_or(ErrorCode::NotFound)?;
        let over = self.names(to.0).get(to.1).copied();
        if over == Some(id) {
            return Ok(());
        }
        if let Some(over) = over {
            match (self.is_dir(id), self.is_dir(over)) {
                (true, false) => return Err(ErrorCode::NotDirectory),
                (false, true) => return Err(ErrorCode::IsDirectory),
                (true, true) if !self.names(over).is_empty() => return Err(ErrorCode::NotEmpty),
                (true, true) => {
                    self.nodes.remove(&over);
                }
                (false, false) => self.drop_link(over),
            }
        }
        if let Some(names) = self.names_mut(from.0) {
            names.remove(from.1);
        }
        if let Some(names) = self.names_mut(to.0) {
            names.insert(to.1.to_owned(), id);
        }
        if let Some((_, ModelNode::Dir { parent, .. })) = self.nodes.get_mut(&id) {
            *parent = to.0;
        }
        Ok(())
    }
}
