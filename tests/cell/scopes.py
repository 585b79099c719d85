#!/usr/bin/env python3
"""Mounts with restricted credentials: a path, read-only, a range of user ids, no root.

    tests/cell/scopes.py --work DIR [--only PART,...] [--list]

The mounts use TCP with TLS, as on another machine. Each check has a cell of its own, made below
DIR. ZONAL names the binary. Root only.
"""
import contextlib
import errno
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, as_user, equal, pattern, read, true, write  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
MIB = 1 << 20


class ScopedCell(OwnCell):
    """A cell with files, and mounts of it with credentials of clients."""

    def __init__(self, work):
        super().__init__(work)
        self.mounts = []

    def make(self):
        super().make()
        # Users can reach the mounts.
        os.chmod(self.base, 0o755)
        for name in ("a", "b"):
            os.mkdir(f"{self.mount}/one/{name}")
            os.chmod(f"{self.mount}/one/{name}", 0o777)
            write(f"{self.mount}/one/{name}/f", made(name, 3 * MIB))
            write(f"{self.mount}/one/{name}/small", b"small " + name.encode())
        os.symlink("../b/f", f"{self.mount}/one/a/link")

    def address(self):
        with open(f"{self.folder}/cell.toml", encoding="utf-8") as f:
            return next(line.split('"')[1] for line in f if line.startswith("manager"))

    def scoped(self, name, *scope):
        """A mount with a new credential."""
        key, point = f"{self.base}/{name}.pem", f"{self.base}/mnt-{name}"
        self.zonal("key", "create", "--cell", self.folder, "--to", key, "--client", name, *scope)
        os.mkdir(point)
        self.zonal("mount", "--cell", self.address(), "--key-file", key, "--log", f"{self.base}/{name}.log", point)
        self.mounts.append(point)
        return point

    def __exit__(self, *why):
        for point in self.mounts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([ZONAL, "umount", point], capture_output=True, timeout=60, check=False)
        super().__exit__(*why)


def made(seed, size):
    """Bytes derived from a name, made quickly."""
    return pattern(sum(seed.encode()), size)


def cell(work):
    return ScopedCell(work)


def refused(codes, fn, *args):
    """Checks that a call fails with one of these codes."""
    try:
        fn(*args)
    except OSError as error:
        true(error.errno in codes, f"{fn.__name__} {args[:2]}: {error}")
        return
    true(False, f"{fn.__name__} {args[:2]} is not refused")


