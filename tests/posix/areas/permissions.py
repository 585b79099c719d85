"""Permissions: mode bits, groups, sticky, set-id bits, ACLs. All need root, to switch users."""
import contextlib
import errno
import os
import shutil
import stat
import subprocess

from checks import Skip, as_user, equal, fails, pattern, read, true, write

from . import check

ALICE, BOB, GROUP, OTHERS = 12345, 12346, 12399, 12400


def alice(fn, *args, groups=()):
    return as_user(ALICE, ALICE, list(groups), fn, *args)


def bob(fn, *args, groups=()):
    return as_user(BOB, BOB, list(groups), fn, *args)


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def make(path, bits, uid=0, gid=0, data=b"content"):
    write(path, data)
    os.chown(path, uid, gid)
    os.chmod(path, bits)


@check("mode-bits", "owner, group and others get what their bits say, the owner's and group's first", root=True)
def _(d):
    for bits, who, may in ((0o400, ALICE, True), (0o040, ALICE, False), (0o040, BOB, True), (0o004, BOB, False),
                           (0o404, OTHERS, True), (0o440, OTHERS, False)):
        make(f"{d}/f", bits, ALICE, GROUP)
        groups = [GROUP] if who == BOB else []
        if may:
            equal(as_user(who, who, groups, read, f"{d}/f"), b"content", f"mode {bits:o}")
        else:
            fails(errno.EACCES, as_user, who, who, groups, read, f"{d}/f")
    make(f"{d}/f", 0o000)
    equal(read(f"{d}/f"), b"content", "root reads everything")


@check("supplementary-groups", "all 40 supplementary groups of a process count", root=True)
def _(d):
    make(f"{d}/f", 0o640, 0, GROUP)
    many = list(range(20_000, 20_039)) + [GROUP]
    equal(alice(read, f"{d}/f", groups=many), b"content")
    fails(errno.EACCES, alice, read, f"{d}/f", groups=many[:-1])


@check("directory-permissions", "search, list and change of a directory need x, r and w+x", root=True)
def _(d):
    os.mkdir(f"{d}/d")
    make(f"{d}/d/f", 0o666)

    def change_it():
        write(f"{d}/d/new", b"")
        os.unlink(f"{d}/d/new")
    for bits, look, names, change in ((0o711, True, False, False), (0o744, False, True, False), (0o755, True, True, False),
                                      (0o773, True, False, True), (0o772, False, False, False)):
        os.chmod(f"{d}/d", bits)
        for may, fn in ((look, lambda: read(f"{d}/d/f")), (names, lambda: os.listdir(f"{d}/d")),
                        (change, change_it)):
            if may:
                alice(fn)
            else:
                fails(errno.EACCES, alice, fn)
        if not change:
            fails(errno.EACCES, alice, os.unlink, f"{d}/d/f")


@check("access", "access(2) answers by the real ids: root may read and write all, execute what somebody may", root=True)
def _(d):
    make(f"{d}/f", 0o640, ALICE, GROUP)
    equal([os.access(f"{d}/f", m) for m in (os.R_OK, os.W_OK, os.X_OK)], [True, True, False], "root")
    equal([alice(os.access, f"{d}/f", m) for m in (os.R_OK, os.W_OK, os.X_OK)], [True, True, False], "owner")
    equal([bob(os.access, f"{d}/f", m) for m in (os.F_OK, os.R_OK, os.W_OK)], [True, False, False], "other")
    os.chmod(f"{d}/f", 0o001)
    true(os.access(f"{d}/f", os.X_OK), "root may execute what somebody may")


@check("open-permission-kept", "a handle keeps working when the permission is taken away", root=True)
def _(d):
    make(f"{d}/f", 0o666)
    os.chown(f"{d}/f", ALICE, ALICE)

    def owner():
        fd = os.open(f"{d}/f", os.O_RDWR)
        os.chmod(f"{d}/f", 0)
        got = os.pread(fd, 7, 0), os.pwrite(fd, b"C", 0)
        fails(errno.EACCES, os.open, f"{d}/f", os.O_RDONLY)
        return got
    equal(alice(owner), (b"content", 1))


