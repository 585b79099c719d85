#!/usr/bin/env python3
"""What two mounts of one cell show each other: appends, locks, close-to-open, names.

    tests/posix/two_mounts.py A B [--only PART,...] [--list] [--scale 1.0]

A and B are the same directory seen through two mounts; given one local directory twice, every
check must pass as well. Standard library only; see checks.py for how a check is run.
"""
import atexit
import concurrent.futures
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import re
import shutil
import signal
import stat
import struct
import tempfile
import time

from areas.directories import Listing, plain
from checks import (Agent, Registry, argument_parser, as_user, equal, fails, fresh, pattern, read,
                    true, write, write_all)

R = Registry()
check = R.check
LIBC = ctypes.CDLL(None, use_errno=True)
SCALE = [1.0]
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
KINDS = ("flock", "fcntl", "ofd")


def rounds(n):
    return max(3, int(n * SCALE[0]))


# ---- locks: calls that say EINTR, unlike those of Python's library ----

def lock_call(fd, kind, exclusive, wait, start=0, length=0):
    """Takes a lock of the given kind; raises OSError."""
    if kind == "flock":
        how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
        checked(LIBC.flock(fd, how))
        return
    command = {("fcntl", False): fcntl.F_SETLK, ("fcntl", True): fcntl.F_SETLKW,
               ("ofd", False): F_OFD_SETLK, ("ofd", True): F_OFD_SETLKW}[kind, wait]
    record_lock(fd, command, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, start, length)


def soon(take, *args):
    """Takes a lock that has to be free within 2 s."""
    deadline = time.monotonic() + 2
    while True:
        try:
            return take(*args)
        except OSError:
            true(time.monotonic() < deadline, "the lock outlives its last descriptor")


def unlock_call(fd, kind, start=0, length=0):
    if kind == "flock":
        checked(LIBC.flock(fd, fcntl.LOCK_UN))
        return
    command = fcntl.F_SETLK if kind == "fcntl" else F_OFD_SETLK
    record_lock(fd, command, fcntl.F_UNLCK, start, length)


def record_lock(fd, command, what, start, length):
    """fcntl with a struct flock; returns it as (type, whence, start, len, pid)."""
    buf = ctypes.create_string_buffer(struct.pack("hhqqi4x", what, os.SEEK_SET, start, length, 0), 32)
    checked(LIBC.fcntl(fd, command, buf))
    return struct.unpack("hhqqi4x", buf.raw)


def checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---- what an agent (another process, on either mount) can be asked ----

def a_open(state, path, flags=os.O_RDWR):
    fd = os.open(path, flags, 0o644)
    state[path] = fd
    return fd


def a_close(state, path):
    os.close(state.pop(path))


def a_lock(state, path, kind, exclusive=True, wait=False, start=0, length=0):
    lock_call(state[path], kind, exclusive, wait, start, length)


def a_unlock(state, path, kind, start=0, length=0):
    unlock_call(state[path], kind, start, length)


def a_test(state, path, kind, exclusive=True, start=0, length=0):
    command = fcntl.F_GETLK if kind == "fcntl" else F_OFD_GETLK
    what = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    return record_lock(state[path], command, what, start, length)


def a_alarm(_state, signum):
    """Installs a handler that does nothing, without SA_RESTART."""
    signal.signal(signum, lambda *_: None)
    signal.siginterrupt(signum, True)


def a_read(_state, path):
    return read(path)


def a_write(_state, path, data):
    write(path, data)


def a_pread(state, path, n, at):
    return os.pread(state[path], n, at)


