//! Path walk: from a path to an inode, name by name, as the kernel walks.
//!
//! 1. Each name is looked up at its shard for the calling user, who needs the right to search its
//!    directory.
//! 2. `..` leads to the directory that the walk came from; in the root, to the root.
//! 3. A symbolic link is followed before another name or a slash, or where the call says so, at
//!    most 40 times.
//! 4. A name with a slash behind it must be a directory. A path without a leading slash also begins
//!    in the root.
//!
//! A look-up takes one round trip, except in complete directories.

use super::connect::{Call, ask};
use crate::error::Error;
use crate::user::User;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use zonal_client::names::LookupResult;
use zonal_types::limits::{PATH_BYTES_MAX, SYMLINKS_MAX};
use zonal_types::{Attr, ErrorCode, FileKind, Ino, Name};
use zonal_wire::meta::flags::X_OK;

/// A name in a directory, whether it exists or not.
#[derive(Debug)]
pub(crate) struct ParentAndName {
    /// The directory.
    pub(crate) dir: Ino,
    /// The name in it.
    pub(crate) name: Name,
    /// Whether a slash follows.
    pub(crate) is_directory: bool,
}

/// Target of a path.
#[derive(Debug)]
pub(crate) enum PathTarget {
    /// A name in a directory.
    Place(ParentAndName),
    /// A directory named by `/`, or by `.` or `..` at the end.
    Directory(Ino, SpecialName),
}

/// How a path names an existing directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecialName {
    /// `/`.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
}

/// The names that remain to walk.
struct PathWalk {
    /// Directories on the way, the root first.
    through: Vec<Ino>,
    names: VecDeque<Vec<u8>>,
    /// Whether a slash follows the last name.
    is_directory: bool,
    links: usize,
}

impl PathWalk {
    fn of(path: &Path) -> Result<Self, ErrorCode> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(ErrorCode::NotFound);
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(ErrorCode::NameTooLong);
        }
        let mut walk = Self {
            through: vec![Ino::ROOT],
            names: VecDeque::new(),
            is_directory: bytes.ends_with(b"/"),
            links: 0,
        };
        walk.put_first(bytes);
        Ok(walk)
    }

    fn put_first(&mut self, path: &[u8]) {
        let names = path.split(|byte| *byte == b'/');
        for name in names.filter(|name| !name.is_empty()).rev() {
            self.names.push_front(name.to_vec());
        }
    }

    fn here(&self) -> Ino {
        self.through.last().copied().unwrap_or(Ino::ROOT)
    }

    /// Continues with the text of a symbolic link.
    fn follow(&mut self, text: &[u8]) -> Result<(), ErrorCode> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(ErrorCode::Loop);
        }
        if text.is_empty() {
            return Err(ErrorCode::NotFound);
        }
        if text.starts_with(b"/") {
            self.through.truncate(1);
        }
        if self.names.is_empty() {
            self.is_directory |= text.ends_with(b"/");
        }
        self.put_first(text);
        Ok(())
    }
}

/// Checks the right to search the directory of `.` or `..`.
fn may_search(call: &Call<'_>, user: &User, dir: Ino) -> Result<(), Error> {
    if user.is_root() {
        return Ok(());
    }
    ask(call.access(user.credentials(), dir, X_OK))
}

pub(crate) fn look_up(
    call: &Call<'_>,
    user: &User,
    dir: Ino,
    name: &Name,
) -> Result<Option<Attr>, Error> {
    let looked = call.lookup(user.credentials(), dir, name.clone());
    match ask(looked)? {
        LookupResult::Found(found) => Ok(Some(found.attr)),
        LookupResult::Absent(_) => Ok(None),
    }
}

