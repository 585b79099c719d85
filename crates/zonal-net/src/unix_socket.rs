//! The Unix socket that stands for a server's TCP address on one machine.
//!
//! Its path follows from cell and address, so that a client needs nothing but the TCP address:
//!
//! | servers of | folder |
//! | --- | --- |
//! | root | `/run/zonal/CELL` |
//! | the user for whom root made `/run/zonal-servers` | `/run/zonal-servers/CELL` |
//! | another user | `/run/user/UID/zonal/CELL`, else `/tmp/zonal-UID/CELL` |
//!
//! *Invariants*:
//! 1. Each folder on the way belongs to root or to the servers' user, and only they may write there
//!    (sticky folders excepted). So no other user can put a socket there.
//! 2. The socket has mode 0600.
//! 3. A server that holds the TCP address replaces the socket of a killed server.
//! 4. A client knows the servers' user before it connects, and asks the kernel whether the listener
//!    belongs to that user.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, chmodat, statat};
use rustix::fs::{Mode, OFlags, Stat, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use zonal_types::CellId;

use crate::error::NetError;
use crate::listeners::BACKLOG;
use crate::stream::set_buffers;

/// A listening socket and its file.
#[derive(Debug)]
pub(crate) struct UnixListener {
    pub(crate) socket: OwnedFd,
    path: PathBuf,
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        // A socket that stays is replaced by the next server; connecting to it fails.
        let _ = unlinkat(CWD, &self.path, AtFlags::empty());
        if let Some(folder) = self.path.parent() {
            remove_folders(folder);
        }
    }
}

