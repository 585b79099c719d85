"""Names: lookup, create, link, symlink, rename, unlink, their errors and limits."""
import errno
import os
import stat

from checks import as_user, equal, fails, read, true, write

from . import LIBC, check, checked, renameat2

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4


@check("name-length", "names of 255 bytes work everywhere, of 256 are ENAMETOOLONG")
def _(d):
    long, longer = "n" * 255, "n" * 256
    write(f"{d}/{long}", b"1")
    equal(os.listdir(d), [long])
    os.rename(f"{d}/{long}", f"{d}/{'m' * 255}")
    os.unlink(f"{d}/{'m' * 255}")
    write(f"{d}/f", b"")
    for fn, args in ((os.open, (f"{d}/{longer}", os.O_CREAT | os.O_WRONLY)), (os.stat, (f"{d}/{longer}",)),
                     (os.mkdir, (f"{d}/{longer}",)), (os.symlink, ("x", f"{d}/{longer}")),
                     (os.link, (f"{d}/f", f"{d}/{longer}")), (os.rename, (f"{d}/f", f"{d}/{longer}")),
                     (os.unlink, (f"{d}/{longer}",)), (os.rmdir, (f"{d}/{longer}",)), (os.mkfifo, (f"{d}/{longer}",))):
        fails(errno.ENAMETOOLONG, fn, *args)


