//! Who may do what, as tables; and which times change.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use ErrorCode::{Access, Exists, NoData, NotPermitted, NotSupported};
use common::*;
use zonal_types::{Attr, ErrorCode, Ino};
use zonal_wire::meta::flags::{O_EXEC, O_RDWR, O_TRUNC, O_WRONLY, XATTR_CREATE, XATTR_REPLACE};
use zonal_wire::meta::{AttrChange, SetTime};
use zonal_wire::{MetaReply, MetaRequest};

struct Setup {
    cell: Cell,
    root: Client,
    home: Ino,
}

impl Setup {
    fn new() -> Self {
        let mut cell = Cell::new();
        let mut root = cell.client(1);
        let home = root
            .mkdir_mode(&mut cell, Ino::ROOT, "home", 0o777)
            .unwrap();
        root.chmod(&mut cell, home, 0o777).unwrap();
        Self { cell, root, home }
    }

    /// Runs as another user in the same session.
    fn as_user<T>(
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

    fn file(&mut self, name: &str, mode: u32, uid: u32, gid: u32) -> Ino {
        let home = self.home;
        let ino = self.root.create(&mut self.cell, home, name, mode).unwrap();
        self.root
            .chown(&mut self.cell, ino, Some(uid), Some(gid))
            .unwrap();
        self.root.chmod(&mut self.cell, ino, mode).unwrap();
        ino
    }

    fn dir(&mut self, name: &str, mode: u32, uid: u32, gid: u32) -> Ino {
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

    fn attr(&mut self, ino: Ino) -> Attr {
        self.root.attr(&mut self.cell, ino).unwrap()
    }
}

#[test]
fn mode_bits_decide_by_owner_group_others() {
    let mut setup = Setup::new();
    // Mode, who (uid, gid), mask, allowed. The file is 10:20's.
    let table = [
        (0o400, (10, 99), 4, true),
        (0o077, (10, 20), 4, false),
        (0o040, (11, 20), 4, true),
        (0o707, (11, 20), 4, false),
        (0o004, (11, 21), 4, true),
        (0o770, (11, 21), 1, false),
        (0o000, (0, 0), 6, true),
        (0o000, (0, 0), 1, false),
        (0o001, (0, 0), 1, true),
        (0o600, (10, 20), 7, false),
    ];
    for (index, (mode, (uid, gid), mask, allowed)) in table.into_iter().enumerate() {
        let ino = setup.file(&format!("f{index}"), mode, 10, 20);
        let expected = if allowed { Ok(()) } else { Err(Access) };
        let got = setup.as_user(uid, gid, |client, cell| client.access(cell, ino, mask));
        assert_eq!(got, expected, "{mode:o} {uid}:{gid} {mask}");
    }
}

#[test]
fn opening_needs_what_its_flags_say() {
    let mut setup = Setup::new();
    let table = [
        (0o444, 0, Ok(false)),
        (0o444, O_WRONLY, Err(Access)),
        (0o444, O_TRUNC, Err(Access)),
        (0o222, O_WRONLY, Ok(false)),
        (0o222, 0, Err(Access)),
        (0o222, O_RDWR, Err(Access)),
        (0o111, O_EXEC, Ok(false)),
        (0o111, 0, Err(Access)),
    ];
    for (index, (mode, flags, expected)) in table.into_iter().enumerate() {
        let ino = setup.file(&format!("f{index}"), mode, 10, 20);
        let got = setup.as_user(10, 20, |client, cell| client.open(cell, ino, flags));
        assert_eq!(got, expected, "{mode:o} {flags:o}");
    }
    let home = setup.home;
    assert_eq!(
        setup.root.open(&mut setup.cell, home, O_WRONLY),
        Err(ErrorCode::IsDirectory)
    );
}

#[test]
fn changing_entries_needs_write_and_search() {
    let mut setup = Setup::new();
    for (mode, lookup, create) in [
        (0o700, Ok(()), Ok(())),
        (0o600, Err(Access), Err(Access)),
        (0o500, Ok(()), Err(Access)),
        (0o300, Ok(()), Ok(())),
    ] {
        let dir = setup.dir(&format!("d{mode:o}"), 0o777, 10, 20);
        setup.root.create(&mut setup.cell, dir, "f", 0o666).unwrap();
        setup.root.chmod(&mut setup.cell, dir, mode).unwrap();
        setup.as_user(10, 20, |client, cell| {
            assert_eq!(
                client.lookup(cell, dir, "f").map(|_| ()),
                lookup,
                "{mode:o}"
            );
            assert_eq!(
                client.create(cell, dir, "g", 0o644).map(|_| ()),
                create,
                "{mode:o}"
            );
            assert_eq!(client.mkdir(cell, dir, "m").map(|_| ()), create, "{mode:o}");
            assert_eq!(
                client.rename(cell, (dir, "f"), (dir, "h"), 0),
                create,
                "{mode:o}"
            );
            let name = if create.is_ok() { "h" } else { "f" };
            assert_eq!(client.unlink(cell, dir, name), create, "{mode:o}");
        });
    }
}

#[test]
fn a_sticky_directory_protects_what_others_own() {
    let mut setup = Setup::new();
    let dir = setup.dir("tmp", 0o1777, 5, 5);
    setup.as_user(10, 10, |client, cell| {
        client.create(cell, dir, "f", 0o666).unwrap()
    });
    setup.as_user(10, 10, |client, cell| client.mkdir(cell, dir, "d").unwrap());
    setup.as_user(11, 11, |client, cell| {
        assert_eq!(client.unlink(cell, dir, "f"), Err(NotPermitted));
        assert_eq!(client.rmdir(cell, dir, "d"), Err(NotPermitted));
        assert_eq!(
            client.rename(cell, (dir, "f"), (dir, "g"), 0),
            Err(NotPermitted)
        );
        client.create(cell, dir, "mine", 0o666).unwrap();
        assert_eq!(
            client.rename(cell, (dir, "mine"), (dir, "f"), 0),
            Err(NotPermitted)
        );
    });
    setup.as_user(5, 5, |client, cell| client.unlink(cell, dir, "f").unwrap());
    setup.as_user(10, 10, |client, cell| client.rmdir(cell, dir, "d").unwrap());
}

#[test]
fn moving_a_directory_elsewhere_needs_write_permission_on_it() {
    let mut setup = Setup::new();
    let a = setup.dir("a", 0o777, 0, 0);
    let home = setup.home;
    let d = setup.dir("d", 0o555, 10, 10);
    setup.as_user(10, 10, |client, cell| {
        client.rename(cell, (home, "d"), (home, "e"), 0).unwrap();
        assert_eq!(client.rename(cell, (home, "e"), (a, "e"), 0), Err(Access));
        client.chmod(cell, d, 0o755).unwrap();
        client.rename(cell, (home, "e"), (a, "e"), 0).unwrap();
    });
    setup.cell.assert_sound();
}

#[test]
fn owners_change_modes_and_only_root_gives_files_away() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o6755, 10, 20);
    setup.as_user(11, 20, |client, cell| {
        assert_eq!(client.chmod(cell, f, 0o700), Err(NotPermitted));
        assert_eq!(client.chown(cell, f, None, Some(20)), Err(NotPermitted));
    });
    setup.as_user(10, 20, |client, cell| {
        assert_eq!(client.chown(cell, f, Some(11), None), Err(NotPermitted));
        assert_eq!(client.chown(cell, f, None, Some(30)), Err(NotPermitted));
        client.chown(cell, f, Some(10), Some(20)).unwrap();
    });
    assert_eq!(setup.attr(f).mode, 0o755, "set-id bits go");
    setup.root.chmod(&mut setup.cell, f, 0o6755).unwrap();
    setup.as_user(10, 20, |client, cell| {
        client.chown(cell, f, None, None).unwrap();
    });
    assert_eq!(setup.attr(f).mode, 0o755, "even where nothing changes");
    setup.root.chmod(&mut setup.cell, f, 0o2745).unwrap();
    setup
        .root
        .chown(&mut setup.cell, f, Some(10), Some(21))
        .unwrap();
    assert_eq!(
        setup.attr(f).mode,
        0o2745,
        "set-group-id without group execute stays for root"
    );
    setup.as_user(10, 20, |client, cell| {
        client.chmod(cell, f, 0o2755).unwrap();
    });
    assert_eq!(setup.attr(f).mode, 0o755, "the owner is not in the group");
    let d = setup.dir("d", 0o6755, 10, 20);
    setup
        .root
        .chown(&mut setup.cell, d, Some(11), Some(21))
        .unwrap();
    assert_eq!(setup.attr(d).mode, 0o6755, "directories keep theirs");
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let mut setup = Setup::new();
    let d = setup.dir("d", 0o2777, 5, 77);
    let (sub, file) = setup.as_user(10, 20, |client, cell| {
        let sub = client.mkdir_mode(cell, d, "sub", 0o755).unwrap();
        (sub, client.create(cell, d, "f", 0o2775).unwrap())
    });
    let (sub, file) = (setup.attr(sub), setup.attr(file));
    assert_eq!((sub.gid, sub.mode), (77, 0o2755));
    assert_eq!(
        (file.gid, file.mode),
        (77, 0o775),
        "not in the group: no set-group-id program"
    );
}

