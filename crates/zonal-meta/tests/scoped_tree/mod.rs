//! A tree of which a client with a scope has one directory.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(missing_docs, reason = "names say it")]

use super::common::{Cell, Client};
use std::sync::Arc;
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_types::{Blob, DataId, ErrorCode, Holder, Ino, Scope};
use zonal_wire::meta::flags::O_RDWR;
use zonal_wire::meta::{FileUse, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

pub const SECRET: &str = "S3CRET";

pub fn holder(path: &str, change: impl FnOnce(&mut Scope)) -> Option<Arc<Holder>> {
    let mut scope = Scope {
        path: Scope::parse_path(path).unwrap(),
        ..Scope::default()
    };
    change(&mut scope);
    Some(Arc::new(Holder {
        subject: format!("zonal://cell/client/a?{path}"),
        scope: Some(scope),
    }))
}

pub struct Tree {
    pub cell: Cell,
    pub admin: Client,
    pub scoped: Client,
    pub home: Ino,
    pub inside: Ino,
    pub outside: Ino,
    pub file: Ino,
    pub secret: Ino,
}

impl Tree {
    /// `d0` in `home` with a file `f`, for a client with that path; beside it `d1` with a file, and
    /// a first-level directory.
    pub fn new(caching: bool, change: impl FnOnce(&mut Scope)) -> Self {
        let mut cell = Cell::with(55, caching);
        let mut admin = cell.client(1);
        let home = admin.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
        admin.mkdir(&mut cell, Ino::ROOT, SECRET).unwrap();
        let inside = admin.mkdir_mode(&mut cell, home, "d0", 0o777).unwrap();
        let outside = admin.mkdir_mode(&mut cell, home, "d1", 0o777).unwrap();
        let file = admin.create(&mut cell, inside, "f", 0o666).unwrap();
        let secret = admin.create(&mut cell, outside, "f", 0o666).unwrap();
        for ino in [file, secret] {
            admin.open(&mut cell, ino, O_RDWR).unwrap();
            let bytes = if ino == file { "public" } else { SECRET };
            admin
                .write_inline(&mut cell, ino, 0, bytes.as_bytes())
                .unwrap();
            admin
                .setxattr(&mut cell, ino, "user.a", bytes.as_bytes(), 0)
                .unwrap();
            admin.close(&mut cell, ino).unwrap();
        }
        let hidden = format!("{SECRET}-name");
        admin.mkdir(&mut cell, outside, &hidden).unwrap();
        let text = Blob(SECRET.into());
        let link = NewKind::Symlink { text };
        let link = admin.create_request(outside, "x", link, 0o777, false);
        admin.call(&mut cell, outside, &link).unwrap();
        cell.from = holder(concat!("/home", "/d0"), change);
        let scoped = cell.client(2);
        Self {
            cell,
            admin,
            scoped,
            home,
            inside,
            outside,
            file,
            secret,
        }
    }

    pub fn as_admin<T>(&mut self, run: impl FnOnce(&mut Client, &mut Cell) -> T) -> T {
        let from = self.cell.from.take();
        let done = run(&mut self.admin, &mut self.cell);
        self.cell.from = from;
        done
    }

    pub fn ask(&mut self, at: Ino, request: &MetaRequest) -> Result<MetaReply, ErrorCode> {
        self.scoped.call(&mut self.cell, at, request)
    }

    pub fn may_use(&mut self, ino: Ino, for_use: FileUse) -> Result<bool, ErrorCode> {
        let of = self.cell.from.clone().unwrap();
        let store = &mut self.cell.stores[1];
        let stored = store.kv.get(&keys::inode(ino));
        let stored = stored.map(|bytes| Inode::decode(ino, bytes).unwrap());
        let id = stored.and_then(|inode| inode.layout.data_ids().next());
        // A data id that was never given, where there is no file with this number.
        let id = id.unwrap_or(DataId::new(ino.partition(), 5));
        assert_ne!(id.0, ino.0);
        store
            .shard
            .may_use(&store.kv, self.cell.now, &of, id, for_use)
            .map(|place| place.is_some_and(|place| place.component.data_id == id))
    }
}