@check("path-length", "a path of 4096 bytes and more is ENAMETOOLONG; deeper trees are reached step by step")
def _(d):
    fails(errno.ENAMETOOLONG, os.stat, d + "/" + "x/" * 2100)
    fd = os.open(d, os.O_RDONLY)
    for i in range(40):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    equal(os.listdir(fd), ["leaf"])
    for _ in range(40):
        up = os.open("..", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = up
    true(os.path.samestat(os.fstat(fd), os.stat(d)), "'..' forty times does not lead back")


@check("name-bytes", "a name is any bytes but / and NUL, kept exactly")
def _(d):
    top = os.fsencode(d)
    names = {bytes([c]) for c in range(1, 256) if c not in (0x2F, 0x2E)}
    names |= {b"...", b" ", b"a b\nc", b"\xff\xfe", "žluťoučký 山".encode(), b"..x", b"-rf"}
    for n in names:
        fd = os.open(top + b"/" + n, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.close(fd)
    equal(set(os.listdir(top)), names, "names")
    for n in names:
        os.unlink(top + b"/" + n)


@check("names-case", "names that differ in case or in Unicode form are different names")
def _(d):
    for n in ("a", "A", "\u00e9", "e\u0301"):
        write(f"{d}/{n}", n.encode())
    equal([read(f"{d}/{n}").decode() for n in ("a", "A", "\u00e9", "e\u0301")], ["a", "A", "\u00e9", "e\u0301"])


@check("create-exclusive", "O_EXCL fails with EEXIST on anything, a dangling symlink too")
def _(d):
    write(f"{d}/f", b"")
    os.mkdir(f"{d}/d")
    os.symlink("nowhere", f"{d}/l")
    for n in "fdl":
        fails(errno.EEXIST, os.open, f"{d}/{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.close(os.open(f"{d}/l", os.O_CREAT | os.O_WRONLY, 0o644))
    equal(sorted(os.listdir(d)), ["d", "f", "l", "nowhere"])


@check("open-errors", "ENOENT, ENOTDIR, EISDIR, ELOOP, ENXIO where Linux gives them at open")
def _(d):
    write(f"{d}/f", b"")
    os.symlink("l", f"{d}/l")
    os.symlink("f", f"{d}/s")
    os.mkfifo(f"{d}/p")
    fails(errno.ENOENT, os.open, f"{d}/none", os.O_RDONLY)
    fails(errno.ENOENT, os.open, f"{d}/none/x", os.O_CREAT | os.O_WRONLY)
    fails(errno.ENOTDIR, os.open, f"{d}/f/x", os.O_RDONLY)
    fails(errno.ENOTDIR, os.open, f"{d}/f", os.O_RDONLY | os.O_DIRECTORY)
    fails(errno.ENOTDIR, os.stat, f"{d}/f/")
    fails(errno.EISDIR, os.open, d, os.O_WRONLY)
    fails(errno.EISDIR, os.open, f"{d}/new/", os.O_CREAT | os.O_WRONLY)
    fails(errno.ELOOP, os.open, f"{d}/l", os.O_RDONLY)
    fails(errno.ELOOP, os.open, f"{d}/s", os.O_RDONLY | os.O_NOFOLLOW)
    fails(errno.ENXIO, os.open, f"{d}/p", os.O_WRONLY | os.O_NONBLOCK)
    fd = os.open(f"{d}/s", os.O_PATH | os.O_NOFOLLOW)
    true(stat.S_ISLNK(os.fstat(fd).st_mode), "O_PATH|O_NOFOLLOW does not give the symlink")


@check("tmpfile", "O_TMPFILE makes a file without a name; linkat gives it one; O_EXCL forbids that")
def _(d):
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"nameless")
    equal((os.listdir(d), os.fstat(fd).st_nlink), ([], 0))
    link_fd(fd, f"{d}/named")
    equal((read(f"{d}/named"), os.fstat(fd).st_nlink), (b"nameless", 1))
    equal(stat.S_IMODE(os.stat(f"{d}/named").st_mode), 0o640, "mode")
    os.write(fd, b", still open")
    equal(read(f"{d}/named"), b"nameless, still open")
    fails(errno.EEXIST, link_fd, os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600), f"{d}/named")
    fails(errno.ENOENT, link_fd, os.open(d, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600), f"{d}/other")
    equal(os.listdir(d), ["named"])


def link_fd(fd, path):
    """linkat of /proc/self/fd/N, which gives a nameless file a name."""
    checked(LIBC.linkat(-100, b"/proc/self/fd/%d" % fd, -100, os.fsencode(path), 0x400))


@check("hard-link", "links share one inode and its content; the count follows; the file goes with the last")
def _(d):
    write(f"{d}/a", b"one")
    os.mkdir(f"{d}/sub")
    os.link(f"{d}/a", f"{d}/sub/b")
    true(os.path.samefile(f"{d}/a", f"{d}/sub/b"), "inodes differ")
    write(f"{d}/sub/b", b"two")
    equal((read(f"{d}/a"), os.stat(f"{d}/a").st_nlink), (b"two", 2))
    os.unlink(f"{d}/a")
    equal((read(f"{d}/sub/b"), os.stat(f"{d}/sub/b").st_nlink), (b"two", 1))


@check("hard-link-errors", "a link over a name is EEXIST, to nothing ENOENT, of a directory EPERM; of a symlink it links the symlink")
def _(d):
    write(f"{d}/f", b"")
    write(f"{d}/g", b"")
    os.symlink("f", f"{d}/s")
    fails(errno.EEXIST, os.link, f"{d}/f", f"{d}/g")
    fails(errno.ENOENT, os.link, f"{d}/none", f"{d}/x")
    os.mkdir(f"{d}/d")
    fails(errno.EPERM, os.link, f"{d}/d", f"{d}/x")
    os.link(f"{d}/s", f"{d}/t", follow_symlinks=False)
    equal((os.readlink(f"{d}/t"), os.lstat(f"{d}/s").st_nlink), ("f", 2))


@check("hard-link-many", "a thousand links to one file are counted exactly")
def _(d):
    write(f"{d}/f", b"")
    for i in range(1000):
        os.link(f"{d}/f", f"{d}/l{i}")
    equal(os.stat(f"{d}/f").st_nlink, 1001, "link count")
    for i in range(0, 1000, 2):
        os.unlink(f"{d}/l{i}")
    equal(os.stat(f"{d}/f").st_nlink, 501, "link count")


@check("hard-link-limit", "70,000 links are counted, or refused with EMLINK and the count stays", long=True, limit=600)
def _(d):
    write(f"{d}/f", b"")
    made = 0
    try:
        for i in range(70_000):
            os.link(f"{d}/f", f"{d}/l{i}")
            made += 1
    except OSError as e:
        equal(e.errno, errno.EMLINK, "errno")
    equal(os.stat(f"{d}/f").st_nlink, made + 1, "link count")


@check("symlink", "a symlink keeps its target of 1 to 4095 bytes; its size is that length; longer is ENAMETOOLONG, empty ENOENT")
def _(d):
    for n in (1, 59, 60, 255, 1023, 4095):
        target = ("t" * 200 + "/") * 21
        target = (target * 2)[:n - 1] + "x"
        os.symlink(target, f"{d}/l{n}")
        equal(os.readlink(f"{d}/l{n}"), target)
        equal(os.lstat(f"{d}/l{n}").st_size, n, "size")
    fails(errno.ENAMETOOLONG, os.symlink, "x" * 4096, f"{d}/long")
    fails(errno.ENOENT, os.symlink, "", f"{d}/empty")
    fails(errno.EINVAL, os.readlink, d)
    fails(errno.EEXIST, os.symlink, "x", f"{d}/l1")


@check("symlink-follow", "symlinks are followed through directories, relative to where they are; 40 in a row, not 41")
def _(d):
    os.makedirs(f"{d}/a/b")
    write(f"{d}/a/f", b"found")
    os.symlink("../f", f"{d}/a/b/up")
    os.symlink("a/b", f"{d}/down")
    equal(read(f"{d}/down/up"), b"found")
    os.symlink("a/f", f"{d}/c0")
    for i in range(1, 45):
        os.symlink(f"c{i - 1}", f"{d}/c{i}")
    equal(read(f"{d}/c39"), b"found")
    fails(errno.ELOOP, os.stat, f"{d}/c44")


@check("rename-file", "rename moves and replaces, keeps the inode, and of two links of one file leaves both")
def _(d):
    write(f"{d}/a", b"a")
    write(f"{d}/b", b"b")
    ino = os.stat(f"{d}/a").st_ino
    os.rename(f"{d}/a", f"{d}/b")
    equal((os.listdir(d), os.stat(f"{d}/b").st_ino, read(f"{d}/b")), (["b"], ino, b"a"))
    os.link(f"{d}/b", f"{d}/c")
    os.rename(f"{d}/b", f"{d}/c")
    equal(sorted(os.listdir(d)), ["b", "c"])
    os.rename(f"{d}/b", f"{d}/b")
    equal(os.stat(f"{d}/b").st_nlink, 2, "link count")


@check("rename-directory", "a directory moves with what is in it; '..' and link counts follow")
def _(d):
    os.makedirs(f"{d}/one/x/y")
    os.mkdir(f"{d}/two")
    write(f"{d}/one/x/y/f", b"1")
    before = [os.stat(f"{d}/{n}").st_nlink for n in ("one", "two")]
    os.rename(f"{d}/one/x", f"{d}/two/z")
    equal(read(f"{d}/two/z/y/f"), b"1")
    true(os.path.samefile(f"{d}/two/z/..", f"{d}/two"), "'..' of the moved directory")
    if before[0] > 1:
        equal([os.stat(f"{d}/{n}").st_nlink for n in ("one", "two")], [before[0] - 1, before[1] + 1], "link counts")
    os.mkdir(f"{d}/empty")
    os.rename(f"{d}/two/z", f"{d}/empty")
    equal(read(f"{d}/empty/y/f"), b"1")


@check("rename-errors", "ENOTEMPTY, EISDIR, ENOTDIR, EINVAL into itself, ENOENT, EBUSY or EINVAL for dots")
def _(d):
    os.makedirs(f"{d}/d/sub")
    os.makedirs(f"{d}/full/x")
    write(f"{d}/f", b"")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, f"{d}/d", f"{d}/full")
    fails(errno.EISDIR, os.rename, f"{d}/f", f"{d}/d")
    fails(errno.ENOTDIR, os.rename, f"{d}/d", f"{d}/f")
    fails(errno.EINVAL, os.rename, f"{d}/d", f"{d}/d/sub/x")
    fails(errno.EINVAL, os.rename, f"{d}/d", f"{d}/d/new")
    fails(errno.ENOENT, os.rename, f"{d}/none", f"{d}/x")
    fails(errno.ENOENT, os.rename, f"{d}/f", f"{d}/none/x")
    fails((errno.EBUSY, errno.EINVAL), os.rename, f"{d}/d/.", f"{d}/x")
    fails((errno.ENOTEMPTY, errno.EEXIST, errno.EINVAL), os.rename, f"{d}/d/sub", f"{d}/d")


