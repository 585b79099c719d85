#!/usr/bin/env python3
"""Nothing is lost while servers are killed and replaced, subtrees move, and zones are added.

    tests/cell/changes.py [--minutes 60] [--seed N] [--work DIR] [--zones N] [--keep]

Makes a cell with three managers, and a zone with two shards of three replicas each. Programs build
trees in its first-level directories, twice: in the cell and on the local disk; both are compared
again and again. Meanwhile each cycle makes four changes in an order by chance:

* kill a replica of the managers or of a zone's shard;
* replace it by a new and empty node, and remove the killed one from the map;
* move a first-level directory to the other shard of its zone;
* add a zone with a shard and a target, and a directory in it (no more than --zones).

No program may see an error, no call may take 30 s, no server may end by itself, and no file may
differ. At the end everything is compared through a new mount, and `zonal fsck` must find nothing.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time

from built_tree import CALL_SECONDS_MAX, Builder
from changing_cell import ChangingCell
from replicas import FirstLevelLoad, Load

BUILDERS_OF_FIRST_ZONE = 3
END_SECONDS = 120


class Work:
    """All that programs do in the cell."""

    def __init__(self, cell, local, seed):
        self.cell = cell
        self.local = local
        self.seed = seed
        self.builders = []
        self.loads = []

    def begin(self):
        for number in range(BUILDERS_OF_FIRST_ZONE):
            self.build(1, f"tree{number}")
        folder = f"{self.cell.mount}/load"
        self.cell.zonal("mkdir", "--zone", "1", folder)
        self.start(Load(folder, 0))
        self.start(FirstLevelLoad(self.cell.mount, 1))

    def start(self, load):
        load.rest_seconds = 0.2
        self.loads.append(load)
        load.start()

    def build(self, zone, name):
        """Makes a first-level directory in a zone, and builds trees in it from now on."""
        path = f"{self.cell.mount}/{name}"
        self.cell.zonal("mkdir", "--zone", str(zone), path)
        other = f"{self.cell.other_mount}/{name}"
        builder = Builder(path, other, f"{self.local}/{name}", f"{self.seed} {name}")
        self.builders.append(builder)
        builder.start()
        # Its single calls show how long the directory does not answer.
        os.mkdir(f"{path}/load")
        self.start(Load(f"{path}/load", len(self.loads)))

    def movable(self):
        """Directories of the first zone, as paths of the cell."""
        return ["/load", *(f"/tree{number}" for number in range(BUILDERS_OF_FIRST_ZONE))]

    def wrong(self):
        """Errors so far, and calls that are too long."""
        errors = [error for one in [*self.builders, *self.loads] for error in one.errors]
        overdue = [one.calls.overdue() for one in self.builders]
        for load in self.loads:
            now = time.monotonic() - load.began if load.is_alive() else 0
            if max(now, *load.pauses, 0) > CALL_SECONDS_MAX:
                overdue.append(f"a call in {load.folder} took more than {CALL_SECONDS_MAX} s")
        return [*errors, *filter(None, overdue)]

    def check(self):
        wrong = self.wrong()
        if wrong:
            raise SystemExit("\n".join(wrong[:10]))

    def end(self):
        """Ends all programs; compares everything once more through the other mount."""
        workers = [*self.builders, *self.loads]
        for worker in workers:
            worker.is_stopping = True
        for worker in workers:
            worker.join(END_SECONDS)
            if worker.is_alive():
                self.check()
                raise SystemExit(f"{worker} does not end")
        self.check()

    def compare(self):
        for builder in self.builders:
            builder.compare(builder.other_path)
        wrong = [name for load in self.loads for name in load.wrong()]
        if wrong:
            raise SystemExit(f"{len(wrong)} files of the load are wrong: {wrong[:10]}")
        self.check()

    def figures(self):
        trees = sum(builder.rounds for builder in self.builders)
        compared = sum(builder.compared for builder in self.builders)
        rounds = sum(load.rounds for load in self.loads)
        pauses = [max(load.pauses, default=0) for load in self.loads]
        pauses += [builder.calls.longest[0] for builder in self.builders]
        longest, what = max(builder.calls.longest_program for builder in self.builders)
        return (
            f"{trees} trees built, {compared} files compared, {rounds} rounds of load, "
            f"longest pause {max(pauses):.1f} s, "
            f"longest program {longest:.1f} s ({what.split(' in /')[0]})"
        )

    def slow(self):
        """What was slow since the last call of this."""
        for builder in self.builders:
            while builder.calls.slow:
                yield builder.calls.slow.pop(0)


def order_of_changes(rng):
    """All four in an order by chance; a node is replaced after it was killed."""
    changes = ["kill", "replace", "move", "zone"]
    rng.shuffle(changes)
    if changes.index("replace") < changes.index("kill"):
        first, second = changes.index("replace"), changes.index("kill")
        changes[first], changes[second] = "kill", "replace"
    return changes


def cycle(cell, work, rng, zones_max):
    """One of each change. A move may go on during the changes after it."""
    for change in order_of_changes(rng):
        began = time.monotonic()
        if change == "kill":
            said = cell.kill()
        elif change == "replace":
            said = cell.replace()
        elif change == "move":
            said = cell.order_move(rng.choice(work.movable()))
        elif len(cell.zones) <= zones_max:
            said = cell.add_zone()
            work.build(cell.zones[-1], f"zone{cell.zones[-1]}")
        else:
            said = f"no zone more than the {zones_max} that were added"
        print(f"  {said} ({time.monotonic() - began:.1f} s)", flush=True)
        time.sleep(rng.choice([0, rng.uniform(0, 3)]))
        work.check()
    print(f"  {cell.end_move()}", flush=True)
    for slow in work.slow():
        print(f"  {slow}", flush=True)
    cell.await_leaders(60)
    cell.check_servers()


def run(cell, work, options, rng):
    cell.up()
    cell.await_leaders(30)
    work.begin()
    began = time.monotonic()
    cycles = 0
    while cycles == 0 or time.monotonic() - began < options.minutes * 60:
        cycles += 1
        minutes = (time.monotonic() - began) / 60
        at = time.strftime("%H:%M:%S")
        print(f"cycle {cycles}, {at}, {minutes:.1f} min, {work.figures()}", flush=True)
        cycle(cell, work, rng, options.zones)
        time.sleep(rng.uniform(0, 3))
        work.check()
    work.end()
    cell.unmount()
    for mount in (cell.mount, cell.other_mount):
        cell.zonal("mount", "--zone", "1", mount)
    print("comparing all", flush=True)
    work.compare()
    cell.zonal("fsck", limit=600)
    cell.check_servers()
    cell.unmount()
    done = ", ".join(f"{count} {kind}" for kind, count in cell.done.items())
    done = f"{done}, longest move {cell.longest_move:.1f} s"
    print(f"changes: {done}; {work.figures()}; nothing lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="where the cell goes; a directory [default: temporary]")
    parser.add_argument("--zones", type=int, default=3, help="zones that are added at most")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a failed run")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = tempfile.mkdtemp(prefix="zonal-changes-", dir=options.work)
    cell = ChangingCell(folder, rng)
    work = Work(cell, os.path.join(folder, "local"), options.seed)
    failed = True
    try:
        run(cell, work, options, rng)
        failed = False
    finally:
        if failed:
            for server in cell.servers.values():
                print(server.last_lines()[:2000])
        cell.down()
        if failed and options.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
