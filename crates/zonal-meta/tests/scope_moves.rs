//! Clients with a path: inodes that move into it, and out of it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod common;
mod scoped_tree;

use scoped_tree::{SECRET, Tree};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::FileUse;
use zonal_wire::meta::flags::{O_RDONLY, O_RDWR, RENAME_EXCHANGE};

#[test]
fn nothing_moves_into_or_out_of_the_path() {
    let mut tree = Tree::new(false, |_scope| {});
    let (home, inside, outside, file) = (tree.home, tree.inside, tree.outside, tree.file);
    let secret = tree.secret;
    let Tree { cell, scoped, .. } = &mut tree;
    let across = Err(ErrorCode::CrossShard);
    for there in [outside, home, Ino::new(outside.partition(), 1 << 40)] {
        assert_eq!(
            scoped.rename(cell, (inside, "f"), (there, "new"), 0),
            across
        );
        assert_eq!(scoped.link(cell, file, there, "new"), across);
    }
    for (there, code) in [(outside, ErrorCode::Stale), (home, ErrorCode::Access)] {
        let moved = scoped.rename(cell, (there, "d0"), (inside, "new"), 0);
        assert_eq!(moved, Err(code));
    }
    let linked = scoped.link(cell, secret, inside, "new");
    assert_eq!(linked, Err(ErrorCode::Stale));
}

#[test]
fn a_file_moved_out_of_the_path_is_gone_for_its_client() {
    let mut tree = Tree::new(true, |_scope| {});
    let (home, inside, outside) = (tree.home, tree.inside, tree.outside);
    let sub = tree.scoped.mkdir(&mut tree.cell, inside, "sub").unwrap();
    let deep = tree.scoped.mkdir(&mut tree.cell, sub, "deep").unwrap();
    let file = tree
        .scoped
        .create(&mut tree.cell, deep, "g", 0o644)
        .unwrap();
    tree.scoped.open(&mut tree.cell, file, O_RDWR).unwrap();
    for ino in [sub, deep, file] {
        assert!(tree.scoped.attr(&mut tree.cell, ino).is_ok());
    }
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(true));
    tree.as_admin(|admin, cell| admin.moved(cell, (inside, "sub"), (outside, "sub")));
    for ino in [sub, deep, file] {
        let attr = tree.scoped.attr(&mut tree.cell, ino);
        assert_eq!(attr, Err(ErrorCode::Stale));
    }
    assert_eq!(tree.may_use(file, FileUse::Read), Ok(false));
    tree.as_admin(|admin, cell| admin.moved(cell, (outside, "sub"), (inside, "sub")));
    assert!(tree.scoped.attr(&mut tree.cell, file).is_ok());
    // The path is a name, whichever directory has the name.
    tree.as_admin(|admin, cell| {
        admin.moved(cell, (home, "d0"), (home, "d9"));
        admin.moved(cell, (home, "d1"), (home, "d0"));
    });
    let secret = tree.secret;
    let Tree { cell, scoped, .. } = &mut tree;
    assert_eq!(scoped.attr(cell, inside), Err(ErrorCode::Stale));
    assert_eq!(scoped.attr(cell, file), Err(ErrorCode::Stale));
    assert_eq!(scoped.attr(cell, outside).unwrap().ino, outside);
    assert_eq!(scoped.attr(cell, secret).unwrap().ino, secret);
    // Its first name, too.
    tree.as_admin(|admin, cell| {
        admin.moved(cell, (Ino::ROOT, "home"), (Ino::ROOT, "away"));
        admin.moved(cell, (Ino::ROOT, SECRET), (Ino::ROOT, "home"));
    });
    let Tree { cell, scoped, .. } = &mut tree;
    assert_eq!(scoped.attr(cell, home), Err(ErrorCode::Stale));
    assert_eq!(scoped.attr(cell, outside), Err(ErrorCode::Stale));
    assert_eq!(scoped.lookup(cell, home, "d0"), Err(ErrorCode::Stale));
}

