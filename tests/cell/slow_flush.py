#!/usr/bin/env python3
"""The number of flushes of slow disks: each takes 20 ms longer, so the count hardly depends on the
CPU.

    tests/cell/slow_flush.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own below DIR (2 zones, 2 storage nodes each), mounted, whose servers
run with `slow_flush.c`. ZONAL names the binary.
"""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, equal, true, write_all  # noqa: E402
from own_cell import OwnCell, run  # noqa: E402

R = Registry()
check = R.check


class Slow(OwnCell):
    """A cell whose flushes are slow and counted."""

    def up(self):
        library, self.count = f"{self.base}/slow_flush.so", f"{self.base}/flushes"
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_flush.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        os.environ.update(LD_PRELOAD=library, FLUSHES=self.count)
        super().up()
        os.environ.pop("LD_PRELOAD")

    def flushes(self):
        return os.stat(self.count).st_size

    def at_rest(self):
        """Waits until flushes stop; returns their number."""
        end, before = time.monotonic() + 40, self.flushes()
        while True:
            time.sleep(0.5)
            now = self.flushes()
            if now == before:
                return now
            true(time.monotonic() < end, "the cell flushes on and on")
            before = now


def durable_files(folder, number):
    os.mkdir(folder)
    for i in range(number):
        fd = os.open(f"{folder}/{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        write_all(fd, b"x" * 4096)
        os.fsync(fd)
        os.close(fd)


def flushes_each(cell, name, processes, number):
    """Flushes for each file, when this many processes make this many files each."""
    before, children = cell.at_rest(), []
    for process in range(processes):
        child = os.fork()
        if child == 0:
            try:
                durable_files(f"{cell.mount}/one/{name}.{process}", number)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    each = (cell.flushes() - before) / (processes * number)
    equal(statuses, [0] * processes, "statuses of the writers")
    return each


@check("shared-flushes", "a file of 4 KiB is durable with one flush of one disk; sixteen processes share theirs: at most one for four files", limit=240)
def _(work):
    with Slow(work) as cell:
        for processes, number, most in ((1, 40, 1.1), (16, 40, 0.25)):
            # On a busy machine processes may not overlap and share no flush: one of three turns has
            # to show it.
            for turn in range(3):
                each = flushes_each(cell, f"{processes}.{turn}", processes, number)
                print(f"  {processes} processes: {each:.3f} flushes a file", flush=True)
                if each <= most:
                    break
            true(each <= most, f"{each:.3f} flushes a file with {processes} processes, {most} at most")


if __name__ == "__main__":
    run("slow flush", R, __doc__.split("\n", 1)[0])
