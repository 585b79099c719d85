"""Bytes of files: read, write, holes, offsets, truncation, mappings, copies."""
import ctypes
import errno
import fcntl
import mmap
import os
import random
import resource
import signal
import struct
import time

from checks import (as_user, equal, fails, in_child, pattern, read, read_fd, reap, true, write, write_all)

from . import KEEP, LIBC, PUNCH, STRICT, ZERO, check, checked, fallocate

TOP = (1 << 63) - 1


def rw(d, name="f", flags=0):
    return os.open(f"{d}/{name}", os.O_RDWR | os.O_CREAT | flags, 0o644)


@check("write-read", "written data is read back, at any offset and length, across stripes, before and after close")
def _(d):
    rnd, size = random.Random(1), 6 << 20
    fd, model = rw(d), bytearray(size)
    os.ftruncate(fd, size)
    for i in range(300):
        at, n = rnd.randrange(size), rnd.choice((1, 100, 4096, 65_536, 300_000))
        n = min(n, size - at)
        if i % 2:
            data = pattern(i, n)
            write_all(fd, data, at)
            model[at:at + n] = data
        else:
            true(os.pread(fd, n, at) == model[at:at + n], f"{n} bytes at {at} differ")
    os.close(fd)
    true(read(f"{d}/f") == bytes(model), "content after close differs")


@check("read-past-end", "a read at and past the end gives 0 bytes, one across it is short")
def _(d):
    fd = rw(d)
    os.write(fd, b"12345")
    equal(os.pread(fd, 10, 3), b"45")
    equal(os.pread(fd, 10, 5), b"")
    equal(os.pread(fd, 10, 1 << 40), b"")


@check("holes-read-zero", "bytes never written read as zero, around data, across stripes")
def _(d):
    fd = rw(d)
    os.pwrite(fd, b"x", 3 << 20)
    os.pwrite(fd, b"y", 5)
    want = bytearray((3 << 20) + 1)
    want[3 << 20], want[5] = 120, 121
    true(read_fd(fd) == bytes(want), "content differs")
    os.close(fd)
    true(read(f"{d}/f") == bytes(want), "content after close differs")


@check("offsets-large", "offsets past 2, 4 and 8 GiB and near 16 TiB hold data; the size is exact")
def _(d):
    for at in ((1 << 31) - 1, (1 << 32) - 2, (1 << 33) + 12_345, (1 << 44) - 9_000):
        fd = rw(d, f"f{at}")
        os.pwrite(fd, b"data", at)
        os.fsync(fd)
        equal(os.fstat(fd).st_size, at + 4, "size")
        equal(os.pread(fd, 10, at - 3), b"\0\0\0data", "data")
        os.close(fd)
        os.unlink(f"{d}/f{at}")


