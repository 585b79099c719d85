"""Special files: FIFOs, sockets, device nodes."""
import errno
import fcntl
import os
import socket
import shutil
import stat
import subprocess
import tempfile
import time

from checks import Skip, as_user, equal, fails, read, true, write

from . import LIBC, STRICT, check, checked, fallocate


@check("fifo", "a FIFO carries bytes between processes")
def _(d):
    os.mkfifo(f"{d}/p", 0o640)
    got = os.lstat(f"{d}/p")
    true(stat.S_ISFIFO(got.st_mode), "not a FIFO")
    equal((stat.S_IMODE(got.st_mode), got.st_size), (0o640, 0))
    pid = os.fork()
    if pid == 0:
        write_fd = os.open(f"{d}/p", os.O_WRONLY)
        os.write(write_fd, b"through the pipe")
        os._exit(0)
    fd = os.open(f"{d}/p", os.O_RDONLY)
    equal(os.read(fd, 100), b"through the pipe")
    equal(os.waitpid(pid, 0)[1], 0, "writer")
    fails(errno.EEXIST, os.mkfifo, f"{d}/p")


@check("socket", "a socket file is bound and connected to")
def _(d):
    os.chdir(d)
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind("s")
    server.listen()
    true(stat.S_ISSOCK(os.lstat("s").st_mode), "not a socket")
    client.connect("s")
    peer, _ = server.accept()
    client.sendall(b"hello")
    equal(peer.recv(10), b"hello")
    fails(errno.EADDRINUSE, socket.socket(socket.AF_UNIX).bind, "s")
    fails(errno.ENXIO, os.open, "s", os.O_RDONLY)
    os.chdir("/")


@check("devices", "device nodes keep their type and numbers; /dev/null's copy works where the mount allows devices", root=True)
def _(d):
    for name, kind, number in (("null", stat.S_IFCHR, os.makedev(1, 3)), ("disk", stat.S_IFBLK, os.makedev(250, 70_000)), ("wide", stat.S_IFCHR, os.makedev(4095, 1_048_575))):
        os.mknod(f"{d}/{name}", kind | 0o600, number)
        got = os.lstat(f"{d}/{name}")
        equal((stat.S_IFMT(got.st_mode), got.st_rdev), (kind, number), name)
    try:
        fd = os.open(f"{d}/null", os.O_RDWR)
        equal((os.write(fd, b"gone"), os.read(fd, 10)), (4, b""))
    except PermissionError:
        pass  # mounted nodev


@check("devices-rights", "only root makes device nodes (EPERM); others make FIFOs and files with mknod", root=True)
def _(d):
    os.chmod(d, 0o777)
    fails(errno.EPERM, as_user, 12345, 12345, [], lambda: os.mknod(f"{d}/n", stat.S_IFCHR | 0o600, os.makedev(1, 3)))
    as_user(12345, 12345, [], lambda: os.mknod(f"{d}/p", stat.S_IFIFO | 0o600))
    as_user(12345, 12345, [], lambda: os.mknod(f"{d}/f", stat.S_IFREG | 0o600))
    equal((os.stat(f"{d}/f").st_size, os.stat(f"{d}/f").st_uid), (0, 12345))


