#!/usr/bin/env python3
"""Leads are handed over while a subtree moves: each shard has a leader again within seconds.

    tests/cell/led_moves.py [--rounds 25] [--work DIR]

Makes a cell whose zone has two shards of three replicas each. Each round orders a move of a
first-level directory with 3,000 files, and hands the leads of both shards over at once. A replica
that is deposed in the middle of a move must end that reign, or it cannot lead again.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

FILES = 3_000
LEADER_SECONDS = 15


def command(*words, must=True):
    program = os.environ.get("ZONAL", "target/suite/zonal")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120)
    if must and done.returncode:
        raise SystemExit(f"zonal {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def shards(cell):
    listed = command("shard", "ls", "--json", "--cell", cell, must=False)
    known = json.loads(listed)["shards"] if listed.startswith("{") else []
    return [shard for shard in known if shard["shard"] != 0]


def await_leaders(cell):
    """Returns how long a shard had no leader."""
    began = time.monotonic()
    while time.monotonic() - began < LEADER_SECONDS:
        known = shards(cell)
        if len(known) == 2 and all(isinstance(shard["leader"], int) for shard in known):
            return time.monotonic() - began
        time.sleep(0.1)
    raise SystemExit(f"a shard has no leader: {shards(cell)}")


def one_round(cell, rng):
    for shard in rng.sample(shards(cell), 2):
        to = str(shard["shard"])
        command("shard", "move", "/d", "--to", to, "--no-wait", "--cell", cell, must=False)
    time.sleep(rng.choice([0, 0.02, 0.05, 0.1, 0.2]))
    for shard in shards(cell):
        follow = [one["node"] for one in shard["replicas"] if one["part"] == "follows"]
        if follow:
            to = str(rng.choice(follow))
            command("shard", "lead", str(shard["shard"]), to, "--cell", cell, must=False)
    return await_leaders(cell)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--work", help="where the cell goes; a directory [default: temporary]")
    options = parser.parse_args()
    rng = random.Random(1)
    folder = tempfile.mkdtemp(prefix="zonal-led-moves-", dir=options.work)
    cell, mount = f"{folder}/cell", f"{folder}/mount"
    os.mkdir(mount)
    shape = ("--zones", "1", "--storage-nodes", "1", "--replicas", "3", "--shards", "2")
    command("up", "--dir", cell, *shape, "--mount", mount)
    try:
        await_leaders(cell)
        command("mkdir", "--zone", "1", f"{mount}/d")
        for number in range(FILES):
            with open(f"{mount}/d/{number}", "wb"):
                pass
        longest = max(one_round(cell, rng) for _ in range(options.rounds))
        names = len(os.listdir(f"{mount}/d"))
        if names != FILES:
            raise SystemExit(f"{names} of {FILES} names are there")
        print(f"{options.rounds} rounds, longest time without a leader {longest:.1f} s")
    finally:
        command("umount", mount, must=False)
        command("down", "--dir", cell, must=False)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