@check("rename-noreplace", "RENAME_NOREPLACE moves to a free name and is EEXIST on a taken one")
def _(d):
    write(f"{d}/a", b"a")
    write(f"{d}/b", b"b")
    fails(errno.EEXIST, renameat2, f"{d}/a", f"{d}/b", NOREPLACE)
    equal((read(f"{d}/a"), read(f"{d}/b")), (b"a", b"b"))
    renameat2(f"{d}/a", f"{d}/c", NOREPLACE)
    equal(sorted(os.listdir(d)), ["b", "c"])


@check("rename-exchange", "RENAME_EXCHANGE swaps two names, also of a file and a directory, across directories")
def _(d):
    os.makedirs(f"{d}/one/dir")
    os.mkdir(f"{d}/two")
    write(f"{d}/one/dir/in", b"in")
    write(f"{d}/two/f", b"f")
    inos = [os.stat(f"{d}/{n}").st_ino for n in ("one/dir", "two/f")]
    renameat2(f"{d}/one/dir", f"{d}/two/f", EXCHANGE)
    equal([os.stat(f"{d}/{n}").st_ino for n in ("two/f", "one/dir")], inos, "inodes")
    equal((read(f"{d}/one/dir"), read(f"{d}/two/f/in")), (b"f", b"in"))
    true(os.path.samefile(f"{d}/two/f/..", f"{d}/two"), "'..' of the exchanged directory")
    fails(errno.ENOENT, renameat2, f"{d}/one/dir", f"{d}/none", EXCHANGE)
    fails(errno.EINVAL, renameat2, f"{d}/one/dir", f"{d}/two/f", EXCHANGE | NOREPLACE)
    fails(errno.EINVAL, renameat2, f"{d}/two", f"{d}/two/f/in", EXCHANGE)


