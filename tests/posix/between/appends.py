"""Appends from both mounts."""
import os
import re
import signal
import time

from between import agents, check, close_all, make_record, rounds
from checks import equal, read, true, write


def a_append(_state, path, writer, count, size):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for i in range(count):
        record = make_record(writer, i, size)
        n = os.write(fd, record)
        if n != len(record):
            raise AssertionError(f"an append of {len(record)} bytes wrote {n}")
    os.close(fd)


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
        # The handle's position is the kernel's own: it adds the bytes written to the size that it
        # knew before, and a file system cannot correct it. So only the data and the size by stat
        # are checked.
        equal(os.fstat(fds[i % 2]).st_size, len(want), "size after the append")
    for fd in fds:
        os.close(fd)
    equal(read(f"{b}/f"), want)


def line_of(writer, number):
    return b"%03d %06d %s\n" % (writer, number, b"." * 88)


def a_append_on(_state, path, writer, numbers):
    """Appends through a descriptor that stays open: a command for another agent."""
    fd = _state.get("fd")
    if fd is None:
        fd = _state["fd"] = os.open(path, os.O_WRONLY | os.O_APPEND)
    for i in numbers:
        os.write(fd, line_of(writer, i))


def lines_of(path, writers):
    """The number of records of each writer, which must be whole and in order."""
    following = [0] * writers
    for line in read(path).split(b"\n")[:-1]:
        writer, i = int(line[:3]), int(line[4:10])
        true(line + b"\n" == line_of(writer, i), f"torn: {line[:60]!r}")
        equal(i, following[writer], f"next record of writer {writer}")
        following[writer] += 1
    return following


@check("append-alone-then-both", "records that one mount's process appends alone are there for another mount's open, and for its appends, whole and in order; stat sees what is published", limit=120)
def _(a, b):
    write(f"{a}/log", b"")
    one, = agents(1)
    slowest = count = 0
    for turn in range(rounds(8)):
        numbers = range(turn * 2000, turn * 2000 + 1000)
        one.start(a_append_on, f"{a}/log", 0, numbers)
        one.finish(60)
        size = os.stat(f"{b}/log").st_size
        true(size % 100 == 0 and size <= os.stat(f"{a}/log").st_size, f"{size} bytes are published")
        equal(os.stat(f"{a}/log").st_size, (turn * 2000 + 1000 + count) * 100, "size for who appended")
        begun = time.monotonic()
        equal(lines_of(f"{b}/log", 2), [turn * 2000 + 1000, count], "records that the other mount sees")
        slowest = max(slowest, time.monotonic() - begun)
        # Both at once, then only the first one again.
        one.start(a_append_on, f"{a}/log", 0, range(turn * 2000 + 1000, turn * 2000 + 1500))
        fd = os.open(f"{b}/log", os.O_WRONLY | os.O_APPEND)
        for i in range(count, count + 200):
            os.write(fd, line_of(1, i))
        count += 200
        one.finish(60)
        equal(lines_of(f"{b}/log", 2), [turn * 2000 + 1500, count], "records of both")
        os.close(fd)
        one.start(a_append_on, f"{a}/log", 0, range(turn * 2000 + 1500, turn * 2000 + 2000))
        one.finish(60)
    close_all(one)
    equal(lines_of(f"{a}/log", 2), [rounds(8) * 2000, count], "records at the end")
    print(f"  an open of the other mount took {slowest * 1000:.0f} ms at most", flush=True)
    true(slowest < 4, f"an open waited {slowest:.1f} s")


@check("append-synced", "a record appended with O_DSYNC, or with RWF_DSYNC, or before fsync, is published at once", limit=60)
def _(a, b):
    write(f"{a}/log", b"")
    plain = os.open(f"{a}/log", os.O_WRONLY | os.O_APPEND)
    synced = os.open(f"{a}/log", os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
    size = 0
    for turn in range(rounds(30)):
        for _ in range(5):
            size += os.write(plain, b"r" * 100)
        if turn % 3 == 0:
            size += os.write(synced, b"s" * 100)
        elif turn % 3 == 1:
            size += os.pwritev(plain, [b"t" * 100], 0, os.RWF_DSYNC)
        else:
            os.fsync(plain)
        equal(os.stat(f"{b}/log").st_size, size, "size that the other mount sees")
    os.close(plain)
    os.close(synced)


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
    # The unfinished append of a killed process may be there, followed by zeros before later
    # appends. The file's first append may be there without its first bytes: those are in the shard,
    # which gets them at the end of the append.
    found, own = read(f"{b}/log"), rb"b [0-9]{8}\n"
    equal(re.findall(own, found), [b"b %08d\n" % n for n in range(number)], "own lines")
    pieces = re.finditer(rb"[^\n\0]+", re.sub(own, lambda line: b"\n" * len(line[0]), found))
    whole = rb"k[0-9]+\.[0-9] [0-9]{8} [.]{20000}"
    cut = [(piece.start(), piece[0][:40]) for piece in pieces if not re.fullmatch(whole, piece[0])]
    as_begun = [at == 4096 and begin.startswith(b"....") or re.match(rb"k[0-9.]+( |$)", begin) for at, begin in cut]
    true(len(cut) <= rounds(60) * 2 and all(as_begun), f"torn lines {cut[:5]}")