@check("scope-path", "a client with a path works below it as anywhere, and the rest is not there", root=True, limit=300)
def path_is_all_that_is_there(work):
    with cell(work) as c:
        m = c.scoped("path", "--path", "/one/a")
        a = f"{m}/one/a"
        # Below the path everything works.
        equal(read(f"{a}/f"), made("a", 3 * MIB), "a file that was there")
        equal(sorted(os.listdir(a)), ["f", "link", "small"], "the path's directory")
        write(f"{a}/new", made("new", 5 * MIB + 77))
        fd = os.open(f"{a}/new", os.O_RDWR)
        os.pwrite(fd, b"changed", MIB)
        os.fsync(fd)
        os.close(fd)
        want = bytearray(made("new", 5 * MIB + 77))
        want[MIB:MIB + 7] = b"changed"
        equal(read(f"{a}/new"), bytes(want), "what was written")
        equal(read(f"{c.mount}/one/a/new"), bytes(want), "what was written, as another mount sees it")
        os.makedirs(f"{a}/d/e")
        os.rename(f"{a}/new", f"{a}/d/e/new")
        os.link(f"{a}/d/e/new", f"{a}/second")
        os.unlink(f"{a}/d/e/new")
        equal(read(f"{a}/second"), bytes(want), "a second name")
        os.truncate(f"{a}/second", 2 * MIB + 5)
        equal(read(f"{c.mount}/one/a/second"), bytes(want[:2 * MIB + 5]), "cut by its name")
        write(f"{a}/second", b"short")
        equal(read(f"{c.mount}/one/a/second"), b"short", "cut by an open")
        with open(f"{a}/second", "ab") as f:
            for part in range(3):
                f.write(made(str(part), MIB))
        equal(os.stat(f"{c.mount}/one/a/second").st_size, 5 + 3 * MIB, "appended")
        os.setxattr(f"{a}/second", "user.mine", b"1")
        os.chmod(f"{a}/second", 0o600)
        fd = os.open(f"{a}/second", os.O_RDWR)
        os.unlink(f"{a}/second")
        os.pwrite(fd, b"nameless", 4 * MIB)
        equal(os.pread(fd, 8, 4 * MIB), b"nameless", "a file without a name")
        os.close(fd)
        # Changes by another mount are seen.
        write(f"{c.mount}/one/a/f", b"of another mount")
        equal(read(f"{a}/f"), b"of another mount", "another mount's change")
        # Above the path, only its own names and attributes are visible.
        for above in (m, f"{m}/one"):
            true(os.stat(above).st_mode & 0o700, above)
            refused([errno.EACCES], os.listdir, above)
            refused([errno.EACCES], os.mkdir, f"{above}/new")
            refused([errno.EACCES], os.chmod, above, 0o777)
            refused([errno.EACCES], os.setxattr, above, "user.x", b"1")
        for hidden in (f"{m}/two", f"{m}/one/b", f"{m}/one/b/f", f"{m}/none", f"{a}/link"):
            refused([errno.ENOENT], os.stat, hidden)
            refused([errno.ENOENT], os.listdir, hidden)
        refused([errno.EXDEV, errno.EACCES], os.rename, f"{a}/f", f"{m}/one/f")
        refused([errno.EXDEV, errno.EACCES], os.link, f"{a}/f", f"{m}/one/f")
        refused([errno.EACCES], os.rename, a, f"{m}/one/c")
        refused([errno.EACCES], os.rmdir, a)
        true(os.statvfs(a).f_blocks > 0, "df below the path")
        equal(read(f"{c.mount}/one/b/f"), made("b", 3 * MIB), "a file beside the path")


@check("scope-moved", "a file that another client moves out of the path is out of reach, its bytes within 5 s", root=True, limit=300)
def what_moves_out_of_the_path_is_out_of_reach(work):
    with cell(work) as c:
        m = c.scoped("moved", "--path", "/one/a")
        a, admin = f"{m}/one/a", f"{c.mount}/one"
        os.mkdir(f"{a}/d")
        write(f"{a}/d/f", made("d", 3 * MIB))
        fd = os.open(f"{a}/d/f", os.O_RDONLY | os.O_DIRECT)
        os.rename(f"{admin}/a/d", f"{admin}/b/d")
        refused([errno.ENOENT], os.stat, f"{a}/d/f")
        # Targets keep the shard's answer for at most 5 s.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                os.pread(fd, 4096, MIB)
            except OSError:
                break
            time.sleep(0.2)
        else:
            true(False, "a file that moved out is read for 30 s")
        os.close(fd)
        equal(read(f"{admin}/b/d/f"), made("d", 3 * MIB), "what moved out")
        # Moved back, it is there again.
        os.rename(f"{admin}/b/d", f"{admin}/a/d")
        equal(read(f"{a}/d/f"), made("d", 3 * MIB), "what came back")


@check("scope-restart", "a client with a path goes on after its servers were killed", root=True, limit=300)
def servers_start_again_under_a_path(work):
    with cell(work) as c:
        m = c.scoped("again", "--path", "/one/a")
        a = f"{m}/one/a"
        fd = os.open(f"{a}/g", os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, made("1", 2 * MIB), 0)
        for node in ("meta1", "storage1-1", "manager"):
            with open(f"{c.folder}/{node}/pid", encoding="utf-8") as f:
                os.kill(int(f.read()), 9)
        c.zonal("up", "--dir", c.folder)
        os.pwrite(fd, made("2", 2 * MIB), 2 * MIB)
        os.fsync(fd)
        os.close(fd)
        equal(read(f"{c.mount}/one/a/g"), made("1", 2 * MIB) + made("2", 2 * MIB), "written over a restart")
        refused([errno.EACCES], os.listdir, f"{m}/one")