def a_create_excl(_state, folder, count):
    """Tries to create the same names as the other side; returns those that were ours."""
    mine = []
    for i in range(count):
        try:
            os.close(os.open(f"{folder}/n{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            mine.append(i)
        except FileExistsError:
            pass
    return mine


def a_rename_race(_state, folder, count, tag):
    mine = []
    for i in range(count):
        try:
            os.rename(f"{folder}/s{i}", f"{folder}/{tag}{i}")
            mine.append(i)
        except FileNotFoundError:
            pass
    return mine


def a_append(_state, path, writer, count, size):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for i in range(count):
        record = make_record(writer, i, size)
        n = os.write(fd, record)
        if n != len(record):
            raise AssertionError(f"an append of {len(record)} bytes wrote {n}")
    os.close(fd)


def a_count(_state, path, kind, times):
    """Adds 1 to the number in the file, under a lock, `times` times."""
    fd = os.open(path, os.O_RDWR)
    for _ in range(times):
        lock_call(fd, kind, True, True)
        value = int(os.pread(fd, 20, 0))
        os.pwrite(fd, b"%020d" % (value + 1), 0)
        unlock_call(fd, kind)
    os.close(fd)


def a_read_versions(_state, path, seconds):
    """Reads a file by name again and again; each time it must be one whole version."""
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


def version_of(n):
    return (b"%08d" % n) * (500 + n % 7 * 300)


def make_record(writer, i, size):
    """One line: who, which, a filling of varying length, and a hash of all that."""
    fill = chr(97 + (writer + i) % 26) * (size // 2 + (writer * 7919 + i * 104729) % size)
    body = f"{writer:03d} {i:06d} {fill}"
    return f"{body} {hashlib.md5(body.encode()).hexdigest()}\n".encode()


def agents(n):
    return [Agent() for _ in range(n)]


def close_all(*them):
    for agent in them:
        agent.close()


# ---- appends ----

def append_test(a, b, writers, count, size):
    write(f"{a}/log", b"")
    sides = [f"{(a, b)[i % 2]}/log" for i in range(2 * writers)]
    them = agents(len(sides))
    for i, agent in enumerate(them):
        agent.start(a_append, sides[i], i, count, size)
    for agent in them:
        agent.finish(120)
    close_all(*them)
    want = sum(len(make_record(w, i, size)) for w in range(2 * writers) for i in range(count))
    for side in (a, b):
        equal(os.stat(f"{side}/log").st_size, want, f"size in {side}")
        data = read(f"{side}/log")
        equal(len(data), want, "bytes read")
        following = [0] * (2 * writers)
        for at, line in enumerate(data.split(b"\n")[:-1]):
            try:
                writer, i = int(line[:3]), int(line[4:10])
            except ValueError:
                raise AssertionError(f"line {at} is torn: {line[:60]!r}") from None
            true(line + b"\n" == make_record(writer, i, size), f"line {at} is torn: {line[:60]!r}")
            equal(i, following[writer], f"next record of writer {writer}")
            following[writer] += 1
        equal(following, [count] * (2 * writers), "records of each writer")


@check("append-both-mounts", "O_APPEND from processes on both mounts: every record is there exactly once, whole, in its writer's order", limit=120)
def _(a, b):
    append_test(a, b, 3, rounds(150), 120)


@check("append-large-records", "O_APPEND of records of 20 to 60 KiB from both mounts loses and tears nothing", limit=120)
def _(a, b):
    append_test(a, b, 2, rounds(40), 40_000)


@check("append-alternating-handles", "an append lands at the end that the other mount's append made, also on a long open handle", limit=120)
def _(a, b):
    write(f"{a}/f", b"")
    fds = [os.open(f"{side}/f", os.O_WRONLY | os.O_APPEND) for side in (a, b)]
    want = b""
    for i in range(rounds(200)):
        part = b"%d." % i * (1 + i % 5)
        os.write(fds[i % 2], part)
        want += part
        # The position of the handle is the kernel's own: it adds the bytes written to the size that it knew before, and a
        # file system has no way to tell it another. So only the data is looked at, and the size that stat tells.
        equal(os.fstat(fds[i % 2]).st_size, len(want), "size after the append")
    for fd in fds:
        os.close(fd)
    equal(read(f"{b}/f"), want)


# ---- locks ----

def held(a, b, kind):
    """Two agents with the same file open through A and B."""
    write(f"{a}/f", b"x")
    one, two = agents(2)
    one.call(a_open, f"{a}/f")
    two.call(a_open, f"{b}/f")
    return one, two, f"{a}/f", f"{b}/f"


def for_kinds(ident, statement, limit=40):
    def take(fn):
        for kind in KINDS:
            check(f"{kind}-{ident}", f"{kind}: {statement}", limit=limit)(
                lambda a, b, kind=kind: fn(a, b, kind))
        return fn
    return take


@for_kinds("exclusion", "an exclusive lock through one mount excludes the other; shared locks do not exclude each other")
def _(a, b, kind):
    one, two, pa, pb = held(a, b, kind)
    again = (errno.EAGAIN, errno.EACCES)
    one.call(a_lock, pa, kind)
    fails(again, two.call, a_lock, pb, kind)
    fails(again, two.call, a_lock, pb, kind, False)
    one.call(a_unlock, pa, kind)
    two.call(a_lock, pb, kind)
    fails(again, one.call, a_lock, pa, kind)
    two.call(a_unlock, pb, kind)
    one.call(a_lock, pa, kind, False)
    two.call(a_lock, pb, kind, False)
    fails(again, one.call, a_lock, pa, kind)
    two.call(a_close, pb)
    if kind == "fcntl":
        one.call(a_lock, pa, kind)
    else:
        # The kernel tells a file system of the last close of a handle, but does not wait for its answer.
        soon(one.call, a_lock, pa, kind)
    close_all(one, two)


@for_kinds("waiter-granted", "a process that waits for a lock gets it when the other mount unlocks, closes, or its process is killed")
def _(a, b, kind):
    for way in ("unlock", "close", "kill"):
        one, two, pa, pb = held(a, b, kind)
        one.call(a_lock, pa, kind)
        two.start(a_lock, pb, kind, True, True)
        true(not two.done(0.2), "the waiter did not wait")
        if way == "kill":
            one.kill()
        else:
            one.call(*((a_unlock, pa, kind) if way == "unlock" else (a_close, pa)))
        true(two.done(2), f"the waiter had no lock 2 s after {way}")
        two.finish()
        close_all(two)


@for_kinds("waiter-killed", "a process that waits for a lock is gone within 2 s of SIGKILL and leaves no lock behind")
def _(a, b, kind):
    one, two, pa, pb = held(a, b, kind)
    one.call(a_lock, pa, kind)
    two.start(a_lock, pb, kind, True, True)
    true(not two.done(0.2), "the waiter did not wait")
    two.kill(2)
    one.call(a_unlock, pa, kind)
    third = Agent()
    third.call(a_open, pb)
    deadline = time.monotonic() + 2
    while True:
        try:
            third.call(a_lock, pb, kind)
            break
        except OSError:
            true(time.monotonic() < deadline, "a lock of the killed waiter is still there")
    close_all(one, third)


@for_kinds("waiter-interrupted", "a signal with a handler ends the wait for a lock with EINTR; the lock is not taken later")
def _(a, b, kind):
    one, two, pa, pb = held(a, b, kind)
    one.call(a_lock, pa, kind)
    two.call(a_alarm, signal.SIGUSR1)
    two.start(a_lock, pb, kind, True, True)
    true(not two.done(0.2), "the waiter did not wait")
    os.kill(two.pid, signal.SIGUSR1)
    true(two.done(2), "the wait did not end within 2 s of the signal")
    fails(errno.EINTR, two.finish)
    one.call(a_unlock, pa, kind)
    # The signal is answered before the shard has heard of it: the lock may pass through the waiter's hands.
    end = time.monotonic() + 2
    while True:
        try:
            one.call(a_lock, pa, kind)
            break
        except BlockingIOError:
            true(time.monotonic() < end, "the lock was taken after the signal")
            time.sleep(0.02)
    close_all(one, two)


@for_kinds("counter", "numbers counted up under a lock by processes on both mounts add up", limit=90)
def _(a, b, kind):
    write(f"{a}/n", b"%020d" % 0)
    them, times = agents(4), rounds(60)
    for i, agent in enumerate(them):
        agent.start(a_count, f"{(a, b)[i % 2]}/n", kind, times)
    for agent in them:
        agent.finish(80)
    close_all(*them)
    equal(int(read(f"{a}/n")), 4 * times, "the count")

@for_kinds("counters", "so do numbers in two files that change hands at the same time", limit=90)
def _(a, b, kind):
    for name in "nm":
        write(f"{a}/{name}", b"%020d" % 0)
    them, times = agents(6), rounds(200)
    for i, agent in enumerate(them):
        agent.start(a_count, f"{(a, b)[i % 2]}/{'nm'[i // 2 % 2]}", kind, times)
    for agent in them:
        agent.finish(80)
    equal([int(read(f"{b}/{name}")) for name in "nm"], [4 * times, 2 * times], "counts")
    close_all(*them)


@check("record-lock-ranges", "fcntl locks of bytes: ranges are apart, split, merged, and reported by F_GETLK across mounts")
def _(a, b):
    one, two, pa, pb = held(a, b, "fcntl")
    again = (errno.EAGAIN, errno.EACCES)
    one.call(a_lock, pa, "fcntl", True, False, 0, 100)
    two.call(a_lock, pb, "fcntl", True, False, 100, 50)
    fails(again, two.call, a_lock, pb, "fcntl", True, False, 99, 1)
    one.call(a_unlock, pa, "fcntl", 40, 20)
    two.call(a_lock, pb, "fcntl", True, False, 40, 20)
    fails(again, two.call, a_lock, pb, "fcntl", True, False, 39, 1)
    fails(again, two.call, a_lock, pb, "fcntl", True, False, 60, 1)
    what, _whence, start, length, _pid = two.call(a_test, pb, "fcntl", True, 0, 10)
    equal((what, start, length), (fcntl.F_WRLCK, 0, 40), "the lock in the way")
    what, *_rest = two.call(a_test, pb, "fcntl", True, 500, 10)
    equal(what, fcntl.F_UNLCK, "type where nothing is locked")
    what, _whence, start, length, pid = one.call(a_test, pa, "fcntl", True, 100, 1)
    equal((what, start, length), (fcntl.F_WRLCK, 100, 50), "the lock of the other mount")
    one.call(a_lock, pa, "fcntl", False, False, 0, 40)
    two.call(a_lock, pb, "fcntl", False, False, 0, 10)
    fails(again, one.call, a_lock, pa, "fcntl", True, False, 0, 40)
    close_all(one, two)


@check("record-lock-to-end", "an fcntl lock of length 0 reaches past every end of file")
def _(a, b):
    one, two, pa, pb = held(a, b, "fcntl")
    one.call(a_lock, pa, "fcntl", True, False, 1 << 40, 0)
    again = (errno.EAGAIN, errno.EACCES)
    fails(again, two.call, a_lock, pb, "fcntl", True, False, (1 << 62), 1)
    two.call(a_lock, pb, "fcntl", True, False, 0, 1 << 40)
    close_all(one, two)


@check("record-lock-close-releases", "closing any descriptor of a file drops the process's fcntl locks on it, but not OFD locks")
def _(a, b):
    for kind, kept in (("fcntl", False), ("ofd", True)):
        one, two, pa, pb = held(a, b, kind)
        one.call(a_lock, pa, kind)
        one.call(a_read, pa)
        if kept:
            fails((errno.EAGAIN, errno.EACCES), two.call, a_lock, pb, kind)
        else:
            two.call(a_lock, pb, kind)
        close_all(one, two)


@check("lock-upgrade", "an fcntl lock is upgraded and downgraded in place, as the other mount sees it")
def _(a, b):
    one, two, pa, pb = held(a, b, "fcntl")
    one.call(a_lock, pa, "fcntl", False)
    two.call(a_lock, pb, "fcntl", False)
    two.call(a_unlock, pb, "fcntl")
    one.call(a_lock, pa, "fcntl", True)
    fails((errno.EAGAIN, errno.EACCES), two.call, a_lock, pb, "fcntl", False)
    one.call(a_lock, pa, "fcntl", False)
    two.call(a_lock, pb, "fcntl", False)
    close_all(one, two)


@check("flock-and-fcntl-apart", "flock and fcntl locks do not exclude each other")
def _(a, b):
    one, two, pa, pb = held(a, b, "flock")
    one.call(a_lock, pa, "flock")
    two.call(a_lock, pb, "fcntl")
    close_all(one, two)


@check("flock-shared-by-fork", "a flock lock is held until every copy of its descriptor is closed")
def _(a, b):
    one, two, pa, pb = held(a, b, "flock")
    fd = os.open(pa, os.O_RDWR)
    lock_call(fd, "flock", True, False)
    child = Agent()
    os.close(fd)
    fails((errno.EAGAIN, errno.EACCES), two.call, a_lock, pb, "flock")
    child.kill()
    soon(two.call, a_lock, pb, "flock")
    close_all(one, two)


@check("lock-waiters-in-turn", "several waiters on both mounts all get the lock, one at a time")
def _(a, b):
    write(f"{a}/f", b"")
    write(f"{a}/inside", b"0" * 8)
    holder = Agent()
    holder.call(a_open, f"{a}/f")
    holder.call(a_lock, f"{a}/f", "flock")
    them = agents(6)
    for i, agent in enumerate(them):
        agent.start(a_turn, f"{(a, b)[i % 2]}/f")
    time.sleep(0.2)
    true(not any(agent.done(0) for agent in them), "a waiter did not wait")
    holder.call(a_unlock, f"{a}/f", "flock")
    spans = sorted(agent.finish(20) for agent in them)
    for before, after in zip(spans, spans[1:]):
        true(before[1] <= after[0], "two held the lock at once")
    close_all(holder, *them)


def a_turn(_state, path):
    fd = os.open(path, os.O_RDWR)
    lock_call(fd, "flock", True, True)
    start = time.monotonic()
    time.sleep(0.01)
    end = time.monotonic()
    unlock_call(fd, "flock")
    return start, end


# ---- close-to-open ----

@check("close-to-open", "what one mount wrote and closed is what the other reads after it opens", limit=180)
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


@check("fsync-then-open", "what one mount wrote and fsynced, file still open, the other reads after it opens")
def _(a, b):
    fd = os.open(f"{a}/f", os.O_CREAT | os.O_RDWR, 0o644)
    for i in range(rounds(60)):
        os.pwrite(fd, b"%08d" % i, i * 8)
        os.fsync(fd)
        equal(read(f"{b}/f"), b"".join(b"%08d" % k for k in range(i + 1)))
    os.close(fd)


@check("cut-under-write", "what one mount wrote and the other cut before it was told is not there as zeros", limit=120)
def _(a, b):
    for size in (3_000, 200_000, 3 << 20):
        write(f"{a}/f", b"o" * size)
        fd = os.open(f"{a}/f", os.O_RDWR)
        write_all(fd, b"N" * size, 0)
        os.truncate(f"{b}/f", 0)
        os.fsync(fd)
        os.close(fd)
        for mount in (a, b):
            data = read(f"{mount}/f")
            equal(data.count(b"N"), len(data), f"bytes of what was written, of {size}")


def a_follow(_state, path, seconds):
    """Reads on at the end of a file as `tail -f` does; returns the bytes read and the reads with zeros."""
    fd = os.open(path, os.O_RDONLY)
    end, at, zeros = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        data = os.pread(fd, 1 << 16, at)
        zeros += 0 in data
        at += len(data)
    os.close(fd)
    return at, zeros


@check("follow-growing", "who reads on at the end of a growing file reads no zeros, on the same mount and on the other", limit=60)
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
    """Opens, reads and closes again and again; returns how often."""
    end, times = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        fd = os.open(path, os.O_RDONLY)
        os.pread(fd, 8 * 4096, 0)
        os.close(fd)
        times += 1
    return times


@check("own-writes-read", "what is written through a handle is read through it at once, also while others of the same mount open, read and close the file", limit=60)
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
            # The kernel dropped the page when its write was under way: for a moment only.
            stale += 1
            time.sleep(0.1)
            lasting += os.pread(fd, 4096, 0) != page
        os.close(fd)
    true(reader.finish(30) > 0, "nothing was read beside it")
    close_all(reader)
    equal(lasting, 0, f"lasting stale reads of {number}")
    true(stale * 500 <= number, f"{stale} of {number} reads were stale for a moment")


def a_first_look(_state, folder, pipe, seconds):
    """Looks each file up when told of it, for the first time, and again when told that it was changed; returns how many were, and how many old."""
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


@check("mmap-write-seen", "what was stored in a shared mapping is read by the other mount after msync and close")
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
    # They did, until the leases were over.
    true(longest < 4, f"one took {longest:.1f} s")


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


# ---- names and attributes ----

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


@check("lock-grown", "under a lock the first read, and the end, are what the other mount wrote under it, also where the file was open and has grown", limit=120)
def _(a, b):
    def flock(fd, kind):
        fcntl.flock(fd, kind)

    def record(fd, kind):
        fcntl.lockf(fd, kind)
    for take in (flock, record):
        for before, after in ((0, 64), (10, 64), (64, 4096), (5000, 9000), (0, 100_000), (9000, 5000)):
            for there, here in ((a, b), (b, a)):
                with open(f"{here}/f", "w+b", buffering=0) as mine:
                    mine.write(b"o" * before)
                    os.fsync(mine.fileno())
                    equal(len(os.pread(mine.fileno(), 1 << 20, 0)), before, "what was there")
                    with open(f"{there}/f", "r+b", buffering=0) as theirs:
                        take(theirs, fcntl.LOCK_EX)
                        os.pwrite(theirs.fileno(), b"Z" * after, 0)
                        os.ftruncate(theirs.fileno(), after)
                        take(theirs, fcntl.LOCK_UN)
                        take(mine, fcntl.LOCK_EX)
                        found = os.pread(mine.fileno(), 1 << 20, 0)
                        true(found == b"Z" * after, f"{before} to {after} bytes: the first read under the lock has {len(found)}, {found[:1]}..{found[-1:]}")
                        equal(os.lseek(mine.fileno(), 0, os.SEEK_END), after, "the end")
                        take(mine, fcntl.LOCK_UN)
                os.unlink(f"{here}/f")


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
                time.sleep(5.2)  # The lease on it ends: nobody is told of the next change.
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
    # Listings opened anew: an open one may show what was there when it was opened. The one of the mount that made the changes begins at
    # the start: the kernel looks there alone whether the listing that it keeps is old.
    for side in (b, a):
        listing = Listing(side)
        if side == a:
            listing.next()
        for at in (1001, 1700):
            listing.seek(marks[at][0])
            found = [e[0] for e in listing.rest() if not e[0].startswith(b"new")]
            equal(found, [name for _, name in marks[at:] if name not in gone], f"the rest from cookie {at} after changes")
        listing.close()


@check("listing-rewound", "a directory that stays open shows, rewound, what the other mount made and removed: at once, and when the lease is long over", limit=60)
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


def append_for_ever(path, tag):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    n = 0
    while True:
        os.write(fd, b"%s %08d %s\n" % (tag, n, b"." * 20_000))
        n += 1


@check("append-killed", "processes that are killed while they append hold nobody else up: each append of the others ends soon, is there once, and whole", limit=120)
def _(a, b):
    slowest = number = 0
    fd = os.open(f"{b}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for turn in range(rounds(60)):
        pids = []
        for one in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    append_for_ever(f"{a}/log", b"k%d.%d" % (turn, one))
                finally:
                    os._exit(1)
            pids.append(pid)
        time.sleep(0.03 + turn % 7 * 0.003)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            begun = time.monotonic()
            os.write(fd, b"b %08d\n" % number)
            slowest = max(slowest, time.monotonic() - begun)
            number += 1
        for pid in pids:
            os.waitpid(pid, 0)
    os.close(fd)
    print(f"  {number} appends beside {rounds(60) * 2} that were killed, the slowest took {slowest:.2f} s", flush=True)
    true(slowest < 8, f"an append took {slowest:.1f} s")
    # What a killed one had begun may be there, with zeros behind it, where others followed.
    pieces = [piece for piece in re.split(rb"\n|\0+", read(f"{b}/log")) if piece]
    equal([piece for piece in pieces if piece.startswith(b"b")], [b"b %08d" % n for n in range(number)], "own lines")
    whole = rb"k[0-9]+\.[0-9] [0-9]{8} [.]{20000}"
    cut = [piece[:40] for piece in pieces if piece[:1] != b"b" and not re.fullmatch(whole, piece)]
    true(len(cut) <= rounds(60) * 2 and all(re.match(rb"k[0-9.]+( |$)", piece) for piece in cut), f"torn lines {cut[:5]}")


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


def main():
    parser = argument_parser(__doc__.split("\n", 1)[0], "a", "b")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rounds")

    def make_args(args, c):
        SCALE[0] = args.scale
        base = getattr(args, "base", None)
        if base is None:
            base = args.base = os.path.basename(tempfile.mkdtemp(prefix="two.", dir=args.a))
            os.chmod(os.path.join(args.a, base), 0o755)
            if not os.path.isdir(os.path.join(args.b, base)):
                raise SystemExit(f"error: {args.b} does not show what was made in {args.a}")
            atexit.register(shutil.rmtree, os.path.join(args.a, base), ignore_errors=True)
        fresh(os.path.join(args.a, base), c.ident)
        both = [os.path.join(side, base, c.ident) for side in (args.a, args.b)]
        return both, lambda result: shutil.rmtree(both[0], ignore_errors=True)

    R.run("two mounts", parser, make_args)


if __name__ == "__main__":
    main()
