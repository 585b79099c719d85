"""Data written by one mount and read by the other: close-to-open, truncation, mappings."""
import concurrent.futures
import ctypes
import errno
import mmap
import os
import random
import subprocess
import time

from between import SCALE, agents, check, close_all, rounds, version_of
from checks import Agent, equal, fails, pattern, read, true, write, write_all


def a_read_versions(_state, path, seconds):
    """Reads a file by name repeatedly; each read must give one whole version."""
    end, seen, last = time.monotonic() + seconds, 0, -1
    while time.monotonic() < end:
        data = read(path)
        version = int(data[:8])
        if data != version_of(version):
            raise AssertionError(f"a mixture: {len(data)} bytes that begin with version {version}")
        if version < last:
            raise AssertionError(f"version {version} after {last}")
        seen, last = seen + 1, version
    return seen


@check("close-to-open", "data that one mount wrote and closed is what the other reads after it opens", limit=180)
def _(a, b):
    for i in range(rounds(500)):
        there, here = ((a, b), (b, a))[i % 3 == 2]
        data = pattern(i, 1 + i * 7919 % 20_000)
        write(f"{there}/f", data)
        equal(read(f"{here}/f"), data, f"content in round {i}")


@check("close-to-open-same-size", "an overwrite in place of the same size is seen after close and open", limit=120)
def _(a, b):
    write(f"{a}/f", b"." * 10_000)
    for i in range(rounds(200)):
        there, here = ((a, b), (b, a))[i % 2]
        fd = os.open(f"{there}/f", os.O_WRONLY)
        at = i * 613 % 9_900
        os.pwrite(fd, b"%06d" % i, at)
        os.close(fd)
        fd = os.open(f"{here}/f", os.O_RDONLY)
        equal(os.pread(fd, 6, at), b"%06d" % i, f"bytes at {at} in round {i}")
        os.close(fd)


@check("close-to-open-large", "a file of several stripes written by one mount is read whole by the other", limit=120)
def _(a, b):
    for i in range(3):
        data = pattern(i, (5 << 20) + 12_345 * i)
        write(f"{a}/f", data)
        true(read(f"{b}/f") == data, f"content differs in round {i}")


@check("close-to-open-truncate", "a file emptied or shortened by one mount is short for the other", limit=120)
def _(a, b):
    for i in range(rounds(60)):
        there, here = ((a, b), (b, a))[i % 2]
        write(f"{there}/f", pattern(i, 50_000))
        equal(len(read(f"{here}/f")), 50_000, "size read")
        os.truncate(f"{there}/f", 100 + i)
        equal(read(f"{here}/f"), pattern(i, 50_000)[:100 + i], "after truncate")
        os.truncate(f"{there}/f", 3_000)
        equal(read(f"{here}/f"), pattern(i, 50_000)[:100 + i] + bytes(2_900 - i), "after it grew")
        os.close(os.open(f"{there}/f", os.O_WRONLY | os.O_TRUNC))
        equal(read(f"{here}/f"), b"", "after O_TRUNC")


@check("fsync-then-open", "data that one mount wrote and fsynced, with the file still open, is what the other reads after it opens")
def _(a, b):
    fd = os.open(f"{a}/f", os.O_CREAT | os.O_RDWR, 0o644)
    for i in range(rounds(60)):
        os.pwrite(fd, b"%08d" % i, i * 8)
        os.fsync(fd)
        equal(read(f"{b}/f"), b"".join(b"%08d" % k for k in range(i + 1)))
    os.close(fd)


INLINE = 4096
UNIT = 1 << 20


