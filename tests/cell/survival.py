#!/usr/bin/env python3
"""Data that survives each kind of kill, one check for each sentence of docs/semantics.md.

    tests/cell/survival.py --cell DIR --mount PATH [--only PART,...] [--list] [--long]

The cell is one that `zonal up` made, with the directory `one` at its top. Only mounts made for this
purpose, beside the cell's folder, are killed. ZONAL names the binary. Root only. (`kill.py` does
all of it at random.)
"""
import errno
import fcntl
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from areas.directories import Listing  # noqa: E402
from cell import ZONAL, run  # noqa: E402
from checks import Registry, equal, fails, pattern, read, true, write  # noqa: E402
from own_mounts import COMES_BACK_SECONDS, OwnMounts, below, drop, make_point, write_at  # noqa: E402

R = Registry()
check = R.check

STATFS = {"x86_64": "137", "aarch64": "43"}[os.uname().machine]


@check("mount-killed-synced", "data and size made durable by fsync, O_SYNC and O_DSYNC survive the kill of the mount's process; a rename over an existing name too", limit=120)
def _(c, d):
    own = c.own_mount("synced")
    try:
        e, data = below(own, d), pattern(3, 3 << 20)
        fds = [write_at(f"{e}/fsync", data, 0), write_at(f"{e}/o-sync", data, os.O_SYNC, False), write_at(f"{e}/o-dsync", data, os.O_DSYNC, False)]
        write(f"{e}/old", b"old")
        fds.append(write_at(f"{e}/new", data, 0))
        os.rename(f"{e}/new", f"{e}/old")
        c.kill_mount(own)
        for name in ("fsync", "o-sync", "o-dsync", "old"):
            true(read(f"{d}/{name}") == data, f"{name} differs")
        true(not os.path.exists(f"{d}/new"), "the old name is there, too")
        for fd in fds:
            fails(errno.ENOTCONN, os.fsync, fd)
            drop(fd)
    finally:
        c.end_mount(own)


@check("mount-killed-names", "names, renames, links, extended attributes, modes and truncations that a call returned for survive the kill of the mount's process without any fsync", limit=120)
def _(c, d):
    own = c.own_mount("names")
    try:
        e = below(own, d)
        write(f"{e}/a", b"x" * 5000)
        os.rename(f"{e}/a", f"{e}/b")
        os.link(f"{e}/b", f"{e}/c")
        os.setxattr(f"{e}/b", "user.k", b"v")
        os.chmod(f"{e}/b", 0o600)
        os.truncate(f"{e}/b", 100)
        os.symlink("b", f"{e}/s")
        os.mkdir(f"{e}/dir")
        write(f"{e}/gone", b"")
        os.unlink(f"{e}/gone")
        c.kill_mount(own)
        equal(sorted(os.listdir(d)), ["b", "c", "dir", "s"], "names")
        s = os.stat(f"{d}/c")
        equal((s.st_size, s.st_nlink, s.st_mode & 0o777, os.getxattr(f"{d}/c", "user.k"), os.readlink(f"{d}/s")), (100, 2, 0o600, b"v", "b"), "file")
        equal(read(f"{d}/b"), b"x" * 100, "content")
    finally:
        c.end_mount(own)


@check("mount-killed-unflushed", "bytes that were written and not flushed when the mount's process is killed are old or new, each for itself, and the size is one that the file had", limit=120)
def _(c, d):
    own = c.own_mount("unflushed")
    try:
        e, old, new = below(own, d), b"o" * 200_000, b"n" * 300_000
        fd = write_at(f"{e}/f", old, 0)
        os.pwrite(fd, new, 0)
        c.kill_mount(own)
        drop(fd)
        found = read(f"{d}/f")
        true(len(found) in (len(old), len(new)), f"{len(found)} bytes")
        true(set(found) <= {ord("o"), ord("n"), 0} and 0 not in found[:len(old)], "bytes that nobody wrote")
    finally:
        c.end_mount(own)


