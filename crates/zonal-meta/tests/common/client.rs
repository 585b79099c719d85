//! A client with one slot, one call an operation.

use super::{Cell, name};
use zonal_meta::Caller;
use zonal_types::{Attr, ClientIdentity, Credentials, ErrorCode, FileData, Ino, SessionId, ZoneId};
use zonal_wire::meta::{DirEntry, Entry, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

/// A client with one slot.
#[derive(Clone)]
pub struct Client {
    pub identity: ClientIdentity,
    pub sessions: Vec<SessionId>,
    pub sequence: u32,
    pub who: Credentials,
    pub zone: ZoneId,
}

pub type Reply<T> = Result<T, ErrorCode>;

impl Client {
    pub fn who(&self, uid: u32, gid: u32) -> Self {
        let mut other = self.clone();
        other.who = Credentials {
            uid,
            gid,
            groups: vec![],
        };
        other
    }

    pub fn caller(&self, shard: usize) -> Caller {
        Caller {
            identity: self.identity,
            session: self.sessions[shard],
            slot: 0,
            sequence: self.sequence,
        }
    }

    pub fn call(&mut self, cell: &mut Cell, at: Ino, request: &MetaRequest) -> Reply<MetaReply> {
        let shard = cell.shard_of(at);
        if request.is_mutation() {
            self.sequence += 1;
        }
        match cell.send(shard, self.caller(shard), request) {
            MetaReply::Failed { code } => Err(code.0),
            reply => Ok(reply.split_directory().0),
        }
    }

    /// Reclaims at a restarted shard what is open, as a client does before any other request.
    pub fn reclaim(&mut self, cell: &mut Cell, shard: usize, opens: Vec<Ino>) {
        let locks = Vec::new();
        let request = MetaRequest::Reclaim { opens, locks };
        let reply = cell.send(shard, self.caller(shard), &request);
        assert_eq!(reply, MetaReply::Done);
    }

    /// Reclaims nothing at a restarted shard.
    pub fn holds_nothing(&mut self, cell: &mut Cell, shard: usize) {
        self.reclaim(cell, shard, Vec::new());
    }

    pub fn lookup(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<Ino> {
        let request = MetaRequest::Lookup {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        match self.call(cell, parent, &request)? {
            MetaReply::Entry { entry } => Ok(entry.ino),
            MetaReply::NoEntry { .. } => Err(ErrorCode::NotFound),
            other => panic!("{other:?}"),
        }
    }

    pub fn attr(&mut self, cell: &mut Cell, ino: Ino) -> Reply<Attr> {
        match self.call(cell, ino, &MetaRequest::GetAttr { ino, data: true })? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn mkdir_mode(
        &mut self,
        cell: &mut Cell,
        parent: Ino,
        text: &str,
        mode: u32,
    ) -> Reply<Ino> {
        let request = MetaRequest::Mkdir {
            who: self.who.clone(),
            parent,
            name: name(text),
            mode,
            umask: 0,
            zone: self.zone,
        };
        entry_of(self.call(cell, parent, &request)?).map(|entry| entry.ino)
    }

    pub fn mkdir(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<Ino> {
        self.mkdir_mode(cell, parent, text, 0o755)
    }

    pub fn create_request(
        &self,
        parent: Ino,
        text: &str,
        kind: NewKind,
        mode: u32,
        open: bool,
    ) -> MetaRequest {
        MetaRequest::Create {
            who: self.who.clone(),
            parent,
            name: name(text),
            kind,
            mode,
            umask: 0,
            zone: self.zone,
            node: zonal_types::NodeId(0),
            open,
            open_flags: 2,
            exclusive: true,
        }
    }

    pub fn create(&mut self, cell: &mut Cell, parent: Ino, text: &str, mode: u32) -> Reply<Ino> {
        let request = self.create_request(parent, text, NewKind::File, mode, false);
        entry_of(self.call(cell, parent, &request)?).map(|entry| entry.ino)
    }

    /// Creates a file and keeps it open.
    pub fn create_open(
        &mut self,
        cell: &mut Cell,
        parent: Ino,
        text: &str,
    ) -> Reply<(Ino, FileData)> {
        let request = self.create_request(parent, text, NewKind::File, 0o644, true);
        match self.call(cell, parent, &request)? {
            MetaReply::Opened { entry, data, .. } => Ok((entry.ino, data)),
            other => panic!("{other:?}"),
        }
    }

    pub fn open(&mut self, cell: &mut Cell, ino: Ino, open_flags: u32) -> Reply<bool> {
        let request = MetaRequest::Open {
            who: self.who.clone(),
            ino,
            open_flags,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Opened { push, .. } => Ok(push),
            MetaReply::OpenedSmall { .. } => Ok(false),
            other => panic!("{other:?}"),
        }
    }

    pub fn close(&mut self, cell: &mut Cell, ino: Ino) -> Reply<()> {
        self.call(cell, ino, &MetaRequest::Close { inos: vec![ino] })
            .map(|_| ())
    }

    pub fn unlink(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Unlink {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn rmdir(&mut self, cell: &mut Cell, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Rmdir {
            who: self.who.clone(),
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn rename(
        &mut self,
        cell: &mut Cell,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: u32,
    ) -> Reply<()> {
        let request = MetaRequest::Rename {
            who: self.who.clone(),
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            flags,
        };
        self.call(cell, from.0, &request).map(|_| ())
    }

    /// A rename that succeeds.
    pub fn moved(&mut self, cell: &mut Cell, from: (Ino, &str), to: (Ino, &str)) {
        self.rename(cell, from, to, 0).unwrap();
    }

    pub fn link(&mut self, cell: &mut Cell, ino: Ino, parent: Ino, text: &str) -> Reply<()> {
        let request = MetaRequest::Link {
            who: self.who.clone(),
            ino,
            parent,
            name: name(text),
        };
        self.call(cell, parent, &request).map(|_| ())
    }

    pub fn truncate(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        size: u64,
        confirmed_seq: u64,
    ) -> Reply<bool> {
        let request = MetaRequest::Truncate {
            who: self.who.clone(),
            ino,
            size,
            by_handle: false,
            confirmed_seq,
            kill_suid: false,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Truncated { push, .. } => Ok(push),
            other => panic!("{other:?}"),
        }
    }

    pub fn report(&mut self, cell: &mut Cell, ino: Ino, size: u64) -> Reply<Attr> {
        self.report_with(cell, ino, (size, 4096), None)
    }

    pub fn write_inline(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        offset: u32,
        bytes: &[u8],
    ) -> Reply<Attr> {
        let inline = (offset, zonal_types::Blob(bytes.to_vec()));
        self.report_with(cell, ino, (0, 0), Some(inline))
    }

    fn report_with(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        (size, allocated_delta): (u64, i64),
        inline: Option<(u32, zonal_types::Blob)>,
    ) -> Reply<Attr> {
        let request = MetaRequest::ReportWrite {
            ino,
            size,
            truncate_seq: u64::MAX,
            mtime: Some(cell.now.wall),
            allocated_delta,
            kill_suid: true,
            inline,
            sync: false,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Attr { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn read_inline(&mut self, cell: &mut Cell, ino: Ino) -> Reply<Vec<u8>> {
        match self.call(cell, ino, &MetaRequest::ReadInline { ino })? {
            MetaReply::Inline { bytes } => Ok(bytes.0),
            other => panic!("{other:?}"),
        }
    }

    pub fn chmod(&mut self, cell: &mut Cell, ino: Ino, mode: u32) -> Reply<()> {
        let change = zonal_wire::meta::AttrChange {
            mode: Some(mode),
            ..Default::default()
        };
        self.setattr(cell, ino, change)
    }

    pub fn chown(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Reply<()> {
        let change = zonal_wire::meta::AttrChange {
            uid,
            gid,
            ..Default::default()
        };
        self.setattr(cell, ino, change)
    }

    pub fn setattr(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        change: zonal_wire::meta::AttrChange,
    ) -> Reply<()> {
        let request = MetaRequest::SetAttr {
            who: self.who.clone(),
            ino,
            change,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn access(&mut self, cell: &mut Cell, ino: Ino, mask: u32) -> Reply<()> {
        let request = MetaRequest::Access {
            who: self.who.clone(),
            ino,
            mask,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn readdir(
        &mut self,
        cell: &mut Cell,
        dir: Ino,
        cookie: u64,
        entries: u32,
    ) -> Reply<(Vec<DirEntry>, bool)> {
        let request = MetaRequest::ReadDir {
            who: self.who.clone(),
            dir,
            cookie,
            entries,
            plus: true,
        };
        match self.call(cell, dir, &request)? {
            MetaReply::Dir { entries, end } => Ok((entries, end)),
            other => panic!("{other:?}"),
        }
    }

    /// All names of a directory.
    pub fn list(&mut self, cell: &mut Cell, dir: Ino) -> Vec<DirEntry> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (entries, end) = self.readdir(cell, dir, cookie, 7).unwrap();
            if let Some(last) = entries.last() {
                cookie = last.cookie;
            }
            all.extend(entries);
            if end {
                return all;
            }
        }
    }

    pub fn setxattr(
        &mut self,
        cell: &mut Cell,
        ino: Ino,
        text: &str,
        value: &[u8],
        flags: u32,
    ) -> Reply<()> {
        let request = MetaRequest::SetXattr {
            who: self.who.clone(),
            ino,
            name: zonal_types::Blob(text.as_bytes().to_vec()),
            value: zonal_types::Blob(value.to_vec()),
            flags,
        };
        self.call(cell, ino, &request).map(|_| ())
    }

    pub fn getxattr(&mut self, cell: &mut Cell, ino: Ino, text: &str) -> Reply<Vec<u8>> {
        let name = zonal_types::Blob(text.as_bytes().to_vec());
        let request = MetaRequest::GetXattr {
            who: self.who.clone(),
            ino,
            name,
        };
        match self.call(cell, ino, &request)? {
            MetaReply::Text { text } => Ok(text.0),
            other => panic!("{other:?}"),
        }
    }
}

pub fn entry_of(reply: MetaReply) -> Reply<Entry> {
    match reply.split_directory().0 {
        MetaReply::Entry { entry }
        | MetaReply::Opened { entry, .. }
        | MetaReply::OpenedSmall { entry, .. } => Ok(entry),
        other => panic!("{other:?}"),
    }
}
