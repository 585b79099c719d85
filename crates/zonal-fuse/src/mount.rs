//! Mounting and unmounting: mount(2) as root, else the helper `fusermount3`.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::channel;

/// How to mount.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent options of mount(8)"
)]
pub struct MountOptions {
    /// What /proc/mounts shows as the source, e.g. `zonal:CELL`.
    pub source: String,
    /// Shown as `fuse.SUBTYPE`.
    pub subtype: String,
    /// Everybody may use the mount, not only its owner.
    pub allow_other: bool,
    /// Ignore set-user-id and set-group-id bits.
    pub nosuid: bool,
    /// Ignore device files.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// Read only.
    pub read_only: bool,
    /// Largest READ, bytes.
    pub max_read: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "zonal".into(),
            subtype: "zonal".into(),
            allow_other: true,
            nosuid: true,
            nodev: true,
            noexec: false,
            read_only: false,
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
    /// Not root, and the helper is missing or failed.
    #[error("mounting needs root or fusermount3: {0}")]
    Helper(String),
    /// Talking to the kernel failed.
    #[error(transparent)]
    Init(#[from] crate::init::InitError),
    /// Threads could not be started.
    #[error("cannot start the workers: {0}")]
    Threads(std::io::Error),
}

fn device_error(error: Errno) -> MountError {
    match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        Errno::ACCESS | Errno::PERM => MountError::DeviceDenied,
        other => MountError::Device(other),
    }
}

/// Mounts; the descriptor returned is bound to the mount, INIT is waiting to be read.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        match direct(path, options) {
            // Root without the right to mount (a container): the helper cannot either.
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
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::RDONLY, options.read_only);
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
    // The helper opens the device itself, but with our rights: tell the likely cause first.
    channel::open_device().map(drop).map_err(device_error)?;
    let failed = |what: String| MountError::Helper(what);
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| failed(e.to_string()))?;
    let mut list = format!(
        "{},fsname={},subtype={},max_read={}",
        if options.read_only { "ro" } else { "rw" },
        escaped(&options.source),
        escaped(&options.subtype),
        options.max_read,
    );
    for (set, name) in [
        (options.allow_other, ",allow_other"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
    ] {
        if set {
            list.push_str(name);
        }
    }
    // Its end of the pair is its standard input, so no descriptor leaks into other children.
    let output = Command::new(HELPER)
        .args(["-o", &list, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| failed(format!("{HELPER}: {e}")))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    receive(&ours).ok_or_else(|| failed(format!("{HELPER} passed no descriptor")))
}

/// The descriptor the helper sent.
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

/// Takes a mount out of the tree at once; files that are open stay usable until they are closed.
/// Also removes the mount of a process that died.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    detach(path, UnmountFlags::DETACH)
}

/// As [`unmount`], and ends the connection: everything under way or open fails.
pub fn abort(path: &Path) -> Result<(), MountError> {
    detach(path, UnmountFlags::DETACH | UnmountFlags::FORCE)
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
                .map_err(|e| MountError::Helper(format!("{HELPER}: {e}")))?;
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
    fn refusals_of_the_device_have_names() {
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
}
