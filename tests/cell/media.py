#!/usr/bin/env python3
"""Effects of full and failing disks on a cell; each store is on a failing disk (zonal-faultfs).

    tests/cell/media.py [--only PART,...] [--long] [--list]

Makes a cell of its own (1 zone, 2 targets) in a temporary folder, with the folders of the shard and
of both targets on disks of their own. Stops it at the end. ZONAL and FAULTFS name the binaries.
Root only.
"""
import contextlib
import errno
import fcntl
import glob
import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, equal, fails, true  # noqa: E402
from failing import MIB, NODES, STORES, ZONAL, bytes_of, fresh, run, run_checks, same, save, told, wait_for  # noqa: E402

R = Registry()
check = R.check


def fill(folder, size, most):
    """Makes fsynced files until one does not fit: (number of complete ones, errno)."""
    for number in range(most):
        try:
            save(f"{folder}/{number}", bytes_of(number, size))
        except OSError as e:
            return number, e.errno
    raise AssertionError(f"{most} files of {size} bytes fit")


@check("media-full-df", "with one full target of two df promises what files on the other one can have: so much is written there, and then nothing is promised", limit=240)
def _(c, d):
    def free():
        space = os.statvfs(d)
        return space.f_bavail * space.f_frsize
    # First check of its cell: no space that earlier checks freed comes back during the count.
    for disk, room in (("target1", 6), ("target2", 52)):
        c.order(disk, f"budget {c.used(disk) + 64 * MIB + room * MIB}")
    promised, after, refused, number = None, 0, 0, 0
    # Files of one stripe unit: each is on one target, and is refused if that target is full.
    while refused < 24:
        true(number < 500, "500 MiB fit")
        try:
            save(f"{d}/{number}", bytes_of(number, MIB))
            after, refused = after + MIB, 0
        except OSError as e:
            equal(errno.errorcode[e.errno], "ENOSPC", "the error of a full target")
            refused += 1
            if promised is None:
                promised, after = free(), 0
        number += 1
    print(f"  {promised / MIB:.1f} MiB promised by df when one target was full, {after / MIB:.0f} MiB written, then {free() / MIB:.1f} MiB", flush=True)
    true(promised > 24 * MIB, "too little is promised for a comparison")
    # Up to 8 MiB of each target are kept for overwrites. Space of a write refused halfway comes
    # back a little later.
    true(abs(promised - after) <= 16 * MIB, f"{promised / MIB:.1f} MiB promised, {after / MIB:.0f} MiB written")
    wait_for("df that says that nothing can be had", lambda: free() <= 8 * MIB)


def check_full(c, d, disks):
    save(f"{d}/before", bytes_of(1000, 3 * MIB))
    for disk in disks:
        c.order(disk, f"budget {c.used(disk) + 64 * MIB + 24 * MIB}")
    os.mkdir(f"{d}/fill")
    count, error = fill(f"{d}/fill", 2 * MIB, 200)
    equal(errno.errorcode[error], "ENOSPC", "the error of a full target")
    true(count > 3, f"full after {count} files")
    def free():
        space = os.statvfs(d)
        return space.f_bavail * space.f_frsize

    def is_full():
        # Files of one target each use the rest of the other target, and space of files removed
        # before.
        start = len(os.listdir(f"{d}/fill"))
        for number in range(start, start + 100):
            try:
                save(f"{d}/fill/s{number}", b"s" * 256 * 1024)
            except OSError as e:
                equal(errno.errorcode[e.errno], "ENOSPC", "the error of a full target")
        return free() < 2 * MIB
    if len(disks) == 2:
        wait_for("df that says that a full cell is full", is_full, 100)
    print(f"  {count} files of 2 MiB; df says {free() / MIB:.1f} MiB free", flush=True)
    for number in range(count):
        same(f"{d}/fill/{number}", bytes_of(number, 2 * MIB), f"file {number}, fsynced before")
    same(f"{d}/before", bytes_of(1000, 3 * MIB), "the file of before")
    # Deleting frees space without any change of the disk.
    shutil.rmtree(f"{d}/fill")

    def fits():
        save(f"{d}/again", bytes_of(7, 2 * MIB))
        return True
    wait_for("room after deleting", fits)
    for disk in disks:
        c.order(disk, "budget off")

    def room():
        for number in range(count + 8):
            save(f"{d}/more{number}", bytes_of(number, 2 * MIB))
        return True
    wait_for("room after the disk has room", room)
    same(f"{d}/again", bytes_of(7, 2 * MIB), "the file written while it was full")
    true(c.status()["healthy"], "not healthy after all")


