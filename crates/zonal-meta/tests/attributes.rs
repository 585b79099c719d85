//! Extended attributes: ACLs, name spaces, layouts.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use ErrorCode::{Access, Exists, NoData, NotPermitted, NotSupported};
use common::*;
use zonal_types::{ErrorCode, Ino, StripeSetId, ZoneId};
use zonal_wire::meta::flags::{XATTR_CREATE, XATTR_REPLACE};
use zonal_wire::{MetaReply, MetaRequest};

const ACCESS: &str = "system.posix_acl_access";

const DEFAULT: &str = "system.posix_acl_default";

const NONE: u32 = u32::MAX;

fn acl(lines: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in lines {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

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
        truncate_seq: u64::MAX,
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
        "unit=65536 count=2 redundancy=none also_zone=none placement=zone origin=inherited zone=1 targets=3 nodes=1"
    );
    root.setxattr(cell, sub, "zonal.layout", &text, 0).unwrap();
    let text = String::from_utf8(root.getxattr(cell, f, "zonal.layout").unwrap()).unwrap();
    assert!(
        text.starts_with("unit=65536 count=2 redundancy=none also_zone=none zone=1 set="),
        "{text}"
    );
    let start = component.start_column;
    let (_, data) = root.create_open(cell, sub, "g").unwrap();
    assert_ne!(
        data.layout.components[0].start_column, start,
        "starts rotate"
    );
}

#[test]
fn a_layout_over_more_targets_than_the_zone_has_is_refused() {
    let mut setup = Setup::new();
    let one = setup.dir("one", 0o755, 10, 20);
    let Setup { cell, root, .. } = &mut setup;
    let mut set = |cell: &mut Cell, dir: Ino, text: &str| {
        root.setxattr(cell, dir, "zonal.layout", text.as_bytes(), 0)
    };
    assert_eq!(set(cell, one, "count=4"), Err(ErrorCode::Range));
    assert_eq!(set(cell, one, "count=99"), Err(ErrorCode::Range));
    set(cell, one, "count=3").unwrap();
    set(cell, one, "count=0").unwrap();
    set(cell, one, "unit=65536 count=all").unwrap();
    // The count of the largest zone. A smaller zone inherits it, and may set what it can use of it.
    assert_eq!(set(cell, Ino::ROOT, "count=4"), Err(ErrorCode::Range));
    set(cell, Ino::ROOT, "count=3").unwrap();
    root.zone = ZoneId(2);
    let two = root.mkdir(cell, Ino::ROOT, "two").unwrap();
    let text = root.getxattr(cell, two, "zonal.layout").unwrap();
    assert!(
        text.starts_with(b"unit=1048576 count=3 ") && text.ends_with(b" zone=2 targets=2 nodes=1")
    );
    let mut set =
        |cell: &mut Cell, text: &str| root.setxattr(cell, two, "zonal.layout", text.as_bytes(), 0);
    set(cell, "unit=65536 count=3").unwrap();
    set(cell, "count=2").unwrap();
    assert_eq!(set(cell, "count=3"), Err(ErrorCode::Range));
    let (_, data) = root.create_open(cell, two, "f").unwrap();
    assert_eq!(data.layout.components[0].count, 2);
}

#[test]
fn a_copy_in_another_zone_is_a_policy_and_files_get_it_later() {
    let mut setup = Setup::new();
    let one = setup.dir("one", 0o755, 10, 20);
    let Setup { cell, root, .. } = &mut setup;
    let mut set = |cell: &mut Cell, ino: Ino, text: &str| {
        root.setxattr(cell, ino, "zonal.layout", text.as_bytes(), 0)
    };
    for (text, refused) in [
        ("also_zone=1", ErrorCode::Range),
        ("also_zone=9", ErrorCode::Range),
        ("also_zone=0", ErrorCode::Invalid),
        ("also_zone=some", ErrorCode::Invalid),
        ("placement=cell also_zone=any", ErrorCode::Invalid),
    ] {
        assert_eq!(set(cell, one, text), Err(refused), "{text}");
    }
    let (file, data) = root.create_open(cell, one, "before").unwrap();
    assert_eq!(data.layout.components[0].redundancy.also_zone(), None);
    let mut set = |cell: &mut Cell, ino: Ino, text: &str| {
        root.setxattr(cell, ino, "zonal.layout", text.as_bytes(), 0)
    };
    set(cell, one, "also_zone=any").unwrap();
    set(cell, file, "also_zone=2").unwrap();
    // Its target has yet to fill it.
    assert_eq!(set(cell, file, "also_zone=none"), Err(ErrorCode::Busy));
    assert_eq!(set(cell, file, "unit=65536"), Ok(()));
    let text = String::from_utf8(root.getxattr(cell, file, "zonal.layout").unwrap()).unwrap();
    assert!(
        text.contains(" redundancy=none also_zone=2 zone=1 "),
        "{text}"
    );
    let sub = root.mkdir(cell, one, "sub").unwrap();
    let (_, data) = root.create_open(cell, sub, "f").unwrap();
    let component = &data.layout.components[0];
    let (zone, other) = component.redundancy.also_zone().unwrap();
    assert_eq!(zone, ZoneId(2));
    // Three columns on two targets of the other zone.
    let width_of = |set: StripeSetId| if set == other { 2 } else { 3 };
    let slots = zonal_layout::places(component)
        .map(|place| zonal_layout::slot_of_place(component, place, width_of).unwrap());
    let slots: Vec<(bool, u16)> = slots.map(|(set, slot)| (set == other, slot)).collect();
    assert_eq!(slots.len(), 6);
    assert!(
        slots[..3].iter().all(|(is_other, _)| !is_other),
        "{slots:?}"
    );
    assert!(
        slots[3..]
            .iter()
            .all(|(is_other, slot)| *is_other && *slot < 2)
    );
    // A directory of the named zone has the copy in any other one.
    set_in_root_and_check_inherited(root, cell);
}

fn set_in_root_and_check_inherited(root: &mut Client, cell: &mut Cell) {
    root.setxattr(cell, Ino::ROOT, "zonal.layout", b"also_zone=2", 0)
        .unwrap();
    root.zone = ZoneId(2);
    let two = root.mkdir(cell, Ino::ROOT, "two").unwrap();
    let (_, data) = root.create_open(cell, two, "f").unwrap();
    let component = &data.layout.components[0];
    let also = component.redundancy.also_zone().map(|(zone, _)| zone);
    assert_eq!((component.zone, also), (ZoneId(2), Some(ZoneId(1))));
}