@check("create-mode", "a new file has the mode asked for less the umask; even 0 with a writable handle", root=True)
def _(d):
    os.chmod(d, 0o777)

    def child():
        os.umask(0o027)
        os.close(os.open(f"{d}/a", os.O_CREAT | os.O_WRONLY, 0o777))
        os.mkdir(f"{d}/b", 0o777)
        fd = os.open(f"{d}/c", os.O_CREAT | os.O_RDWR, 0)
        return os.write(fd, b"works")
    equal(alice(child), 5)
    equal([mode(f"{d}/{n}") for n in "abc"], [0o750, 0o750, 0], "modes")
    equal([(os.stat(f"{d}/{n}").st_uid, os.stat(f"{d}/{n}").st_gid) for n in "abc"], [(ALICE, ALICE)] * 3, "owners")


@check("chmod-chown-rights", "only the owner changes the mode (EPERM), only root the owner; the owner may give to a group of his", root=True)
def _(d):
    make(f"{d}/f", 0o644, ALICE, ALICE)
    fails(errno.EPERM, bob, os.chmod, f"{d}/f", 0o777)
    fails(errno.EPERM, alice, os.chown, f"{d}/f", BOB, -1)
    fails(errno.EPERM, alice, os.chown, f"{d}/f", -1, GROUP)
    fails(errno.EPERM, bob, os.chown, f"{d}/f", -1, BOB)
    alice(lambda: os.chown(f"{d}/f", -1, GROUP), groups=[GROUP])
    alice(os.chmod, f"{d}/f", 0o600)
    equal((mode(f"{d}/f"), os.stat(f"{d}/f").st_gid), (0o600, GROUP))


@check("sticky", "in a sticky directory only the owner of a file, of the directory, and root remove or rename it", root=True)
def _(d):
    os.mkdir(f"{d}/t")
    os.chmod(f"{d}/t", 0o1777)
    for n in "abcd":
        make(f"{d}/t/{n}", 0o666, ALICE, ALICE)
    denied = (errno.EPERM, errno.EACCES)
    fails(denied, bob, os.unlink, f"{d}/t/a")
    fails(denied, bob, os.rename, f"{d}/t/a", f"{d}/t/z")
    bob(write, f"{d}/t/own", b"")
    fails(denied, bob, os.rename, f"{d}/t/own", f"{d}/t/a")
    alice(os.rename, f"{d}/t/a", f"{d}/t/z")
    alice(os.unlink, f"{d}/t/z")
    os.unlink(f"{d}/t/b")
    os.chown(f"{d}/t", BOB, BOB)
    bob(os.unlink, f"{d}/t/c")


@check("setgid-directory", "new files in a set-group-id directory get its group; directories the bit too", root=True)
def _(d):
    os.mkdir(f"{d}/g")
    os.chown(f"{d}/g", 0, GROUP)
    os.chmod(f"{d}/g", 0o2777)

    def child():
        os.umask(0)
        os.mkdir(f"{d}/g/sub", 0o755)
        write(f"{d}/g/sub/f", b"")
        os.symlink("x", f"{d}/g/l")
        os.mkfifo(f"{d}/g/p")
    alice(child)
    equal([os.lstat(f"{d}/g/{n}").st_gid for n in ("sub", "sub/f", "l", "p")], [GROUP] * 4, "groups")
    equal(mode(f"{d}/g/sub"), 0o2755, "mode of the directory")
    equal(mode(f"{d}/g/sub/f") & 0o2000, 0, "set-group-id of the file")