@check("truncation-under-write", "what one mount wrote and the other truncated before it was told is not there as zeros", limit=120)
def _(a, b):
    """A unit that is on its way when the other truncates is before the truncation, and truncated, or after it, and there."""
    for size in (3_000, 200_000, 3 << 20):
        write(f"{a}/f", b"o" * size)
        fd = os.open(f"{a}/f", os.O_RDWR)
        write_all(fd, b"N" * size, 0)
        os.truncate(f"{b}/f", 0)
        os.fsync(fd)
        os.close(fd)
        for mount in (a, b):
            data = read(f"{mount}/f")
            units = [data[max(at, INLINE):at + UNIT] for at in range(0, len(data), UNIT)] if size > UNIT else [data]
            for number, unit in enumerate(units):
                true(len(set(unit)) <= 1, f"unit {number} is there in part, of {size} bytes")
            equal(data[:INLINE].count(b"N"), len(data[:INLINE]), f"first bytes of what was written, of {size}")
            equal(set(units[-1:] and units[-1]) - {ord("N")}, set(), f"the last unit of what was written, of {size}")


def a_follow(_state, path, seconds):
    """Follows a growing file like `tail -f`; returns the bytes read and the number of reads with
    zeros.
    """
    fd = os.open(path, os.O_RDONLY)
    end, at, zeros = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        data = os.pread(fd, 1 << 16, at)
        zeros += 0 in data
        at += len(data)
    os.close(fd)
    return at, zeros


@check("follow-growing", "a reader that follows a growing file reads no zeros, on the same mount and on the other", limit=60)
def _(a, b):
    write(f"{a}/f", b"")
    seconds = max(1, int(3 * SCALE[0]))
    them = agents(2)
    for agent, mount in zip(them, (a, b)):
        agent.start(a_follow, f"{mount}/f", seconds)
    fd = os.open(f"{a}/f", os.O_WRONLY | os.O_APPEND)
    end, record = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        record += 1
        write_all(fd, b"%08d" % record * 100)
    os.close(fd)
    for agent in them:
        got, zeros = agent.finish(30)
        true(got > 0, "nothing was read")
        equal(zeros, 0, "reads with zeros")
    close_all(*them)


def a_reopen(_state, path, seconds):
    """Opens, reads and closes repeatedly; returns how often."""
    end, times = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        fd = os.open(path, os.O_RDONLY)
        os.pread(fd, 8 * 4096, 0)
        os.close(fd)
        times += 1
    return times


