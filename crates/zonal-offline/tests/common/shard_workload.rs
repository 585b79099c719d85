//! A workload on the shard after its repair. A client makes, moves, links and removes names, among
//! new ones and among those that were there. Afterwards the shard's own check finds nothing.

use super::{TestCell, lookup, now, open_engine, read_map};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_disk::Engine;
use zonal_disk::LogRoom;
use zonal_meta::{Caller, MetaShard, Now, Outcome, ShardConfig};
use zonal_types::{
    ClientId, ClientIdentity, Credentials, ErrorCode, Ino, Name, SessionId, ShardId, ZoneId,
};
use zonal_wire::meta::NewKind;
use zonal_wire::{MetaReply, MetaRequest};

/// Number of a start later than all starts before.
const BOOT: u64 = 99;
/// Id of the next client: each client is a new one.
static NEXT: AtomicU64 = AtomicU64::new(7_000);
/// Directories that the workload uses.
const DIRECTORIES: usize = 4;

/// The zone's shard with one client.
struct Worked<'a> {
    shard: MetaShard,
    engine: &'a Engine,
    now: Now,
    session: SessionId,
    identity: ClientIdentity,
    sequence: u32,
    context: &'a str,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Worked<'_> {
    /// Executes one request to its end; time passes where it waits.
    fn call(&mut self, request: &MetaRequest) -> Result<MetaReply, ErrorCode> {
        let context = self.context;
        if self.engine.wants_checkpoint() {
            self.engine.checkpoint(&mut || Ok(())).expect(context);
        }
        self.sequence += u32::from(request.is_mutation());
        let caller = Caller {
            identity: self.identity,
            session: self.session,
            slot: if self.session == SessionId(0) {
                zonal_wire::frame::NO_SLOT
            } else {
                0
            },
            sequence: self.sequence,
        };
        let mut attempt = None;
        loop {
            let outcome = self
                .shard
                .handle(self.engine, self.now, caller, request, attempt);
            match outcome {
                Outcome::Reply { reply, effect, .. } => {
                    let logged = self.engine.append_with(effect, &[], LogRoom::Normal);
                    logged.expect(context);
                    return match reply {
                        MetaReply::Failed { code } => Err(code.0),
                        reply => Ok(reply.split_directory().0),
                    };
                }
                Outcome::Wait {
                    attempt: named,
                    until,
                    ..
                } => {
                    attempt = Some(named);
                    let ms = until.ms_since(self.now.instant) + 1;
                    self.now.instant = self.now.instant.plus_ms(ms);
                }
                Outcome::Call { request, .. } => {
                    panic!("{context}: another shard is asked: {request:?}")
                }
            }
        }
    }

    fn done(&mut self, what: &str, request: &MetaRequest) {
        let context = self.context;
        self.call(request)
            .unwrap_or_else(|code| panic!("{context}: {what}: {code}"));
    }

    fn made(&mut self, request: &MetaRequest) -> Ino {
        match self.call(request).expect(self.context) {
            MetaReply::Entry { entry } | MetaReply::Opened { entry, .. } => entry.ino,
            other => panic!("{}: {other:?}", self.context),
        }
    }

    fn find(&mut self, parent: Ino, text: &str) -> Option<Ino> {
        let request = MetaRequest::Lookup {
            who: Credentials::root(),
            parent,
            name: name(text),
        };
        match self.call(&request) {
            Ok(MetaReply::Entry { entry }) => Some(entry.ino),
            Ok(MetaReply::NoEntry { .. }) => None,
            other => panic!("{}: {text}: {other:?}", self.context),
        }
    }

    /// Creates, links, renames over and removes names below a directory. `there`: files in it that
    /// were there before.
    fn work_in(&mut self, parent: Ino, there: &BTreeMap<String, Ino>) {
        let who = Credentials::root;
        let moved = |from: (Ino, &str), to: (Ino, &str)| MetaRequest::Rename {
            who: who(),
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            flags: 0,
        };
        let removed = |parent: Ino, text: &str| MetaRequest::Unlink {
            who: who(),
            parent,
            name: name(text),
        };
        let below = self.made(&MetaRequest::Mkdir {
            who: who(),
            parent,
            name: name("worked"),
            mode: 0o755,
            umask: 0,
            zone: ZoneId(1),
        });
        let mut inos = BTreeSet::from([below]);
        for text in ["a", "b", "c"] {
            inos.insert(self.made(&MetaRequest::Create {
                who: who(),
                parent: below,
                name: name(text),
                kind: NewKind::File,
                mode: 0o644,
                umask: 0,
                zone: ZoneId(1),
                node: zonal_types::NodeId(0),
                open: false,
                open_flags: 2,
                exclusive: true,
            }));
        }
        assert_eq!(inos.len(), 4, "{}: numbers twice", self.context);
        self.done("rename over", &moved((below, "a"), (below, "b")));
        self.done("rename away", &moved((below, "b"), (parent, "worked-b")));
        for (text, ino) in there {
            let link = MetaRequest::Link {
                who: who(),
                ino: *ino,
                parent: below,
                name: name("link"),
            };
            self.done("link", &link);
            self.done("move", &moved((parent, text), (below, "moved")));
            assert_eq!(self.find(parent, text), None, "{}", self.context);
            assert_eq!(self.find(below, "moved"), Some(*ino), "{}", self.context);
            self.done("move back", &moved((below, "moved"), (parent, text)));
            self.done("unlink a link", &removed(below, "link"));
            assert_eq!(self.find(parent, text), Some(*ino), "{}", self.context);
        }
        self.done("unlink", &removed(below, "c"));
        self.done("unlink", &removed(parent, "worked-b"));
        if let Some((text, _)) = there.first_key_value() {
            self.done("unlink of an old one", &removed(parent, text));
            assert_eq!(self.find(parent, text), None, "{}", self.context);
        }
        let gone = MetaRequest::Rmdir {
            who: who(),
            parent,
            name: name("worked"),
        };
        self.done("rmdir", &gone);
    }
}