@check("setgid-not-member", "one who is not in the group cannot make or chmod a set-group-id file", root=True)
def _(d):
    os.mkdir(f"{d}/g")
    os.chown(f"{d}/g", 0, GROUP)
    os.chmod(f"{d}/g", 0o2777)

    def child():
        os.umask(0)
        os.close(os.open(f"{d}/g/f", os.O_CREAT | os.O_WRONLY, 0o2775))
        os.close(os.open(f"{d}/g/h", os.O_CREAT | os.O_WRONLY, 0o775))
        os.chmod(f"{d}/g/h", 0o2775)
    alice(child)
    equal((mode(f"{d}/g/f"), mode(f"{d}/g/h")), (0o775, 0o775), "modes")
    alice(lambda: os.chmod(f"{d}/g/h", 0o2775), groups=[GROUP])
    equal(mode(f"{d}/g/h"), 0o2775, "mode set by a member")


@check("set-id-write", "a write or truncate by another user clears set-user-id and set-group-id", root=True)
def _(d):
    def poke():
        fd = os.open(f"{d}/f", os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)

    def cut():
        os.truncate(f"{d}/f", 3)

    def cut_open():
        os.close(os.open(f"{d}/f", os.O_WRONLY | os.O_TRUNC))
    for fn in (poke, cut, cut_open):
        make(f"{d}/f", 0o6777)
        alice(fn)
        equal(mode(f"{d}/f"), 0o777, f"mode after {fn.__name__}")
    make(f"{d}/f", 0o2767)
    alice(poke)
    true(mode(f"{d}/f") in (0o767, 0o2767), "set-group-id without group execution")
    make(f"{d}/f", 0o6777)
    poke()
    equal(mode(f"{d}/f"), 0o6777, "root's write keeps them")


@check("set-id-write-executed", "a file that an unprivileged user wrote is executed without its former set-id bits, at once", root=True)
def _(d):
    if os.statvfs(d).f_flag & os.ST_NOSUID:
        raise Skip("it is mounted nosuid")
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_RDWR | os.O_APPEND):
        program = f"{d}/id{flags}"
        shutil.copy("/usr/bin/id", program)
        os.chmod(program, 0o6777)

        def uid():
            return subprocess.run([program, "-u"], capture_output=True, text=True, check=True).stdout.strip()

        equal(alice(uid), "0", "before the write")

        def poke():
            fd = os.open(program, flags)
            os.pwrite(fd, b"\0", os.fstat(fd).st_size)
            os.close(fd)
        alice(poke)
        equal(alice(uid), str(ALICE), f"user of what was written with flags {flags:o}")
        equal(mode(program), 0o777, f"mode after flags {flags:o}")


@contextlib.contextmanager
def acting_as_alice():
    os.seteuid(ALICE)
    try:
        yield
    finally:
        os.seteuid(0)


@check("rights-of-a-descriptor", "a descriptor keeps the rights that it was opened with, whatever becomes of modes", root=True)
def _(d):
    os.mkdir(f"{d}/d")
    for i in range(3000):
        write(f"{d}/d/{i}", b"")
    writes = {
        "write": lambda fd: os.write(fd, b"new"),
        "fallocate": lambda fd: os.posix_fallocate(fd, 0, 9000),
        "ftruncate": lambda fd: os.ftruncate(fd, 2),
    }
    opened = {}
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_DSYNC, os.O_RDWR | os.O_APPEND):
        for name in writes:
            path = f"{d}/{name}-{flags:o}"
            make(path, 0o666)
            with acting_as_alice():
                opened[path] = name, os.open(path, flags)
            os.chmod(path, 0o6755)
    with acting_as_alice():
        entries = os.scandir(f"{d}/d")
        next(entries)
    os.chmod(f"{d}/d", 0o700)
    with acting_as_alice(), entries:
        equal(1 + len(list(entries)), 3000, "names listed through what was opened before")
        fails(errno.EACCES, os.listdir, f"{d}/d")
    for path, (name, fd) in opened.items():
        with acting_as_alice():
            fails(errno.EACCES, os.open, path, os.O_WRONLY)
            try:
                writes[name](fd)
            except OSError as error:
                raise AssertionError(f"{path}: {error}") from error
            os.close(fd)
            fails(errno.EACCES, os.open, path, os.O_WRONLY)
        equal(mode(path), 0o755, f"mode of {path}")
    make(f"{d}/other", 0o4755)
    fails(errno.EPERM, alice, os.chown, f"{d}/other", -1, -1)