/// Walks all names but the last.
fn walk_to_last(call: &Call<'_>, user: &User, walk: &mut PathWalk) -> Result<PathTarget, Error> {
    let mut last = PathTarget::Directory(walk.here(), SpecialName::Root);
    while let Some(bytes) = walk.names.pop_front() {
        let here = walk.here();
        match bytes.as_slice() {
            b"." => {
                may_search(call, user, here)?;
                last = PathTarget::Directory(here, SpecialName::Dot);
            }
            b".." => {
                may_search(call, user, here)?;
                if walk.through.len() > 1 {
                    walk.through.pop();
                }
                last = PathTarget::Directory(walk.here(), SpecialName::DotDot);
            }
            _ => {
                let name = Name::new(&bytes)?;
                if walk.names.is_empty() {
                    return Ok(PathTarget::Place(ParentAndName {
                        dir: here,
                        name,
                        is_directory: walk.is_directory,
                    }));
                }
                let found = look_up(call, user, here, &name)?;
                let attr = found.ok_or(ErrorCode::NotFound)?;
                match attr.kind {
                    FileKind::Directory => walk.through.push(attr.ino),
                    FileKind::Symlink => {
                        let text = ask(call.readlink(attr.ino))?;
                        walk.follow(&text)?;
                    }
                    _ => return Err(ErrorCode::NotDirectory.into()),
                }
                // The link led to a directory, whatever its last name.
                last = PathTarget::Directory(walk.here(), SpecialName::Dot);
            }
        }
    }
    Ok(last)
}

/// Parent and name of a path's end, existing or not. A link at the end is not followed.
pub(crate) fn place(call: &Call<'_>, user: &User, path: &Path) -> Result<PathTarget, Error> {
    walk_to_last(call, user, &mut PathWalk::of(path)?)
}

/// Attributes of the inode at a path; `follows`: through a link at the end.
pub(crate) fn find(
    call: &Call<'_>,
    user: &User,
    path: &Path,
    follows: bool,
) -> Result<Attr, Error> {
    match find_or_place(call, user, path, follows)? {
        (_, Some(attr)) => Ok(attr),
        (_, None) => Err(ErrorCode::NotFound.into()),
    }
}

/// As [`find`]. Where nothing exists there, returns the parent and name behind all links.
pub(crate) fn find_or_place(
    call: &Call<'_>,
    user: &User,
    path: &Path,
    follows: bool,
) -> Result<(PathTarget, Option<Attr>), Error> {
    let mut walk = PathWalk::of(path)?;
    loop {
        let last = walk_to_last(call, user, &mut walk)?;
        let place = match last {
            PathTarget::Directory(ino, _) => {
                let (attr, _ms) = ask(call.getattr(ino))?;
                return Ok((last, Some(attr)));
            }
            PathTarget::Place(place) => place,
        };
        let Some(attr) = look_up(call, user, place.dir, &place.name)? else {
            return Ok((PathTarget::Place(place), None));
        };
        if attr.kind == FileKind::Symlink && (follows || place.is_directory) {
            let text = ask(call.readlink(attr.ino))?;
            walk.follow(&text)?;
            continue;
        }
        if place.is_directory && attr.kind != FileKind::Directory {
            return Err(ErrorCode::NotDirectory.into());
        }
        return Ok((PathTarget::Place(place), Some(attr)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(walk: &PathWalk) -> Vec<&str> {
        let names = walk.names.iter();
        names
            .map(|name| std::str::from_utf8(name).unwrap())
            .collect()
    }

    #[test]
    fn a_path_is_split_at_its_slashes() {
        let walk = PathWalk::of(Path::new("//a///b/.//c/")).unwrap();
        assert_eq!(names(&walk), ["a", "b", ".", "c"]);
        assert!(walk.is_directory);
        assert_eq!(names(&PathWalk::of(Path::new("/")).unwrap()), [""; 0]);
        assert!(!PathWalk::of(Path::new("a")).unwrap().is_directory);
        assert_eq!(PathWalk::of(Path::new("")).err(), Some(ErrorCode::NotFound));
        let long = "x/".repeat(PATH_BYTES_MAX);
        let long = PathWalk::of(Path::new(&long)).err();
        assert_eq!(long, Some(ErrorCode::NameTooLong));
    }

    #[test]
    fn a_link_continues_from_its_directory_or_from_the_root() {
        let mut walk = PathWalk::of(Path::new("/a/l/c")).unwrap();
        walk.names.drain(..2);
        walk.through.push(Ino(7));
        walk.follow(b"../x/").unwrap();
        assert_eq!((names(&walk), walk.here()), (vec!["..", "x", "c"], Ino(7)));
        assert!(!walk.is_directory, "something follows");
        walk.follow(b"/y").unwrap();
        assert_eq!(walk.here(), Ino::ROOT);
        for _ in 2..SYMLINKS_MAX {
            walk.follow(b"z").unwrap();
        }
        assert_eq!(walk.follow(b"z"), Err(ErrorCode::Loop));
    }
}
