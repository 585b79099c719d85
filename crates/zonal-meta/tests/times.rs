//! Times: which times change, by which request; sizes and truncations.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use ErrorCode::{Access, NotPermitted};
use common::*;
use zonal_types::ErrorCode;
use zonal_wire::meta::flags::{O_TRUNC, O_WRONLY};
use zonal_wire::meta::{AttrChange, SetTime};
use zonal_wire::{MetaReply, MetaRequest};

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
        truncate_seq: u64::MAX,
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
fn an_empty_setattr_by_a_writer_clears_set_id_bits() {
    let mut setup = Setup::new();
    let (open, shut) = (
        setup.file("open", 0o4777, 0, 0),
        setup.file("shut", 0o4755, 0, 0),
    );
    let Setup { cell, root, .. } = &mut setup;
    let mut other = root.who(1000, 1000);
    other.setattr(cell, open, AttrChange::default()).unwrap();
    assert_eq!(
        other.setattr(cell, shut, AttrChange::default()),
        Err(NotPermitted)
    );
    root.sequence = other.sequence;
    assert_eq!(root.attr(cell, open).unwrap().mode, 0o777);
    assert_eq!(root.attr(cell, shut).unwrap().mode, 0o4755);
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
    assert_eq!(root.truncate(cell, f, 10_010, 2), Ok(true));
    let confirm = MetaRequest::ConfirmTruncate {
        ino: f,
        truncate_seq: 4,
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
    assert_eq!(data.unwrap().truncate_seq, 6);
}