@check("set-id-chown", "chown clears set-user-id and set-group-id of an executable file", root=True)
def _(d):
    make(f"{d}/f", 0o6777, ALICE, ALICE)
    alice(lambda: os.chown(f"{d}/f", -1, GROUP), groups=[GROUP])
    equal(mode(f"{d}/f"), 0o777, "after the owner's chgrp")
    make(f"{d}/f", 0o6777, ALICE, ALICE)
    os.chown(f"{d}/f", BOB, BOB)
    equal(mode(f"{d}/f"), 0o777, "after root's chown")
    os.mkdir(f"{d}/d")
    os.chmod(f"{d}/d", 0o2777)
    os.chown(f"{d}/d", BOB, BOB)
    equal(mode(f"{d}/d"), 0o2777, "a directory keeps its bit")


@check("noatime-owner", "O_NOATIME is for the owner and root (EPERM)", root=True)
def _(d):
    make(f"{d}/f", 0o644, ALICE, ALICE)
    alice(lambda: os.close(os.open(f"{d}/f", os.O_RDONLY | os.O_NOATIME)))
    fails(errno.EPERM, bob, lambda: os.open(f"{d}/f", os.O_RDONLY | os.O_NOATIME))


def setfacl(*args):
    done = subprocess.run(["setfacl", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"setfacl {' '.join(args)}: {done.stderr.strip()}")


def getfacl(path):
    out = subprocess.run(["getfacl", "-cnpE", path], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if line]


@check("acl-set-get", "setfacl and getfacl: entries are kept and listed; the mask shows as the group bits", root=True)
def _(d):
    make(f"{d}/f", 0o640)
    setfacl("-m", f"u:{ALICE}:rw,g:{GROUP}:r", f"{d}/f")
    equal(getfacl(f"{d}/f"), ["user::rw-", f"user:{ALICE}:rw-", "group::r--", f"group:{GROUP}:r--", "mask::rw-", "other::---"])
    equal(mode(f"{d}/f"), 0o660, "mode with the mask in it")
    os.chmod(f"{d}/f", 0o600)
    equal(getfacl(f"{d}/f")[4], "mask::---", "mask after chmod")
    setfacl("-b", f"{d}/f")
    equal(getfacl(f"{d}/f"), ["user::rw-", "group::---", "other::---"])
    fails(errno.ENODATA, os.getxattr, f"{d}/f", "system.posix_acl_access")
    fails((errno.EINVAL, errno.EOPNOTSUPP), os.setxattr, f"{d}/f", "system.posix_acl_access", b"\2\0\0\0nonsense")


@check("acl-enforced", "an ACL lets in whom it names, as far as the mask goes, and shuts out others", root=True)
def _(d):
    make(f"{d}/f", 0o600)
    setfacl("-m", f"u:{ALICE}:rw,g:{GROUP}:r", f"{d}/f")
    alice(lambda: os.close(os.open(f"{d}/f", os.O_RDWR)))
    bob(lambda: os.close(os.open(f"{d}/f", os.O_RDONLY)), groups=[GROUP])
    fails(errno.EACCES, bob, lambda: os.open(f"{d}/f", os.O_WRONLY), groups=[GROUP])
    fails(errno.EACCES, bob, lambda: os.open(f"{d}/f", os.O_RDONLY))
    setfacl("-m", "m::r", f"{d}/f")
    fails(errno.EACCES, alice, lambda: os.open(f"{d}/f", os.O_RDWR))
    alice(lambda: os.close(os.open(f"{d}/f", os.O_RDONLY)))
    os.chmod(f"{d}/f", 0o644)
    setfacl("-m", f"u:{BOB}:-", f"{d}/f")
    fails(errno.EACCES, bob, lambda: os.open(f"{d}/f", os.O_RDONLY))


@check("acl-directory-enforced", "an ACL on a directory governs search, listing and change", root=True)
def _(d):
    os.mkdir(f"{d}/d", 0o700)
    make(f"{d}/d/f", 0o666)
    fails(errno.EACCES, alice, read, f"{d}/d/f")
    setfacl("-m", f"u:{ALICE}:rwx,u:{BOB}:x", f"{d}/d")
    alice(write, f"{d}/d/new", b"")
    alice(os.unlink, f"{d}/d/new")
    bob(read, f"{d}/d/f")
    fails(errno.EACCES, bob, os.listdir, f"{d}/d")
    fails(errno.EACCES, bob, write, f"{d}/d/no", b"")


@check("acl-default", "a default ACL is inherited by files and directories, in place of the umask", root=True)
def _(d):
    os.mkdir(f"{d}/d")
    os.chmod(f"{d}/d", 0o777)
    setfacl("-d", "-m", f"u::rwx,g::rx,o::-,u:{BOB}:rwx", f"{d}/d")

    def child():
        os.umask(0o077)
        os.close(os.open(f"{d}/d/f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(f"{d}/d/sub", 0o777)
        os.close(os.open(f"{d}/d/sub/g", os.O_CREAT | os.O_WRONLY, 0o640))
    alice(child)
    equal(getfacl(f"{d}/d/f"), ["user::rw-", f"user:{BOB}:rwx", "group::r-x", "mask::rw-", "other::---"])
    equal(mode(f"{d}/d/sub"), 0o770, "mode of the directory")
    true(f"default:user:{BOB}:rwx" in getfacl(f"{d}/d/sub"), "the default ACL went no deeper")
    bob(lambda: os.close(os.open(f"{d}/d/f", os.O_RDWR)))
    equal(getfacl(f"{d}/d/sub/g")[3], "mask::r--", "mask of a file made with 0640")
    setfacl("-k", f"{d}/d")
    os.umask(0o022)
    write(f"{d}/d/plain", b"")
    equal(getfacl(f"{d}/d/plain"), ["user::rw-", "group::r--", "other::r--"])


@check("acl-rights", "only the owner changes an ACL (EPERM); a file has no default ACL (EACCES)", root=True)
def _(d):
    make(f"{d}/f", 0o666, ALICE, ALICE)
    value = acl_value((1, 6, -1), (2, 6, BOB), (4, 4, -1), (0x10, 6, -1), (0x20, 4, -1))
    fails(errno.EPERM, bob, os.setxattr, f"{d}/f", "system.posix_acl_access", value)
    alice(os.setxattr, f"{d}/f", "system.posix_acl_access", value)
    equal(os.getxattr(f"{d}/f", "system.posix_acl_access"), value)
    fails((errno.EACCES, errno.EINVAL), os.setxattr, f"{d}/f", "system.posix_acl_default", value)


def acl_value(*entries):
    """The binary form of an ACL: version 2, then (tag, permissions, id) each."""
    out = (2).to_bytes(4, "little")
    for tag, perm, who in entries:
        out += tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + (who & 0xFFFFFFFF).to_bytes(4, "little")
    return out


@check("acl-copy", "cp -p, and rename keep an ACL; a plain copy has none", root=True)
def _(d):
    make(f"{d}/f", 0o640, data=pattern(1, 10_000))
    setfacl("-m", f"u:{ALICE}:r", f"{d}/f")
    want = getfacl(f"{d}/f")
    subprocess.run(["cp", "-p", f"{d}/f", f"{d}/g"], check=True)
    equal(getfacl(f"{d}/g"), want, "after cp -p")
    os.rename(f"{d}/f", f"{d}/h")
    equal(getfacl(f"{d}/h"), want, "after rename")
    subprocess.run(["cp", f"{d}/h", f"{d}/i"], check=True)
    equal(len(getfacl(f"{d}/i")), 3, "entries after cp")
    true(read(f"{d}/g") == pattern(1, 10_000), "content")