#[test]
fn times_need_ownership_unless_they_are_now() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o622, 10, 20);
    let at = SetTime::At { time: seconds(5) };
    let table = [
        (Some(SetTime::Now), Some(SetTime::Now), 11, Ok(())),
        (Some(SetTime::Now), None, 11, Err(NotPermitted)),
        (Some(at), Some(at), 11, Err(NotPermitted)),
        (Some(at), Some(SetTime::Now), 10, Ok(())),
    ];
    for (atime, mtime, uid, expected) in table {
        let change = AttrChange {
            atime,
            mtime,
            ..AttrChange::default()
        };
        let got = setup.as_user(uid, uid, |client, cell| client.setattr(cell, f, change));
        assert_eq!(got, expected, "{change:?}");
    }
    let g = setup.file("g", 0o600, 10, 20);
    let change = AttrChange {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..AttrChange::default()
    };
    let got = setup.as_user(11, 11, |client, cell| client.setattr(cell, g, change));
    assert_eq!(got, Err(Access));
}

#[test]
fn reports_do_not_undo_an_explicit_time() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o644, 0, 0);
    let written = setup.cell.now.wall;
    setup.cell.pass_ms(1000);
    let at = Some(SetTime::At { time: seconds(5) });
    setup
        .root
        .setattr(
            &mut setup.cell,
            f,
            AttrChange {
                mtime: at,
                ..AttrChange::default()
            },
        )
        .unwrap();
    let report = |mtime| MetaRequest::ReportWrite {
        ino: f,
        size: 1,
        mtime: Some(mtime),
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
        sync: false,
    };
    setup
        .root
        .call(&mut setup.cell, f, &report(written))
        .unwrap();
    assert_eq!(setup.attr(f).mtime, seconds(5));
    setup.cell.pass_ms(1000);
    let later = setup.cell.now.wall;
    setup.root.call(&mut setup.cell, f, &report(later)).unwrap();
    assert_eq!(setup.attr(f).mtime, later);
}

