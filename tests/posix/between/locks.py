"""Locks shared by both mounts."""
import errno
import fcntl
import os
import signal
import time

from between import F_OFD_GETLK, KINDS, agents, check, close_all, lock_call, record_lock, rounds, soon, unlock_call
from checks import Agent, equal, fails, read, true, write


def a_count(_state, path, kind, times):
    """Adds 1 to the number in the file, under a lock, `times` times."""
    fd = os.open(path, os.O_RDWR)
    for _ in range(times):
        lock_call(fd, kind, True, True)
        value = int(os.pread(fd, 20, 0))
        os.pwrite(fd, b"%020d" % (value + 1), 0)
        unlock_call(fd, kind)
    os.close(fd)


def a_read(_state, path):
    return read(path)


def a_alarm(_state, signum):
    """Installs a handler that does nothing, without SA_RESTART."""
    signal.signal(signum, lambda *_: None)
    signal.siginterrupt(signum, True)


def a_test(state, path, kind, exclusive=True, start=0, length=0):
    command = fcntl.F_GETLK if kind == "fcntl" else F_OFD_GETLK
    what = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    return record_lock(state[path], command, what, start, length)


def a_unlock(state, path, kind, start=0, length=0):
    unlock_call(state[path], kind, start, length)


def a_lock(state, path, kind, exclusive=True, wait=False, start=0, length=0):
    lock_call(state[path], kind, exclusive, wait, start, length)


def a_close(state, path):
    os.close(state.pop(path))


def a_open(state, path, flags=os.O_RDWR):
    fd = os.open(path, flags, 0o644)
    state[path] = fd
    return fd


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
        # The kernel sends the last close of a handle to the file system, but does not wait for the
        # reply.
        soon(one.call, a_lock, pa, kind)
    close_all(one, two)


@for_kinds("waiter-granted", "a process that waits for a lock gets it when the other mount unlocks, closes, or its process is killed")
def _(a, b, kind):
    for way in ("unlock", "close", "kill"):
        one, two, pa, pb = held(a, b, kind)
        # The last round's waiter had it, and ended a moment ago.
        soon(one.call, a_lock, pa, kind)
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
    # The call returns before the shard has learned of the signal: the lock may briefly belong to
    # the waiter.
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