@check("media-full-target", "one full target: ENOSPC at write or fsync, nothing fsynced is lost, deleting works and makes room", limit=240)
def _(c, d):
    check_full(c, d, ["target1"])


@check("media-full-targets", "all targets full: ENOSPC at write or fsync, nothing fsynced is lost, deleting makes room; df reports no free space", limit=240)
def _(c, d):
    check_full(c, d, ["target1", "target2"])


def as_another(act, path):
    """Another process without a descriptor of the file does something with it: OK or the error's name."""
    code = "import os, sys, fcntl\npath = sys.argv[1]\ntry:\n    " + act + "\n    print('OK')\nexcept OSError as e:\n    print(e.errno)"
    said = run(sys.executable, "-c", code, path).stdout.strip()
    return said if said == "OK" else errno.errorcode[int(said)]


@check("media-lost-write-told", "a lost write is reported to each writer's descriptor at its fsync, whichever process flushed the file before, and to no process that did not write", limit=240)
def _(c, d):
    for disk in ("target1", "target2"):
        c.order(disk, f"budget {c.used(disk) + 64 * MIB + 8 * MIB}")
    refused, number, fitted, full_since = 0, 0, 0, time.monotonic()
    # Space that earlier checks freed comes back a little later: wait until the target stays full
    # for three seconds.
    while refused < 12 or time.monotonic() - full_since < 3:
        # Many more of them may be refused: space comes back in small pieces.
        true(fitted < 2000, "2,000 files fit")
        try:
            save(f"{d}/fill{number}", b"f" * 256 * 1024)
            refused, fitted, full_since = 0, fitted + 1, time.monotonic()
        except OSError as e:
            equal(errno.errorcode[e.errno], "ENOSPC", "the error of a full target")
            refused += 1
            time.sleep(0.02)
        number += 1
    others = {
        "nobody": None,
        "a fork and exec of the writer": lambda path: run("/bin/true", ok=True) and "OK",
        "open and close": lambda path: as_another("os.close(os.open(path, os.O_RDONLY))", path),
        "open and stat": lambda path: as_another("os.fstat(os.open(path, os.O_RDONLY))", path),
        "chmod": lambda path: as_another("os.chmod(path, 0o600)", path),
        "a lock and its release": lambda path: as_another("f = os.open(path, os.O_RDWR); fcntl.lockf(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_UN); os.close(f)", path),
        "a truncation": lambda path: as_another("os.truncate(path, 900_000)", path),
        "age": lambda path: time.sleep(4) or "OK",
    }
    for number, (what, act) in enumerate(others.items()):
        path = f"{d}/lost{number}"
        writer = os.open(path, os.O_RDWR | os.O_CREAT)
        second = os.open(path, os.O_RDWR)
        twin = os.dup(writer)
        equal(os.pwrite(writer, b"w" * 900_000, 5_000), 900_000, "a gathered write")
        if act:
            equal(act(path), "OK", f"{what}: what the other is told")
        equal(told(os.close, twin), "ENOSPC", f"{what}: a close of the writer's other descriptor")
        equal([told(os.fsync, writer), told(os.fsync, writer)], ["ENOSPC", "OK"], f"{what}: two times fsync of the writer")
        equal([told(os.fsync, second), told(os.fsync, second)], ["ENOSPC", "OK"], f"{what}: two times fsync of another descriptor")
        later = os.open(path, os.O_RDWR)
        equal(told(os.fsync, later), "OK", f"{what}: fsync of a descriptor that was opened after all were told")
        equal([told(os.close, fd) for fd in (writer, second, later)], ["OK"] * 3, f"{what}: closes after that")
        # Not removed here: its stored data would make room for the next one.
    for disk in ("target1", "target2"):
        c.order(disk, "budget off")


WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, os.urandom(4 << 20))
print("written", flush=True)
sys.stdin.readline()
os.fsync(fd)
print("OK")
"""


@check("media-slow-operation", "one fsync is logged under one trace id by the mount that missed a target, by the slow targets and by the slow shard")
def _(c, d):
    names = ("target1", "target2", "shard")

    def traces(text, *words):
        lines = [line for line in text.splitlines() if all(word in line for word in words)]
        return {re.search(r"trace=(?:\x1b\[[0-9;]*m)*([0-9a-f]{16})", line)[1] for line in lines}

    def of(name, operation):
        return traces(c.log(name), "slow operation", operation)

    def of_mount():
        logs = glob.glob(f"{c.dir}/mounts/*.log")
        true(logs, "the mount has no log")
        text = ""
        for log in logs:
            with open(log, encoding="utf-8", errors="replace") as f:
                text += f.read()
        return traces(text, "no answer")
    with c.changed(names, "limits", 'slow_operation = "1 ms"'):
        for name in names:
            c.order(name, "slow 30")
        path = f"{d}/slow"
        # Another process, since a child of this one first closes a copy of the descriptor, which
        # waits for the fsync.
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(writer.stdout.readline(), "written\n", "the writer")
        c.kill("target2")
        before = of_mount()
        writer.stdin.write("flush\n")
        writer.stdin.flush()
        wait_for("the mount's word on the target that does not answer", lambda: of_mount() - before)
        c.up()
        equal(writer.communicate(timeout=60)[0], "OK\n", "the fsync")
        seen = [of_mount(), of("target1", "Sync"), of("target2", "Sync"), of("shard", "ReportWrite")]
        true(set.intersection(*seen) - {"0" * 16}, f"traces of slow fsyncs: {seen}")


@check("media-full-shard", "a full metadata store: ENOSPC for what is new, reading and deleting go on, and all is well when there is room", limit=400)
def _(c, d):
    save(f"{d}/before", b"x" * 100_000)
    name, count = "n" * 200, 600
    true(os.statvfs(d).f_ffree > 1000, "free inodes of a shard with room")
    for number in range(count):
        os.close(os.open(f"{d}/{name}{number}", os.O_CREAT | os.O_WRONLY))
    # If other data fills the disk during a checkpoint, the shard accepts no changes until its
    # restart. No checkpoint is due after an orderly stop.
    c.restart("shard", by=signal.SIGTERM)
    # Less than a checkpoint requires; then nothing at all.
    for left in (31 * MIB, 0):
        c.order("shard", f"budget {c.used('shard') + left}")
        fails(errno.ENOSPC, os.open, f"{d}/more", os.O_CREAT | os.O_WRONLY)
        fails(errno.ENOSPC, os.mkdir, f"{d}/more")
        true("full" in c.trouble("shard"), f"status says: {c.trouble('shard')}")
        equal((os.statvfs(d).f_ffree, os.statvfs(d).f_favail), (0, 0), "free inodes of a full shard")
        true(os.statvfs(d).f_bavail > 0, "targets have room")
    start = time.monotonic()
    equal(os.stat(f"{d}/before").st_size, 100_000, "size")
    true(fresh(f"{d}/before") == b"x" * 100_000, "content")
    equal(len(os.listdir(d)), count + 1, "names")
    true(time.monotonic() - start < 20, "reading a shard that is full takes long")
    # Although each deletion is a change, too.
    for number in range(count):
        os.unlink(f"{d}/{name}{number}")
    equal(os.listdir(d), ["before"], "names after deleting")
    c.order("shard", "budget off")

    def makes():
        os.mkdir(f"{d}/new")
        return True
    wait_for("a new name when there is room", makes, 60)
    true(c.status()["healthy"], "not healthy after all")
    true(os.statvfs(d).f_ffree > 1000, "free inodes when there is room again")
    c.restart("shard")
    equal(sorted(os.listdir(d)), ["before", "new"], "names after a restart")


@check("media-refilled-shard", "space that deleting frees inside a full metadata store takes new names again, on the same disk, also after a restart", limit=400)
def _(c, d):
    c.order("shard", f"budget {c.used('shard') + 64 * MIB + 16 * MIB}")

    def fill_names(folder):
        # Free space varies at first, while deletions are in progress.
        wait_for("room for a directory", lambda: os.mkdir(folder) is None, 60)
        for number in range(20_000):
            try:
                with open(f"{folder}/{number}", "wb") as f:
                    f.write(b"x" * 4000)
            except OSError as e:
                equal(errno.errorcode[e.errno], "ENOSPC", "the error of a full shard")
                return number
        raise AssertionError("20,000 files fit")

    first = fill_names(f"{d}/fill")
    true(first > 500, f"full after {first} files")
    true("full" in c.trouble("shard"), f"status says: {c.trouble('shard')}")
    for restart in (False, True):
        if restart:
            c.restart_full("shard")
        shutil.rmtree(f"{d}/fill")

        def makes():
            os.mkdir(f"{d}/again")
            return True
        wait_for("a new name once others were removed", makes, 60)
        os.rmdir(f"{d}/again")
        count = fill_names(f"{d}/fill")
        true(count > first // 4, f"{first} files fitted, now {count}")
        print(f"  {first} files, then {count}", flush=True)
    shutil.rmtree(f"{d}/fill")
    c.order("shard", "budget off")
    wait_for("a cell that is well", lambda: c.status()["healthy"])
    equal(os.listdir(d), [], "names")


def lies_on(path, target):
    record = json.loads(run(ZONAL, "locate", "--json", path).stdout)
    while isinstance(record, (dict, list)) and "targets" not in record:
        record = next(iter(record.values())) if isinstance(record, dict) else record[0]
    return re.search(rf'"{target}": *[1-9]', json.dumps(record["targets"])) is not None


def on_target(c, d, target, size=MIB):
    """A file of one stripe on a given target."""
    for number in range(100):
        path = f"{d}/on{target}-{number}"
        save(path, bytes_of(number, size))
        if lies_on(path, target):
            return path, bytes_of(number, size)
    raise AssertionError(f"none of 100 files lies on target {target}")


@check("media-read-error", "a block that the disk does not give is EIO; the log names target, object and offset; it is counted; the rest is read", limit=120)
def _(c, d):
    path, data = on_target(c, d, 1)
    c.restart("target1")
    before = c.metric("target1", "target_read_errors_total")
    c.order("target1", "fail read segments")
    fails(errno.EIO, fresh, path)
    c.order("target1", "clear")
    true(c.metric("target1", "target_read_errors_total") > before, "not counted")
    lines = [line for line in c.log("target1").splitlines() if "cannot be read" in line]
    true(lines and re.search(r"target_id=1 object=\d+\.\d+ offset=\d+", re.sub(r"\x1b\[[0-9;]*m", "", lines[-1])), f"the log says {lines[-1:]}")
    same(path, data, "when the disk gives it again")


@check("media-bad-checksum", "a block that comes back changed is EIO, never other bytes; the log names it; it is counted", limit=120)
def _(c, d):
    path, data = on_target(c, d, 1)
    c.restart("target1")
    before = c.metric("target1", "target_damaged_blocks_total")
    for at in range(0, 4 * MIB, 65_536):
        c.order("target1", f"flip segments {at} 1")
    fails(errno.EIO, fresh, path)
    c.order("target1", "clear")
    true(c.metric("target1", "target_damaged_blocks_total") > before, "not counted")
    text = re.sub(r"\x1b\[[0-9;]*m", "", c.log("target1"))
    true(re.search(r"target_id=1.*block at byte \d+ of object \d+\.\d+ is damaged", text), "the log does not name it")
    same(path, data, "when the disk gives it right")


def by_itself(path):
    """The bytes of a file of 1 MiB in one request, past all caches."""
    buffer = mmap.mmap(-1, MIB)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        equal(os.preadv(fd, [buffer], 0), MIB, "bytes read")
        return bytes(buffer)
    finally:
        os.close(fd)


@check("media-slow-reads", "readers of one target whose disk is slow are served side by side: their reads of the disk overlap", limit=120)
def _(c, d):
    paths, number = [], 0
    while len(paths) < 8:
        true(number < 100, "too few of 100 files lie on target 1")
        path = f"{d}/f{number}"
        save(path, bytes_of(number, MIB))
        if lies_on(path, 1):
            paths.append((path, number))
        number += 1
    wrong = []

    def read(path, seed):
        if by_itself(path) != bytes_of(seed, MIB):
            wrong.append(path)

    def at_once(readers, ms):
        c.order("target1", f"slow-reads {ms}")
        start = time.monotonic()
        threads = [threading.Thread(target=read, args=one) for one in paths[:readers]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return int(c.order("target1", "status").split()[5]), time.monotonic() - start
    # On a busy machine it takes longer until this many requests are in progress.
    for ms in (250, 500, 1000, 2000, 4000):
        one, alone = at_once(1, ms)
        equal(one, 1, "reads of the disk at once for one reader")
        most, took = at_once(8, ms)
        equal(wrong, [], "files with other bytes")
        if most >= 6 and took < 4 * alone + 1:
            break
    true(most >= 6, f"8 readers, at most {most} reads of the disk at once")
    # In sequence they would take eight times as long.
    true(took < 4 * alone + 1, f"8 readers took {took:.1f} s, one {alone:.1f} s")
    print(f"  one reader {alone:.2f} s, eight {took:.2f} s with {most} reads at once", flush=True)


def side_by_side(c, disk, ask, names):
    """Concurrent reads of a slow disk while 16 clients each request a name once.

    Prints the time of one, of all together, and their ratio.
    """
    names = list(names)
    random.shuffle(names)

    def ask_all(part):
        for name in part:
            ask(name)

    def together(part, askers):
        start = time.monotonic()
        threads = [threading.Thread(target=ask_all, args=[part[n::askers]]) for n in range(askers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(part) / (time.monotonic() - start)
    # Reads in the background after a start.
    time.sleep(1)
    for ms in (5, 20, 80):
        c.order(disk, f"slow-reads {ms}")
        few, names = names[:20], names[20:]
        alone = together(few, 1)
        c.order(disk, f"slow-reads {ms}")
        many, names = names[:200], names[200:]
        at_once = together(many, 16)
        most = int(c.order(disk, "status").split()[5])
        print(f"  {ms} ms a read: {alone:.0f} a second alone, {at_once:.0f} by 16 ({at_once / alone:.1f} times), {most} reads at once", flush=True)
        if most >= 8:
            break
    c.order(disk, "clear")
    return most


@check("media-cold-names", "names that are not in a shard's memory, on a slow disk: requests read it side by side", limit=180)
def _(c, d):
    with c.changed(("shard",), "meta", 'overlay = "1 MiB"\ncache = "4 MiB"'):
        for number in range(3000):
            with open(f"{d}/f{number}", "wb") as f:
                f.write(bytes_of(number, 4000))
        os.sync()
        c.restart("shard", by=signal.SIGTERM)

        def ask(number):
            # The kernel may have the name cached; an open goes to the shard.
            with open(f"{d}/f{number}", "rb") as f:
                equal(f.read(), bytes_of(number, 4000), f"file {number}")
        true(side_by_side(c, "shard", ask, range(3000)) >= 8, "requests of a shard read its disk one after the other")


@check("media-cold-objects", "objects that are not in a target's memory, on a slow disk: requests read its index side by side", limit=240)
def _(c, d):
    with c.changed(("target1",), "storage", 'overlay = "1 MiB"\ncache = "1 MiB"'):
        data = bytes_of(1, 8192)
        for number in range(6000):
            with open(f"{d}/f{number}", "wb") as f:
                f.write(data)
        os.sync()
        c.restart("target1", by=signal.SIGTERM)

        def ask(number):
            true(fresh(f"{d}/f{number}") == data, f"file {number}")
        true(side_by_side(c, "target1", ask, range(0, 6000, 3)) >= 8, "requests of a target read its index one after the other")


def check_shard_reads(c, d, break_it, count, words):
    """A shard whose index is not in memory, on a disk that `break_it` damages."""
    with c.changed(("shard",), "meta", 'overlay = "1 MiB"\ncache = "1 MiB"'):
        label = 'shard="1"'
        checkpoints = f"shard_checkpoints_total{{{label}}}"
        for number in range(900):
            with open(f"{d}/f{number}", "wb") as f:
                f.write(bytes_of(number, 4000))
        os.sync()
        wait_for("checkpoints", lambda: c.metric("shard", checkpoints) >= 2)

        wrong = []

        def ask_until(done):
            while not done.wait(0.001):
                number = random.randrange(900)
                with contextlib.suppress(OSError):
                    if fresh(f"{d}/f{number}") != bytes_of(number, 4000):
                        wrong.append(number)

        # Background work of the shard may find the damage before a request does, even with requests
        # in progress: then all are refused, and none is counted.
        for _turn in range(5):
            # An orderly stop leaves an empty log; after a kill, the log may make a checkpoint due
            # at each start.
            c.restart("shard", by=signal.SIGTERM)
            done = threading.Event()
            asking = threading.Thread(target=ask_until, args=[done])
            asking.start()
            break_it()
            done.set()
            asking.join()
            equal(wrong, [], "files with other bytes while the disk begins to fail")
            errors = {}
            for number in range(0, 900, 9):
                try:
                    same(f"{d}/f{number}", bytes_of(number, 4000), f"file {number} on a disk that fails")
                except OSError as e:
                    errors[errno.errorcode[e.errno]] = errors.get(errno.errorcode[e.errno], 0) + 1
            true(set(errors) == {"EIO"}, f"errors of reading: {errors}")
            true(not c.status()["healthy"], "status says that all is well")
            if c.metric("shard", f"{count}{{{label}}}") > 0:
                break
            is_stopped = c.metric("shard", f"shard_healthy{{{label}}}") == 0 and re.search("the shard stops serving|a checkpoint of the shard failed", c.log("shard"))
            true(is_stopped or c.metric("shard", f"shard_index_damaged_blocks_total{{{label}}}") > 0, "neither counted nor stopped")
            c.order("shard", "clear")
            c.restart("shard")
        else:
            raise AssertionError("no request met it in five turns")
        text = re.sub(r"\x1b\[[0-9;]*m", "", c.log("shard"))
        true(re.search(rf'{words[0]}.* shard=1 operation="?\w+', text), "the log does not say it")
        true("panicked" not in text, "the log has the words of a library for it")
        status = c.status()
        true(not status["healthy"] and words[1] in c.trouble("shard"), f"status says: {c.trouble('shard')}")
        c.order("shard", "clear")
        c.restart("shard")
        for number in range(900):
            same(f"{d}/f{number}", bytes_of(number, 4000), f"file {number} when the disk is well again")
        print(f"  {errors} of 100 reads", flush=True)


@check("media-shard-read-error", "a metadata store whose disk gives nothing: EIO, never other bytes; the log says it, it is counted, status is not healthy", limit=180)
def _(c, d):
    check_shard_reads(c, d, lambda: c.order("shard", "fail read index"), "shard_read_errors_total",
                      ("the store cannot be read", "the medium failed"))


@check("media-shard-damage", "a metadata store that comes back changed: EIO, never other names or bytes; the log says it, it is counted, status is not healthy", limit=180)
def _(c, d):
    def flip():
        # Two bits of each block, both at once. A single bit could be repaired; and between two
        # separate commands, background work, which reads more than a request, found the first one
        # before any request.
        c.order("shard", f"flip index.redb {64 * 1024 + 1000} 17 4096")
    check_shard_reads(c, d, flip, "shard_damaged_total", ("stored data is damaged", "damaged"))


@check("media-write-error", "a disk that takes no writes: fsync is EIO, the target acknowledges nothing more, status says why, nothing fsynced is lost", limit=180)
def _(c, d):
    path, data = on_target(c, d, 1)
    c.order("target1", "fail write segments")
    fails(errno.EIO, lambda: [save(f"{d}/lost{n}", bytes_of(n, MIB)) for n in range(8)])
    c.order("target1", "clear")
    # The disk works again, but the target stays failed.
    fails(errno.EIO, lambda: [save(f"{d}/more{n}", bytes_of(n, MIB)) for n in range(8)])
    reason = c.trouble("target1")
    true("takes no writes" in reason, f"status says: {reason}")
    c.restart("target1")
    same(path, data, "fsynced before")
    save(f"{d}/again", data)
    same(f"{d}/again", data, "written after the restart")


@check("media-sync-error", "a flush that fails: fsync is EIO, and again after a restart for what was written before; status says why", limit=180)
def _(c, d):
    path, data = on_target(c, d, 1)
    fd = os.open(path, os.O_WRONLY)
    writes = int(c.order("target1", "status").split()[3])
    # A whole stripe unit is sent at once; the target acknowledges it and has not flushed it.
    os.pwrite(fd, b"y" * MIB, 0)
    wait_for("the write at the disk", lambda: int(c.order("target1", "status").split()[3]) >= writes + 2)
    c.order("target1", "fail sync log")
    fails(errno.EIO, lambda: [save(f"{d}/lost{n}", bytes_of(n, MIB)) for n in range(8)])
    reason = c.trouble("target1")
    true("flush failed" in reason, f"status says: {reason}")
    c.order("target1", "clear")
    c.restart("target1")
    # Acknowledged by the process of the target that could not flush.
    fails(errno.EIO, os.fsync, fd)
    os.close(fd)
    found = fresh(path)
    blocks = {found[at:at + 4096] in (data[at:at + 4096], b"y" * 4096) for at in range(0, MIB, 4096)}
    equal((len(found), blocks), (MIB, {True}), "length, and whether each block is the old or the new one")
    save(f"{d}/again", data)
    same(f"{d}/again", data, "written after the restart")


@check("media-shard-sync-error", "a flush of the metadata store that fails: the shard acknowledges nothing more, and serves after a restart", limit=180)
def _(c, d):
    save(f"{d}/before", b"1")
    c.order("shard", "fail sync log")
    fails(errno.EIO, save, f"{d}/lost", b"2")
    c.order("shard", "clear")
    fails(errno.EIO, os.mkdir, f"{d}/dir")
    true(c.trouble("shard"), "status says that the shard serves")
    c.restart("shard")
    same(f"{d}/before", b"1", "fsynced before")
    save(f"{d}/again", b"3")


def server_refuses(c, name, folder, what):
    """Starts a node's server on another folder; it must end with an error that contains `what`."""
    config = f"{c.dir}/{NODES[name]}/node.toml"
    place = f"{c.work}/stranger"
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place)
    with open(config, encoding="utf-8") as f:
        text = f.read()
    text = text.replace('"node.key"', f'"{c.dir}/{NODES[name]}/node.key"')
    with open(f"{place}/node.toml", "w", encoding="utf-8") as f:
        f.write(re.sub(r'^listen = "([^:]*):\d+"', r'listen = "\1:0"', text, flags=re.M))
    shutil.copytree(folder, f"{place}/{os.path.basename(STORES[name])}")
    done = run(ZONAL, "server", "--config", f"{place}/node.toml", ok=False, limit=30)
    true(done.returncode not in (0, 124), f"a store that is not the one is served: exit {done.returncode}")
    text = done.stderr + done.stdout
    true(re.search(what, text), f"it says: {text.strip()[-300:]}")


