#!/usr/bin/env python3
"""Processes that take turns under an exclusive lock while the shard of their file is killed.

    tests/cell/lock_loops.py --work DIR [--seconds 8] [--pause 2] [--only PART,...] [--list]

Each check has a cell of its own below DIR, mounted twice; its loops (tests/posix/lock_loop.c) run
side by side. `--seconds 600` is the long run. ZONAL names the binary.
"""
import fcntl
import os
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from between import KINDS  # noqa: E402
from between.lock_loops import TIMER, Loop  # noqa: E402
from checks import Registry, argument_parser, true, write  # noqa: E402
from own_cell import OwnCell  # noqa: E402

R = Registry()
check = R.check
# Time that a call may wait for a restarted shard, and for the end of the loop.
SETTLES = 150
# Delay of each write through pages, in a mount built with debug assertions, in ms.
LATE = "15"


class Twice(OwnCell):
    """A cell that is mounted twice."""

    def make(self):
        super().make()
        self.second = f"{self.base}/mnt2"
        os.mkdir(self.second)
        self.zonal("mount", "--cell", self.folder, "--zone", "2", self.second)

    def kill_shard(self):
        """The metadata server of zone 1."""
        with open(f"{self.folder}/meta1/pid", encoding="utf-8") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        self.zonal("up", "--dir", self.folder)


def take_turns(work, seconds, pause, kinds, ways):
    """`pause`: seconds between kills of the shard; 0: none."""
    with Twice(work) as cell, Loop() as loop:
        started = []
        for kind in kinds:
            for given, timer in ways:
                for mounts in ((cell.mount,), (cell.mount, cell.second)):
                    name = f"{kind}.{given}.{timer}.{len(mounts)}"
                    files = [f"{mount}/one/{name}" for mount in mounts]
                    started.append((name, loop.start(kind, given, seconds, timer, files)))
            # Adjacent numbers, each with its lock, in a file that does not grow: the window of
            # growing files has checks of its own (docs/semantics-details.md, "Corner cases").
            if kind != "flock":
                write(f"{cell.mount}/one/{kind}.ranges", bytes(8 * 4))
                files = [f"{mount}/one/{kind}.ranges" for mount in (cell.mount, cell.second)]
                started.append((f"{kind}.ranges", loop.start(f"{kind}:4", "keep", seconds, 0, files, 8)))
        kills, end = 0, time.monotonic() + seconds
        while pause and time.monotonic() + pause < end:
            time.sleep(pause)
            cell.kill_shard()
            kills += 1
        for name, running in started:
            print(f"  {name}: {loop.end(running, name, seconds + SETTLES)}", flush=True)
        if pause:
            true(kills > 0, "the shard was never killed")
            print(f"  {kills} kills of the shard", flush=True)


WAYS = (("close", 0), ("unlock", 0), ("close", TIMER), ("keep", TIMER))


@check("lock-turns", "locks of all three kinds are held by one process at a time, on one mount and on two, with signals and without", limit=3600)
def _(work, seconds, _pause):
    take_turns(work, seconds, 0, KINDS, WAYS)


@check("lock-turns-killed", "locks exclude also while the metadata server is killed and started again, and data written under the lock is there", limit=3600)
def _(work, seconds, pause):
    take_turns(work, seconds, pause, KINDS, WAYS)


@check("lock-first-turns-killed", "the first turns on a new file, too: the end that another mount gave it under its lock is seen while the metadata server is killed",
       limit=3600)
def _(work, seconds, pause):
    with Twice(work) as cell, Loop() as loop:
        end, kill_at, rounds = time.monotonic() + seconds, time.monotonic() + pause, 0
        while time.monotonic() < end:
            started = []
            for kind in KINDS:
                for timer in (0, TIMER):
                    name = f"{kind}.{timer}.{rounds}"
                    files = [f"{mount}/one/{name}" for mount in (cell.mount, cell.second)]
                    started.append((name, loop.start(kind, "keep", 1, timer, files)))
            while any(running.poll() is None for _name, running in started):
                if time.monotonic() >= kill_at:
                    cell.kill_shard()
                    kill_at = time.monotonic() + pause
                time.sleep(0.05)
            for name, running in started:
                loop.end(running, name, SETTLES)
            rounds += 1
        print(f"  {rounds} rounds of {len(KINDS) * 2} files", flush=True)


@check("lock-late-writes", "numbers side by side in a page, each under a lock of its own, add up also where writes are late, and the page is dropped and read again "
       "before they are carried out", limit=600)
def _(work, seconds, _pause):
    os.environ["ZONAL_LATE_WRITES"] = LATE
    with Twice(work) as cell, Loop() as loop:
        for kind in ("fcntl", "ofd"):
            name = f"{kind}.keep"
            fd = os.open(f"{cell.second}/one/{name}", os.O_RDWR | os.O_CREAT)
            # The same mount twice: all loops on one mount.
            running = loop.start(f"{kind}:4", "keep", seconds / 2, 0, [f"{cell.mount}/one/{name}"] * 2, 8)
            # After a change by the other mount, the next lock drops the pages.
            changes = 0
            while running.poll() is None:
                fcntl.lockf(fd, fcntl.LOCK_EX, 8, 512)
                changes += 1
                os.pwrite(fd, struct.pack("q", changes), 512)
                fcntl.lockf(fd, fcntl.LOCK_UN, 8, 512)
                time.sleep(0.01)
            os.close(fd)
            print(f"  {name}: {loop.end(running, name, SETTLES)}; {changes} changes by the other mount", flush=True)


if __name__ == "__main__":
    parser = argument_parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--work", required=True, help="where the cells go; a directory")
    parser.add_argument("--seconds", type=float, default=8, help="how long each loop runs")
    parser.add_argument("--pause", type=float, default=2, help="seconds between two kills")
    R.run("lock loops", parser, lambda args, _check: ((args.work, args.seconds, args.pause), lambda _result: None))