@check("offset-maximum", "the last byte of a file is at 2^63-2; past it is EFBIG, EOVERFLOW or EINVAL as in Linux")
def _(d):
    fd = rw(d)
    for at in (1 << 45, 1 << 52, 1 << 62, TOP - 1):
        try:
            equal(os.pwrite(fd, b"z", at), 1, "bytes written")
        except OSError as e:
            equal(e.errno, errno.EFBIG, "errno")
            true(not STRICT[0], f"EFBIG at {at}")
            continue
        equal(os.fstat(fd).st_size, at + 1, "size")
        # Linux refuses a range that ends past 2^63-1 before any file system sees it.
        equal(os.pread(fd, min(8, TOP - at), at), b"z", "data")
    fails((errno.EFBIG, errno.EOVERFLOW, errno.EINVAL), os.pwrite, fd, b"z", TOP)
    past = os.pwrite(fd, b"a", 0)
    equal(past, 1)
    buf = ctypes.create_string_buffer(4)
    ctypes.set_errno(0)
    equal(LIBC.pwrite(fd, buf, 1, ctypes.c_int64(-1)), -1, "pwrite at -1")
    equal(ctypes.get_errno(), errno.EINVAL, "errno of pwrite at -1")
    fails(errno.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
    fails((errno.EOVERFLOW, errno.EINVAL), os.pread, fd, 1, TOP)
    os.ftruncate(fd, 0)
    if STRICT[0]:
        os.ftruncate(fd, TOP)
        equal(os.fstat(fd).st_size, TOP, "size")
        os.ftruncate(fd, 1)
    else:
        try:
            os.ftruncate(fd, TOP)
        except OSError as e:
            equal(e.errno, errno.EFBIG, "errno")


@check("truncate-negative", "a negative length is EINVAL")
def _(d):
    fd = rw(d)
    fails(errno.EINVAL, os.ftruncate, fd, -1)


@check("truncate-shrink-grow", "bytes cut off by truncate never come back when the file grows again")
def _(d):
    for cut in (0, 1, 4095, 4096, 70_001, 1 << 20, (1 << 20) + 1, (2 << 20) + 4097):
        for way in ("truncate", "write", "fallocate"):
            fd, size = rw(d, "f", os.O_TRUNC), 3 << 20
            write_all(fd, b"\xff" * size)
            if cut % 2:
                os.fsync(fd)
            os.ftruncate(fd, cut)
            if way == "truncate":
                os.ftruncate(fd, size)
            elif way == "write":
                os.pwrite(fd, b"\0", size - 1)
            else:
                fallocate(fd, 0, size - 10, 10)
            want = b"\xff" * cut + bytes(size - cut)
            true(os.pread(fd, size, 0) == want, f"stale bytes after cut to {cut} and {way}")
            os.close(fd)
            true(read(f"{d}/f") == want, f"stale bytes after close, cut to {cut} and {way}")


@check("truncate-by-name", "truncate by path works on a closed file and refuses a directory (EISDIR)")
def _(d):
    write(f"{d}/f", b"0123456789")
    os.truncate(f"{d}/f", 4)
    equal(read(f"{d}/f"), b"0123")
    fails(errno.EISDIR, os.truncate, d, 0)


@check("append", "O_APPEND writes at the end whatever the offset; pwrite does so too, as in Linux")
def _(d):
    write(f"{d}/f", b"abc")
    fd = os.open(f"{d}/f", os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"def")
    equal(os.lseek(fd, 0, os.SEEK_CUR), 6, "offset after the append")
    os.pwrite(fd, b"ghi", 0)
    equal(read(f"{d}/f"), b"abcdefghi")


@check("append-concurrent", "appends of several processes on one mount are all there, whole")
def _(d):
    write(f"{d}/f", b"")
    pids = []
    for w in range(4):
        pid = os.fork()
        if pid == 0:
            fd = os.open(f"{d}/f", os.O_WRONLY | os.O_APPEND)
            for i in range(200):
                os.write(fd, b"%d:%04d:%s\n" % (w, i, bytes([97 + w]) * (100 + i)))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        equal(os.waitpid(pid, 0)[1], 0, "status of a writer")
    lines = read(f"{d}/f").split(b"\n")[:-1]
    equal(len(lines), 800, "lines")
    equal(sorted(lines), sorted(b"%d:%04d:%s" % (w, i, bytes([97 + w]) * (100 + i)) for w in range(4) for i in range(200)))


@check("vectored-io", "readv, writev, preadv and pwritev keep the order of their parts")
def _(d):
    fd = rw(d)
    equal(os.writev(fd, [b"ab", b"", b"cde"]), 5)
    equal(os.pwritev(fd, [b"X", b"YZ"], 3), 3)
    bufs = [bytearray(2), bytearray(10)]
    equal(os.preadv(fd, bufs, 1), 5)
    equal((bytes(bufs[0]), bytes(bufs[1][:3])), (b"bc", b"XYZ"))


@check("two-handles", "a write through one handle is read through another at once, and gives its size")
def _(d):
    one, two = rw(d), rw(d)
    for i in range(200):
        os.pwrite(one, b"%08d" % i, i * 8)
        equal(os.fstat(two).st_size, i * 8 + 8, "size")
        equal(os.pread(two, 8, i * 8), b"%08d" % i)


@check("seek-data-hole", "SEEK_DATA and SEEK_HOLE find data and holes; past the end is ENXIO")
def _(d):
    fd = rw(d)
    for at in (0, 8 << 20):
        write_all(fd, b"d" * 65_536, at)
    os.ftruncate(fd, 16 << 20)
    os.fsync(fd)
    equal(os.lseek(fd, 0, os.SEEK_DATA), 0, "data from 0")
    equal(os.lseek(fd, 0, os.SEEK_HOLE), 65_536, "hole from 0")
    equal(os.lseek(fd, 65_536, os.SEEK_DATA), 8 << 20, "data from the hole")
    equal(os.lseek(fd, 1 << 20, os.SEEK_HOLE), 1 << 20, "hole inside a hole")
    equal(os.lseek(fd, (8 << 20) + 100, os.SEEK_DATA), (8 << 20) + 100, "data inside data")
    equal(os.lseek(fd, 8 << 20, os.SEEK_HOLE), (8 << 20) + 65_536, "hole after the second part")
    fails(errno.ENXIO, os.lseek, fd, 9 << 20, os.SEEK_DATA)
    fails(errno.ENXIO, os.lseek, fd, 16 << 20, os.SEEK_DATA)
    fails(errno.ENXIO, os.lseek, fd, 16 << 20, os.SEEK_HOLE)


@check("seek-data-unflushed", "SEEK_DATA knows data that was just written and not yet flushed")
def _(d):
    fd = rw(d)
    os.ftruncate(fd, 4 << 20)
    os.pwrite(fd, b"x" * 65_536, 2 << 20)
    equal(os.lseek(fd, 0, os.SEEK_DATA), 2 << 20)
    equal(os.lseek(fd, 2 << 20, os.SEEK_HOLE), (2 << 20) + 65_536)


@check("fallocate-allocate", "fallocate extends the file with zeros and keeps what is there")
def _(d):
    fd = rw(d)
    os.write(fd, b"data")
    fallocate(fd, 0, 2, 3 << 20)
    equal(os.fstat(fd).st_size, (3 << 20) + 2, "size")
    true(os.pread(fd, 4 << 20, 0) == b"data" + bytes((3 << 20) - 2), "content")
    os.posix_fallocate(fd, 0, 100)
    equal(os.fstat(fd).st_size, (3 << 20) + 2, "size after posix_fallocate inside")


@check("fallocate-keep-size", "fallocate with KEEP_SIZE leaves the size")
def _(d):
    fd = rw(d)
    os.write(fd, b"data")
    fallocate(fd, KEEP, 0, 1 << 20)
    equal(os.fstat(fd).st_size, 4, "size")
    equal(read(f"{d}/f"), b"data")


@check("fallocate-punch", "a punched hole reads as zero, edges exact, across stripes; the size stays")
def _(d):
    for at, n in ((0, 4096), (1, 10), (100_001, 70_000), ((1 << 20) - 5, 10), (4000, (2 << 20) + 77), ((3 << 20) - 9, 1 << 20)):
        fd, size = rw(d, "f", os.O_TRUNC), 3 << 20
        write_all(fd, b"\xee" * size)
        fallocate(fd, PUNCH | KEEP, at, n)
        end = min(size, at + n)
        want = b"\xee" * at + bytes(end - at) + b"\xee" * (size - end)
        true(os.pread(fd, size + 1, 0) == want, f"content after a hole of {n} at {at}")
        os.close(fd)
        true(read(f"{d}/f") == want, f"content after close, hole of {n} at {at}")


@check("fallocate-zero-range", "ZERO_RANGE zeroes, extends without KEEP_SIZE and not with it")
def _(d):
    fd = rw(d)
    write_all(fd, b"\xee" * 200_000)
    fallocate(fd, ZERO, 50_001, 70_000)
    equal(os.pread(fd, 200_000, 0), b"\xee" * 50_001 + bytes(70_000) + b"\xee" * 79_999)
    fallocate(fd, ZERO | KEEP, 190_000, 50_000)
    equal(os.fstat(fd).st_size, 200_000, "size with KEEP_SIZE")
    fallocate(fd, ZERO, 190_000, 50_000)
    equal(os.fstat(fd).st_size, 240_000, "size")
    equal(os.pread(fd, 60_000, 189_999), b"\xee" + bytes(50_000))


@check("fallocate-errors", "length 0 and negative offsets are EINVAL, past the maximum EFBIG, punch without KEEP_SIZE EOPNOTSUPP, a read-only handle EBADF")
def _(d):
    fd = rw(d)
    fails(errno.EINVAL, fallocate, fd, 0, 0, 0)
    fails(errno.EINVAL, fallocate, fd, 0, -1, 10)
    fails(errno.EFBIG, fallocate, fd, 0, TOP - 5, 10)
    fails(errno.EOPNOTSUPP, fallocate, fd, PUNCH, 0, 10)
    ro = os.open(f"{d}/f", os.O_RDONLY)
    fails(errno.EBADF, fallocate, ro, 0, 0, 10)


@check("copy-file-range", "copy_file_range copies within and between files, stops at the end, refuses an overlap (EINVAL)")
def _(d):
    src, dst = rw(d, "s"), rw(d, "t")
    data = pattern(3, (2 << 20) + 777)
    write_all(src, data)
    done = 0
    while done < len(data):
        n = os.copy_file_range(src, dst, len(data) - done, done, done)
        true(n > 0, "copied nothing before the end")
        done += n
    true(os.pread(dst, 3 << 20, 0) == data, "copy differs")
    equal(os.copy_file_range(src, dst, 100, len(data), 0), 0, "copied at the end")
    equal(os.copy_file_range(src, dst, 5000, 100, 1_000_003), 5000)
    true(os.pread(dst, 5000, 1_000_003) == data[100:5100], "part differs")
    equal(os.copy_file_range(src, src, 1000, 0, 500_000), 1000)
    equal(os.pread(src, 1000, 500_000), data[:1000])
    fails(errno.EINVAL, os.copy_file_range, src, src, 1000, 0, 500)


@check("sendfile", "sendfile out of a file gives its bytes")
def _(d):
    data = pattern(4, 300_000)
    write(f"{d}/f", data)
    src, dst = os.open(f"{d}/f", os.O_RDONLY), rw(d, "g")
    at = 0
    while at < len(data):
        at += os.sendfile(dst, src, at, len(data) - at)
    true(read(f"{d}/g") == data, "copy differs")


@check("direct-io", "O_DIRECT reads and writes, and agrees with buffered handles")
def _(d):
    size = 2 << 20
    area = mmap.mmap(-1, size)
    area[:] = pattern(5, size)
    fd = os.open(f"{d}/f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    equal(os.pwritev(fd, [area], 0), size, "bytes written")
    true(read(f"{d}/f") == area[:], "buffered read differs")
    with open(f"{d}/f", "r+b", buffering=0) as f:
        f.seek(8192)
        f.write(b"Q" * 4096)
    back = mmap.mmap(-1, 4096)
    equal(os.preadv(fd, [back], 8192), 4096, "bytes read")
    equal(back[:], b"Q" * 4096, "direct read after buffered write")
    area[:4096] = b"R" * 4096
    buffered = os.open(f"{d}/f", os.O_RDONLY)
    os.pread(buffered, 4096, 0)
    os.pwritev(fd, [memoryview(area)[:4096]], 0)
    equal(os.pread(buffered, 4096, 0), b"R" * 4096, "buffered read after direct write")


@check("mmap-shared", "stores in a shared mapping are read by read(), and after close; writes show in the mapping")
def _(d):
    fd, size = rw(d), (1 << 20) + 5000
    os.ftruncate(fd, size)
    view = mmap.mmap(fd, size)
    view[0:5], view[1 << 20:(1 << 20) + 4] = b"hello", b"tail"
    equal(os.pread(fd, 5, 0), b"hello")
    os.pwrite(fd, b"W", 1)
    equal(view[0:5], b"hWllo")
    view.flush()
    view.close()
    os.close(fd)
    data = read(f"{d}/f")
    equal((data[:5], data[1 << 20:(1 << 20) + 4], len(data)), (b"hWllo", b"tail", size))


@check("mmap-no-msync", "stores in a shared mapping are in the file after munmap and close without msync")
def _(d):
    write(f"{d}/f", bytes(100_000))
    fd = rw(d)
    view = mmap.mmap(fd, 100_000)
    os.close(fd)
    view[50_000:50_006] = b"stored"
    view.close()
    equal(read(f"{d}/f")[50_000:50_006], b"stored")


@check("mmap-private", "stores in a private mapping do not reach the file")
def _(d):
    write(f"{d}/f", b"original" * 1000)
    fd = rw(d)
    view = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    view[0:4] = b"mine"
    view.close()
    equal(read(f"{d}/f"), b"original" * 1000)


@check("mmap-past-end", "touching a mapped page past the end of the file is SIGBUS")
def _(d):
    write(f"{d}/f", bytes(10))
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        fd = rw(d)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.ftruncate(fd, 3 * 4096)
        view = mmap.mmap(fd, 3 * 4096)
        os.ftruncate(fd, 10)
        _ = view[2 * 4096]
        os._exit(0)
    _pid, status = os.waitpid(pid, 0)
    true(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS, f"status {status}")


@check("mmap-after-truncate", "a mapping shows zeros, not stale bytes, after shrink and growth")
def _(d):
    fd = rw(d)
    write_all(fd, b"\xff" * 8192)
    view = mmap.mmap(fd, 8192)
    equal(view[5000], 255)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 8192)
    equal(view[:], b"\xff" * 100 + bytes(8092))


@check("mmap-grow", "a file grows by ftruncate, fallocate and write under a mapping that has changed its last page: both are there, at once")
def _(d):
    grows = (lambda fd: os.ftruncate(fd, 8192), lambda fd: fallocate(fd, 0, 0, 8192), lambda fd: os.pwrite(fd, b"\0", 8191))
    for number, grow in enumerate(grows):
        path = f"{d}/f{number}"
        # Closed and opened again: the kernel reads its pages again.
        write(path, b"x" * 100)
        fd = os.open(path, os.O_RDWR)
        view = mmap.mmap(fd, 100)
        view[:5] = b"hello"
        grow(fd)
        equal(os.pread(fd, 9000, 0), b"hello" + b"x" * 95 + bytes(8092))
        view[5:10] = b"again"
        view.flush()
        grow(fd)
        equal(os.pread(fd, 9000, 0), b"helloagain" + b"x" * 90 + bytes(8092))
        view.close()
        os.close(fd)


@check("rlimit-fsize", "RLIMIT_FSIZE: a write across it is short, at it EFBIG with SIGXFSZ; truncate past it is EFBIG")
def _(d):
    def child():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        fd = rw(d)
        short = os.pwrite(fd, b"x" * 5000, 8000)
        for fn in (lambda: os.pwrite(fd, b"x", 10_000), lambda: os.ftruncate(fd, 10_001), lambda: fallocate(fd, 0, 0, 10_001)):
            fails(errno.EFBIG, fn)
        return short, os.fstat(fd).st_size
    equal(in_child(child), (2000, 10_000))


@check("open-truncate", "O_TRUNC empties a file that others have open; O_TRUNC|O_RDONLY on an existing file too, as in Linux")
def _(d):
    write(f"{d}/f", b"content")
    other = os.open(f"{d}/f", os.O_RDWR)
    os.close(os.open(f"{d}/f", os.O_WRONLY | os.O_TRUNC))
    equal(os.fstat(other).st_size, 0, "size")
    equal(os.pread(other, 10, 0), b"")
    os.pwrite(other, b"z", 3)
    equal(read(f"{d}/f"), b"\0\0\0z")


@check("open-modes", "a read-only handle refuses writes and a write-only handle reads (EBADF)")
def _(d):
    write(f"{d}/f", b"1")
    ro, wo = os.open(f"{d}/f", os.O_RDONLY), os.open(f"{d}/f", os.O_WRONLY)
    fails(errno.EBADF, os.write, ro, b"2")
    fails(errno.EBADF, os.read, wo, 1)
    fails((errno.EINVAL, errno.EBADF), os.ftruncate, ro, 0)


@check("unlinked-open", "a file without a name is still read, written, grown, synced and truncated until it is closed")
def _(d):
    fd = rw(d)
    write_all(fd, b"a" * 100_000)
    os.unlink(f"{d}/f")
    equal(os.fstat(fd).st_nlink, 0, "link count")
    os.pwrite(fd, b"b", 2 << 20)
    os.fsync(fd)
    equal(os.pread(fd, 1, 2 << 20), b"b")
    equal(os.pread(fd, 3, 99_998), b"aa\0")
    os.ftruncate(fd, 5)
    os.fchmod(fd, 0o600)
    equal((os.fstat(fd).st_size, os.pread(fd, 10, 0)), (5, b"aaaaa"))
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    equal(os.read(again, 10), b"aaaaa")
    equal(os.listdir(d), [], "names")


@check("renamed-over-open", "a file that a rename replaced stays readable where it is open")
def _(d):
    write(f"{d}/old", b"old content")
    fd = os.open(f"{d}/old", os.O_RDONLY)
    write(f"{d}/new", b"new")
    os.rename(f"{d}/new", f"{d}/old")
    equal((os.read(fd, 100), read(f"{d}/old")), (b"old content", b"new"))
    equal(os.fstat(fd).st_nlink, 0, "link count of the replaced file")


@check("sync-flags", "O_SYNC and O_DSYNC writes, fsync, fdatasync and sync_file_range succeed")
def _(d):
    for flag in (os.O_SYNC, os.O_DSYNC):
        fd = rw(d, "s", flag)
        for i in range(5):
            os.write(fd, b"%d" % i)
        os.close(fd)
        equal(read(f"{d}/s"), b"01234")
    fd = rw(d)
    write_all(fd, b"x" * 100_000)
    checked(LIBC.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), 7))
    os.fdatasync(fd)
    os.fsync(fd)
    ro = os.open(f"{d}/f", os.O_RDONLY)
    os.fsync(ro)