/// Folder of root's servers.
const ROOTS: &str = "/run/zonal";
/// Folder of the servers of a user for whom root made it.
const DELEGATED: &str = "/run/zonal-servers";

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn owner_of(folder: &Path) -> Option<u32> {
    let stat = statat(CWD, folder, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    is_folder(&stat).then_some(stat.st_uid)
}

/// Folder of an ordinary user's sockets.
fn users_own(uid: u32) -> PathBuf {
    let session = PathBuf::from(format!("/run/user/{uid}"));
    match owner_of(&session) == Some(uid) {
        true => session.join("zonal"),
        false => format!("/tmp/zonal-{uid}").into(),
    }
}

/// Folder for the sockets of this process's user.
fn servers_base() -> PathBuf {
    match own_uid() {
        0 => ROOTS.into(),
        uid if owner_of(Path::new(DELEGATED)) == Some(uid) => DELEGATED.into(),
        uid => users_own(uid),
    }
}

/// Folders with sockets that a client trusts, each with the servers' user.
fn clients_bases() -> impl Iterator<Item = (PathBuf, u32)> {
    let delegated = owner_of(Path::new(DELEGATED)).map(|uid| (DELEGATED.into(), uid));
    let uid = own_uid();
    let own = (uid != 0).then(|| (users_own(uid), uid));
    [Some((PathBuf::from(ROOTS), 0)), delegated, own]
        .into_iter()
        .flatten()
}

fn name_of(address: SocketAddr) -> String {
    format!("{}-{}", address.port(), address.ip())
}

/// Path of the socket of a server of this process's user for `address` (at most 107 bytes).
#[must_use]
pub fn path_of(cell: CellId, address: SocketAddr) -> PathBuf {
    servers_base().join(cell.to_string()).join(name_of(address))
}

/// Listens on the socket of `address`. The caller holds that address.
pub(crate) fn listen_at(
    cell: CellId,
    address: SocketAddr,
    buffer_bytes: usize,
) -> Result<UnixListener, NetError> {
    let path = path_of(cell, address);
    let failed = |why: String| NetError::BindUnix {
        path: path.clone(),
        why,
    };
    let folder = path.parent().unwrap_or(&path);
    let mut tries = 0;
    loop {
        tries += 1;
        let opened = open_folder(folder, own_uid(), true);
        let bound = opened.and_then(|()| Ok(listen_on(&path, buffer_bytes)?));
        match bound {
            // The last server that used the folder is removing it at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 100 => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            other => return other.map_err(|error| failed(error.to_string())),
        }
    }
}

fn listen_on(path: &Path, buffer_bytes: usize) -> Result<UnixListener, Errno> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_buffers(socket.as_fd(), true, buffer_bytes);
    bind(&socket, &address)?;
    let listener = UnixListener {
        socket,
        path: path.to_owned(),
    };
    // Only the folder's owner gets here; nothing is served before `listen`.
    chmodat(CWD, path, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    listen(&listener.socket, BACKLOG)?;
    Ok(listener)
}

/// A socket that a client may use.
pub(crate) struct TrustedSocket {
    pub(crate) address: SocketAddrUnix,
    /// The user that must own the listener.
    pub(crate) uid: u32,
}

/// Finds the socket that stands for `address`, where only the servers' user can have put it there.
pub(crate) fn find(cell: CellId, address: SocketAddr) -> Option<TrustedSocket> {
    clients_bases().find_map(|(base, uid)| {
        let folder = base.join(cell.to_string());
        let path = folder.join(name_of(address));
        statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        open_folder(&folder, uid, false).ok()?;
        let address = SocketAddrUnix::new(&path).ok()?;
        Some(TrustedSocket { address, uid })
    })
}

/// Removes the sockets that killed servers of a cell left. The caller knows that none of them runs.
pub fn forget(cell: CellId) {
    let folder = servers_base().join(cell.to_string());
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    for entry in entries {
        let _ = unlinkat(CWD, entry.path(), AtFlags::empty());
    }
    remove_folders(&folder);
}

/// Removes a cell's folder and the one above it, where they are empty.
fn remove_folders(folder: &Path) {
    for folder in folder.ancestors().take(2) {
        let _ = unlinkat(CWD, folder, AtFlags::REMOVEDIR);
    }
}

/// Walks to a folder without following links; creates missing folders where `makes`; refuses
/// folders that other users than root and `owner` may change.
fn open_folder(folder: &Path, owner: u32, makes: bool) -> io::Result<()> {
    let open = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
    let mut at = openat(CWD, "/", open, Mode::empty())?;
    let mut walked = PathBuf::from("/");
    let mut names = folder.components().peekable();
    while let Some(component) = names.next() {
        let Component::Normal(name) = component else {
            continue;
        };
        walked.push(name);
        let next = match openat(&at, name, open, Mode::empty()) {
            Err(Errno::NOENT) if makes => {
                // The folders above are this user's or root's. A cell's own folder is for its
                // servers and clients alone.
                let mode = match names.peek() {
                    Some(_) => Mode::from_raw_mode(0o755),
                    None => Mode::RWXU,
                };
                match mkdirat(&at, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => openat(&at, name, open, Mode::empty())?,
                    Err(errno) => return Err(errno.into()),
                }
            }
            opened => opened?,
        };
        check_folder(&walked, &fstat(&next)?, owner)?;
        at = next;
    }
    Ok(())
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn check_folder(path: &Path, stat: &Stat, owner: u32) -> io::Result<()> {
    let is_sticky = stat.st_mode & 0o1000 != 0;
    let why = if stat.st_uid != 0 && stat.st_uid != owner {
        format!("{} belongs to user {}", path.display(), stat.st_uid)
    } else if stat.st_mode & 0o022 != 0 && !is_sticky {
        format!("others may write in {}", path.display())
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use zonal_testkit::Scratch;

    #[test]
    fn paths_fit_a_socket_address() {
        let long: SocketAddr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
            .parse()
            .unwrap();
        let name = path_of(CellId([255; 16]), long);
        let rest = name.strip_prefix(servers_base()).unwrap().as_os_str().len();
        assert!("/run/user/4294967295/zonal/".len() + rest <= 107);
    }

    #[test]
    fn folders_are_private_and_those_of_other_users_refused() {
        let scratch = Scratch::new("unix-socket");
        let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        let folder = scratch.join("a/b");
        assert!(open_folder(&folder, own_uid(), false).is_err());
        open_folder(&folder, own_uid(), true).unwrap();
        assert_eq!(mode(&folder), 0o700);
        open_folder(&folder, own_uid(), false).unwrap();
        // Other users may write to the folder above.
        let above = scratch.join("a");
        std::fs::set_permissions(&above, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = open_folder(&folder, own_uid(), true).unwrap_err();
        assert!(
            refused.to_string().contains("others may write"),
            "{refused}"
        );
        // In a sticky folder a user cannot touch the files of another user.
        std::fs::set_permissions(&above, PermissionsExt::from_mode(0o1777)).unwrap();
        open_folder(&folder, own_uid(), true).unwrap();
        let link = scratch.join("link");
        symlink(&folder, &link).unwrap();
        assert!(open_folder(&link, own_uid(), true).is_err());
    }

    #[test]
    fn a_socket_that_a_killed_server_left_is_replaced() {
        let scratch = Scratch::new("unix-left");
        let path = scratch.join("s");
        let first = listen_on(&path, 0).unwrap();
        // As after a kill: the file stays.
        let first = std::mem::ManuallyDrop::new(first);
        let second = listen_on(&path, 0).unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        drop(second);
        assert!(!path.exists());
        drop(std::mem::ManuallyDrop::into_inner(first));
    }
}