def records(path):
    """The number of records: each must be whole, in order, and there once."""
    lines = read(path).split(b"\n")
    equal(lines.pop(), b"", "the end of the last record")
    for number, line in enumerate(lines):
        equal(line, b"%08d" % number + b"." * 91, f"record {number}")
    return len(lines)


def append_records(fd, numbers):
    for number in numbers:
        os.write(fd, b"%08d" % number + b"." * 91 + b"\n")


@check("mount-killed-appends", "of records that a process appended alone those before its fsync survive the kill of the mount's process, of the others the first ones, whole; another mount appends behind them", limit=120)
def _(c, d):
    own = c.own_mount("appends")
    try:
        e = below(own, d)
        for turn in range(3):
            fd = os.open(f"{e}/log{turn}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            append_records(fd, range(500))
            os.fsync(fd)
            append_records(fd, range(500, 1000 + turn * 11_000))
            if turn < 2:
                os.close(fd)
        c.kill_mount(own)
        drop(fd)
        equal([records(f"{d}/log{turn}") for turn in range(2)], [1000, 12_000], "closed ones")
        kept = records(f"{d}/log2")
        true(500 <= kept <= 23_000, f"{kept} records")
        begun = time.monotonic()
        fd = os.open(f"{d}/log2", os.O_WRONLY | os.O_APPEND)
        append_records(fd, range(kept, kept + 100))
        os.close(fd)
        equal(records(f"{d}/log2"), kept + 100, "records of both")
        print(f"  {kept} of 23000 records were kept; the next append waited {time.monotonic() - begun:.1f} s", flush=True)
        true(time.monotonic() - begun < 12, "an append waited for the dead mount")
    finally:
        c.end_mount(own)


@check("servers-killed-appends", "a process that appends records alone loses none, and none is there twice, when the metadata server, or all servers, are killed meanwhile and started again", limit=240)
def _(c, d):
    fd = os.open(f"{d}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    count = 0

    def append_for(seconds):
        nonlocal count
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            append_records(fd, range(count, count + 50))
            count += 50

    append_for(0.5)
    for kinds in (("meta",), ("manager", "meta", "storage"), ("meta",), ("storage",), ("meta",)):
        c.kill_servers(*kinds)
        starting = threading.Thread(target=c.up)
        starting.start()
        append_for(1.5)
        starting.join()
        append_for(0.5)
    os.fsync(fd)
    os.close(fd)
    equal(records(f"{d}/log"), count, "records")
    print(f"  {count} records", flush=True)


@check("mount-killed-aged", "bytes of a file that stays open, without any fsync, are flushed when they are 5 s old: another mount reads them, and they survive the kill of the mount's process", limit=120)
def _(c, d):
    own = c.own_mount("aged")
    try:
        e, made, fds = below(own, d), {}, []
        for number, (name, size) in enumerate((("small", 3000), ("part", 200_000), ("appended", 70_000), ("over", 100_000))):
            made[name] = pattern(number, size)
            if name == "over":
                write(f"{d}/{name}", b"o" * size)
            fds.append(write_at(f"{e}/{name}", made[name], os.O_APPEND if name == "appended" else 0, sync=False))
        begun, late = time.monotonic(), set(made)
        while late:
            # A look makes no other mount flush anything but appends: an open sees data flushed
            # before.
            late -= {name for name in late if read(f"{d}/{name}") == made[name]}
            true(time.monotonic() - begun < 15, f"not flushed after 15 s: {sorted(late)}")
            time.sleep(0.1)
        print(f"  flushed after {time.monotonic() - begun:.1f} s", flush=True)
        c.kill_mount(own)
        for fd in fds:
            drop(fd)
        for name, data in made.items():
            true(read(f"{d}/{name}") == data, f"{name} differs")
    finally:
        c.end_mount(own)


@check("mount-killed-root-synced", "fsync of the mount's root directory alone keeps what was written and not flushed: files of both zones survive the kill of the mount's process", limit=120)
def _(c, d):
    own = c.own_mount("root-synced")
    other = f"{c.mount}/two/{os.path.basename(d)}"
    os.mkdir(other)
    try:
        # A whole stripe unit is sent at once; less waits for its age, or for a flush.
        made = {f"{zone}/{os.path.basename(d)}/{name}": pattern(number, size) for zone, number in (("one", 5), ("two", 6))
                for name, size in (("small", 3000), ("part", 200_000), ("long", (3 << 20) + 777))}
        fds = [write_at(f"{own}/{path}", data, 0, sync=False) for path, data in made.items()]
        # Also grown and overwritten in place after an earlier flush.
        fds.append(write_at(f"{own}/one/{os.path.basename(d)}/older", b"o" * 100_000, 0))
        os.pwrite(fds[-1], b"n" * 50_000, 75_000)
        made[f"one/{os.path.basename(d)}/older"] = b"o" * 75_000 + b"n" * 50_000
        top = os.open(own, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(top)
        c.kill_mount(own)
        for fd in (*fds, top):
            drop(fd)
        own = c.own_mount("root-synced")
        for path, data in made.items():
            for top in (own, c.mount):
                found = read(f"{top}/{path}")
                true(found == data, f"{top}/{path}: {len(found)} bytes of {len(data)}, or others")
    finally:
        c.end_mount(own)
        shutil.rmtree(other, ignore_errors=True)


@check("mount-foreground-lives", "a mount in the foreground of a relative path is known as alive, whatever its command line looks like: the next mount of the cell leaves its locks alone, and `zonal umount` waits for its end", limit=120)
def _(c, d):
    own, other = f"{os.path.dirname(c.folder)}/own-foreground", None
    make_point(own)
    process = subprocess.Popen([ZONAL, "mount", "--foreground", "--cell", c.folder, f"./{os.path.basename(own)}/", "--zone", "1"],
                               cwd=os.path.dirname(own), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not os.path.ismount(own) or not glob.glob(f"{c.folder}/mounts/*own-foreground-*.toml"):
            true(time.monotonic() < end and process.poll() is None, "the mount in the foreground does not answer")
            time.sleep(0.05)
        write(f"{d}/f", b"")
        fd = os.open(f"{below(own, d)}/f", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        other = c.own_mount("beside-foreground")
        rival = os.open(f"{d}/f", os.O_RDWR)
        fails((errno.EAGAIN, errno.EACCES), fcntl.lockf, rival, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alive = {mount["path"]: mount["alive"] for mount in json.loads(c.zonal("status", "--cell", c.folder, "--json").stdout)["mounts"]}
        equal((alive.get(own), alive.get(other)), (True, True), "alive")
        os.close(rival)
        os.close(fd)
        c.zonal("umount", own)
        # Some of its threads may still be exiting.
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as f:
            true(f.read().rsplit(") ", 1)[1][0] in "ZX", "`zonal umount` does not wait for the mount's process")
    finally:
        process.terminate()
        process.wait(30)
        c.end_mount(own)
        if other:
            c.end_mount(other)


@check("mount-killed-again", "`zonal mount` and `zonal up --mount` take away what a killed mount left, and mount again", limit=120)
def _(c, d):
    own = c.own_mount("again")
    try:
        for mount in (lambda: c.own_mount("again"), lambda: c.zonal("up", "--dir", c.folder, "--mount", own)):
            write(f"{below(own, d)}/f", b"here")
            c.kill_mount(own)
            mount()
            equal(read(f"{below(own, d)}/f"), b"here", "content")
    finally:
        c.end_mount(own)


@check("mount-killed-asked", "`zonal mount` also takes over from a mount that is killed while `zonal mount` asks whether it lives", limit=120)
def _(c, d):
    own = c.own_mount("asked")
    try:
        write(f"{below(own, d)}/f", b"here")
        pid = c.mount_pid(own)
        os.kill(pid, signal.SIGSTOP)
        mounting = subprocess.Popen([ZONAL, "mount", "--cell", c.folder, own, "--zone", "1"], stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 20
            while in_call(mounting.pid) != STATFS:
                true(time.monotonic() < end and mounting.poll() is None, "the mount that stands still is not asked")
                time.sleep(0.01)
        finally:
            os.kill(pid, signal.SIGKILL)
        told = mounting.communicate(timeout=30)[1]
        equal(mounting.returncode, 0, told)
        equal(read(f"{below(own, d)}/f"), b"here", "content")
    finally:
        c.end_mount(own)


def in_call(pid):
    """The number of the system call that a process waits in."""
    with open(f"/proc/{pid}/syscall", encoding="utf-8") as f:
        return f.read().split()[0]


def waiter_for(path, done):
    """A process that waits for a lock; it makes the file `done` when it has it."""
    code = "import fcntl,sys; f=open(sys.argv[1],'rb+'); fcntl.lockf(f, fcntl.LOCK_EX); open(sys.argv[2],'w').close()"
    return subprocess.Popen([sys.executable, "-c", code, path, done])


def lock_of_dead_mount(c, d, release, seconds, mount="own_mount"):
    own, done = getattr(c, mount)("locks"), f"{os.path.dirname(c.folder)}/lock-taken"
    waiter = None
    try:
        write(f"{d}/f", b"")
        fd = os.open(f"{below(own, d)}/f", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        waiter = waiter_for(f"{d}/f", done)
        time.sleep(1)
        true(not os.path.exists(done), "two have the lock")
        c.kill_mount(own)
        drop(fd)
        release(own)
        end = time.monotonic() + seconds
        while not os.path.exists(done):
            true(time.monotonic() < end, f"a waiter does not get the lock of a dead mount within {seconds} s")
            time.sleep(0.05)
        equal(waiter.wait(10), 0, "the waiter's status")
    finally:
        if waiter and waiter.poll() is None:
            waiter.kill()
        c.end_mount(own)
        if os.path.exists(done):
            os.unlink(done)


@check("mount-killed-locks", "locks of a mount whose process was killed are free when `zonal mount` mounts again: a waiter on another mount gets its lock", limit=120)
def _(c, d):
    lock_of_dead_mount(c, d, lambda own: c.own_mount("locks"), 3)


@check("mount-killed-locks-end", "`zonal session ls` shows a dead mount with what it has open and locked, and `zonal session end` frees it at once", limit=120)
def _(c, d):
    def end(own):
        listed = json.loads(c.zonal("session", "ls", "--cell", c.folder, "--json").stdout)["clients"]
        # The last mount of this path, from another check, may not have closed its session yet.
        dead = [client for client in listed if client["name"].startswith(f"mount {own} on ") and client["locked_files"]]
        true(len(dead) == 1, f"what is listed: {listed}")
        dead = dead[0]
        true(dead["open_files"] >= 1 and dead["locked_files"] == 1 and dead["zone"] == 1, f"what is listed: {dead}")
        c.zonal("session", "end", "--cell", c.folder, dead["client"])
        equal(c.zonal("session", "end", "--cell", c.folder, dead["client"], ok=False).returncode, 7, "the exit code for a client that is not there")
    lock_of_dead_mount(c, d, end, 3)


@check("session-end-live", "`zonal session end` of a mount that lives: it never shows a name that another mount has removed, and goes on", limit=120)
def _(c, d):
    own = c.own_mount("ended")
    try:
        e = below(own, d)
        for number in range(2):
            write(f"{d}/f{number}", b"")
            equal((os.listdir(e), os.stat(f"{e}/f{number}").st_size), ([f"f{number}"], 0), "first look")
            listed = json.loads(c.zonal("session", "ls", "--cell", c.folder, "--json").stdout)["clients"]
            live, = (client for client in listed if client["name"].startswith(f"mount {own} on "))
            c.zonal("session", "end", "--cell", c.folder, live["client"])
            os.unlink(f"{d}/f{number}")
            true(not os.path.exists(f"{e}/f{number}"), f"a name that is removed is seen in round {number}")
        write(f"{e}/g", b"goes on")
        equal(read(f"{d}/g"), b"goes on", "content")
    finally:
        c.end_mount(own)


@check("mount-killed-locks-address", "locks of a killed mount are also freed if both mounts name the cell by its manager's address, and if only the dead one did", limit=120)
def _(c, d):
    lock_of_dead_mount(c, d, lambda own: c.own_mount_by_address("locks"), 3, "own_mount_by_address")
    lock_of_dead_mount(c, d, lambda own: c.own_mount("locks"), 3, "own_mount_by_address")


@check("mount-killed-locks-term", "without a new mount, locks of a killed mount are free at the end of the session's term", long=True, limit=180)
def _(c, d):
    lock_of_dead_mount(c, d, lambda own: None, 75)


# Locks a byte and reports it, waits for a line, locks another byte; reports "got" or the error.
TWO_BYTES = """import fcntl,sys
f = open(sys.argv[1], 'rb+')
fcntl.lockf(f, fcntl.LOCK_EX, 1, int(sys.argv[2])); print('held', flush=True); sys.stdin.readline()
try: fcntl.lockf(f, fcntl.LOCK_EX, 1, int(sys.argv[3])); print('got', flush=True)
except OSError as error: print(error.errno, flush=True)
"""


@check("servers-killed-ring", "of two that come to wait for one another while their metadata server is down, one hears of the deadlock and the other gets its lock", limit=120)
def _(c, d):
    write(f"{d}/f", b"ab")
    paths = f"{d}/f", f"{below(c.second or c.mount, d)}/f"
    two = [subprocess.Popen([sys.executable, "-c", TWO_BYTES, path, str(i), str(1 - i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
           for i, path in enumerate(paths)]
    try:
        equal([p.stdout.readline() for p in two], [b"held\n"] * 2, "the first locks")
        two[0].stdin.write(b"\n")
        two[0].stdin.flush()
        time.sleep(0.5)
        c.kill_servers("meta")
        two[1].stdin.write(b"\n")
        two[1].stdin.flush()
        time.sleep(0.3)
        c.up()
        told = sorted(p.communicate(timeout=20)[0] for p in reversed(two))
        equal(told, sorted([b"%d\n" % errno.EDEADLK, b"got\n"]), "what the two heard")
    finally:
        for process in two:
            process.kill()


@check("holder-ended-meanwhile", "the lock of a process that ended while the metadata server was down is free when that is up again", limit=180)
def _(c, d):
    write(f"{d}/f", b"")
    holder = subprocess.Popen([sys.executable, "-c", TWO_BYTES, f"{d}/f", "0", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    equal(holder.stdout.readline(), b"held\n", "the lock")
    c.kill_servers("meta")
    holder.kill()
    time.sleep(13)
    c.up()
    holder.wait(40)
    end = time.monotonic() + COMES_BACK_SECONDS
    with open(f"{below(c.second or c.mount, d)}/f", "rb+") as f:
        while True:
            try:
                fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                true(time.monotonic() < end, "the lock of a dead process stays")
                time.sleep(0.2)


@check("servers-killed-descriptors", "open files, locks and directories stay usable through the same descriptors when all servers were killed and are up again", limit=120)
def _(c, d):
    data = pattern(4, 1 << 20)
    # Started before: a new process would first close inherited files, and wait for the servers that
    # it is to start.
    starter = subprocess.Popen(["sh", "-c", 'read go && exec "$0" up --dir "$1"', ZONAL, c.folder],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    fd = os.open(f"{d}/f", os.O_RDWR | os.O_CREAT)
    gone = os.open(f"{d}/gone", os.O_RDWR | os.O_CREAT)
    folder = os.open(d, os.O_RDONLY)
    os.unlink(f"{d}/gone")
    # More than one reply holds.
    os.mkdir(f"{d}/many")
    for number in range(600):
        write(f"{d}/many/{'n' * 200}{number}", b"")
    listing = Listing(f"{d}/many")
    first = [listing.next()[0] for _ in range(300)]
    cookie = listing.tell()
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.pwrite(fd, data, 0)
    os.pwrite(gone, b"without a name", 0)
    c.kill_servers("manager", "meta", "storage")
    starter.communicate(b"go\n", timeout=60)
    equal(starter.returncode, 0, "zonal up")
    begun = time.monotonic()
    os.pwrite(fd, b"after", len(data))
    os.fsync(fd)
    print(f"  the first fsync after the restart takes {time.monotonic() - begun:.2f} s", flush=True)
    true(os.pread(fd, len(data) + 5, 0) == data + b"after", "content")
    os.posix_fadvise(gone, 0, 0, os.POSIX_FADV_DONTNEED)
    equal(os.pread(gone, 100, 0), b"without a name", "the file without a name")
    os.fsync(folder)
    equal(sorted(os.listdir(folder)), ["f", "many"], "names")
    rest = [entry[0] for entry in listing.rest()]
    equal((len(first + rest), len(set(first + rest))), (602, 602), "entries of a listing that was open, and different ones")
    for many in (f"{d}/many", f"{below(c.second or c.mount, d)}/many"):
        again = Listing(many)
        again.seek(cookie)
        equal([entry[0] for entry in again.rest()], rest, "the rest from a cookie of before")
        again.close()
    other = subprocess.run([sys.executable, "-c", "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'rb+'), fcntl.LOCK_EX|fcntl.LOCK_NB)",
                            f"{below(c.second or c.mount, d)}/f"], capture_output=True, check=False)
    true(other.returncode != 0 and b"BlockingIOError" in other.stderr, "the lock was given away")
    for one in (fd, gone, folder):
        os.close(one)


@check("opened-without-name-kills", "a file that is opened after its last name is gone lives as long as that open, though the metadata servers and the mount that held it are killed", limit=120)
def _(c, d):
    own = c.own_mount("holder")
    try:
        data = pattern(6, 50_000)
        write(f"{d}/f", data)
        holder = os.open(f"{below(own, d)}/f", os.O_RDWR)
        path = os.open(f"{d}/f", os.O_PATH)
        os.unlink(f"{below(own, d)}/f")
        time.sleep(1.2)
        fd = os.open(f"/proc/self/fd/{path}", os.O_RDWR)
        c.kill_servers("meta")
        c.up()
        equal(os.fstat(fd).st_nlink, 0, "link count after the restart")
        c.kill_mount(own)
        drop(holder)
        listed = json.loads(c.zonal("session", "ls", "--cell", c.folder, "--json").stdout)["clients"]
        dead, = (client for client in listed if client["name"].startswith(f"mount {own} on "))
        c.zonal("session", "end", "--cell", c.folder, dead["client"])
        time.sleep(1.2)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        true(os.pread(fd, 60_000, 0) == data, "content")
        os.pwrite(fd, b"still", 0)
        os.fsync(fd)
        os.close(fd)
        os.close(path)
    finally:
        c.end_mount(own)


@check("servers-killed-mounts", "mounts inside a mount, and a working directory there, stay over `zonal mkdir --zone` and the kill of every metadata server", limit=120)
def _(c, d):
    os.makedirs(f"{d}/d/m")
    other = f"{c.mount}/made-beside"
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{d}/d/m"], check=True)
    try:
        write(f"{d}/d/m/in", b"inside")
        with subprocess.Popen(["sleep", "60"], cwd=f"{d}/d") as worker:
            try:
                def is_there(when):
                    true(os.path.ismount(f"{d}/d/m"), f"the mount is gone after {when}")
                    equal(read(f"{d}/d/m/in"), b"inside", f"content after {when}")
                    equal(os.readlink(f"/proc/{worker.pid}/cwd"), f"{d}/d", f"working directory after {when}")
                    os.listdir(d)

                for _turn in range(3):
                    true(not os.path.exists(other), "the directory to be made")
                    c.zonal("mkdir", "--zone", "1", other)
                    true(os.path.isdir(other), "the directory that was made")
                    is_there("zonal mkdir --zone")
                    os.rmdir(other)
                for _turn in range(2):
                    c.kill_servers("manager", "meta")
                    c.up()
                    is_there("the kill of the servers")
                    # The next term is that of another process.
                    write(f"{below(c.second or c.mount, d)}/d/new", b"1")
                    is_there("a change by another mount")
                    true(os.path.exists(f"{d}/d/new"), "what the other mount made")
                    os.unlink(f"{d}/d/new")
            finally:
                worker.kill()
    finally:
        while os.path.ismount(f"{d}/d/m"):
            subprocess.run(["umount", "-l", f"{d}/d/m"], check=True)


@check("servers-killed-replace", "a file replaced by rename after its fsync is the old or the new one, whole, whenever servers are killed; never older than the last rename that returned", limit=180)
def _(c, d):
    chance, last = random.Random(7), 0
    for turn in range(3):
        code = ("import os,sys\nd=sys.argv[1]\nn=int(sys.argv[2])\nwhile True:\n n+=1\n fd=os.open(d+'/tmp',os.O_CREAT|os.O_TRUNC|os.O_WRONLY)\n"
                " os.write(fd,b'%08d'%n*10000)\n os.fsync(fd)\n os.close(fd)\n os.rename(d+'/tmp',d+'/f')\n print(n,flush=True)")
        begun = turn * 1_000_000
        writer = subprocess.Popen([sys.executable, "-c", code, d, str(begun)], stdout=subprocess.PIPE, text=True)
        first = writer.stdout.readline()
        time.sleep(chance.uniform(0.1, 0.7))
        c.kill_servers("manager", "meta", "storage")
        writer.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        writer.kill()
        told = [int(line) for line in (first + writer.stdout.read()).split()]
        writer.wait()
        c.up()
        content = read(f"{d}/f")
        number = int(content[:8])
        true(content == b"%08d" % number * 10000, "a mixture of two versions")
        last = max([*told, last])
        true(number in (last, last + 1, begun + 1), f"version {number} after {last} was renamed")
        last = number


@check("cache-time", "--cache-time: names and attributes are believed for so long, also where nothing else is cached; own changes are seen at once", long=True)
def _(c, d):
    own = c.own_mount("cache-time", "--no-cache", "--cache-time", "13 s")
    try:
        e = below(own, d)
        write(f"{d}/f", b"x" * 10)
        begun = time.monotonic()
        equal((os.stat(f"{e}/f").st_size, os.path.exists(f"{e}/g")), (10, False), "first look")
        time.sleep(6)  # The lease has expired, so no call-back is sent.
        write(f"{d}/f", b"y" * 20)
        write(f"{d}/g", b"")
        equal((os.stat(f"{e}/f").st_size, os.path.exists(f"{e}/g")), (10, False), "what is believed after another mount's change")
        write(f"{e}/h", b"z")
        os.chmod(f"{e}/h", 0o600)
        os.rename(f"{e}/h", f"{e}/i")
        equal((os.path.exists(f"{e}/h"), os.stat(f"{e}/i").st_mode & 0o777), (False, 0o600), "own changes")
        true(time.monotonic() - begun < 12, "too slow to tell")
        time.sleep(max(0, begun + 14 - time.monotonic()))
        equal((os.stat(f"{e}/f").st_size, os.path.exists(f"{e}/g")), (20, True), "after the time")
        equal(read(f"{e}/f"), b"y" * 20, "a read after the time")
        os.makedirs(f"{own}-2", exist_ok=True)
        done = c.zonal("mount", "--cell", c.folder, f"{own}-2", "--cache-time", "2 h", ok=False)
        equal((done.returncode, "between 0 s and 1 h" in done.stderr), (2, True), "too long a time")
    finally:
        if os.path.isdir(f"{own}-2"):
            os.rmdir(f"{own}-2")
        c.end_mount(own)


if __name__ == "__main__":
    run("survival", R, __doc__, OwnMounts)
