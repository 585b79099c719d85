#!/usr/bin/env python3
"""A mount with --wait while servers are away, one check for each sentence of docs/semantics.md.

    tests/cell/waiting.py --cell DIR --mount PATH [--only PART,...] [--list]

The cell is one that `zonal up` made, with the directory `one` at its top. Only mounts made for this
purpose, beside the cell's folder, have to wait. ZONAL names the binary. Root only.
"""
import contextlib
import errno
import hashlib
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from cell import run  # noqa: E402
from checks import Registry, equal, read, reap, true, write  # noqa: E402
from own_mounts import OwnMounts, below, comes_back, took, write_at  # noqa: E402

R = Registry()
check = R.check
SIZE = 300_000
# Of a mount that does not wait: a request's deadline, and the end of its operation.
DEADLINE, ENDS = "1s", 1.2

# A program that leaves bytes behind; they do not fit into one message.
EXITS = "import os,sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), b'e' * 3_000_000); print('wrote', flush=True); "
VICTIMS = {
    "reader": "open(p + '/cold', 'rb').read()",
    "fsync": "f = os.open(p + '/victim', os.O_WRONLY | os.O_CREAT); os.write(f, b'v' * 9000); os.fsync(f)",
    "close": "f = os.open(p + '/victim2', os.O_WRONLY | os.O_CREAT); os.write(f, b'v' * 9000); os.close(f)",
    "page fault": "f = open(p + '/cold', 'rb'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[200_000]",
}


def direct(path):
    """The first 256 KiB, past the page cache."""
    fd, memory = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 256 << 10)
    os.preadv(fd, [memory], 0)
    os.close(fd)
    return memory[:]


def starts(code, *args):
    """A process that runs `code`, once it runs."""
    code = f"import mmap, os, sys; p = sys.argv[1]; print('begins', flush=True); {code}"
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    equal(process.stdout.readline(), b"begins\n", "what a process says first")
    return process


class Forked:
    """A call in a process of its own: another one that is started would close its files, and wait."""

    def __init__(self, call, *args):
        self.end, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                outcome = call(*args)
            except Exception as error:  # pylint: disable=broad-exception-caught
                outcome = error
            os.write(told, pickle.dumps(outcome))
            os._exit(0)
        os.close(told)

    def is_done(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def result(self, name):
        true(reap(self.pid, 60), f"{name} has not ended 60 s after the servers came back")
        with open(self.end, "rb") as told:
            outcome = pickle.loads(told.read())
        true(not isinstance(outcome, Exception), f"{name}: {outcome!r}")
        return outcome


def rewrites(path, content):
    """Replaces the bytes of a file, and syncs it."""
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, content, 0)
    os.fsync(fd)


def digest_of(path):
    return hashlib.blake2b(read(path)).hexdigest()


def digest_past_pages(path):
    return hashlib.blake2b(direct(path)).hexdigest()


@contextlib.contextmanager
def killed(c, *kinds):
    """Servers of these kinds are away within a `with`."""
    c.kill_servers(*kinds)
    try:
        yield
    finally:
        c.up()


def passes(call, times=5):
    """Lets a mount that does not wait run into its deadline, several times."""
    for _ in range(times):
        begun = time.monotonic()
        true(took(call)[1] in (errno.EIO, errno.ETIMEDOUT), "a call without --wait got an answer of a dead server")
        time.sleep(max(0, ENDS - (time.monotonic() - begun)))


def goes_on(d, own, other, away):
    """Calls of all kinds through `own`, begun while the storage servers are away."""
    e = below(own, d)
    for name in ("cold", "cut", "written"):
        write(f"{d}/{name}", b"c" * SIZE)
        os.stat(f"{e}/{name}")
    with away:
        calls = {
            "read": Forked(digest_of, f"{e}/cold"),
            "read past the pages": Forked(digest_past_pages, f"{e}/cold"),
            "write and fsync": Forked(rewrites, f"{e}/written", b"n" * SIZE),
            "append": Forked(write_at, f"{e}/appended", b"a" * SIZE, os.O_APPEND),
            "close": Forked(write, f"{e}/closed", b"w" * SIZE),
            "truncation": Forked(os.truncate, f"{e}/cut", SIZE - 100_000),
            "O_SYNC write": Forked(write_at, f"{e}/synced", b"s" * SIZE, os.O_SYNC, False),
        }
        passes(lambda: direct(f"{below(other, d)}/cold"))
        equal([name for name, call in calls.items() if call.is_done()], [], "calls that have ended while the servers are away")
        # Servers that are there answer.
        equal(took(os.mkdir, f"{e}/made")[1], 0, "mkdir beside calls that wait")
    results = {name: call.result(name) for name, call in calls.items()}
    for name, size in (("read", SIZE), ("read past the pages", 256 << 10)):
        equal(results[name], hashlib.blake2b(b"c" * size).hexdigest(), f"the bytes of a {name}")
    for name, content in (("written", b"n" * SIZE), ("appended", b"a" * SIZE), ("closed", b"w" * SIZE), ("cut", b"c" * (SIZE - 100_000)), ("synced", b"s" * SIZE)):
        true(comes_back(lambda name=name: read(f"{d}/{name}")) == content, f"{name} has other bytes through another mount")


