"""Times, extended attributes, relatime, birth time."""
import errno
import os
import stat
import subprocess
import time

from checks import Skip, as_user, equal, fails, pattern, read, true, write

from . import STRICT, check

SEC = 10**9


def times(path):
    got = os.stat(path, follow_symlinks=False)
    return got.st_atime_ns, got.st_mtime_ns, got.st_ctime_ns


def tick():
    """Sleeps longer than any clock's granularity."""
    time.sleep(0.012)


def changes(path, fn):
    """The times, of 'amc', that a call moved forward."""
    before = times(path)
    tick()
    fn()
    after = times(path)
    true(all(x <= y for x, y in zip(before[1:], after[1:])), "a time went back")
    return "".join(c for c, x, y in zip("amc", before, after) if x != y)


@check("times-nanoseconds", "times keep their nanoseconds, also before 1970 and after 2038")
def _(d):
    write(f"{d}/f", b"")
    for t in (1, 999_999_999, 1_600_000_000 * SEC + 123_456_789, (1 << 31) * SEC + 5, 7_000_000_000 * SEC + 7, -3 * SEC + 11):
        os.utime(f"{d}/f", ns=(t, t + 1))
        equal(times(f"{d}/f")[:2], (t, t + 1), "times")


@check("times-changed", "each operation moves the times that Linux moves, of the file and of its directory")
def _(d):
    write(f"{d}/f", b"12345")
    f = f"{d}/f"
    fd = os.open(f, os.O_RDWR)
    equal(changes(f, lambda: os.pwrite(fd, b"x", 0)), "mc", "write")
    equal(changes(f, lambda: os.ftruncate(fd, 3)), "mc", "truncate")
    equal(changes(f, lambda: os.chmod(f, 0o600)), "c", "chmod")
    equal(changes(f, lambda: os.chown(f, -1, os.getgid())), "c", "chown")
    equal(changes(f, lambda: os.link(f, f"{d}/l")), "c", "link")
    equal(changes(f, lambda: os.unlink(f"{d}/l")), "c", "unlink of another link")
    equal(changes(f, lambda: os.setxattr(f, "user.k", b"v")), "c", "setxattr")
    equal(changes(d, lambda: write(f"{d}/new", b"")).replace("a", ""), "mc", "directory: create")
    equal(changes(d, lambda: write(f"{d}/new", b"x")).replace("a", ""), "", "directory: write to a file in it")
    equal(changes(d, lambda: os.rename(f"{d}/new", f"{d}/newer")).replace("a", ""), "mc", "directory: rename")
    equal(changes(d, lambda: os.mkdir(f"{d}/sub")).replace("a", ""), "mc", "directory: mkdir")
    equal(changes(d, lambda: os.rmdir(f"{d}/sub")).replace("a", ""), "mc", "directory: rmdir")
    equal(changes(d, lambda: os.unlink(f"{d}/newer")).replace("a", ""), "mc", "directory: unlink")
    equal(changes(d, lambda: os.chmod(d, 0o755)).replace("a", ""), "c", "directory: chmod")


