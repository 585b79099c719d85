"""Directories: listing, cookies, large ones, concurrent change, link counts."""
import ctypes
import os
import stat

from checks import equal, fresh, true, write

from . import LIBC, check


class Dirent(ctypes.Structure):
    """struct dirent64 of glibc."""
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
                ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir.restype = ctypes.POINTER(Dirent)
LIBC.telldir.restype = ctypes.c_long
TYPES = {stat.S_IFREG: 8, stat.S_IFDIR: 4, stat.S_IFLNK: 10, stat.S_IFIFO: 1, stat.S_IFSOCK: 12,
         stat.S_IFCHR: 2, stat.S_IFBLK: 6}


class Listing:
    """opendir, readdir, telldir, seekdir, rewinddir."""

    def __init__(self, path):
        self.dir = ctypes.c_void_p(LIBC.opendir(os.fsencode(path)))
        true(self.dir.value, "opendir failed")

    def next(self):
        entry = LIBC.readdir(self.dir)
        return (entry.contents.name, entry.contents.ino, entry.contents.type) if entry else None

    def rest(self):
        out = []
        while (e := self.next()) is not None:
            out.append(e)
        return out

    def tell(self):
        return LIBC.telldir(self.dir)

    def seek(self, cookie):
        LIBC.seekdir(self.dir, ctypes.c_long(cookie))

    def rewind(self):
        LIBC.rewinddir(self.dir)

    def close(self):
        LIBC.closedir(self.dir)


