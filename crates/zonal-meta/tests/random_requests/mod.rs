//! Random requests from a seed: every kind, with edge values in their fields.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers of tests are small"
)]

use crate::common::name;
use zonal_testkit::Rng;
use zonal_types::{Blob, Credentials, Ino, NodeId, Timestamp};
use zonal_wire::MetaRequest;
use zonal_wire::meta::{AttrChange, LockKind, LockRange, NewKind, SetTime};

pub struct Noise {
    pub random: Rng,
    pub inos: Vec<Ino>,
}

impl Noise {
    fn number(&mut self) -> u64 {
        let edges = [
            0,
            1,
            2,
            255,
            256,
            u64::MAX,
            1 << 63,
            (1 << 63) - 1,
            4096,
            0o7777,
        ];
        match self.random.below(3) {
            0 => self.random.bits(),
            _ => edges[self.random.index(edges.len())],
        }
    }
    fn ino(&mut self) -> Ino {
        match self.random.below(8) {
            0 => Ino(self.number()),
            _ => self.inos[self.random.index(self.inos.len())],
        }
    }
    fn name(&mut self) -> zonal_types::Name {
        let names = ["f", "d0", "d1", "d2", "home", "x", "y"];
        name(names[self.random.below(7) as usize])
    }
    fn who(&mut self) -> Credentials {
        match self.random.below(2) {
            0 => Credentials::root(),
            _ => Credentials {
                uid: self.number() as u32,
                gid: self.number() as u32,
                groups: vec![3],
            },
        }
    }
    fn time(&mut self) -> Timestamp {
        Timestamp {
            seconds: self.number() as i64,
            nanos: self.number() as u32,
        }
    }
    fn blob(&mut self) -> Blob {
        let options: [&[u8]; 9] = [
            b"",
            b"user.a",
            b"trusted.a",
            b"security.capability",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            b"zonal.layout",
            b"unit=65536",
            &[2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255],
        ];
        Blob(options[self.random.below(9) as usize].to_vec())
    }
    fn range(&mut self) -> LockRange {
        LockRange {
            whole_file: self.random.below(2) == 0,
            owner: self.random.below(3),
            handle: self.random.below(2),
            number: self.random.below(9),
            pid: 1,
            kind: if self.random.below(2) == 0 {
                LockKind::Shared
            } else {
                LockKind::Exclusive
            },
            start: self.number(),
            end: self.number(),
        }
    }
    #[allow(clippy::too_many_lines, reason = "a table of requests")]
    pub fn request(&mut self) -> MetaRequest {
        let (who, ino, name) = (self.who(), self.ino(), self.name());
        let (other, new_name, number) = (self.ino(), self.name(), self.number());
        let flags = self.random.below(8) as u32;
        match self.random.below(36) {
            0 => MetaRequest::Lookup {
                who,
                parent: ino,
                name,
            },
            1 => MetaRequest::GetAttr { ino, data: true },
            2 => MetaRequest::Access {
                who,
                ino,
                mask: number as u32,
            },
            3 => MetaRequest::Readlink { ino },
            4 if flags == 7 => MetaRequest::ReadDirs {
                who,
                dirs: vec![ino, Ino(number), ino],
                entries: number as u32,
            },
            4 => MetaRequest::ReadDir {
                who,
                dir: ino,
                cookie: number,
                entries: number as u32,
                plus: flags > 3,
            },
            5 => MetaRequest::GetXattr {
                who,
                ino,
                name: self.blob(),
            },
            6 => MetaRequest::ListXattr { who, ino },
            7 => MetaRequest::GetLock {
                ino,
                range: self.range(),
            },
            8 => MetaRequest::Parent { ino },
            9 => MetaRequest::Mkdir {
                who,
                parent: ino,
                name,
                mode: number as u32,
                umask: 0,
                zone: zonal_types::ZoneId(flags as u16),
            },
            10 => MetaRequest::Tmpfile {
                who,
                parent: ino,
                mode: 0o600,
                umask: 0,
                zone: zonal_types::ZoneId(1),
                node: NodeId(0),
                exclusive: flags > 3,
            },
            11 => MetaRequest::Unlink {
                who,
                parent: ino,
                name,
            },
            12 => MetaRequest::Rmdir {
                who,
                parent: ino,
                name,
            },
            13..=15 => MetaRequest::Rename {
                who,
                parent: ino,
                name,
                new_parent: other,
                new_name,
                flags,
            },
            16 => MetaRequest::Link {
                who,
                ino,
                parent: other,
                name,
            },
            17 => MetaRequest::Open {
                who,
                ino,
                open_flags: number as u32,
            },
            18 => MetaRequest::Close {
                inos: vec![ino, other, ino],
            },
            19 => MetaRequest::SetAttr {
                who,
                ino,
                change: AttrChange {
                    mode: Some(number as u32),
                    uid: Some(self.number() as u32),
                    gid: None,
                    atime: Some(SetTime::At { time: self.time() }),
                    mtime: Some(SetTime::Now),
                    ctime: Some(self.time()),
                },
            },
            20 => MetaRequest::Truncate {
                who,
                ino,
                size: number,
                by_handle: flags > 3,
                confirmed_seq: self.number(),
                kill_suid: true,
            },
            21 => MetaRequest::ConfirmTruncate {
                ino,
                truncate_seq: number,
                allocated_delta: self.number() as i64,
            },
            22 => MetaRequest::ReportWrite {
                ino,
                size: number,
                truncate_seq: number,
                mtime: Some(self.time()),
                allocated_delta: self.number() as i64,
                kill_suid: true,
                inline: Some((self.number() as u32, Blob(vec![3; flags as usize]))),
                sync: false,
            },
            23 => MetaRequest::AppendBegin {
                ino,
                length: number as u32,
                limit: self.number(),
            },
            24 => MetaRequest::AppendEnd {
                ino,
                offset: number,
                reserved: self.number() as u32,
                length: self.number() as u32,
                mtime: self.time(),
                allocated_delta: 1,
                kill_suid: true,
                inline: Some((number as u32, Blob(vec![4; 8]))),
            },
            25 => MetaRequest::SetXattr {
                who,
                ino,
                name: self.blob(),
                value: self.blob(),
                flags,
            },
            26 => MetaRequest::RemoveXattr {
                who,
                ino,
                name: self.blob(),
            },
            27 => MetaRequest::Touch {
                reads: vec![
                    (ino, Timestamp::default()),
                    (Ino::ROOT, Timestamp::default()),
                ],
            },
            28 => MetaRequest::SetPolicy {
                who,
                dir: ino,
                policy: None,
            },
            29 => MetaRequest::Lock {
                ino,
                range: self.range(),
                wait: flags > 3,
                waiter: u64::from(flags),
                settled: self.random.below(3),
            },
            30 => MetaRequest::Unlock {
                ino,
                range: self.range(),
            },
            31 if flags < 2 => MetaRequest::CancelLock {
                ino,
                range: self.range(),
                waiter: u64::from(flags),
                before: vec![self.range()],
            },
            31 => MetaRequest::ReleaseLocks {
                ino,
                owner: u64::from(flags),
                whole_file: flags > 3,
                handle: (flags > 5).then_some(1),
                number: self.random.below(9),
            },
            32 => MetaRequest::DetachDir { ino },
            33 if flags > 3 => MetaRequest::DisownBehind {
                ino,
                reserves: flags > 5,
            },
            33 => MetaRequest::AttachDir { ino },
            34 => MetaRequest::Reclaim {
                opens: vec![ino],
                locks: vec![(other, self.range())],
            },
            _ => MetaRequest::Create {
                who,
                parent: ino,
                name,
                kind: [
                    NewKind::File,
                    NewKind::Fifo,
                    NewKind::Symlink { text: self.blob() },
                ][self.random.below(3) as usize]
                    .clone(),
                mode: number as u32,
                umask: self.number() as u32,
                zone: zonal_types::ZoneId(flags as u16),
                node: NodeId(number as u32),
                open: flags > 2,
                open_flags: self.number() as u32,
                exclusive: flags & 1 == 0,
            },
        }
    }
}