@check("own-writes-read", "data written through a handle is read through it at once, also while other processes of the same mount open, read and close the file", limit=60)
def _(a, _b):
    write(f"{a}/f", bytes(8 * 4096))
    seconds = max(2, int(5 * SCALE[0]))
    reader = Agent()
    reader.start(a_reopen, f"{a}/f", seconds)
    end, number, stale, lasting = time.monotonic() + seconds, 0, 0, 0
    while time.monotonic() < end:
        number += 1
        page = b"%08d" % number * 512
        fd = os.open(f"{a}/f", os.O_RDWR)
        os.pwrite(fd, page, 0)
        if os.pread(fd, 4096, 0) != page:
            # The kernel dropped the page while its write was in progress: for a moment only.
            stale += 1
            time.sleep(0.1)
            lasting += os.pread(fd, 4096, 0) != page
        os.close(fd)
    true(reader.finish(30) > 0, "nothing was read beside it")
    close_all(reader)
    equal(lasting, 0, f"lasting stale reads of {number}")
    # Seen once in 2,308 reads on a busy machine: of few reads one or two may fail.
    true(stale <= 2 + number // 500, f"{stale} of {number} reads were stale for a moment")


def a_first_look(_state, folder, pipe, seconds):
    """Looks each file up once before its change and once after; returns (changed, still old)."""
    go, write_end = pipe
    os.close(write_end)
    end, seen, old = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end and (number := os.read(go, 8)):
        path = f"{folder}/{int(number)}"
        os.stat(path)
        if not os.read(go, 8):
            break
        seen, old = seen + 1, old + (os.stat(path).st_mode & 0o777 != 0o600)
    os.close(go)
    return seen, old


@check("first-look-up", "a change that meets the other mount's first look-up of the file is seen there when it has returned", limit=90)
def _(a, b):
    seconds = max(3, int(8 * SCALE[0]))
    pipe = os.pipe()
    reader = Agent()
    reader.start(a_first_look, b, pipe, seconds)
    go = pipe[1]
    os.close(pipe[0])
    end, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            number += 1
            write(f"{a}/{number}", b"x" * 100)
            os.write(go, b"%08d" % number)
            until = time.perf_counter() + number % 40 * 15e-6
            while time.perf_counter() < until:
                pass
            os.chmod(f"{a}/{number}", 0o600)
            os.write(go, b"%08d" % number)
    except BrokenPipeError:
        pass
    os.close(go)
    seen, old = reader.finish(30)
    close_all(reader)
    true(seen > 10, f"{seen} look-ups")
    equal(old, 0, f"old attributes of {seen} files")


@check("size-after-append", "stat through one mount has the exact size after the other appended and closed", limit=120)
def _(a, b):
    size = 0
    write(f"{a}/f", b"")
    for i in range(rounds(300)):
        there, here = ((a, b), (b, a))[i % 2]
        fd = os.open(f"{there}/f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"y" * (1 + i % 97))
        os.close(fd)
        size += 1 + i % 97
        equal(os.stat(f"{here}/f").st_size, size, f"size in round {i}")


@check("mmap-after-close", "a mapping made after the other mount closed has its bytes", limit=120)
def _(a, b):
    for i in range(rounds(100)):
        data = pattern(i, 4096 * (1 + i % 5) + i)
        write(f"{a}/f", data)
        fd = os.open(f"{b}/f", os.O_RDONLY)
        view = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        true(view[:] == data, f"mapped bytes differ in round {i}")
        view.close()
        os.close(fd)


@check("mmap-write-seen", "data stored in a shared mapping is read by the other mount after msync and close")
def _(a, b):
    write(f"{a}/f", bytes(40_000))
    for i in range(rounds(40)):
        fd = os.open(f"{a}/f", os.O_RDWR)
        view = mmap.mmap(fd, 0)
        view[i * 900:i * 900 + 8] = b"%08d" % i
        view.flush()
        view.close()
        os.close(fd)
        equal(read(f"{b}/f")[i * 900:i * 900 + 8], b"%08d" % i)


def write_synced_for(path, at, seconds):
    """Writes with O_SYNC through the page cache; the longest write, in seconds."""
    fd, end, longest = os.open(path, os.O_RDWR | os.O_SYNC), time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        begun = time.monotonic()
        os.pwrite(fd, b"s" * random.choice((10, 3_000, 20_000)), at + random.randrange(20_000))
        longest = max(longest, time.monotonic() - begun)
        time.sleep(random.random() * 0.01)
    os.close(fd)
    return longest


def make_names_for(path, seconds):
    """Makes and removes a name; the longest of both together."""
    end, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        begun = time.monotonic()
        write(path, b"")
        os.unlink(path)
        longest = max(longest, time.monotonic() - begun)
        time.sleep(random.random() * 0.02)
    return longest


@check("synced-writers-and-names", "mounts that write one file with O_SYNC beside names that they make and remove in its directory never wait for one another", limit=60)
def _(a, b):
    write(f"{a}/shared", b"x" * 400_000)
    seconds = 4 * SCALE[0] + 2
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        longest = [pool.submit(write_synced_for, f"{mount}/shared", at, seconds) for at, mount in ((0, a), (200_000, b))]
        longest += [pool.submit(make_names_for, f"{mount}/{name}", seconds) for name, mount in (("of-a", a), ("of-b", b))]
    longest = max(one.result() for one in longest)
    print(f"  the longest of all: {longest:.2f} s", flush=True)
    # They used to wait until the leases expired.
    true(longest < 4, f"one took {longest:.1f} s")


@check("write-flags-seen", "data that one mount wrote with RWF_DSYNC or RWF_SYNC is read by the other, however the descriptor was opened")
def _(a, b):
    for number, flags in enumerate((0, os.O_APPEND, os.O_DIRECT)):
        for access in (os.O_WRONLY, os.O_RDWR):
            for how in (os.RWF_DSYNC, os.RWF_SYNC):
                name = f"f{number}.{access}.{how}"
                fd = os.open(f"{a}/{name}", os.O_CREAT | access | flags, 0o644)
                area = mmap.mmap(-1, 4096)
                for i in range(3):
                    area[:] = bytes([65 + i]) * 4096
                    equal(os.pwritev(fd, [area], i * 4096, how), 4096, "bytes written")
                    equal(read(f"{b}/{name}")[i * 4096:], area[:], "bytes that the other mount reads")
                os.close(fd)


@check("truncate-times-seen", "a truncation that removes what was just written moves mtime and ctime for the other mount, too")
def _(a, b):
    fd = os.open(f"{a}/f", os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"x" * 10_000, 0)
    before = os.stat(f"{a}/f").st_mtime_ns
    time.sleep(0.02)
    os.truncate(f"{a}/f", 5_000)
    here, there = os.stat(f"{a}/f"), os.stat(f"{b}/f")
    true(here.st_mtime_ns > before and here.st_ctime_ns > before, "the times did not move")
    equal((there.st_size, there.st_mtime_ns), (5_000, here.st_mtime_ns), "size and mtime seen by the other mount")
    os.close(fd)


@check("stored-behind-end", "bytes that one mount stored behind the end of a mapped file come into it on neither mount, whichever makes it longer and however")
def _(a, b):
    libc = ctypes.CDLL(None)
    for number, here in enumerate((a, b) * 4):
        for how in ("truncate", "write", "append"):
            name = f"f{number}.{how}"
            write(f"{a}/{name}", b"x" * 5000)
            fd = os.open(f"{a}/{name}", os.O_RDWR)
            view = mmap.mmap(fd, 5000)
            view[4096:4100] = b"kept"
            libc.memset(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)) + 5000), 0xee, 3192)
            if how == "truncate":
                os.truncate(f"{here}/{name}", 9000)
            else:
                write_from(f"{here}/{name}", os.O_APPEND if how == "append" else 0, 8990)
            size = 5010 if how == "append" else 9000
            want = b"x" * 4096 + b"kept" + b"x" * 900 + bytes(size - 5000)
            equal(os.stat(f"{a}/{name}").st_size, size, "size")
            equal(os.pread(fd, 10_000, 0), want, f"bytes after {how} through mount {number}")
            os.fsync(fd)
            equal(read(f"{b}/{name}"), want, f"bytes for the other after {how} through mount {number}")
            view.close()
            os.close(fd)
            equal(read(f"{b}/{name}"), want, f"bytes for the other after close, {how} through mount {number}")