@check("rename-whiteout", "RENAME_WHITEOUT leaves a character device 0:0 at the old name, for anybody; with EXCHANGE it is EINVAL", root=True)
def _(d):
    os.chmod(d, 0o777)
    os.mkdir(f"{d}/dir", 0o777)
    os.chmod(f"{d}/dir", 0o777)
    write(f"{d}/f", b"f")
    write(f"{d}/g", b"g")
    ino = os.stat(f"{d}/f").st_ino
    fails(errno.EINVAL, renameat2, f"{d}/f", f"{d}/g", WHITEOUT | EXCHANGE)
    fails(errno.EEXIST, renameat2, f"{d}/f", f"{d}/g", WHITEOUT | NOREPLACE)
    renameat2(f"{d}/f", f"{d}/dir/f", WHITEOUT | NOREPLACE)
    as_user(12345, 12345, [], renameat2, f"{d}/dir/f", f"{d}/g", WHITEOUT)
    equal((os.stat(f"{d}/g").st_ino, read(f"{d}/g")), (ino, b"f"), "what was moved twice")
    for name, owner in ("f", os.getuid()), ("dir/f", 12345):
        left = os.lstat(f"{d}/{name}")
        equal((stat.S_IFMT(left.st_mode), left.st_rdev, left.st_nlink, left.st_uid), (stat.S_IFCHR, 0, 1, owner), name)
    equal((sorted(os.listdir(d)), os.listdir(f"{d}/dir")), (["dir", "f", "g"], ["f"]), "names")
    renameat2(f"{d}/dir", f"{d}/moved", WHITEOUT)
    equal((stat.S_IFMT(os.lstat(f"{d}/dir").st_mode), os.stat(d).st_nlink), (stat.S_IFCHR, 3), "a directory's old name, and links of its parent")
    write(f"{d}/new", b"new")
    os.rename(f"{d}/new", f"{d}/f")
    equal(read(f"{d}/f"), b"new", "a file over a whiteout")
    as_user(12345, 12345, [], os.mknod, f"{d}/made", stat.S_IFCHR | 0o600, os.makedev(0, 0))


@check("unlink-errors", "unlink of a directory is EISDIR or EPERM, of nothing ENOENT; rmdir of a file ENOTDIR, of a full one ENOTEMPTY, of '.' EINVAL")
def _(d):
    os.makedirs(f"{d}/full/x")
    write(f"{d}/f", b"")
    fails((errno.EISDIR, errno.EPERM), os.unlink, f"{d}/full")
    fails(errno.ENOENT, os.unlink, f"{d}/none")
    fails(errno.ENOTDIR, os.rmdir, f"{d}/f")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{d}/full")
    fails(errno.EINVAL, os.rmdir, f"{d}/full/.")
    fails((errno.ENOTEMPTY, errno.EINVAL), os.rmdir, f"{d}/full/x/..")
    fails(errno.ENOENT, os.rmdir, f"{d}/none")


@check("mkdir-errors", "mkdir over anything is EEXIST, below a file ENOTDIR, below nothing ENOENT")
def _(d):
    write(f"{d}/f", b"")
    os.symlink("none", f"{d}/l")
    for n in ("f", "l", "."):
        fails(errno.EEXIST, os.mkdir, f"{d}/{n}")
    fails(errno.ENOTDIR, os.mkdir, f"{d}/f/x")
    fails(errno.ENOENT, os.mkdir, f"{d}/none/x")


@check("removed-directory", "a removed directory that is still open lists nothing and takes no new names (ENOENT)")
def _(d):
    os.mkdir(f"{d}/gone")
    fd = os.open(f"{d}/gone", os.O_RDONLY)
    os.rmdir(f"{d}/gone")
    equal(os.listdir(fd), [])
    fails(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    fails(errno.ENOENT, os.mkdir, "x", dir_fd=fd)
    equal(os.fstat(fd).st_nlink, 0, "link count")


@check("cwd", "a process works in its directory also after that was renamed")
def _(d):
    os.mkdir(f"{d}/a")
    os.chdir(f"{d}/a")
    os.rename(f"{d}/a", f"{d}/b")
    write("f", b"1")
    equal((os.getcwd(), read(f"{d}/b/f")), (f"{os.path.realpath(d)}/b", b"1"))
    os.chdir("/")


@check("recreate", "a name made again is a new file, with nothing of the old")
def _(d):
    for i in range(100):
        write(f"{d}/f", b"x" * i)
        os.setxattr(f"{d}/f", "user.k", b"v")
        now = os.stat(f"{d}/f")
        equal(now.st_size, i, "size")
        os.unlink(f"{d}/f")
        fd = os.open(f"{d}/f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        equal((os.read(fd, 10), os.fstat(fd).st_size, os.listxattr(fd)), (b"", 0, []))
        os.close(fd)
        os.unlink(f"{d}/f")
