//! A cell with keys, and an administrator's view of everything outside a path, by the protocol.

use crate::cell::{Cell, code, said, zonal};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use zonal_net::{
    Address, Credential, Identity, NetError, PayloadInto, Pool, PoolConfig, Request, Role,
};
use zonal_types::{
    Blob, CellId, ClientId, ClientIdentity, Codec, Column, Credentials, DataId, Epoch, Ino, Name,
    NodeId, SessionId, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::meta::{LockKind, LockRange, NewKind};
use zonal_wire::{
    AdminReply, AdminRequest, Header, ManagerReply, MetaReply, MetaRequest, ObjectRef, Service,
    StorageReply, StorageRequest,
};
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

/// Part of every name, content, attribute and text outside the path.
pub const SECRET: &[u8] = b"S3CRET";

/// Bytes of a file that are stored at its target.
const FILE_BYTES: u32 = 96 << 10;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn credential(path: &Path) -> Option<Arc<Credential>> {
    let pem = fs::read(path).unwrap();
    Some(Arc::new(Credential::from_pem(&pem).unwrap()))
}

pub fn pool(role: Role, key: &Path) -> Pool {
    let identity = Identity::new(CellId::default(), role, NodeId(0), credential(key));
    Pool::new(identity, PoolConfig::default())
}

/// A reply's body and payload; `None` if the connection was closed.
pub fn ask(
    pool: &Pool,
    to: SocketAddr,
    header: Header,
    body: &[u8],
    payload: &[u8],
) -> Option<(Vec<u8>, Vec<u8>)> {
    let request = Request {
        operation: "a request of a test",
        header,
        body,
        payload: &[payload],
        room: 0,
    };
    match pool.call(Address::any_node(to), request, PayloadInto::Owned) {
        Ok(reply) => Some((reply.body, reply.payload)),
        Err(error @ (NetError::TimedOut { .. } | NetError::Unreachable { .. })) => {
            panic!(
                "{:?}: {error}; request {:?}",
                header.service,
                &body[..body.len().min(80)]
            )
        }
        Err(_closed) => None,
    }
}

/// `/projects/a`, `/projects/b` and another first-level directory. Their maker still has a session,
/// with an open file and a lock.
pub struct World {
    pub cell: Cell,
    admin: Pool,
    tool: Pool,
    pub map: ZoneMap,
    pub manager: SocketAddr,
    pub shard: SocketAddr,
    pub storage: SocketAddr,
    pub target: TargetId,
    /// Sessions of the administrator, at the root's shard and at the zone's.
    pub sessions: [SessionId; 2],
    sequence: u32,
    pub projects: Ino,
    /// Inodes of the path and below it.
    pub inside: Vec<Ino>,
    /// All other inodes.
    pub outside: Vec<Ino>,
    /// Data ids of the files.
    pub data: BTreeMap<Ino, DataId>,
    locked: Ino,
}

impl World {
    pub fn new(name_of_cell: &str) -> Self {
        let cell = Cell::with_key(name_of_cell);
        let key = cell.dir().join("cell.key");
        let (admin, tool) = (pool(Role::Client, &key), pool(Role::Tool, &key));
        let manager = cell.address("manager", false);
        let map = map_of(&admin, manager);
        let at = |node| map.node(node).unwrap().address.parse().unwrap();
        let shard = at(map.shards_of_zone(ZoneId(1)).next().unwrap().node);
        let (storage, target) = (at(map.targets[0].node), map.targets[0].id);
        let mut world = Self {
            cell,
            admin,
            tool,
            map,
            manager,
            shard,
            storage,
            target,
            sessions: [SessionId(0); 2],
            sequence: 0,
            projects: Ino(0),
            inside: Vec::new(),
            outside: Vec::new(),
            data: BTreeMap::new(),
            locked: Ino(0),
        };
        for index in 0..2 {
            let open = MetaRequest::OpenSession {
                zone: ZoneId(1),
                name: "an administrator's".into(),
            };
            match world.meta_at(index, &open) {
                MetaReply::Session { session, .. } => world.sessions[index] = session,
                other => panic!("{other:?}"),
            }
        }
        world.fill();
        world.map = map_of(&world.admin, manager);
        world
    }

    /// A credential of the cell's authority.
    pub fn key(&self, name: &str, scope: &[&str]) -> std::path::PathBuf {
        let to = self.cell.dir().join(format!("{name}.pem"));
        let output = zonal()
            .args(["key", "create", "--client", name, "--cell"])
            .arg(self.cell.dir())
            .arg("--to")
            .arg(&to)
            .args(scope)
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        to
    }

    fn meta_at(&mut self, index: usize, request: &MetaRequest) -> MetaReply {
        self.sequence += 1;
        let mut header = Header::request(Service::Meta, CellId::default());
        (header.session, header.slot) = (self.sessions[index], 0);
        header.identity = ClientIdentity::first(ClientId(0xad));
        (header.sequence, header.map_version) = (self.sequence, self.map.version);
        let to = [self.manager, self.shard][index];
        let (body, _) = ask(&self.admin, to, header, &request.to_bytes(), &[]).unwrap();
        let reply = MetaReply::from_bytes(&body).unwrap();
        reply.split_directory().0
    }

    pub fn meta(&mut self, of: Ino, request: &MetaRequest) -> MetaReply {
        let partition = self.map.shard_of(of.partition()).unwrap();
        self.meta_at(usize::from(partition.id.0 != 0), request)
    }

    /// Renews the administrator's session.
    pub fn keep_alive(&mut self) {
        for index in 0..2 {
            let reply = self.meta_at(index, &MetaRequest::DropLeases);
            assert_eq!(reply, MetaReply::Done);
        }
    }

    pub fn storage(&self, request: &StorageRequest, payload: &[u8]) -> (StorageReply, Vec<u8>) {
        let mut header = Header::request(Service::Storage, CellId::default());
        header.epoch = self.slot().1;
        let asked = ask(
            &self.admin,
            self.storage,
            header,
            &request.to_bytes(),
            payload,
        );
        let (body, payload) = asked.unwrap();
        (StorageReply::from_bytes(&body).unwrap(), payload)
    }

    fn tool(&self, to: SocketAddr, request: &AdminRequest) -> AdminReply {
        let header = Header::request(Service::Admin, CellId::default());
        let (body, _) = ask(&self.tool, to, header, &request.to_bytes(), &[]).unwrap();
        AdminReply::from_bytes(&body).unwrap()
    }

    fn mkdir(&mut self, parent: Ino, text: &str) -> Ino {
        let request = MetaRequest::Mkdir {
            who: Credentials::root(),
            parent,
            name: name(text),
            mode: 0o777,
            umask: 0,
            zone: ZoneId(1),
        };
        match self.meta(parent, &request) {
            MetaReply::Entry { entry } => entry.ino,
            other => panic!("{other:?}"),
        }
    }

    fn make(&mut self, parent: Ino, text: &str, kind: NewKind) -> Ino {
        let request = MetaRequest::Create {
            who: Credentials::root(),
            parent,
            name: name(text),
            open: kind == NewKind::File,
            kind,
            mode: 0o666,
            umask: 0,
            zone: ZoneId(1),
            node: NodeId(0),
            open_flags: 2,
            exclusive: true,
        };
        match self.meta(parent, &request) {
            MetaReply::Entry { entry } => entry.ino,
            MetaReply::Opened { entry, data, .. } => {
                let id = data.layout.data_ids().next().unwrap();
                self.data.insert(entry.ino, id);
                entry.ino
            }
            other => panic!("{other:?}"),
        }
    }

    /// The stripe set of the only target, and the epoch of its only slot.
    pub fn slot(&self) -> (StripeSetId, Epoch) {
        let set = self.map.default_sets(self.map.zones[0].id).next().unwrap();
        (set.id, set.slots[0].slot_epoch)
    }

    /// The object of the file's bytes; for another inode, an object that does not exist.
    pub fn object(&self, ino: Ino) -> ObjectRef {
        ObjectRef {
            target: self.target,
            set: self.slot().0,
            slot: 0,
            data_id: self.data.get(&ino).copied().unwrap_or(DataId(ino.0)),
            column: Column(0),
            layout_gen: 0,
            truncate_seq: 0,
            truncate_bytes: 0,
        }
    }

    /// A file with bytes at its shard and at its target, and an attribute.
    fn file(&mut self, parent: Ino, text: &str, with: &[u8]) -> Ino {
        let ino = self.make(parent, text, NewKind::File);
        let bytes: Vec<u8> = with
            .iter()
            .copied()
            .cycle()
            .take(FILE_BYTES as usize)
            .collect();
        let written = self.storage(
            &StorageRequest::Write {
                object: self.object(ino),
                offset: 0,
                sync: true,
                expected_version: 0,
                txn: 0,
                snap_epoch: 0,
            },
            &bytes,
        );
        assert!(
            matches!(written.0, StorageReply::Written { .. }),
            "{written:?}"
        );
        let report = MetaRequest::ReportWrite {
            ino,
            size: u64::from(FILE_BYTES),
            truncate_seq: 0,
            mtime: None,
            allocated_delta: i64::from(FILE_BYTES),
            kill_suid: false,
            inline: Some((0, Blob(with.to_vec()))),
            sync: false,
        };
        assert!(matches!(self.meta(ino, &report), MetaReply::Attr { .. }));
        let xattr = MetaRequest::SetXattr {
            who: Credentials::root(),
            ino,
            name: Blob([b"user.", with].concat()),
            value: Blob(with.to_vec()),
            flags: 0,
        };
        let set = self.meta(ino, &xattr);
        assert!(!matches!(set, MetaReply::Failed { .. }), "{set:?}");
        ino
    }

    fn fill(&mut self) {
        let secret = String::from_utf8_lossy(SECRET).into_owned();
        self.projects = self.mkdir(Ino::ROOT, "projects");
        let first = self.mkdir(Ino::ROOT, &format!("{secret}-first"));
        let a = self.mkdir(self.projects, "a");
        let b = self.mkdir(self.projects, "b");
        let file = self.file(a, "f", b"public");
        let sub = self.mkdir(a, "d0");
        let deep = self.file(sub, "f", b"public, too");
        self.inside = vec![a, file, sub, deep];
        self.outside = vec![first, b];
        for parent in [b, first] {
            let dir = self.mkdir(parent, &format!("{secret}-dir"));
            let file = self.file(dir, "f", SECRET);
            let named = self.file(parent, &format!("{secret}-name"), SECRET);
            let text = Blob(SECRET.to_vec());
            let link = self.make(parent, "x", NewKind::Symlink { text });
            let fifo = self.make(parent, "y", NewKind::Fifo);
            self.outside.extend([dir, file, named, link, fifo]);
            self.locked = named;
        }
        let range = LockRange {
            whole_file: true,
            owner: 1,
            handle: 1,
            number: 1,
            pid: 1,
            kind: LockKind::Exclusive,
            start: 0,
            end: u64::MAX,
        };
        let lock = MetaRequest::Lock {
            ino: self.locked,
            range,
            wait: false,
            waiter: 0,
            settled: 0,
        };
        assert_eq!(self.meta(self.locked, &lock), MetaReply::Done);
        let closed = self.inside.clone();
        self.meta(a, &MetaRequest::Close { inos: closed });
        self.keep_alive();
    }

    /// Everything that an administrator can see outside the path, by kind.
    pub fn seen(&mut self) -> BTreeMap<String, Vec<u8>> {
        let mut seen = BTreeMap::new();
        let map = map_of(&self.admin, self.manager);
        seen.insert("the map".to_owned(), map.to_bytes());
        self.walk(Ino::ROOT, "", &mut seen);
        let list = AdminRequest::ListObjects {
            target: self.target,
            after: None,
            limit: 1_000,
            digests: true,
        };
        let AdminReply::Objects { objects, end } = self.tool(self.storage, &list) else {
            panic!("no list of objects");
        };
        assert!(end, "more objects than there are files");
        for object in objects {
            let is_of = |ino: &Ino| self.data.get(ino) == Some(&object.data_id);
            if self.outside.iter().any(is_of) {
                seen.insert(format!("object {:?}", object.data_id), object.to_bytes());
            }
        }
        for (shard, to) in [
            (zonal_types::ShardId(0), self.manager),
            (zonal_types::ShardId(1), self.shard),
        ] {
            let after = SessionId(0);
            let list = AdminRequest::ListSessions {
                shard,
                after,
                limit: 1_000,
            };
            let AdminReply::Sessions { sessions, .. } = self.tool(to, &list) else {
                panic!("no list of sessions");
            };
            for mut session in sessions {
                if self.sessions.contains(&session.session) {
                    session.idle_ms = 0;
                    seen.insert(format!("session at {shard}"), session.to_bytes());
                }
            }
        }
        seen
    }

    fn walk(&mut self, dir: Ino, path: &str, seen: &mut BTreeMap<String, Vec<u8>>) {
        let list = MetaRequest::ReadDir {
            who: Credentials::root(),
            dir,
            cookie: 0,
            entries: 4_096,
            plus: false,
        };
        let MetaReply::Dir { entries, end } = self.meta(dir, &list) else {
            panic!("no listing of {path}");
        };
        assert!(end);
        for item in entries {
            let (ino, here) = (item.entry.ino, format!("{path}/{}", item.name));
            seen.insert(format!("entry {here}"), (ino, item.cookie).to_bytes());
            if self.inside.first() == Some(&ino) {
                continue;
            }
            let data = true;
            let who = Credentials::root;
            let mut replies = vec![
                self.meta(ino, &MetaRequest::GetAttr { ino, data }),
                self.meta(ino, &MetaRequest::ListXattr { who: who(), ino }),
            ];
            let attr = replies[0].clone();
            let MetaReply::Attr { attr, .. } = &attr else {
                panic!("{here}: {attr:?}");
            };
            match attr.kind {
                zonal_types::FileKind::Directory => self.walk(ino, &here, seen),
                zonal_types::FileKind::Symlink => {
                    replies.push(self.meta(ino, &MetaRequest::Readlink { ino }));
                }
                zonal_types::FileKind::File => {
                    replies.push(self.meta(ino, &MetaRequest::ReadInline { ino }));
                    let name = Blob([b"user.", SECRET].concat());
                    let who = who();
                    replies.push(self.meta(ino, &MetaRequest::GetXattr { who, ino, name }));
                    let read = StorageRequest::Read {
                        object: self.object(ino),
                        offset: 0,
                        length: FILE_BYTES,
                    };
                    let (reply, bytes) = self.storage(&read, &[]);
                    seen.insert(
                        format!("bytes of {here}"),
                        [reply.to_bytes(), bytes].concat(),
                    );
                }
                _ => {}
            }
            for (index, mut reply) in replies.into_iter().enumerate() {
                if let MetaReply::Attr { attr_ms, .. } = &mut reply {
                    *attr_ms = 0;
                }
                seen.insert(format!("{here} {index}"), reply.to_bytes());
            }
        }
    }
}

fn map_of(pool: &Pool, manager: SocketAddr) -> ZoneMap {
    let header = Header::request(Service::Manager, CellId::default());
    let fetch = Fetch::newer(Arc::new(ZoneMap::unknown(CellId::default())));
    let map = fetch.run(|request| {
        let (body, _) = ask(pool, manager, header, &request.to_bytes(), &[]).unwrap();
        Ok::<_, FetchError>(ManagerReply::from_bytes(&body).unwrap())
    });
    Arc::unwrap_or_clone(map.unwrap())
}
