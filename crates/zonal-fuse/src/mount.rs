//! Mounting and unmounting: mount(2) as root, else the helper `fusermount3`.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::channel;
use crate::mount_flags::Flags;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that /proc/mounts shows.
    pub source: String,
    /// Shown as `fuse.SUBTYPE`.
    pub subtype: String,
    /// All users may use the mount, not only its owner. The default where its owner is root.
    pub allow_other: bool,
    /// Flags such as read-only and no set-id bits.
    pub flags: Flags,
    /// Largest READ, bytes.
    pub max_read: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "zonal".into(),
            subtype: "zonal".into(),
            // The helper refuses it to ordinary users, unless /etc/fuse.conf allows it.
            allow_other: rustix::process::geteuid().is_root(),
            flags: Flags::SAFE,
            max_read: 1 << 20,
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no /dev/fuse.
    #[error(
        "/dev/fuse does not exist: load the fuse module (modprobe fuse), or give the container the device"
    )]
    NoDevice,
    /// /dev/fuse may not be opened.
    #[error(
        "/dev/fuse cannot be opened: permission denied; run as root, or let this user read and write the device (chmod 666 /dev/fuse)"
    )]
    DeviceDenied,
    /// The device failed otherwise.
    #[error("/dev/fuse: {0}")]
    Device(Errno),
    /// A path or name with a zero byte.
    #[error("the mount point or source contains a zero byte")]
    BadName,
    /// The mount point cannot be used.
    #[error("mount point {0}: {1}")]
    MountPoint(String, Errno),
    /// mount(2) failed.
    #[error("mount on {0}: {1}")]
    Mount(String, Errno),
    /// Not root, and there is no helper.
    #[error("mounting needs root or the program fusermount3, which is not installed")]
    NoHelper,
    /// Not root, and the helper does not let other users use the mount.
    #[error("fusermount3 refuses allow_other to ordinary users")]
    AllowOther,
    /// Not root, and the helper failed.
    #[error("mounting needs root or fusermount3: {0}")]
    Helper(String),
    /// The negotiation with the kernel failed.
    #[error(transparent)]
    Init(#[from] crate::init::InitError),
    /// Threads could not be started.
    #[error("cannot start the workers: {0}")]
    Threads(std::io::Error),
}

impl MountError {
    /// Advice for the user.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::DeviceDenied => Some("mount as root, or let /dev/fuse be opened by this user"),
            Self::NoHelper => {
                Some("install the package fuse3 (Debian: apt-get install fuse3), or mount as root")
            }
            Self::AllowOther => Some(
                "leave allow_other away, or let root put the line user_allow_other into /etc/fuse.conf",
            ),
            Self::Helper(said) if said.contains("determine username") => {
                Some("fusermount3 serves only users that getpwuid(3) finds, as in /etc/passwd")
            }
            Self::Helper(said) if said.contains("Operation not permitted") => Some(
                "fusermount3 has to be set-user-id root (chmod 4755), and cannot be where new privileges are forbidden (containers, NoNewPrivileges)",
            ),
            Self::Helper(said) if said.contains("mountpoint") => {
                Some("an ordinary user mounts on a directory of their own")
            }
            Self::Mount(_, Errno::BUSY) => {
                Some("something is mounted there already; see `findmnt`")
            }
            Self::Mount(_, Errno::PERM) => {
                Some("mount as root with CAP_SYS_ADMIN (containers: --privileged)")
            }
            _ => None,
        }
    }
}

fn device_error(error: Errno) -> MountError {
    match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        Errno::ACCESS | Errno::PERM => MountError::DeviceDenied,
        other => MountError::Device(other),
    }
}

/// Mounts; returns a descriptor bound to the mount, with INIT waiting to be read.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        match direct(path, options) {
            // Root without the right to mount (a container): the helper cannot mount either.
            Err(MountError::Mount(_, Errno::PERM)) if helper_exists() => {}
            other => return other,
        }
    }
    helper(path, options)
}

