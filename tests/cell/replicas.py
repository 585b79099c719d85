#!/usr/bin/env python3
"""Replicas of a zone's metadata and of the managers: any one of three is killed or stopped under load.

Makes a cell with three managers and three replicas of its zone's shard, and runs programs on a
mount of it: in a zone's directory, and on first-level directories, which the managers keep.
Meanwhile it kills (SIGKILL) or stops (SIGSTOP) one after another, leaders and followers, and starts
them again. No program may see an error, no call may take 10 s, and every file must be there with
its bytes. `zonal fsck` must find nothing.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ZONAL = os.environ.get("ZONAL", "zonal")
REPLICAS = {
    "managers": ["manager", "manager2", "manager3"],
    "zone": ["meta1", "meta1-2", "meta1-3"],
}
CALL_SECONDS_MAX = 10


class Load(threading.Thread):
    """Creates, syncs, renames, reads and removes files, and remembers which must be there."""

    rest_seconds = 0

    def __init__(self, folder, number):
        super().__init__(daemon=True)
        self.folder = folder
        self.number = number
        self.rounds = 0
        self.began = time.monotonic()
        self.errors = []
        self.pauses = []
        self.is_stopping = False

    def path(self, index):
        return f"{self.folder}/{self.number}-{index}"

    def run(self):
        while not self.is_stopping:
            self.began = time.monotonic()
            try:
                self.work(self.rounds)
            except (OSError, AssertionError) as error:
                self.errors.append(f"round {self.rounds}: {error}")
            took = time.monotonic() - self.began
            if took > 0.5:
                self.pauses.append(took)
            self.rounds += 1
            time.sleep(self.rest_seconds)

    def work(self, index):
        name = self.path(index)
        with open(name + ".new", "xb") as file:
            file.write(self.content(index))
            if index % 20 == 0:
                os.fsync(file.fileno())
        os.rename(name + ".new", name)
        with open(name, "rb") as file:
            assert file.read() == self.content(index), "other bytes"
        if index % 3 == 0:
            os.unlink(name)

    def content(self, index):
        return b"replica %d of %d" % (index, self.number)

    def wrong(self):
        """Files that are missing, too many, or have other bytes."""
        found = set(os.listdir(self.folder))
        for index in range(self.rounds):
            name = f"{self.number}-{index}"
            if (name in found) != (index % 3 != 0):
                yield name
            elif index % 3 != 0:
                with open(self.path(index), "rb") as file:
                    if file.read() != self.content(index):
                        yield name


class FirstLevelLoad(Load):
    """Makes, fills, renames, lists and removes first-level directories."""

    def path(self, index):
        return f"{self.folder}/first-{self.number}-{index}"

    def work(self, index):
        name = self.path(index)
        os.mkdir(name + ".new")
        os.rename(name + ".new", name)
        with open(f"{name}/file", "xb") as file:
            file.write(self.content(index))
        with open(f"{name}/file", "rb") as file:
            assert file.read() == self.content(index), "other bytes"
        assert os.path.basename(name) in os.listdir(self.folder), "not listed"
        if index % 8 != 0:
            os.unlink(f"{name}/file")
            os.rmdir(name)

    def wrong(self):
        found = set(os.listdir(self.folder))
        for index in range(self.rounds):
            name = f"first-{self.number}-{index}"
            if (name in found) != (index % 8 == 0):
                yield name
            elif name in found:
                with open(f"{self.folder}/{name}/file", "rb") as file:
                    if file.read() != self.content(index):
                        yield name


class Cell:
    """One zone with three replicas of its metadata, and three managers."""

    shape = ["--zones", "1", "--storage-nodes", "1", "--replicas", "3"]
    shard_count = 2

    def __init__(self, work):
        self.dir = os.path.join(work, "cell")
        self.mount = os.path.join(work, "mount")

    def environment(self):
        return {**os.environ, "ZONAL_CELL": self.dir}

    def tried(self, *arguments, limit=90):
        """What became of a command; an operator repeats it where it has failed."""
        return subprocess.run(
            [ZONAL, *arguments],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            env=self.environment(),
        )

    def zonal(self, *arguments, limit=90):
        done = self.tried(*arguments, limit=limit)
        if done.returncode:
            raise SystemExit(
                f"zonal {' '.join(arguments)}: exit {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def up(self):
        self.zonal("up", "--dir", self.dir, *self.shape, "--mount", self.mount)

    def down(self):
        for command in (["umount", self.mount], ["down", "--dir", self.dir]):
            self.tried(*command)

    def start_again(self):
        self.zonal("up", "--dir", self.dir)

    def pid(self, name):
        with open(os.path.join(self.dir, name, "pid"), encoding="utf-8") as file:
            return int(file.read().split()[0])

    def shards(self):
        return json.loads(self.zonal("shard", "ls", "--json"))["shards"]

    def await_leaders(self, seconds):
        """Waits until one replica of each shard leads and the two others follow it."""
        end = time.monotonic() + seconds
        shards = []
        while time.monotonic() < end:
            shards = self.shards()
            if len(shards) == self.shard_count and all(map(is_whole, shards)):
                return
            time.sleep(0.1)
        raise SystemExit(f"no leader with two followers: {shards}")


def is_whole(shard):
    """True where one replica leads and two others follow it, with votes: any one may die."""
    parts = sorted(one["part"] for one in shard["replicas"])
    votes = [one["votes"] for one in shard["replicas"] if one["part"] != "leads"]
    return parts == ["follows", "follows", "leads"] and all(votes)


def disturb(cell, names, rng):
    name = rng.choice(names)
    pid = cell.pid(name)
    if rng.random() < 0.5:
        os.kill(pid, signal.SIGKILL)
        time.sleep(rng.uniform(0.2, 4))
        cell.start_again()
        return f"killed {name}"
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 5))
    os.kill(pid, signal.SIGCONT)
    return f"stopped {name}"


def check(cell, loads):
    wrong = [name for load in loads for name in load.wrong()]
    errors = [error for load in loads for error in load.errors]
    pauses = sorted(pause for load in loads for pause in load.pauses)
    rounds = sum(load.rounds for load in loads)
    median = pauses[len(pauses) // 2] if pauses else 0
    longest = pauses[-1] if pauses else 0
    print(
        f"replicas: {rounds} rounds of programs, {len(errors)} errors, {len(wrong)} wrong files, "
        f"longest round {longest:.1f} s, median of pauses {median:.1f} s"
    )
    for line in errors[:5] + wrong[:5]:
        print(f"  {line}")
    if errors or wrong or longest >= CALL_SECONDS_MAX or rounds == 0:
        raise SystemExit(1)
    cell.zonal("fsck")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(REPLICAS), help="disturb these only")
    parser.add_argument("--keep", action="store_true", help="keep the work folder")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kinds = [options.only] if options.only else sorted(REPLICAS)
    names = [name for kind in kinds for name in REPLICAS[kind]]
    work = tempfile.mkdtemp(prefix="zonal-replicas-")
    cell = Cell(work)
    try:
        cell.up()
        cell.await_leaders(30)
        folder = os.path.join(cell.mount, "load")
        cell.zonal("mkdir", "--zone", "1", folder)
        loads = [Load(folder, number) for number in range(2)]
        loads.append(FirstLevelLoad(cell.mount, 2))
        for load in loads:
            load.start()
        for number in range(options.rounds):
            done = disturb(cell, names, rng)
            cell.await_leaders(30)
            time.sleep(rng.uniform(0.2, 1.5))
            print(f"  round {number + 1}: {done}", flush=True)
        for load in loads:
            load.is_stopping = True
        for load in loads:
            load.join(60)
        check(cell, loads)
    finally:
        cell.down()
        if options.keep:
            print(f"kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
