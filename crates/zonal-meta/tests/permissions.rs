//! Permission checks, as tables.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use ErrorCode::{Access, NotPermitted};
use common::*;
use zonal_types::ErrorCode;
use zonal_wire::meta::flags::{O_EXEC, O_RDWR, O_TRUNC, O_WRONLY};

#[test]
fn mode_bits_decide_by_owner_group_others() {
    let mut setup = Setup::new();
    // Mode, caller (uid, gid), mask, allowed. The file is owned by 10:20.
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