@check("fsync-directory", "fsync of a directory and of the mount's root succeeds; syncfs returns 0")
def _(d):
    write(f"{d}/f", b"1")
    top = d
    while os.path.dirname(top) != top and os.stat(os.path.dirname(top)).st_dev == os.stat(d).st_dev:
        top = os.path.dirname(top)
    for path in (d, top):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.fdatasync(fd)
        checked(LIBC.syncfs(fd))
        os.close(fd)


@check("advice", "posix_fadvise and readahead are accepted and change no bytes")
def _(d):
    write(f"{d}/f", pattern(1, 2 << 20))
    fd = os.open(f"{d}/f", os.O_RDONLY)
    for advice in range(6):
        os.posix_fadvise(fd, 0, 0, advice)
    checked(LIBC.readahead(fd, ctypes.c_int64(0), ctypes.c_size_t(1 << 20)))
    true(read_fd(fd) == pattern(1, 2 << 20), "content differs")


@check("directory-as-file", "read and write of a directory are EISDIR; opening one for writing is EISDIR")
def _(d):
    fails(errno.EISDIR, os.open, d, os.O_RDWR)
    fails((errno.EISDIR, errno.EINVAL), os.open, d, os.O_RDONLY | os.O_CREAT)
    fd = os.open(d, os.O_RDONLY)
    fails(errno.EISDIR, os.read, fd, 1)
    fails(errno.EBADF, os.write, fd, b"x")


