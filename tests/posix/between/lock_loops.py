"""Processes that take turns under an exclusive lock, on one and two mounts: never two at once.

They run with signals and without. The program is tests/posix/lock_loop.c.
"""
import os
import shutil
import subprocess
import tempfile

from between import SCALE, check, rounds
from between.locks import for_kinds
from checks import true

PROCESSES = 4
# Interval of signals that interrupt calls, in µs.
TIMER = 700
POSIX = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# Exit status of a loop that lost a step and had no other fault.
LOST = 3


class Loop:
    """The program, compiled for the life of this object."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="lock-loop.")
        self.program = f"{self.folder}/lock_loop"
        subprocess.run(["cc", "-O1", "-Wall", "-o", self.program, f"{POSIX}/lock_loop.c"], check=True)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, kind, given, seconds, timer, files, processes=PROCESSES):
        args = [self.program, kind, given, str(seconds), str(processes), str(timer), *files]
        return subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @staticmethod
    def end(loop, what, limit, adds_up=True):
        """Waits for the end of a loop, which must be good; returns its output.

        Without `adds_up`, lost steps are printed and are no failure.
        """
        try:
            said = loop.communicate(timeout=limit)[0].strip()
        except subprocess.TimeoutExpired:
            loop.kill()
            raise
        true(loop.returncode in ((0,) if adds_up else (0, LOST)), f"{what}: {said}")
        return said


def take_turns(a, b, kind, ways):
    with Loop() as loop:
        for given, timer in ways:
            for mounts in ((a,), (a, b)):
                name = f"{given}.{timer}.{len(mounts)}"
                seconds = 1.5 * SCALE[0]
                started = loop.start(kind, given, seconds, timer, [f"{mount}/{name}" for mount in mounts])
                loop.end(started, f"{kind}, {name}", 30 + seconds)


@for_kinds("turns", "locks that are given up by close, by processes that come and go, are held by one process at a time, on one mount and on two", limit=120)
def _(a, b, kind):
    take_turns(a, b, kind, (("close", 0), ("unlock", 0)))


@for_kinds("turns-signals", "so are locks whose callers are hit by signals and ask again (EINTR, SA_RESTART)", limit=120)
def _(a, b, kind):
    take_turns(a, b, kind, (("close", TIMER), ("keep", TIMER)))


@check("lock-ranges-growing", "the first turns on new, growing files add up too: the end that another mount gave them is read under the lock beside other writers", limit=240)
def _(a, b):
    with Loop() as loop:
        for turn in range(rounds(20)):
            for kind in ("fcntl", "ofd"):
                name = f"{kind}.{turn}"
                # A known race is left (docs/semantics.md, "What is not done"). A busy machine meets
                # it, so only full runs fail because of it.
                said = loop.end(loop.start(f"{kind}:4", "keep", 0.3, 0, [f"{a}/{name}", f"{b}/{name}"], 8), name, 30, SCALE[0] >= 1)
                if "lost-steps 0" not in said:
                    print(f"  {name}: {said}", flush=True)


@check("lock-ranges-apart", "numbers side by side, each under an fcntl or OFD lock of its own, add up: what another mount wrote is read under the lock, also "
       "while others of this mount get theirs", limit=120)
def _(a, b):
    with Loop() as loop:
        for kind in ("fcntl", "ofd"):
            seconds, name = 4 * SCALE[0], f"{kind}.keep"
            started = loop.start(f"{kind}:4", "keep", seconds, 0, [f"{a}/{name}", f"{b}/{name}"], 8)
            print(f"  {name}: {loop.end(started, name, 30 + seconds)}", flush=True)
