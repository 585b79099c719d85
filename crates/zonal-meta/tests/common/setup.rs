//! A directory that all may write to, and files in it of chosen modes and owners.

use super::{Cell, Client};
use zonal_types::{Attr, Ino};

pub struct Setup {
    pub cell: Cell,
    pub root: Client,
    pub home: Ino,
}

impl Setup {
    pub fn new() -> Self {
        let mut cell = Cell::new();
        let mut root = cell.client(1);
        let home = root
            .mkdir_mode(&mut cell, Ino::ROOT, "home", 0o777)
            .unwrap();
        root.chmod(&mut cell, home, 0o777).unwrap();
        Self { cell, root, home }
    }

    /// Runs as another user in the same session.
    pub fn as_user<T>(
        &mut self,
        uid: u32,
        gid: u32,
        run: impl FnOnce(&mut Client, &mut Cell) -> T,
    ) -> T {
        let who = std::mem::take(&mut self.root.who);
        self.root.who.uid = uid;
        self.root.who.gid = gid;
        let result = run(&mut self.root, &mut self.cell);
        self.root.who = who;
        result
    }

    pub fn file(&mut self, name: &str, mode: u32, uid: u32, gid: u32) -> Ino {
        let home = self.home;
        let ino = self.root.create(&mut self.cell, home, name, mode).unwrap();
        self.root
            .chown(&mut self.cell, ino, Some(uid), Some(gid))
            .unwrap();
        self.root.chmod(&mut self.cell, ino, mode).unwrap();
        ino
    }

    pub fn dir(&mut self, name: &str, mode: u32, uid: u32, gid: u32) -> Ino {
        let home = self.home;
        let ino = self
            .root
            .mkdir_mode(&mut self.cell, home, name, mode)
            .unwrap();
        self.root
            .chown(&mut self.cell, ino, Some(uid), Some(gid))
            .unwrap();
        self.root.chmod(&mut self.cell, ino, mode).unwrap();
        ino
    }

    pub fn attr(&mut self, ino: Ino) -> Attr {
        self.root.attr(&mut self.cell, ino).unwrap()
    }
}