impl TestCell {
    /// Makes, moves, links and removes names through the zone's shard, in directories that are
    /// left. Returns the number of directories with an old file.
    pub fn work_names(&self, context: &str) -> usize {
        let root = open_engine(self.spec(0));
        let engine = open_engine(self.spec(1));
        let mut directories: BTreeMap<Ino, BTreeMap<String, Ino>> = BTreeMap::new();
        let paths = self.files.iter().map(|file| (&file.path, Some(file.ino)));
        let none = ["/first/-", "/second/-", "/lost+found-1/-"].map(String::from);
        for (path, ino) in paths.chain(none.iter().map(|path| (path, None))) {
            let Some((parent, text)) = path.rsplit_once('/') else {
                continue;
            };
            let Some(parent) = lookup(&root, &engine, parent) else {
                continue;
            };
            let there = directories.entry(parent).or_default();
            if let Some(ino) = ino
                && lookup(&root, &engine, path) == Some(ino)
                && there.len() < 3
            {
                there.insert(text.to_owned(), ino);
            }
        }
        let config = ShardConfig::new(ShardId(1), ZoneId(1), BOOT);
        let map = Arc::new(read_map(&root));
        let shard = MetaShard::load(config, map, &engine, now().instant).expect(context);
        let mut worked = Worked {
            shard,
            engine: &engine,
            now: now(),
            session: SessionId(0),
            identity: ClientIdentity::first(ClientId(NEXT.fetch_add(1, Ordering::Relaxed))),
            sequence: 0,
            context,
        };
        let begin = MetaRequest::OpenSession {
            zone: ZoneId(1),
            name: "worker".into(),
        };
        match worked.call(&begin) {
            Ok(MetaReply::Session { session, .. }) => worked.session = session,
            other => panic!("{context}: {other:?}"),
        }
        // Directories with old files first.
        let mut order: Vec<_> = directories.iter().collect();
        order.sort_by_key(|(_, there)| std::cmp::Reverse(there.len()));
        let mut with_old = 0;
        for (parent, there) in order.into_iter().take(DIRECTORIES) {
            worked.work_in(*parent, there);
            with_old += usize::from(!there.is_empty());
        }
        let broken = worked.shard.check(&engine);
        assert!(broken.is_empty(), "{context}: after work: {broken:#?}");
        with_old
    }
}