#[test]
fn operations_change_the_times_that_posix_names() {
    let mut setup = Setup::new();
    let dir = setup.dir("d", 0o755, 0, 0);
    let f = setup.root.create(&mut setup.cell, dir, "f", 0o644).unwrap();
    // Runs a step one second later; returns which of (dir m, dir c, file m, file c) it changed.
    let mut changed = |run: &dyn Fn(&mut Client, &mut Cell)| {
        setup.cell.pass_ms(1000);
        let before = (setup.attr(dir), setup.attr(f));
        run(&mut setup.root, &mut setup.cell);
        let after = (setup.attr(dir), setup.attr(f));
        (
            before.0.mtime != after.0.mtime,
            before.0.ctime != after.0.ctime,
            before.1.mtime != after.1.mtime,
            before.1.ctime != after.1.ctime,
        )
    };
    assert_eq!(
        changed(&|client, cell| client.chmod(cell, f, 0o600).unwrap()),
        (false, false, false, true)
    );
    assert_eq!(
        changed(&|client, cell| client.link(cell, f, dir, "g").unwrap()),
        (true, true, false, true)
    );
    assert_eq!(
        changed(&|client, cell| client.unlink(cell, dir, "g").unwrap()),
        (true, true, false, true)
    );
    let rename = |client: &mut Client, cell: &mut Cell| {
        client.rename(cell, (dir, "f"), (dir, "h"), 0).unwrap();
    };
    assert_eq!(changed(&rename), (true, true, false, true));
    let grow = |client: &mut Client, cell: &mut Cell| {
        client.truncate(cell, f, 10, 0).unwrap();
    };
    assert_eq!(changed(&grow), (false, false, true, true));
    assert_eq!(
        changed(&grow),
        (false, false, false, false),
        "the same size"
    );
    let set =
        |client: &mut Client, cell: &mut Cell| client.setxattr(cell, f, "user.a", b"1", 0).unwrap();
    assert_eq!(changed(&set), (false, false, false, true));
}