@check("media-foreign-stores", "a copied target or shard, an older image, a target of another node or of another cell: each is refused and says what it is", limit=240)
def _(c, d):
    save(f"{d}/before", bytes_of(3, 3 * MIB))
    for name in ("target1", "shard"):
        old = f"{c.work}/old-{name}"
        c.kill(name)
        shutil.copytree(f"{c.dir}/{STORES[name]}", old)
        c.up()
        wait_for("a cell that serves", lambda: c.status()["healthy"])
        # While the right store runs, and again when it is down; a retry does not help a refused
        # one.
        for _ in range(3):
            server_refuses(c, name, old, "older image or a copy")
        c.kill(name)
        server_refuses(c, name, old, "older image or a copy")
        c.up()
        wait_for("a cell that serves", lambda: c.status()["healthy"])
        shutil.rmtree(old)
    server_refuses(c, "target1", f"{c.dir}/{STORES['target2']}", "store is number 2, not 1")
    other = f"{c.work}/other"
    run(ZONAL, "up", "--dir", other, "--zones", "1", "--storage-nodes", "1")
    run(ZONAL, "down", "--dir", other)
    server_refuses(c, "target1", f"{other}/storage1-1/target", "belongs to cell")
    shutil.rmtree(other)
    same(f"{d}/before", bytes_of(3, 3 * MIB), "the file of before")
    true(c.status()["healthy"], "not healthy after all")


if __name__ == "__main__":
    run_checks(R, "media", __doc__.split("\n", 1)[0])
