//! Which folders and files are trusted.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use zonal_testkit::Scratch;

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn folders_writable_by_others_are_refused() {
    let scratch = Scratch::new("trusted");
    let (above, dir) = (scratch.join("above"), scratch.join("above/dir"));
    assert_eq!(make(&dir).unwrap().path(), dir);
    assert_eq!((mode_of(&above), mode_of(&dir)), (0o700, 0o700));
    for (path, mode, is_trusted) in [
        (&dir, 0o755, true),
        (&dir, 0o775, false),
        (&dir, 0o757, false),
        // Others could create files there.
        (&dir, 0o1777, false),
        (&above, 0o1777, true),
        (&above, 0o777, false),
    ] {
        set(path, mode);
        match open(&dir) {
            Ok(_) => assert!(is_trusted, "{mode:o}"),
            Err(PathRefusal::Writable {
                path: found,
                mode: told,
            }) => {
                assert!(!is_trusted && &found == path, "{mode:o}");
                assert_eq!(told, mode);
            }
            Err(other) => panic!("{other}"),
        }
        set(path, 0o700);
    }
}

#[test]
fn files_and_links_of_another_user_are_refused() {
    if me() != 0 {
        // Only root can give files away.
        return;
    }
    let scratch = Scratch::new("trusted-owner");
    let dir = scratch.join("dir");
    make(&dir).unwrap();
    symlink(&dir, scratch.join("link")).unwrap();
    assert_eq!(open(&scratch.join("link")).unwrap().path(), dir);
    std::os::unix::fs::lchown(scratch.join("link"), Some(64_001), None).unwrap();
    let refused = open(&scratch.join("link")).unwrap_err();
    assert!(
        matches!(&refused, PathRefusal::Foreign { path, owner: 64_001, .. } if path.ends_with("link"))
    );
    std::os::unix::fs::chown(&dir, Some(64_001), None).unwrap();
    let refused = open(&dir).unwrap_err();
    assert!(refused.hint().unwrap().contains("chown 0 "), "{refused}");
}

#[test]
fn links_are_followed_as_the_kernel_does() {
    let scratch = Scratch::new("trusted-links");
    let dir = make(&scratch.join("a/b")).unwrap().path().to_owned();
    symlink("b", scratch.join("a/relative")).unwrap();
    symlink("../a/relative/../b/.", scratch.join("a/up")).unwrap();
    symlink("round", scratch.join("a/round")).unwrap();
    for name in ["a/relative", "a/up", "a/./b/../relative"] {
        assert_eq!(open(&scratch.join(name)).unwrap().path(), dir, "{name}");
        assert_eq!(fs::canonicalize(scratch.join(name)).unwrap(), dir);
    }
    assert!(matches!(
        open(&scratch.join("a/round")),
        Err(PathRefusal::Io { .. })
    ));
    assert!(open(&scratch.join("a/none")).unwrap_err().is_missing());
}

#[test]
fn files_are_regular_and_no_links() {
    let scratch = Scratch::new("trusted-files");
    let folder = make(&scratch.join("dir")).unwrap();
    let at = |name: &str| folder.path().join(name);
    folder.replace("text", b"one", 0o644).unwrap();
    assert_eq!(folder.text("text", 99).unwrap().unwrap(), "one");
    assert!(folder.text("none", 99).unwrap().is_none());
    symlink(at("text"), at("link")).unwrap();
    symlink(scratch.join("elsewhere"), at("dangling")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    for name in ["link", "dangling", "folder"] {
        assert!(folder.file(name).is_err(), "{name}");
        assert!(folder.text(name, 99).is_err(), "{name}");
        assert!(folder.append(name).is_err(), "{name}");
        assert!(folder.create(name, 0o600).is_err(), "{name}");
    }
    assert!(!scratch.join("elsewhere").exists());
    set(&at("text"), 0o666);
    assert!(matches!(
        folder.text("text", 99),
        Err(PathRefusal::Writable { .. })
    ));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let scratch = Scratch::new("trusted-secret");
    let path = scratch.join("key");
    fs::write(&path, "0123456789").unwrap();
    symlink(&path, scratch.join("link")).unwrap();
    let is_root = me() == 0;
    for (mode, is_secret) in [
        (0o600, true),
        (0o400, true),
        (0o640, is_root),
        (0o604, false),
        (0o660, false),
        (0o644, false),
    ] {
        set(&path, mode);
        assert_eq!(secret(&path, 99).is_ok(), is_secret, "{mode:o}");
        assert_eq!(secret(&scratch.join("link"), 99).is_ok(), is_secret);
    }
    set(&path, 0o600);
    assert_eq!(secret(&path, 4).unwrap(), b"0123");
    assert!(matches!(
        secret(&scratch, 4),
        Err(PathRefusal::Kind { .. } | PathRefusal::Io { .. })
    ));
}