@check("execute", "a program is started from the directory; writing to it or emptying it meanwhile is ETXTBSY, and leaves it as it is")
def _(d):
    program = read("/bin/sleep")
    write(f"{d}/sleep", program, mode=0o755)
    pid = os.fork()
    if pid == 0:
        os.execv(f"{d}/sleep", ["sleep", "20"])
    end = time.monotonic() + 5
    while os.readlink(f"/proc/{pid}/exe") != f"{os.path.realpath(d)}/sleep":
        true(time.monotonic() < end, "the program does not start")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC):
        fails(errno.ETXTBSY, os.open, f"{d}/sleep", flags)
    fails(errno.ETXTBSY, os.truncate, f"{d}/sleep", 0)
    fails(errno.EACCES, as_user, 12345, 12345, [], os.open, f"{d}/sleep", os.O_RDONLY | os.O_TRUNC)
    equal(read(f"{d}/sleep"), program, "the program")
    os.kill(pid, signal.SIGKILL)
    true(reap(pid, 5), "the program does not die")
    os.close(os.open(f"{d}/sleep", os.O_RDONLY | os.O_TRUNC))
    equal(read(f"{d}/sleep"), b"", "a program that has ended")
    write(f"{d}/script", b"#!/bin/sh\nexit 7\n", mode=0o755)
    equal(os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, f"{d}/script", ["script"]) << 8), 7)


@check("dup-and-fork-offset", "handles duplicated and inherited share one offset")
def _(d):
    fd = rw(d)
    os.write(fd, b"0123456789")
    os.lseek(fd, 0, os.SEEK_SET)
    two = os.dup(fd)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if os.read(fd, 3) == b"012" else 1)
    equal(os.waitpid(pid, 0)[1], 0, "child")
    equal((os.read(two, 3), os.lseek(fd, 0, os.SEEK_CUR)), (b"345", 6))


@check("many-open-files", "500 files open at once each give their own bytes")
def _(d):
    fds = [rw(d, f"f{i}") for i in range(500)]
    for i, fd in enumerate(fds):
        os.write(fd, struct.pack("<I", i))
    for i, fd in enumerate(fds):
        equal(os.pread(fd, 4, 0), struct.pack("<I", i))
        os.close(fd)


@check("record-locks-one-mount", "fcntl locks conflict between processes of one mount, not within one")
def _(d):
    fd = rw(d)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)

    def child():
        other = rw(d)
        fails((errno.EAGAIN, errno.EACCES), fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 12)
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 20)
        return True
    true(in_child(child), "the child's locks")