@check("waits-storage", "with --wait reads, writes, fsync, close and truncations go on with right bytes after storage servers were away for several deadlines, killed or stopped; without it they fail", limit=240)
def _(c, d):
    own, other = c.own_mount("waits", "--wait", "--deadline", DEADLINE), c.own_mount("fails", "--deadline", DEADLINE)
    try:
        for name, away in (("killed", killed(c, "storage")), ("stopped", c.stopped("storage"))):
            print(f"  with servers {name}", flush=True)
            goes_on(d, own, other, away)
            for left in ("appended", "closed", "synced"):
                os.unlink(f"{d}/{left}")
            os.rmdir(f"{d}/made")
    finally:
        c.end_mount(own)
        c.end_mount(other)


@check("waits-killed", "killed processes that wait end at once, also by Ctrl-C; one that exits with files open ends at the deadline, and its bytes arrive later", limit=240)
def _(c, d):
    own = c.own_mount("waits-killed", "--wait", "--deadline", "2s")
    try:
        e = below(own, d)
        write(f"{d}/cold", b"c" * SIZE)
        os.stat(f"{e}/cold")
        c.kill_servers("storage")
        for how in (signal.SIGKILL, signal.SIGINT):
            for name, code in VICTIMS.items():
                # An interpreter would handle the signal, and go on to wait.
                victim = starts(f"import signal; signal.signal(2, signal.SIG_DFL); {code}", e)
                time.sleep(1)
                true(victim.poll() is None, f"the {name} has ended before it is killed")
                begun = time.monotonic()
                victim.send_signal(how)
                true(reap(victim.pid, 10), f"a killed {name} is there after 10 s")
                lasted = time.monotonic() - begun
                print(f"  a {name} ends {lasted:.2f} s after {how.name}", flush=True)
                # Its open files are flushed until the deadline where the signal was another one.
                true(lasted < (2.5 if how == signal.SIGKILL else 8), f"a killed {name} took {lasted:.1f} s to end")
        exits = subprocess.Popen([sys.executable, "-c", f"{EXITS}os._exit(0)", f"{e}/exited"], stdout=subprocess.DEVNULL)
        true(reap(exits.pid, 15), "a process that exits is there after 15 s")
        # More than the mount has workers: the watch ends those, too.
        crowd = [starts(f"os.stat(p); {VICTIMS['reader']}", e) for _ in range(8)]
        for one in crowd:
            one.kill()
        for one in crowd:
            true(reap(one.pid, 5), "one of a killed crowd is there after 5 s")
        c.up()
        end = time.monotonic() + 30
        while took(read, f"{d}/exited")[1] or read(f"{d}/exited") != b"e" * 3_000_000:
            true(time.monotonic() < end, "what a process left behind has not arrived after 30 s")
            time.sleep(0.2)
    finally:
        c.end_mount(own)


@check("waits-metadata", "with --wait names go on after metadata servers and the manager were away for several deadlines, and killed processes end at once", limit=180)
def _(c, d):
    own, other = c.own_mount("waits-meta", "--wait", "--no-cache", "--deadline", DEADLINE), c.own_mount("fails-meta", "--no-cache", "--deadline", DEADLINE)
    try:
        e = below(own, d)
        write(f"{d}/there", b"t")
        for mount in (own, other):
            os.stat(below(mount, d))
        with killed(c, "meta", "manager"):
            calls = {
                "mkdir": Forked(os.mkdir, f"{e}/new"),
                "listing": Forked(os.listdir, e),
                "write": Forked(write, f"{e}/made", b"m" * 9000),
            }
            victim = starts("os.stat(p + '/there')", e)
            passes(lambda: os.stat(f"{below(other, d)}/there"), 3)
            true(not any(call.is_done() for call in calls.values()), "a call has ended while the servers are away")
            begun = time.monotonic()
            victim.kill()
            true(reap(victim.pid, 5), "a killed process is there after 5 s")
            true(time.monotonic() - begun < 2.5, "a killed process took long to end")
        for name, call in calls.items():
            call.result(name)
        equal(read(f"{d}/made"), b"m" * 9000, "what was written meanwhile")
        true(os.path.isdir(f"{d}/new"), "the directory is not there")
    finally:
        c.end_mount(own)
        c.end_mount(other)


@check("waits-unmounted", "a mount ends by force and by SIGTERM, and its process with it, while calls wait for ever", limit=180)
def _(c, d):
    write(f"{d}/cold", b"c" * SIZE)
    for how in ("force", "SIGTERM"):
        own = c.own_mount("waits-end", "--wait", "--deadline", DEADLINE)
        try:
            e = below(own, d)
            os.stat(f"{e}/cold")
            c.kill_servers("storage")
            # Two: one waits for the other's pages.
            waiting = [starts(VICTIMS["reader"], e), starts("f = os.open(p + '/left', os.O_WRONLY | os.O_CREAT); os.write(f, b'l' * 9000); os.fsync(f)", e)]
            time.sleep(1)
            pid = c.mount_pid(own)
            if how == "force":
                c.zonal("umount", "--force", own)
            else:
                os.kill(pid, signal.SIGTERM)
            for one in waiting:
                true(reap(one.pid, 20), f"after {how} a process is there after 20 s")
            end = time.monotonic() + 20
            while os.path.exists(f"/proc/{pid}/exe"):
                true(time.monotonic() < end, f"the mount's process is there 20 s after {how}")
                time.sleep(0.05)
        finally:
            c.up()
            c.end_mount(own)


if __name__ == "__main__":
    run("waiting", R, __doc__, OwnMounts)