def write_from(path, flags, at):
    fd = os.open(path, os.O_WRONLY | flags)
    os.pwrite(fd, b"\0" * 10, at)
    os.close(fd)


@check("atomic-replace", "a reader by name on one mount sees whole versions, never older ones, while the other replaces the file by rename", limit=120)
def _(a, b):
    write(f"{a}/f", version_of(0))
    reader = Agent()
    reader.start(a_read_versions, f"{b}/f", 2.0)
    n = 0
    while not reader.done(0):
        n += 1
        write(f"{a}/new", version_of(n))
        os.rename(f"{a}/new", f"{a}/f")
    true(reader.finish() > 5, "the reader hardly ran")
    true(n > 5, "the writer hardly ran")
    reader.close()


@check("unlink-while-open-elsewhere", "a file removed through one mount stays readable where the other has it open")
def _(a, b):
    write(f"{a}/f", pattern(1, 300_000))
    fd = os.open(f"{b}/f", os.O_RDWR)
    os.unlink(f"{a}/f")
    fails(errno.ENOENT, os.stat, f"{b}/f")
    equal(os.fstat(fd).st_nlink, 0, "link count")
    true(os.pread(fd, 300_000, 0) == pattern(1, 300_000), "content of the removed file")
    os.pwrite(fd, b"still", 5)
    equal(os.pread(fd, 5, 5), b"still")
    os.close(fd)