def fill(d, n, prefix="e"):
    for i in range(n):
        os.close(os.open(f"{d}/{prefix}{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def plain(entries):
    """Names as text, without the dots."""
    return [os.fsdecode(e[0]) for e in entries if e[0] not in (b".", b"..")]


@check("readdir-entries", "a listing has '.', '..' and each name once, with the inode and the type that stat gives")
def _(d):
    write(f"{d}/file", b"")
    os.mkdir(f"{d}/dir")
    os.symlink("x", f"{d}/link")
    os.mkfifo(f"{d}/fifo")
    at = Listing(d)
    entries = at.rest()
    at.close()
    equal(sorted(e[0] for e in entries), [b".", b"..", b"dir", b"fifo", b"file", b"link"])
    for name, ino, kind in entries:
        got = os.lstat(os.path.join(os.fsencode(d), name))
        equal(ino, got.st_ino, f"inode of {name}")
        true(kind in (0, TYPES[stat.S_IFMT(got.st_mode)]), f"type {kind} of {name}")


@check("readdir-large", "a directory of 20,000 entries lists each exactly once; its size in names is exact", limit=180)
def _(d):
    fill(d, 20_000)
    for _ in range(2):
        names = os.listdir(d)
        equal(len(names), 20_000, "entries")
        equal(set(names), {f"e{i}" for i in range(20_000)}, "names")


@check("readdir-while-deleting", "a listing during which others are deleted and made shows every entry that stays exactly once", limit=180)
def _(d):
    n = 20_000
    fill(d, n)
    at = Listing(d)
    seen, deleted, step = [], set(), 0
    while (e := at.next()) is not None:
        seen.append(os.fsdecode(e[0]))
        step += 1
        if step % 4 == 0:
            # A name before or after the cursor, never a multiple of 5, since those stay.
            victim = (step * 7919) % n
            if victim % 5 and victim not in deleted:
                os.unlink(f"{d}/e{victim}")
                deleted.add(victim)
        if step % 50 == 0:
            write(f"{d}/new{step}", b"")
    at.close()
    true(len(deleted) > 1000, f"only {len(deleted)} deleted")
    equal(len(seen), len(set(seen)), "names, each once")
    missing = {f"e{i}" for i in range(n) if i not in deleted} - set(seen)
    equal(len(missing), 0, "entries that stayed but were not listed")


@check("readdir-remove-all", "a loop that lists and deletes what it finds empties a directory of 5,000", limit=120)
def _(d):
    fill(d, 5_000)
    at = Listing(d)
    while (e := at.next()) is not None:
        if e[0] not in (b".", b".."):
            os.unlink(os.path.join(os.fsencode(d), e[0]))
    at.close()
    equal(os.listdir(d), [])
    os.rmdir(fresh(d, "x"))


@check("telldir-seekdir", "a cookie from telldir leads back to the same place, also after other entries were deleted and in another listing of the directory", limit=120)
def _(d):
    fill(d, 3_000)
    at = Listing(d)
    marks, names = [], []
    while True:
        cookie = at.tell()
        e = at.next()
        if e is None:
            break
        marks.append(cookie)
        names.append(e[0])
    for i in range(0, len(marks), 97):
        at.seek(marks[i])
        equal(at.next()[0], names[i], f"entry at cookie {i}")
    at.seek(marks[1500])
    equal([e[0] for e in at.rest()], names[1500:], "the rest from a cookie")
    for i in range(0, 1400, 2):
        if names[i] not in (b".", b".."):
            os.unlink(os.path.join(os.fsencode(d), names[i]))
    at.seek(marks[1500])
    equal([e[0] for e in at.rest()], names[1500:], "the rest after deletions before the cookie")
    at.close()
    other = Listing(d)
    other.seek(marks[1500])
    equal([e[0] for e in other.rest()], names[1500:], "the rest in another listing")
    other.seek(marks[2000])
    equal(other.next()[0], names[2000], "entry at a cookie in another listing")
    other.close()


@check("rewinddir", "after rewinddir a listing shows what was made and removed meanwhile")
def _(d):
    fill(d, 10)
    at = Listing(d)
    equal(len(plain(at.rest())), 10)
    write(f"{d}/new", b"")
    os.unlink(f"{d}/e0")
    at.rewind()
    equal(set(plain(at.rest())), {f"e{i}" for i in range(1, 10)} | {"new"})
    at.close()


@check("listing-own-changes", "a name made or removed by this process is in, or out of, the next listing")
def _(d):
    names = set()
    for i in range(300):
        write(f"{d}/n{i}", b"")
        names.add(f"n{i}")
        if i % 3 == 0 and f"n{i // 2}" in names:
            os.unlink(f"{d}/n{i // 2}")
            names.remove(f"n{i // 2}")
        equal(set(os.listdir(d)), names, "names")


@check("directory-links", "a directory's link count is 2 and one for each subdirectory")
def _(d):
    base = os.stat(d).st_nlink
    true(base in (1, 2), f"link count {base} of an empty directory")
    for i in range(20):
        os.mkdir(f"{d}/d{i}")
        write(f"{d}/f{i}", b"")
    equal(os.stat(d).st_nlink, 22 if base == 2 else 1, "link count")
    os.rmdir(f"{d}/d0")
    equal(os.stat(d).st_nlink, 21 if base == 2 else 1, "link count")


@check("inode-numbers", "inode numbers of 2,000 live files are unique, stable, and the same by stat, fstat and listing")
def _(d):
    fill(d, 2_000)
    listed = {e.name: e.inode() for e in os.scandir(d)}
    equal(len(set(listed.values())), 2_000, "different inode numbers")
    for i in range(0, 2_000, 50):
        fd = os.open(f"{d}/e{i}", os.O_RDONLY)
        equal((os.fstat(fd).st_ino, os.stat(f"{d}/e{i}").st_ino), (listed[f"e{i}"],) * 2)
        os.close(fd)


@check("walk", "a tree of 1,000 directories is walked, counted and removed")
def _(d):
    for i in range(10):
        for j in range(100):
            os.makedirs(f"{d}/t/{i}/{j}")
            write(f"{d}/t/{i}/{j}/f", b"1")
    dirs = files = 0
    for _, ds, fs in os.walk(f"{d}/t"):
        dirs, files = dirs + len(ds), files + len(fs)
    equal((dirs, files), (1010, 1000))


@check("readdir-million", "a directory of a million entries lists each exactly once", long=True, limit=3000)
def _(d):
    n = 1_000_000
    fill(d, n)
    count, seen = 0, set()
    for e in os.scandir(d):
        count += 1
        seen.add(int(e.name[1:]))
    equal((count, len(seen)), (n, n), "entries and different ones")