@check("scope-read-only", "a client that may only read gets EROFS for every change", root=True, limit=300)
def reader_changes_nothing(work):
    with cell(work) as c:
        m = c.scoped("reader", "--read-only")
        a = f"{m}/one/a"
        equal(read(f"{a}/f"), made("a", 3 * MIB), "a file")
        equal(read(f"{a}/small"), b"small a", "a small file")
        equal(sorted(os.listdir(m)), ["one", "two"], "the root")
        readonly = [errno.EROFS]
        refused(readonly, write, f"{a}/new", b"x")
        refused(readonly, os.open, f"{a}/f", os.O_WRONLY)
        refused(readonly, os.truncate, f"{a}/f", 1)
        refused(readonly, os.unlink, f"{a}/f")
        refused(readonly, os.mkdir, f"{a}/d")
        refused(readonly, os.rename, f"{a}/f", f"{a}/g")
        refused(readonly, os.link, f"{a}/f", f"{a}/g")
        refused(readonly, os.symlink, "x", f"{a}/s")
        refused(readonly, os.chmod, f"{a}/f", 0o600)
        refused(readonly, os.utime, f"{a}/f")
        refused(readonly, os.setxattr, f"{a}/f", "user.x", b"1")
        equal(read(f"{c.mount}/one/a/f"), made("a", 3 * MIB), "the file afterwards")
        equal(sorted(os.listdir(f"{c.mount}/one/a")), ["f", "link", "small"], "the directory afterwards")


@check("scope-uids", "a client speaks for the users of its range, and for nobody else", root=True, limit=300)
def users_of_a_range_and_nobody_else(work):
    with cell(work) as c:
        m = c.scoped("users", "--uid-range", "61000-61999")
        a = f"{m}/one/a"

        def works():
            write(f"{a}/own", made("own", 2 * MIB), mode=0o600)
            equal(read(f"{a}/own"), made("own", 2 * MIB), "the user's file")
            os.mkdir(f"{a}/private", 0o700)
            write(f"{a}/private/f", b"mine")
            equal(os.listdir(f"{a}/private"), ["f"], "the user's directory")
            true("own" in os.listdir(a), "a listing")

        def is_refused():
            refused([errno.EACCES], os.listdir, a)
            refused([errno.EACCES], read, f"{a}/small")
            refused([errno.EACCES], write, f"{a}/theirs", b"x")

        as_user(61000, 61000, [], works)
        as_user(60999, 60999, [], is_refused)
        is_refused()
        equal(os.stat(f"{c.mount}/one/a/own").st_uid, 61000, "its owner")
        true(not os.path.exists(f"{c.mount}/one/a/theirs"), "a file of another user was made")


@check("scope-squash-root", "a root that counts as nobody has no more rights than that", root=True, limit=300)
def root_is_nobody(work):
    with cell(work) as c:
        write(f"{c.mount}/one/a/root", b"root's", mode=0o600)
        os.mkdir(f"{c.mount}/one/a/closed", 0o700)
        m = c.scoped("squash", "--squash-root", "--path", "/one/a")
        a = f"{m}/one/a"
        refused([errno.EACCES], read, f"{a}/root")
        refused([errno.EACCES], os.listdir, f"{a}/closed")
        refused([errno.EPERM, errno.EACCES], os.chown, f"{a}/small", 1, 1)
        write(f"{a}/made", made("made", MIB), mode=0o644)
        equal((os.stat(f"{c.mount}/one/a/made").st_uid, os.stat(f"{c.mount}/one/a/made").st_gid), (65534, 65534), "its owner")
        equal(read(f"{a}/made"), made("made", MIB), "what was made")

        def works():
            write(f"{a}/user", b"of a user")
            equal(read(f"{a}/user"), b"of a user", "a user's file")

        as_user(61000, 61000, [], works)
        equal(os.stat(f"{c.mount}/one/a/user").st_uid, 61000, "a user's file has its owner")


if __name__ == "__main__":
    run("scopes", R, __doc__)
