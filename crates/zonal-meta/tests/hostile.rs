//! Nothing that comes in, and nothing in the store, makes a shard panic.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tables of tests"
)]

mod common;

use common::*;
use zonal_meta::{Caller, Outcome, Shard};
use zonal_testkit::Rng;
use zonal_types::{Blob, Codec, Credentials, Ino, SessionId, Timestamp};
use zonal_wire::meta::{AttrChange, LockKind, LockRange, NewKind, SetTime};
use zonal_wire::{MetaReply, MetaRequest};

fn prepared() -> (Cell, Client, Vec<Ino>) {
    let mut cell = Cell::with(3, true);
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let mut inos = vec![Ino::ROOT, home];
    for index in 0..6 {
        let dir = client.mkdir(&mut cell, home, &format!("d{index}")).unwrap();
        inos.push(dir);
        let (file, _) = client.create_open(&mut cell, dir, "f").unwrap();
        client.setxattr(&mut cell, file, "user.a", b"1", 0).unwrap();
        client.report(&mut cell, file, 1000).unwrap();
        inos.push(file);
    }
    (cell, client, inos)
}

struct Noise {
    random: Rng,
    inos: Vec<Ino>,
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
    fn request(&mut self) -> MetaRequest {
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
            27 => MetaRequest::Touch { ino },
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
            },
            30 => MetaRequest::Unlock {
                ino,
                range: self.range(),
            },
            31 => MetaRequest::ReleaseLocks {
                ino,
                owner: u64::from(flags),
                whole_file: flags > 3,
            },
            32 => MetaRequest::DetachDir { ino },
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
                open: flags > 2,
                open_flags: self.number() as u32,
                exclusive: flags & 1 == 0,
            },
        }
    }
}

#[test]
fn random_requests_never_panic_nor_break_the_store() {
    for seed in 0..12 {
        let (mut cell, mut client, inos) = prepared();
        let mut noise = Noise {
            random: Rng(seed),
            inos,
        };
        for step in 0..400 {
            cell.pass_ms(3);
            let request = noise.request();
            client.sequence += 1;
            let shard = noise.random.below(2) as usize;
            let reply = cell.send(shard, client.caller(shard), &request);
            if let MetaReply::Entry { entry } = reply {
                noise.inos.push(entry.ino);
            }
            if step % 50 == 0 {
                cell.assert_sound();
            }
        }
        cell.assert_sound();
        cell.restart(1);
        cell.assert_sound();
    }
}

#[test]
fn unknown_sessions_slots_and_inodes_are_refused() {
    let (mut cell, mut client, _) = prepared();
    let mut noise = Noise {
        random: Rng(5),
        inos: vec![Ino(u64::MAX), Ino(0), Ino(9 << 43 | 1), Ino(99)],
    };
    for _ in 0..300 {
        let request = noise.request();
        let caller = Caller {
            session: SessionId(99),
            slot: 3,
            sequence: 1,
        };
        assert!(matches!(
            cell.send(1, caller, &request),
            MetaReply::Failed { .. }
        ));
        let caller = Caller {
            slot: 64,
            ..client.caller(1)
        };
        if request.is_mutation() {
            assert!(matches!(
                cell.send(1, caller, &request),
                MetaReply::Failed { .. }
            ));
        }
        client.sequence += 1;
        let _ = cell.send(1, client.caller(1), &request);
    }
    cell.assert_sound();
}

#[test]
fn damaged_values_are_errors() {
    let (cell, client, inos) = prepared();
    let mut random = Rng(77);
    for _ in 0..1500 {
        let store = &cell.stores[1];
        let mut kv = store.kv.clone();
        let index = random.index(kv.len());
        let value = kv.values_mut().nth(index).unwrap();
        match random.below(3) {
            0 => value.truncate(random.below(value.len() as u64 + 1) as usize),
            1 => value.push(7),
            _ => {
                let at = random.below(value.len().max(1) as u64) as usize;
                if let Some(byte) = value.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        let Ok(mut shard) = Shard::load(
            store.config.clone(),
            cell.map.clone(),
            &kv,
            cell.now.instant,
        ) else {
            continue;
        };
        let _ = shard.check(&kv);
        let _ = shard.deletions(&kv, zonal_types::Instant(0), 10);
        let mut noise = Noise {
            random: Rng(random.bits()),
            inos: inos.clone(),
        };
        for sequence in 100..112 {
            let caller = Caller {
                session: client.sessions[1],
                slot: 1,
                sequence,
            };
            let request = noise.request();
            if let Outcome::Reply { effect, .. } =
                shard.handle(&kv, cell.now, caller, &request, None)
            {
                apply(&mut kv, &effect);
            }
        }
    }
}

#[test]
fn stored_inodes_come_back_whole_and_prefixes_are_refused() {
    let (cell, _, inos) = prepared();
    let key = zonal_meta::keys::inode(inos[3]);
    let bytes = cell.stores[1].kv.get(&key).unwrap();
    let inode = zonal_meta::inode::Inode::decode(inos[3], bytes).unwrap();
    assert_eq!(&inode.to_bytes(), bytes);
    assert!(zonal_meta::inode::Inode::decode(inos[2], bytes).is_err());
    for end in 0..bytes.len() {
        assert!(zonal_meta::inode::Inode::decode(inos[3], &bytes[..end]).is_err());
    }
}

#[test]
fn the_checker_finds_planted_damage() {
    let (cell, _, inos) = prepared();
    let store = &cell.stores[1];
    let (dir, file) = (inos[2], inos[3]);
    let is_found = |plant: &dyn Fn(&mut MemKv)| {
        let mut kv = store.kv.clone();
        plant(&mut kv);
        !store.shard.check(&kv).is_empty()
    };
    assert!(!is_found(&|_kv| {}));
    let inode = |kv: &MemKv, ino| {
        let bytes = kv.get(&zonal_meta::keys::inode(ino)).unwrap();
        zonal_meta::inode::Inode::decode(ino, bytes).unwrap()
    };
    let change = |ino: Ino, change: &dyn Fn(&mut zonal_meta::inode::Inode)| {
        is_found(&|kv: &mut MemKv| {
            let mut found = inode(kv, ino);
            change(&mut found);
            kv.insert(zonal_meta::keys::inode(ino), found.to_bytes());
        })
    };
    assert!(change(file, &|inode| inode.nlink = 2));
    assert!(change(file, &|inode| inode.xattrs = 0));
    assert!(change(file, &|inode| inode.flags |= zonal_meta::inode::FLAG_ORPHAN));
    assert!(change(dir, &|inode| inode.size += 1));
    assert!(change(dir, &|inode| inode.nlink += 1));
    assert!(change(dir, &|inode| inode.parent = Ino::ROOT));
    assert!(is_found(&|kv| {
        kv.remove(&zonal_meta::keys::inode(file));
    }));
    assert!(is_found(&|kv| {
        let layout = inode(kv, file).layout.to_bytes();
        kv.insert(zonal_meta::keys::deletion(file), layout);
    }));
}