#[test]
fn a_file_with_several_names_is_reached_by_one_below_the_path() {
    let mut tree = Tree::new(false, |_scope| {});
    let (inside, outside, file) = (tree.inside, tree.outside, tree.file);
    // Its back-link lies inside, its names no longer do.
    tree.as_admin(|admin, cell| {
        admin.link(cell, file, outside, "g").unwrap();
        admin.unlink(cell, inside, "f").unwrap();
    });
    let attr = tree.scoped.attr(&mut tree.cell, file);
    assert_eq!(attr, Err(ErrorCode::Stale));
    let open = tree.scoped.open(&mut tree.cell, file, O_RDONLY);
    assert_eq!(open, Err(ErrorCode::Stale));
    // Back again, under another name: reachable by the new name.
    tree.as_admin(|admin, cell| admin.link(cell, file, inside, "h").unwrap());
    assert!(tree.scoped.attr(&mut tree.cell, file).is_err());
    let found = tree.scoped.lookup(&mut tree.cell, inside, "h");
    assert_eq!(found, Ok(file));
    assert!(tree.scoped.attr(&mut tree.cell, file).is_ok());
    tree.as_admin(|admin, cell| admin.unlink(cell, inside, "h").unwrap());
    assert!(tree.scoped.attr(&mut tree.cell, file).is_err());
    // A file whose back-link lies outside.
    let secret = tree.secret;
    tree.as_admin(|admin, cell| admin.link(cell, secret, inside, "s").unwrap());
    assert!(tree.scoped.attr(&mut tree.cell, secret).is_err());
    let found = tree.scoped.lookup(&mut tree.cell, inside, "s");
    assert_eq!(found, Ok(secret));
    tree.scoped.open(&mut tree.cell, secret, O_RDONLY).unwrap();
    // It moves to where its back-link says: only its name counts.
    tree.as_admin(|admin, cell| admin.moved(cell, (inside, "s"), (outside, "s")));
    tree.scoped.close(&mut tree.cell, secret).unwrap();
    assert!(tree.scoped.attr(&mut tree.cell, secret).is_err());
    // An open file stays open when it gets another name elsewhere.
    let (open, _) = tree
        .scoped
        .create_open(&mut tree.cell, inside, "o")
        .unwrap();
    tree.as_admin(|admin, cell| {
        admin.link(cell, open, outside, "o").unwrap();
        admin.unlink(cell, inside, "o").unwrap();
    });
    tree.scoped.report(&mut tree.cell, open, 5_000).unwrap();
    tree.scoped.close(&mut tree.cell, open).unwrap();
    assert!(tree.scoped.attr(&mut tree.cell, open).is_err());
    tree.cell.assert_sound();
}

#[test]
fn a_file_with_several_names_goes_where_its_directory_goes() {
    // Its directory moves, or a directory above, or it is exchanged, or moved and removed.
    for way in 0..4 {
        let mut tree = Tree::new(false, |_scope| {});
        let (inside, outside) = (tree.inside, tree.outside);
        let (dir, sub, file) = tree.as_admin(|admin, cell| {
            let dir = admin.mkdir(cell, inside, "dir").unwrap();
            let sub = admin.mkdir(cell, dir, "sub").unwrap();
            let file = admin.create(cell, sub, "g", 0o666).unwrap();
            admin.link(cell, file, sub, "h").unwrap();
            admin.mkdir(cell, outside, "other").unwrap();
            // Its back-link no longer counts.
            if way % 2 == 1 {
                admin.link(cell, file, sub, "i").unwrap();
                admin.unlink(cell, sub, "i").unwrap();
            }
            (dir, sub, file)
        });
        for name in ["g", "h"] {
            let found = tree.scoped.lookup(&mut tree.cell, sub, name);
            assert_eq!(found, Ok(file));
        }
        assert!(tree.scoped.attr(&mut tree.cell, file).is_ok());
        tree.as_admin(|admin, cell| match way {
            0 => admin.moved(cell, (dir, "sub"), (outside, "sub")),
            1 => admin.moved(cell, (inside, "dir"), (outside, "dir")),
            2 => {
                let (from, to) = ((inside, "dir"), (outside, "other"));
                admin.rename(cell, from, to, RENAME_EXCHANGE).unwrap();
            }
            _ => {
                admin.moved(cell, (dir, "sub"), (outside, "sub"));
                admin.rmdir(cell, inside, "dir").unwrap();
            }
        });
        let gone = ErrorCode::Stale;
        let Tree { cell, scoped, .. } = &mut tree;
        assert_eq!(scoped.attr(cell, file), Err(gone), "{way}");
        assert_eq!(scoped.open(cell, file, O_RDWR), Err(gone));
        assert_eq!(scoped.link(cell, file, inside, "back"), Err(gone));
        assert_eq!(scoped.truncate(cell, file, 0, 0), Err(gone));
        for for_use in [FileUse::Read, FileUse::Write] {
            assert_eq!(tree.may_use(file, for_use), Ok(false));
        }
        tree.cell.assert_sound();
    }
}

#[test]
fn a_file_open_outside_of_the_path_stays_open_until_it_is_closed() {
    let mut tree = Tree::new(false, |_scope| {});
    let (inside, outside, file) = (tree.inside, tree.outside, tree.file);
    tree.scoped.open(&mut tree.cell, file, O_RDWR).unwrap();
    tree.as_admin(|admin, cell| {
        admin.link(cell, file, outside, "g").unwrap();
        admin.unlink(cell, inside, "f").unwrap();
        admin.link(cell, file, outside, "h").unwrap();
    });
    let Tree { cell, scoped, .. } = &mut tree;
    assert!(scoped.attr(cell, file).is_ok());
    // Opened again by its number, as programs do through /proc: that reaches nothing.
    scoped.open(cell, file, O_RDWR).unwrap();
    let linked = scoped.link(cell, file, inside, "back");
    assert_eq!(linked, Err(ErrorCode::Stale));
    scoped.close(cell, file).unwrap();
    scoped.close(cell, file).unwrap();
    assert_eq!(scoped.attr(cell, file), Err(ErrorCode::Stale));
    assert_eq!(scoped.open(cell, file, O_RDWR), Err(ErrorCode::Stale));
    cell.assert_sound();
}