fn direct(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let point = path.display().to_string();
    let mode = rustix::fs::stat(path)
        .map_err(|error| MountError::MountPoint(point.clone(), error))?
        .st_mode;
    if mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(MountError::MountPoint(point, Errno::NOTDIR));
    }
    let fd = channel::open_device().map_err(device_error)?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},max_read={}",
        fd.as_raw_fd(),
        libc::S_IFDIR,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.max_read,
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let flags = options.flags.of_kernel();
    let text = |s: Vec<u8>| CString::new(s).map_err(|_| MountError::BadName);
    let source = text(options.source.clone().into())?;
    let target = text(path.as_os_str().as_bytes().to_vec())?;
    let kind = text(format!("fuse.{}", options.subtype).into_bytes())?;
    let data = text(data.into_bytes())?;
    rustix::mount::mount(&source, &target, &kind, flags, Some(data.as_c_str()))
        .map_err(|error| MountError::Mount(point, error))?;
    Ok(fd)
}

const HELPER: &str = "fusermount3";

fn helper_exists() -> bool {
    Command::new(HELPER)
        .arg("-V")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// The value of an option of the helper: commas and backslashes are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    // The helper opens the device itself with this user's rights: report the likely cause first.
    channel::open_device().map(drop).map_err(device_error)?;
    let failed = |what: String| MountError::Helper(what);
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| failed(e.to_string()))?;
    let output = run_helper(&helper_list(options), path, theirs)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(if said.contains("user_allow_other") {
            MountError::AllowOther
        } else {
            failed(said)
        });
    }
    receive(&ours).ok_or_else(|| failed(format!("{HELPER} passed no descriptor")))
}

/// Option list for the helper.
fn helper_list(options: &MountOptions) -> String {
    let mut list = format!(
        "{},fsname={},subtype={},max_read={}",
        if options.flags.is_read_only() {
            "ro"
        } else {
            "rw"
        },
        escaped(&options.source),
        escaped(&options.subtype),
        options.max_read,
    );
    let allow_other = options.allow_other.then_some("allow_other");
    for word in allow_other.into_iter().chain(options.flags.helper_words()) {
        list.push(',');
        list.push_str(word);
    }
    list
}

fn run_helper(list: &str, path: &Path, socket: OwnedFd) -> Result<Output, MountError> {
    // The helper's end of the pair is its standard input, so no descriptor leaks into other
    // children.
    Command::new(HELPER)
        .args(["-o", list, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| not_run(&error))
}

fn not_run(error: &std::io::Error) -> MountError {
    match error.kind() {
        std::io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Helper(format!("{HELPER}: {error}")),
    }
}

/// Receives the descriptor that the helper sent.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut iov = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Removes a mount from the tree at once; open files stay usable until they are closed. Also
/// removes the mount of a dead process.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    detach(path, UnmountFlags::DETACH)
}

/// As [`unmount`], and ends the connection: every request in flight fails, and so does every use of
/// an open file.
pub fn abort(path: &Path) -> Result<(), MountError> {
    detach(path, UnmountFlags::DETACH | UnmountFlags::FORCE)
}

/// Ends the connection of a mount but leaves the mount in place: every request in flight or later
/// fails.
pub fn end_connection(path: &Path) -> Result<(), MountError> {
    let name = |error| MountError::Mount(path.display().to_string(), error);
    // An open descriptor keeps the mount busy, so that only the connection ends.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(path, flags, Mode::empty()).map_err(name)?;
    let outcome = rustix::mount::unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    drop(held);
    match outcome {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(name(error)),
    }
}

fn detach(path: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let point = path.display().to_string();
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let output = Command::new(HELPER)
                .args(["-u", "-z", "--"])
                .arg(path)
                .output()
                .map_err(|error| not_run(&error))?;
            if output.status.success() {
                Ok(())
            } else {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(MountError::Helper(text))
            }
        }
        Err(error) => Err(MountError::Mount(point, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_errors_are_explained() {
        assert!(matches!(
            device_error(Errno::ACCESS),
            MountError::DeviceDenied
        ));
        assert!(matches!(device_error(Errno::NOENT), MountError::NoDevice));
        assert!(
            device_error(Errno::ACCESS)
                .to_string()
                .contains("run as root")
        );
        assert_eq!(escaped("a,b\\c"), "a\\,b\\\\c");
    }

    #[test]
    fn the_helper_gets_only_options_it_knows() {
        let mut options = MountOptions {
            allow_other: false,
            ..MountOptions::default()
        };
        assert!(
            ["ro", "lazytime"]
                .iter()
                .all(|word| options.flags.apply(word))
        );
        assert_eq!(
            helper_list(&options),
            "ro,fsname=zonal,subtype=zonal,max_read=1048576,ro,nosuid,nodev"
        );
    }
}