@check("opened-without-name", "a file that is opened after its last name is gone lives as long as that open, though the other mount, which held it, closes", limit=120)
def _(a, b):
    for size in (100, 300_000):
        for end in (os.unlink, lambda path: os.rename(f"{path}-new", path)):
            a_file_opened_late(a, b, pattern(size, size), end)


def a_file_opened_late(a, b, data, end):
    """Opens a file by its inode (through O_PATH), in each mode, while only the other mount has it open."""
    write(f"{b}/f", data)
    write(f"{b}/f-new", b"new")
    holder = os.open(f"{b}/f", os.O_RDWR)
    path = os.open(f"{a}/f", os.O_PATH)
    end(f"{b}/f")
    # Longer than a removed file can be opened by its inode number while no process has it open.
    time.sleep(1.2)
    fds = [os.open(f"/proc/self/fd/{path}", how) for how in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND)]
    os.close(holder)
    time.sleep(1.2)
    for fd in fds:
        equal(os.fstat(fd).st_nlink, 0, "link count")
        true(os.pread(fd, len(data) + 1, 0) == data, "content")
        os.fsync(fd)
    os.pwrite(fds[1], b"still", 5)
    os.write(fds[2], b"end")
    os.fsync(fds[1])
    os.ftruncate(fds[1], len(data) + 2)
    equal(os.pread(fds[0], 5, 5), b"still")
    equal(os.fstat(fds[0]).st_size, len(data) + 2, "size")
    again = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDWR)
    for fd in fds:
        os.close(fd)
    os.posix_fadvise(again, 0, 0, os.POSIX_FADV_DONTNEED)
    equal(os.pread(again, 10, len(data)), b"en", "through an open of an open")
    os.close(again)
    os.close(path)


@check("execute-elsewhere", "a program that runs on one mount is not written there (ETXTBSY); the other mount may write it (one directory: ETXTBSY, too), and a rename replaces it for those who start it later")
def _(a, b):
    write(f"{a}/sleep", read("/bin/sleep"), mode=0o755)
    runs = subprocess.Popen([f"{a}/sleep", "20"])
    end = time.monotonic() + 5
    while os.readlink(f"/proc/{runs.pid}/exe") != f"{os.path.realpath(a)}/sleep":
        true(time.monotonic() < end, "the program does not start")
    fails(errno.ETXTBSY, os.open, f"{a}/sleep", os.O_WRONLY)
    if a == b:
        fails(errno.ETXTBSY, os.open, f"{b}/sleep", os.O_WRONLY)
    else:
        os.close(os.open(f"{b}/sleep", os.O_WRONLY))
    write(f"{b}/new", b"#!/bin/sh\nexit 7\n", mode=0o755)
    os.rename(f"{b}/new", f"{b}/sleep")
    equal(subprocess.run([f"{a}/sleep"], check=False).returncode, 7, "the new program's exit code")
    equal(runs.poll(), None, "the old program goes on")
    runs.kill()
    runs.wait()


@check("two-writers-apart", "two mounts that write their own parts of one file both leave them", limit=120)
def _(a, b):
    size, part = 1 << 20, 10_007
    write(f"{a}/f", bytes(size))
    them = agents(2)
    for i, agent in enumerate(them):
        agent.start(a_parts, f"{(a, b)[i]}/f", i, size, part)
    for agent in them:
        agent.finish(60)
    close_all(*them)
    data = read(f"{a}/f")
    true(data == read(f"{b}/f"), "the two mounts read different bytes")
    for k, at in enumerate(range(0, size, part)):
        want = bytes([1 + k % 2]) * min(part, size - at)
        true(data[at:at + part] == want, f"the part at {at} is not its writer's")


def a_parts(_state, path, mine, size, part):
    fd = os.open(path, os.O_RDWR)
    for k, at in enumerate(range(0, size, part)):
        if k % 2 == mine:
            write_all(fd, bytes([1 + mine]) * min(part, size - at), at)
    os.close(fd)