@check("special-permission", "the mode of a FIFO, a socket or a device decides who may open it or connect to it", root=True)
def _(d):
    os.chdir(d)
    os.chmod(d, 0o755)
    os.mkfifo("p", 0o600)
    os.mknod("null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    server = socket.socket(socket.AF_UNIX)
    server.bind("s")
    server.listen()
    os.chmod("s", 0o600)
    alice = lambda fn, *args: as_user(12345, 12345, [], fn, *args)
    for path, how in (("p", os.O_RDONLY | os.O_NONBLOCK), ("p", os.O_RDWR), ("null", os.O_RDWR)):
        fails(errno.EACCES, alice, lambda: os.close(os.open(path, how)))
    fails(errno.EACCES, alice, lambda: socket.socket(socket.AF_UNIX).connect("s"))
    os.chmod("p", 0o604)
    alice(lambda: os.close(os.open("p", os.O_RDONLY | os.O_NONBLOCK)))
    fails(errno.EACCES, alice, lambda: os.close(os.open("p", os.O_RDWR)))
    os.chmod("s", 0o666)
    alice(lambda: socket.socket(socket.AF_UNIX).connect("s"))
    os.chdir("/")


@check("special-removed", "fstat of what was removed or replaced while open still answers, with no links: FIFOs, links, directories")
def _(d):
    os.mkfifo(f"{d}/p")
    os.mkfifo(f"{d}/q")
    os.symlink("x", f"{d}/l")
    os.mkdir(f"{d}/e")
    os.mkdir(f"{d}/g")
    held = [os.open(f"{d}/p", os.O_RDWR), os.open(f"{d}/q", os.O_RDWR), os.open(f"{d}/l", os.O_PATH | os.O_NOFOLLOW),
            os.open(f"{d}/e", os.O_RDONLY)]
    inodes = [os.fstat(fd).st_ino for fd in held]
    os.unlink(f"{d}/p")
    write(f"{d}/f", b"over")
    os.rename(f"{d}/f", f"{d}/q")
    os.unlink(f"{d}/l")
    os.rename(f"{d}/g", f"{d}/e")
    time.sleep(1.5)
    for fd, ino in zip(held, inodes):
        got = os.fstat(fd)
        equal((got.st_ino, got.st_nlink), (ino, 0))
        os.close(fd)


@check("special-links", "special files are linked, renamed, given times and removed like others")
def _(d):
    os.mkfifo(f"{d}/p")
    os.link(f"{d}/p", f"{d}/q")
    os.rename(f"{d}/p", f"{d}/r")
    os.utime(f"{d}/r", ns=(5, 7))
    got = os.lstat(f"{d}/q")
    equal((got.st_nlink, got.st_mtime_ns), (2, 7))
    write(f"{d}/f", b"over")
    os.rename(f"{d}/f", f"{d}/r")
    true(stat.S_ISREG(os.lstat(f"{d}/r").st_mode), "rename over a FIFO")
    os.unlink(f"{d}/q")


@check("not-done", "features that docs/semantics.md lists as not done are refused as it says: collapse and insert range, reflinks, FS_IOC flags")
def _(d):
    write(f"{d}/f", b"x" * 131_072)
    write(f"{d}/g", b"")
    one, two = os.open(f"{d}/f", os.O_RDWR), os.open(f"{d}/g", os.O_RDWR)
    if STRICT[0]:
        for mode in (0x8, 0x20):
            fails(errno.EOPNOTSUPP, fallocate, one, mode, 0, 65_536)
        fails(errno.EOPNOTSUPP, fcntl.ioctl, two, 0x40049409, one)
        for request in (0x80086601, 0x40086602):
            fails(errno.ENOTTY, fcntl.ioctl, one, request, b"\0" * 8)
        equal((os.fstat(one).st_size, os.fstat(two).st_size), (131_072, 0))
    os.close(one)
    os.close(two)


@check("overlay-upper", "an overlay with its upper layer and its work directory here: files of the lower layer are removed, renamed, written and made anew", root=True, limit=120)
def _(d):
    with open("/proc/filesystems", encoding="utf-8") as f:
        if "overlay" not in f.read().split():
            raise Skip("the kernel has no overlayfs")
    # The mount belongs to this process, and ends with it.
    checked(LIBC.unshare(0x20000))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    lower = tempfile.mkdtemp(prefix="lower.")
    try:
        an_overlay(lower, d)
    finally:
        subprocess.run(["umount", f"{d}/all"], check=False)
        shutil.rmtree(lower)


def an_overlay(lower, d):
    os.makedirs(f"{lower}/dir/sub")
    os.chmod(lower, 0o755)
    for name in ("removed", "moved", "written", "dir/a", "dir/b", "dir/sub/c", "linked"):
        write(f"{lower}/{name}", name.encode())
    for name in ("upper", "work", "all"):
        os.mkdir(f"{d}/{name}")
    top = f"{d}/all"
    options = f"lowerdir={lower},upperdir={d}/upper,workdir={d}/work"
    def mounted():
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, top], check=True)
    mounted()
    os.unlink(f"{top}/removed")
    os.rename(f"{top}/moved", f"{top}/dir/moved")
    write(f"{top}/written", b"anew")
    os.unlink(f"{top}/dir/a")
    os.unlink(f"{top}/linked")
    os.symlink("written", f"{top}/linked")
    shutil.rmtree(f"{top}/dir/sub")
    os.mkdir(f"{top}/dir/sub")
    write(f"{top}/dir/sub/new", b"new")
    os.chmod(f"{top}/dir/b", 0o600)
    os.setxattr(f"{top}/dir/b", "user.k", b"v")
    gone = os.lstat(f"{d}/upper/removed")
    equal((stat.S_IFMT(gone.st_mode), gone.st_rdev), (stat.S_IFCHR, 0), "what stands for a removed file")
    # As it is, and as seen by an overlay that is mounted again.
    for _ in range(2):
        equal(sorted(os.listdir(top)), ["dir", "linked", "written"], "names")
        equal(sorted(os.listdir(f"{top}/dir")), ["b", "moved", "sub"], "names below")
        equal(os.listdir(f"{top}/dir/sub"), ["new"], "a directory that was made anew")
        equal((read(f"{top}/written"), read(f"{top}/dir/moved"), read(f"{top}/linked")), (b"anew", b"moved", b"anew"))
        fails(errno.ENOENT, os.stat, f"{top}/removed")
        fails(errno.ENOENT, os.stat, f"{top}/dir/sub/c")
        equal((os.stat(f"{top}/dir/b").st_mode & 0o777, os.getxattr(f"{top}/dir/b", "user.k"), read(f"{top}/dir/b")), (0o600, b"v", b"dir/b"))
        subprocess.run(["umount", top], check=True)
        mounted()
    for name in ("dir/b", "dir/moved", "dir/sub/new"):
        os.unlink(f"{top}/{name}")
    os.rmdir(f"{top}/dir/sub")
    os.rmdir(f"{top}/dir")
    equal(sorted(os.listdir(top)), ["linked", "written"], "names in the end")
    equal(sorted(os.listdir(lower)), ["dir", "linked", "moved", "removed", "written"], "the lower layer")
