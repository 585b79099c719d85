"""Names and attributes."""
import contextlib
import errno
import json
import os
import stat
import struct
import subprocess
import time

from areas.directories import Listing, plain
from between import agents, check, close_all, rounds
from checks import as_user, equal, fails, read, true, write


def a_rename_race(_state, folder, count, tag):
    mine = []
    for i in range(count):
        try:
            os.rename(f"{folder}/s{i}", f"{folder}/{tag}{i}")
            mine.append(i)
        except FileNotFoundError:
            pass
    return mine


def a_create_excl(_state, folder, count):
    """Tries to create the same names as the other side; returns those it created."""
    mine = []
    for i in range(count):
        try:
            os.close(os.open(f"{folder}/n{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            mine.append(i)
        except FileExistsError:
            pass
    return mine


@check("create-seen", "a name looked up in vain through one mount is there as soon as the other made it", limit=120)
def _(a, b):
    for i in range(rounds(200)):
        there, here = ((a, b), (b, a))[i % 2]
        true(not os.path.exists(f"{here}/n{i}"), "there before it was made")
        fails(errno.ENOENT, os.open, f"{here}/n{i}", os.O_RDONLY)
        write(f"{there}/n{i}", b"1")
        equal(os.stat(f"{here}/n{i}").st_size, 1, "size of the new file")


@check("unlink-seen", "a name removed through one mount is gone for the other at once", limit=120)
def _(a, b):
    for i in range(rounds(200)):
        there, here = ((a, b), (b, a))[i % 2]
        write(f"{there}/f", b"1")
        os.stat(f"{here}/f")
        os.unlink(f"{there}/f")
        fails(errno.ENOENT, os.stat, f"{here}/f")
        fails(errno.ENOENT, os.unlink, f"{here}/f")


@check("rename-seen", "after a rename through one mount the other has the new name and not the old", limit=120)
def _(a, b):
    write(f"{a}/f0", b"content")
    ino = os.stat(f"{a}/f0").st_ino
    for i in range(rounds(200)):
        there, here = ((a, b), (b, a))[i % 2]
        os.stat(f"{here}/f{i}")
        os.rename(f"{there}/f{i}", f"{there}/f{i + 1}")
        fails(errno.ENOENT, os.stat, f"{here}/f{i}")
        equal(os.stat(f"{here}/f{i + 1}").st_ino, ino, "inode")


@check("rename-directory-seen", "paths below a directory renamed through one mount follow for the other")
def _(a, b):
    os.makedirs(f"{a}/d0/x/y")
    write(f"{a}/d0/x/y/f", b"1")
    for i in range(rounds(60)):
        there, here = ((a, b), (b, a))[i % 2]
        equal(read(f"{here}/d{i}/x/y/f"), b"1")
        os.rename(f"{there}/d{i}", f"{there}/d{i + 1}")
        fails(errno.ENOENT, os.stat, f"{here}/d{i}/x/y/f")
        equal(read(f"{here}/d{i + 1}/x/y/f"), b"1")


@check("chmod-seen", "mode, owner, times and link count changed through one mount are seen by the other at once", limit=120)
def _(a, b):
    write(f"{a}/f", b"1")
    for i in range(rounds(100)):
        there, here = ((a, b), (b, a))[i % 2]
        mode = 0o600 + i % 64
        os.chmod(f"{there}/f", mode)
        equal(stat.S_IMODE(os.stat(f"{here}/f").st_mode), mode, "mode")
        os.utime(f"{there}/f", ns=(i * 10**9 + 7, i * 10**9 + 11))
        got = os.stat(f"{here}/f")
        equal((got.st_atime_ns, got.st_mtime_ns), (i * 10**9 + 7, i * 10**9 + 11), "times")
        os.link(f"{there}/f", f"{there}/l{i}")
        equal(os.stat(f"{here}/f").st_nlink, i + 2, "link count")


@check("read-seen", "the access time of a read is seen by the reader at once, by the other mount soon, also where the file stays open; a time that is set after it stays")
def _(a, b):
    for there, here in ((a, b),):
        path = f"{there}/f"
        write(path, b"1" * 100)
        made = os.stat(path).st_atime_ns
        fd = os.open(path, os.O_RDONLY)
        equal(os.read(fd, 10), b"1" * 10)
        true(os.stat(path).st_atime_ns > made, "the reader's mount has the old access time")
        end = time.monotonic() + 10
        while os.stat(f"{here}/f").st_atime_ns <= made:
            true(time.monotonic() < end, "10 s after the read the other mount has the old access time")
            time.sleep(0.05)
        os.close(fd)
        write(path, b"2" * 100)
        equal(read(path), b"2" * 100)
        os.utime(path, ns=(7, 11))
        time.sleep(0.5)
        for mount in (there, here):
            equal(os.stat(f"{mount}/f").st_atime_ns, 7, "an access time that was set after a read")
        os.unlink(path)


@check("permission-seen", "a permission taken away through one mount is refused by the other at once", root=True)
def _(a, b):
    write(f"{a}/f", b"secret")
    os.chmod(f"{a}/f", 0o644)
    os.chmod(a, 0o755)
    equal(as_user(12345, 12345, [], read, f"{b}/f"), b"secret")
    os.chmod(f"{a}/f", 0o600)
    fails(errno.EACCES, as_user, 12345, 12345, [], read, f"{b}/f")
    os.chmod(f"{a}/f", 0o644)
    os.mkdir(f"{a}/d")
    write(f"{a}/d/g", b"1")
    equal(as_user(12345, 12345, [], read, f"{b}/d/g"), b"1")
    os.chmod(f"{a}/d", 0o700)
    fails(errno.EACCES, as_user, 12345, 12345, [], read, f"{b}/d/g")


@check("mkdir-rmdir-seen", "directories made and removed through one mount are so for the other", limit=120)
def _(a, b):
    for i in range(rounds(100)):
        there, here = ((a, b), (b, a))[i % 2]
        fails(errno.ENOENT, os.listdir, f"{here}/d")
        os.mkdir(f"{there}/d")
        equal(os.listdir(f"{here}/d"), [], "new directory")
        fails(errno.EEXIST, os.mkdir, f"{here}/d")
        write(f"{here}/d/f", b"")
        fails(errno.ENOTEMPTY, os.rmdir, f"{there}/d")
        os.unlink(f"{there}/d/f")
        os.rmdir(f"{there}/d")


def replace(path):
    os.mkdir(f"{path}-new")
    os.rename(f"{path}-new", path)


@check("removed-directory-elsewhere", "a directory that the other mount removed or replaced is for descriptors and working directories here as one that was removed here: ENOENT for names, an empty listing, attributes with no links", root=True, limit=120)
def _(a, b):
    os.chmod(a, 0o777)
    for end in (os.rmdir, replace):
        for user in (0, 12345):
            for there, here in ((a, b), (b, a)):
                os.makedirs(f"{there}/t/d")
                os.chmod(f"{there}/t", 0o777)
                os.chmod(f"{there}/t/d", 0o777)
                write(f"{there}/t/f", b"")
                os.chmod(f"{there}/t/f", 0o666)
                as_user(user, user, [], a_removed_directory, f"{there}/t", f"{here}/t", end)
                subprocess.run(["rm", "-r", f"{there}/t"], check=True)


def a_removed_directory(there, here, end):
    top, fd = os.open(here, os.O_RDONLY), os.open(f"{here}/d", os.O_RDONLY)
    os.chdir(fd)
    before = os.fstat(fd)
    end(f"{there}/d")
    for pause in (0, 1.2):
        time.sleep(pause)
        now = os.fstat(fd)
        equal((now.st_ino, now.st_mode, now.st_nlink), (before.st_ino, before.st_mode, 0), "attributes")
        for call in (os.unlink, os.rmdir, os.mkdir, os.stat, os.readlink):
            fails(errno.ENOENT, call, "x", dir_fd=fd)
            fails(errno.ENOENT, call, "x")
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
            fails(errno.ENOENT, os.open, "x", flags, dir_fd=fd)
        fails(errno.ENOENT, os.symlink, "to", "x", dir_fd=fd)
        fails(errno.ENOENT, os.rename, "x", "y", src_dir_fd=fd, dst_dir_fd=top)
        fails(errno.ENOENT, os.rename, "f", "x", src_dir_fd=top, dst_dir_fd=fd)
        fails(errno.ENOENT, os.link, "f", "x", src_dir_fd=top, dst_dir_fd=fd)
        os.fchdir(fd)
        equal((os.listdir(fd), os.listdir("."), os.stat(".").st_nlink, os.listxattr(fd)), ([], [], 0, []), "what is left")
        equal(os.stat("..").st_ino, os.fstat(top).st_ino, "the directory above")
        again = os.open(".", os.O_RDONLY)
        os.fsync(again)
        os.close(again)
        if os.geteuid() == before.st_uid:
            os.fchmod(fd, 0o711)
            os.utime(fd, (5, 6))
            now = os.fstat(fd)
            equal((now.st_mode & 0o777, now.st_atime, now.st_mtime), (0o711, 5, 6), "attributes that were set")
            before = now
    os.chdir("/")
    os.close(fd)
    os.close(top)


@check("rm-both-mounts", "rm -rf of one tree through both mounts at once removes it, and neither complains", limit=120)
def _(a, b):
    for number in range(rounds(8)):
        for i in range(4):
            for k in range(4):
                os.makedirs(f"{a}/t{number}/d{i}/e{k}/empty")
                for n in range(4):
                    write(f"{a}/t{number}/d{i}/e{k}/f{n}", b"")
        them = [subprocess.Popen(["rm", "-rf", f"{side}/t{number}"], stderr=subprocess.PIPE, text=True) for side in (a, b)]
        told = [one.communicate()[1] for one in them]
        equal((told, [one.returncode for one in them]), (["", ""], [0, 0]), "what rm says, and its exit codes")
        equal((os.listdir(a), os.listdir(b)), ([], []), "names left")


@check("listing-seen", "a listing through one mount has exactly the names that the other left", limit=120)
def _(a, b):
    names = set()
    for i in range(rounds(150)):
        there, here = ((a, b), (b, a))[i % 2]
        write(f"{there}/e{i}", b"")
        names.add(f"e{i}")
        if i % 3 == 2:
            os.unlink(f"{there}/e{i - 1}")
            names.remove(f"e{i - 1}")
        equal(set(os.listdir(here)), names, f"names in round {i}")


@check("listing-kept", "a listing that the kernel keeps is dropped with a change elsewhere, also where the directory's times were set back", limit=60)
def _(a, b):
    os.utime(a, (1_000_000_000, 1_000_000_000))
    names = set()
    held = os.open(b, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for i in range(rounds(60)):
            equal(set(os.listdir(b)), names, f"names before round {i}")
            equal(set(os.listdir(b)), names, f"names again in round {i}")
            if i in (3, 4):
                time.sleep(5.2)  # The lease on it expires: no call-back for the next change.
            there = (a, b)[i % 3 == 2]
            write(f"{there}/e{i}", b"")
            names.add(f"e{i}")
            if i % 5 == 4:
                os.rename(f"{there}/e{i}", f"{there}/r{i}")
                names ^= {f"e{i}", f"r{i}"}
            os.utime(there, (1_000_000_000, 1_000_000_000))
            if i not in (3, 4):
                equal(set(os.listdir(held)), names, f"names by the held handle in round {i}")
    finally:
        os.close(held)


@check("listing-cookies", "a cookie of telldir leads to the same place in a listing through the other mount, also where names were made and removed meanwhile", limit=120)
def _(a, b):
    for i in range(2_000):
        write(f"{a}/e{i}", b"")
    here = Listing(a)
    marks = []
    while True:
        cookie = here.tell()
        if (entry := here.next()) is None:
            break
        marks.append((cookie, entry[0]))
    here.close()
    there = Listing(b)
    for at in (1700, 3, 1001, 0):
        there.seek(marks[at][0])
        equal([e[0] for e in there.rest()], [name for _, name in marks[at:]], f"the rest from cookie {at}, in the other mount")
    gone = {name for _, name in marks[2:1500:3]}
    for name in gone:
        os.unlink(os.path.join(os.fsencode(a), name))
    for i in range(100):
        write(f"{a}/new{i}", b"")
    there.close()
    # New listings: an open one may show the state at its opening. The listing on the mount that
    # made the changes starts at the beginning, the only place where the kernel checks whether its
    # cached listing is old.
    for side in (b, a):
        listing = Listing(side)
        if side == a:
            listing.next()
        for at in (1001, 1700):
            listing.seek(marks[at][0])
            found = [e[0] for e in listing.rest() if not e[0].startswith(b"new")]
            equal(found, [name for _, name in marks[at:] if name not in gone], f"the rest from cookie {at} after changes")
        listing.close()


@check("listing-rewound", "an open directory, rewound, shows what the other mount made and removed: at once, and long after the lease expired", limit=60)
def _(a, b):
    names = {"f0", "f1"}
    for name in names:
        write(f"{a}/{name}", b"")
    at = Listing(b)
    try:
        for i, pause in enumerate((6, 0.2, 0, 0.01, 0)):
            for _ in range(3):
                equal(set(plain(at.rest())), names, f"names before round {i}")
                at.rewind()
            time.sleep(pause)
            write(f"{a}/e{i}", b"")
            names.add(f"e{i}")
            if i == 4:
                os.unlink(f"{a}/f0")
                names.remove("f0")
            at.rewind()
            equal(set(plain(at.rest())), names, f"names, rewound, in round {i}")
            at.rewind()
    finally:
        at.close()


@check("walk-seen", "a walk through a tree finds what either mount changed behind the first of its directories", limit=120)
def _(a, b):
    def modes(path):
        with os.scandir(path) as entries:
            return {e.name: stat.S_IMODE(e.stat(follow_symlinks=False).st_mode) for e in entries}

    ahead = kept = 0
    for i in range(rounds(4)):
        dirs = [f"t{i}/d{n}" for n in range(8)]
        for path in dirs:
            os.makedirs(f"{b}/{path}")
            write(f"{b}/{path}/f", b"1")
            os.chmod(f"{b}/{path}/f", 0o644)
        # After its own change, a mount does not prefetch listings for a moment.
        time.sleep(0.6)
        equal(len(modes(f"{a}/t{i}")), 8, "directories")
        equal(modes(f"{a}/{dirs[0]}"), {"f": 0o644}, "the first")
        with contextlib.suppress(OSError):
            gauges = json.loads(os.getxattr(a, "zonal.gauges"))
            ahead, kept = ahead + gauges["listed_ahead"], kept + gauges["kept_listings"]
        write(f"{b}/{dirs[1]}/new", b"1")
        os.unlink(f"{b}/{dirs[2]}/f")
        os.chmod(f"{b}/{dirs[3]}/f", 0o600)
        os.rename(f"{a}/{dirs[4]}/f", f"{a}/{dirs[5]}/g")
        os.chmod(f"{a}/{dirs[6]}/f", 0o604)
        found = [set(modes(f"{a}/{path}").items()) for path in dirs[2:]]
        equal(set(modes(f"{a}/{dirs[1]}")), {"f", "new"}, "made by the other")
        equal(found, [set(), {("f", 0o600)}, set(), {("f", 0o644), ("g", 0o644)}, {("f", 0o604)}, {("f", 0o644)}], "the others")
    true(ahead or not kept, "nothing was listed ahead")


@check("symlink-and-type-seen", "a name that changes its type through one mount has the new type for the other")
def _(a, b):
    for i in range(rounds(60)):
        there, here = ((a, b), (b, a))[i % 2]
        os.symlink(f"target{i}", f"{there}/x")
        equal(os.readlink(f"{here}/x"), f"target{i}")
        os.unlink(f"{there}/x")
        os.mkdir(f"{there}/x")
        true(stat.S_ISDIR(os.lstat(f"{here}/x").st_mode), "not a directory")
        os.rmdir(f"{there}/x")
        write(f"{there}/x", b"")
        true(stat.S_ISREG(os.lstat(f"{here}/x").st_mode), "not a file")
        os.unlink(f"{there}/x")


@check("xattr-seen", "extended attributes set and removed through one mount are so for the other")
def _(a, b):
    write(f"{a}/f", b"")
    for i in range(rounds(60)):
        there, here = ((a, b), (b, a))[i % 2]
        os.setxattr(f"{there}/f", "user.k", b"%d" % i)
        equal(os.getxattr(f"{here}/f", "user.k"), b"%d" % i)
        os.removexattr(f"{there}/f", "user.k")
        fails(errno.ENODATA, os.getxattr, f"{here}/f", "user.k")
        equal([n for n in os.listxattr(f"{here}/f") if n == "user.k"], [], "list")


@check("xattr-of-linked", "attributes and ACLs that one mount sets on a file are seen by the mount that has just given it a second name", root=True)
def _(a, b):
    entry = lambda tag, bits, who: struct.pack("<HHI", tag, bits, who & 0xFFFFFFFF)
    # The owner, user 1000, the group, the mask and others.
    entries = ((1, 6, -1), (2, 4, 1000), (4, 0, -1), (16, 7, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(entry(*one) for one in entries)
    for i in range(rounds(20)):
        there, here = ((a, b), (b, a))[i % 2]
        write(f"{(there, here)[i // 2 % 2]}/f", b"x")
        os.chmod(f"{there}/f", 0o640)
        fails(errno.ENODATA, os.getxattr, f"{here}/f", "user.k")
        os.link(f"{here}/f", f"{here}/g")
        os.setxattr(f"{there}/f", "user.k", b"1")
        os.setxattr(f"{there}/f", "system.posix_acl_access", acl)
        equal(os.getxattr(f"{here}/f", "user.k"), b"1")
        equal(os.getxattr(f"{here}/f", "system.posix_acl_access"), acl)
        equal(as_user(1000, 1000, [], read, f"{here}/f"), b"x", "as the user that the ACL lets in")
        os.unlink(f"{there}/g")
        os.unlink(f"{there}/f")


@check("create-race", "of two processes that create the same names with O_EXCL exactly one succeeds for each", limit=120)
def _(a, b):
    one, two = agents(2)
    n = rounds(200)
    one.start(a_create_excl, a, n)
    two.start(a_create_excl, b, n)
    first, second = one.finish(100), two.finish(100)
    equal(sorted(first + second), list(range(n)), "winners")
    close_all(one, two)


@check("rename-race", "of two processes that rename the same files exactly one succeeds for each", limit=120)
def _(a, b):
    n = rounds(150)
    for i in range(n):
        write(f"{a}/s{i}", b"")
    one, two = agents(2)
    one.start(a_rename_race, a, n, "one")
    two.start(a_rename_race, b, n, "two")
    first, second = one.finish(100), two.finish(100)
    equal(sorted(first + second), list(range(n)), "winners")
    equal(sorted(os.listdir(b)), sorted([f"one{i}" for i in first] + [f"two{i}" for i in second]))
    close_all(one, two)