#[test]
fn shrinks_are_numbered_and_confirmed() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o4755, 0, 0);
    let Setup { cell, root, .. } = &mut setup;
    assert_eq!(root.truncate(cell, f, 0, 0), Ok(false), "nothing to cut");
    root.report(cell, f, 10_100).unwrap();
    assert_eq!(
        root.attr(cell, f).unwrap().mode,
        0o755,
        "an unprivileged write"
    );
    assert_eq!(root.truncate(cell, f, 10_050, 0), Ok(true));
    assert_eq!(
        root.truncate(cell, f, 10_010, 0),
        Err(ErrorCode::TruncateUnconfirmed)
    );
    assert_eq!(
        root.open(cell, f, O_WRONLY | O_TRUNC),
        Err(ErrorCode::TruncateUnconfirmed)
    );
    assert_eq!(
        root.truncate(cell, f, 10_070, 0),
        Ok(false),
        "growing is free"
    );
    assert_eq!(root.truncate(cell, f, 10_010, 1), Ok(true));
    let confirm = MetaRequest::ConfirmTruncate {
        ino: f,
        truncate_seq: 2,
        allocated_delta: -4096,
    };
    root.call(cell, f, &confirm).unwrap();
    assert_eq!(root.attr(cell, f).unwrap().allocated, 0);
    assert_eq!(root.open(cell, f, O_WRONLY | O_TRUNC), Ok(true));
    assert_eq!(
        root.truncate(cell, f, 1 << 63, 9),
        Err(ErrorCode::FileTooBig)
    );
    let MetaReply::Attr { data, .. } = root
        .call(cell, f, &MetaRequest::GetAttr { ino: f, data: true })
        .unwrap()
    else {
        panic!()
    };
    assert_eq!(data.unwrap().truncate_seq, 3);
}

fn acl(lines: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in lines {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NONE: u32 = u32::MAX;

#[test]
fn acls_grant_inherit_and_follow_chmod() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o600, 10, 20);
    let full = acl(&[
        (1, 6, NONE),
        (2, 6, 11),
        (4, 0, NONE),
        (16, 6, NONE),
        (32, 0, NONE),
    ]);
    setup.as_user(11, 11, |client, cell| {
        assert_eq!(
            client.setxattr(cell, f, ACCESS, &full, 0),
            Err(NotPermitted)
        );
        assert_eq!(client.access(cell, f, 4), Err(Access));
    });
    setup.as_user(10, 20, |client, cell| {
        client.setxattr(cell, f, ACCESS, &full, 0).unwrap();
    });
    assert_eq!(setup.attr(f).mode, 0o660);
    setup.as_user(11, 11, |client, cell| client.access(cell, f, 6).unwrap());
    setup.as_user(12, 20, |client, cell| {
        assert_eq!(client.access(cell, f, 4), Err(Access));
    });
    setup.as_user(10, 20, |client, cell| client.chmod(cell, f, 0o640).unwrap());
    setup.as_user(11, 11, |client, cell| {
        client.access(cell, f, 4).unwrap();
        assert_eq!(
            client.access(cell, f, 2),
            Err(Access),
            "chmod sets the mask"
        );
    });
    let minimal = acl(&[(1, 7, NONE), (4, 5, NONE), (32, 1, NONE)]);
    setup
        .root
        .setxattr(&mut setup.cell, f, ACCESS, &minimal, 0)
        .unwrap();
    assert_eq!(setup.attr(f).mode, 0o751);
    assert_eq!(
        setup.root.getxattr(&mut setup.cell, f, ACCESS),
        Err(NoData),
        "the mode says it all"
    );
    let Setup { cell, root, .. } = &mut setup;
    assert_eq!(root.setxattr(cell, f, DEFAULT, &full, 0), Err(Access));
    let d = setup.dir("d", 0o777, 10, 20);
    let Setup { cell, root, .. } = &mut setup;
    root.setxattr(cell, d, DEFAULT, &full, 0).unwrap();
    let mut request = root.create_request(d, "g", zonal_wire::meta::NewKind::File, 0o666, false);
    if let MetaRequest::Create { umask, .. } = &mut request {
        *umask = 0o077;
    }
    let g = entry_of(root.call(cell, d, &request).unwrap()).unwrap();
    assert_eq!(
        g.attr.unwrap().mode,
        0o660,
        "the default ACL, not the umask"
    );
    assert_eq!(root.getxattr(cell, g.ino, ACCESS).unwrap(), full);
    let sub = root.mkdir(cell, d, "sub").unwrap();
    assert_eq!(root.getxattr(cell, sub, DEFAULT).unwrap(), full);
    assert_eq!(
        root.setxattr(cell, f, ACCESS, b"junk", 0),
        Err(NotSupported)
    );
    cell.assert_sound();
}