@check("times-truncate", "a truncation by name or descriptor that changes the size moves mtime and ctime, also where what it removes was just written; one by descriptor also to the same size")
def _(d):
    f = f"{d}/f"
    for flush in (False, True):
        fd = os.open(f, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        for how in (lambda size: os.truncate(f, size), lambda size: os.ftruncate(fd, size)):
            os.pwrite(fd, b"x" * 20_000, 0)
            for size in (10_000, 5_000, 0, 7_000):
                if flush:
                    os.fsync(fd)
                equal(changes(f, lambda: how(size)), "mc", f"to {size}")
        equal(changes(f, lambda: os.ftruncate(fd, 7_000)), "mc", "by descriptor to the same size")
        os.close(fd)
        equal(changes(f, lambda: os.truncate(f, 3_000)), "mc", "of a closed file")


@check("times-now", "new files have the present time; UTIME_NOW sets it, UTIME_OMIT leaves it")
def _(d):
    before = time.time_ns() - 2 * SEC
    write(f"{d}/f", b"1")
    after = time.time_ns() + 2 * SEC
    true(all(before <= t <= after for t in times(f"{d}/f")), "times of the new file")
    os.utime(f"{d}/f", ns=(5, 6))
    os.utime(f"{d}/f")
    true(all(before <= t <= time.time_ns() + 2 * SEC for t in times(f"{d}/f")), "times after UTIME_NOW")
    subprocess.run(["touch", "-a", "-d", "@77", f"{d}/f"], check=True)
    a, m, _c = times(f"{d}/f")
    true(a == 77 * SEC and m > before, "touch -a left the other time alone")
    os.symlink("f", f"{d}/l")
    os.utime(f"{d}/l", ns=(1, 2), follow_symlinks=False)
    equal((times(f"{d}/l")[:2], times(f"{d}/f")[0]), ((1, 2), 77 * SEC), "times of a symlink")


@check("times-write-close", "mtime does not move at close or fsync, after the write moved it, and stat agrees before and after")
def _(d):
    fd = os.open(f"{d}/f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"12345")
    first = os.fstat(fd).st_mtime_ns
    tick()
    os.fsync(fd)
    equal(os.fstat(fd).st_mtime_ns, first, "mtime after fsync")
    tick()
    os.close(fd)
    equal(os.stat(f"{d}/f").st_mtime_ns, first, "mtime after close")


@check("times-set-while-open", "a time set while the file is open and written stays set after close, as tar and rsync need")
def _(d):
    fd = os.open(f"{d}/f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, pattern(1, 200_000))
    os.utime(fd, ns=(1000, 2000))
    os.close(fd)
    equal(times(f"{d}/f")[:2], (1000, 2000), "times after close")
    equal(os.stat(f"{d}/f").st_size, 200_000, "size")


@check("relatime", "a read moves atime when it is not newer than mtime and ctime, or a day old, otherwise not")
def _(d):
    write(f"{d}/f", b"content")
    now = time.time_ns()
    options = mount_options(d)
    if "noatime" in options:
        raise Skip("mounted noatime")
    for atime, mtime, moves in ((now - 10 * SEC, now - 5 * SEC, True), (now - 30 * 3600 * SEC, now - 40 * 3600 * SEC, True),
                                (now + 100 * SEC, now - 10 * SEC, False)):
        os.utime(f"{d}/f", ns=(atime, mtime))
        read(f"{d}/f")
        end = time.monotonic() + 1
        while times(f"{d}/f")[0] == atime and moves and time.monotonic() < end:
            time.sleep(0.01)
        if moves:
            true(times(f"{d}/f")[0] >= now - SEC, f"atime was not moved by a read ({(now - atime) // SEC} s old)")
        elif "strictatime" not in options:
            equal(times(f"{d}/f")[0], atime, "atime")
        equal(times(f"{d}/f")[1], mtime, "mtime")


def mount_options(path):
    out = subprocess.run(["findmnt", "-no", "OPTIONS", "-T", path], capture_output=True, text=True, check=False)
    return out.stdout.strip().split(",")


@check("birth-time", "statx gives a birth time that later changes leave alone")
def _(d):
    write(f"{d}/f", b"")
    born = birth(f"{d}/f")
    true(abs(born - time.time()) < 10, f"birth time {born}")
    tick()
    write(f"{d}/f", b"more")
    os.utime(f"{d}/f", ns=(1, 1))
    os.rename(f"{d}/f", f"{d}/g")
    equal(birth(f"{d}/g"), born, "birth time")


def birth(path):
    out = subprocess.run(["stat", "-c", "%.9W", path], capture_output=True, text=True, check=True).stdout.strip()
    if out in ("-", "0", "0.000000000"):
        raise AssertionError("no birth time")
    return float(out)


@check("utime-errors", "others may not set times: EPERM for a value, EACCES for now without write permission", root=True)
def _(d):
    os.chmod(d, 0o777)
    write(f"{d}/f", b"")
    fails(errno.EPERM, as_user, 12345, 12345, [], lambda: os.utime(f"{d}/f", ns=(1, 1)))
    fails(errno.EACCES, as_user, 12345, 12345, [], lambda: os.utime(f"{d}/f"))
    os.chmod(f"{d}/f", 0o666)
    as_user(12345, 12345, [], lambda: os.utime(f"{d}/f"))


@check("xattr-user", "user.* attributes are set, read, listed, replaced, removed, on files and directories")
def _(d):
    write(f"{d}/f", b"")
    os.mkdir(f"{d}/d")
    for p in (f"{d}/f", f"{d}/d"):
        os.setxattr(p, "user.one", b"1")
        os.setxattr(p, "user.bin", bytes(range(256)))
        os.setxattr(p, "user.empty", b"")
        equal([os.getxattr(p, f"user.{n}") for n in ("one", "bin", "empty")], [b"1", bytes(range(256)), b""])
        equal({n for n in os.listxattr(p) if n.startswith("user.")}, {"user.one", "user.bin", "user.empty"})
        os.setxattr(p, "user.one", b"longer value")
        equal(os.getxattr(p, "user.one"), b"longer value")
        os.removexattr(p, "user.one")
        fails(errno.ENODATA, os.getxattr, p, "user.one")
        fails(errno.ENODATA, os.removexattr, p, "user.one")


@check("xattr-flags", "XATTR_CREATE on a present name is EEXIST, XATTR_REPLACE on an absent one ENODATA")
def _(d):
    write(f"{d}/f", b"")
    fails(errno.ENODATA, os.setxattr, f"{d}/f", "user.k", b"1", os.XATTR_REPLACE)
    os.setxattr(f"{d}/f", "user.k", b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, os.setxattr, f"{d}/f", "user.k", b"2", os.XATTR_CREATE)
    os.setxattr(f"{d}/f", "user.k", b"3", os.XATTR_REPLACE)
    equal(os.getxattr(f"{d}/f", "user.k"), b"3")


@check("xattr-limits", "names to 255 bytes, values to 64 KiB (ext4: 2 KB), many of them; past it ERANGE, E2BIG or ENOSPC")
def _(d):
    write(f"{d}/f", b"")
    name = "user." + "n" * 250
    os.setxattr(f"{d}/f", name, b"x")
    equal(os.getxattr(f"{d}/f", name), b"x")
    fails(errno.ERANGE, os.setxattr, f"{d}/f", name + "n", b"x")
    size = 65_536 if STRICT[0] else 2_000
    os.setxattr(f"{d}/f", "user.big", pattern(1, size))
    equal(os.getxattr(f"{d}/f", "user.big"), pattern(1, size))
    fails(errno.E2BIG, os.setxattr, f"{d}/f", "user.big", bytes(65_537))
    write(f"{d}/g", b"")
    for i in range(50):
        os.setxattr(f"{d}/g", f"user.k{i}", b"%d" % i)
    equal(len([n for n in os.listxattr(f"{d}/g") if n.startswith("user.")]), 50, "attributes")
    fails((errno.EOPNOTSUPP, errno.EPERM), os.setxattr, f"{d}/g", "nonsense.k", b"1")
    fails((errno.EINVAL, errno.EOPNOTSUPP, errno.ERANGE), os.setxattr, f"{d}/g", "user.", b"1")


@check("xattr-user-special", "user.* attributes on symlinks and special files are EPERM")
def _(d):
    os.symlink("x", f"{d}/l")
    os.mkfifo(f"{d}/p")
    fails(errno.EPERM, os.setxattr, f"{d}/l", "user.k", b"1", 0, follow_symlinks=False)
    fails(errno.EPERM, os.setxattr, f"{d}/p", "user.k", b"1")


@check("xattr-user-permission", "user.* attributes follow the permissions of the content (EACCES)", root=True)
def _(d):
    write(f"{d}/f", b"")
    os.setxattr(f"{d}/f", "user.k", b"1")
    os.chmod(f"{d}/f", 0o644)
    equal(as_user(12345, 12345, [], os.getxattr, f"{d}/f", "user.k"), b"1")
    fails(errno.EACCES, as_user, 12345, 12345, [], os.setxattr, f"{d}/f", "user.k", b"2")
    fails(errno.EACCES, as_user, 12345, 12345, [], os.removexattr, f"{d}/f", "user.k")
    os.chmod(f"{d}/f", 0o600)
    fails(errno.EACCES, as_user, 12345, 12345, [], os.getxattr, f"{d}/f", "user.k")


@check("xattr-trusted", "trusted.* attributes are root's: others are refused and do not see them", root=True)
def _(d):
    os.chmod(d, 0o755)
    write(f"{d}/f", b"", mode=0o666)
    os.chmod(f"{d}/f", 0o666)
    os.setxattr(f"{d}/f", "trusted.k", b"1")
    equal(os.getxattr(f"{d}/f", "trusted.k"), b"1")
    true("trusted.k" in os.listxattr(f"{d}/f"), "root does not see it in the list")
    fails((errno.ENODATA, errno.EPERM), as_user, 12345, 12345, [], os.getxattr, f"{d}/f", "trusted.k")
    fails(errno.EPERM, as_user, 12345, 12345, [], os.setxattr, f"{d}/f", "trusted.k", b"2")
    equal([n for n in as_user(12345, 12345, [], os.listxattr, f"{d}/f") if n.startswith("trusted.")], [])


@check("xattr-security", "security.* attributes are kept; only root sets them", root=True)
def _(d):
    write(f"{d}/f", b"", mode=0o666)
    os.setxattr(f"{d}/f", "security.zonaltest", b"label")
    equal(os.getxattr(f"{d}/f", "security.zonaltest"), b"label")
    fails(errno.EPERM, as_user, 12345, 12345, [], os.setxattr, f"{d}/f", "security.zonaltest", b"2")
    equal(as_user(12345, 12345, [], os.getxattr, f"{d}/f", "security.zonaltest"), b"label")


@check("xattr-selinux", "an absent security.selinux is EOPNOTSUPP, one that was set is there", root=True)
def _(d):
    write(f"{d}/f", b"")
    fails(errno.EOPNOTSUPP if STRICT[0] else (errno.EOPNOTSUPP, errno.ENODATA), os.getxattr, f"{d}/f", "security.selinux")
    os.setxattr(f"{d}/f", "security.selinux", b"a_u:object_r:b_t:s0")
    equal(os.getxattr(f"{d}/f", "security.selinux"), b"a_u:object_r:b_t:s0")
    os.removexattr(f"{d}/f", "security.selinux")


@check("xattr-capability-cleared", "security.capability goes when the file is written, as in Linux", root=True)
def _(d):
    value = bytes.fromhex("0100000200040000000000000000000000000000")
    write(f"{d}/f", b"program", mode=0o777)
    os.setxattr(f"{d}/f", "security.capability", value)
    equal(os.getxattr(f"{d}/f", "security.capability"), value)
    fd = os.open(f"{d}/f", os.O_WRONLY)
    os.write(fd, b"P")
    os.close(fd)
    fails(errno.ENODATA, os.getxattr, f"{d}/f", "security.capability")


@check("xattr-with-rename-link", "attributes belong to the inode: they follow renames and links")
def _(d):
    write(f"{d}/f", b"")
    os.setxattr(f"{d}/f", "user.k", b"v")
    os.link(f"{d}/f", f"{d}/l")
    os.rename(f"{d}/f", f"{d}/g")
    equal((os.getxattr(f"{d}/l", "user.k"), os.getxattr(f"{d}/g", "user.k")), (b"v", b"v"))


@check("device-and-mode", "st_dev is one for the tree; modes keep all twelve bits")
def _(d):
    os.makedirs(f"{d}/a/b")
    write(f"{d}/a/b/f", b"")
    equal(os.stat(f"{d}/a/b/f").st_dev, os.stat(d).st_dev, "st_dev")
    for mode in (0, 0o400, 0o7777, 0o1755, 0o6111, 0o644):
        os.chmod(f"{d}/a/b/f", mode)
        equal(stat.S_IMODE(os.stat(f"{d}/a/b/f").st_mode), mode, "mode")