#[test]
fn attributes_by_name_space() {
    let mut setup = Setup::new();
    let f = setup.file("f", 0o644, 10, 20);
    let Setup { cell, root, .. } = &mut setup;
    root.setxattr(cell, f, "trusted.t", b"x", 0).unwrap();
    root.setxattr(cell, f, "security.capability", b"cap", 0)
        .unwrap();
    root.setxattr(cell, f, "user.u", b"1", XATTR_CREATE)
        .unwrap();
    assert_eq!(
        root.setxattr(cell, f, "user.u", b"2", XATTR_CREATE),
        Err(Exists)
    );
    assert_eq!(
        root.setxattr(cell, f, "user.v", b"2", XATTR_REPLACE),
        Err(NoData)
    );
    assert_eq!(
        root.setxattr(cell, f, "other.v", b"2", 0),
        Err(NotSupported)
    );
    assert_eq!(
        root.setxattr(cell, f, "user.", b"2", 0),
        Err(ErrorCode::Invalid)
    );
    assert_eq!(
        root.setxattr(cell, f, "user.big", &[0; 65537], 0),
        Err(ErrorCode::TooBig)
    );
    for index in 0..3 {
        root.setxattr(cell, f, &format!("user.big{index}"), &[7; 65536], 0)
            .unwrap();
    }
    assert_eq!(
        root.setxattr(cell, f, "user.big4", &[7; 65536], 0),
        Err(ErrorCode::NoSpace)
    );
    let names = |client: &mut Client, cell: &mut Cell| {
        let request = MetaRequest::ListXattr {
            who: client.who.clone(),
            ino: f,
        };
        match client.call(cell, f, &request).unwrap() {
            MetaReply::Names { names } => names.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(names(root, cell), 6);
    root.report(cell, f, 1).unwrap();
    assert_eq!(
        root.getxattr(cell, f, "security.capability"),
        Err(NoData),
        "a write takes it"
    );
    // Also where the writer keeps set-id bits, and by a truncation.
    let write = MetaRequest::ReportWrite {
        ino: f,
        size: 2,
        mtime: Some(cell.now.wall),
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
        sync: false,
    };
    for is_write in [true, false] {
        root.setxattr(cell, f, "security.capability", b"cap", 0)
            .unwrap();
        if is_write {
            root.call(cell, f, &write).unwrap();
        } else {
            root.truncate(cell, f, 7, 0).unwrap();
        }
        assert_eq!(root.getxattr(cell, f, "security.capability"), Err(NoData));
    }
    setup.as_user(10, 20, |client, cell| {
        assert_eq!(names(client, cell), 4);
        assert_eq!(client.getxattr(cell, f, "trusted.t"), Err(NoData));
        assert_eq!(
            client.setxattr(cell, f, "trusted.t", b"", 0),
            Err(NotPermitted)
        );
        assert_eq!(client.getxattr(cell, f, "user.u").unwrap(), b"1");
    });
    setup.as_user(11, 21, |client, cell| {
        assert_eq!(client.setxattr(cell, f, "user.u", b"", 0), Err(Access));
    });
    setup.cell.assert_sound();
}

#[test]
fn layouts_are_set_by_directory_and_inherited() {
    let mut setup = Setup::new();
    let d = setup.dir("d", 0o755, 10, 20);
    let Setup { cell, root, .. } = &mut setup;
    root.setxattr(cell, d, "zonal.layout", b"unit=65536 count=2", 0)
        .unwrap();
    assert_eq!(
        root.setxattr(cell, d, "zonal.layout", b"unit=65537", 0),
        Err(ErrorCode::Invalid)
    );
    let sub = root.mkdir(cell, d, "sub").unwrap();
    let (f, data) = root.create_open(cell, sub, "f").unwrap();
    let component = &data.layout.components[0];
    assert_eq!(
        (component.unit, component.count, component.zone.0),
        (65536, 2, 1)
    );
    let text = root.getxattr(cell, sub, "zonal.layout").unwrap();
    assert_eq!(
        String::from_utf8(text.clone()).unwrap(),
        "unit=65536 count=2 redundancy=none origin=inherited zone=1"
    );
    root.setxattr(cell, sub, "zonal.layout", &text, 0).unwrap();
    let text = String::from_utf8(root.getxattr(cell, f, "zonal.layout").unwrap()).unwrap();
    assert!(
        text.starts_with("unit=65536 count=2 redundancy=none zone=1 set="),
        "{text}"
    );
    let start = component.start_column;
    let (_, data) = root.create_open(cell, sub, "g").unwrap();
    assert_ne!(
        data.layout.components[0].start_column, start,
        "starts rotate"
    );
}
