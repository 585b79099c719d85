#!/usr/bin/env python3
"""Real programs see no error while a storage server is lost for good.

    tests/cell/programs.py [--seconds 60] [--only fio,postgres,tree] [--work DIR] [--keep]

Makes a cell of one zone with four storage servers, which rebuilds a target that is out for 3 s. In
a directory with two copies these run at the same time:

* fio: random writes with checksums, buffered with fsync, and past the cache with reads beside them;
* postgres: pgbench on a server of PostgreSQL 15 whose data directory is there;
* tree: source trees are made, built by make and cc, kept in git, and compared with a local disk.

In the middle one storage server is killed and its folder is deleted. Its target has to go out and
be rebuilt on the others by itself. No program may see an error or wait longer than --pause.

Then each program verifies its files through new mounts: fio by a pass that only verifies, trees
once more, and PostgreSQL by a recovery from its log, sums of its tables, `pg_amcheck` and
`pg_checksums`. `zonal fsck` must find nothing, and nothing again once the lost target is removed.
At last each other storage server is killed in turn, and all files are read and compared while it is
away. The last line is JSON.
"""

import argparse
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from losses import SERVE, LosingCell
from running_programs import LIMIT_SECONDS, PROGRAMS

REBUILD_SECONDS_MAX = 300
OUT = "Out"


class Run:
    """The programs, the loss, and what became of it."""

    def __init__(self, cell, options):
        self.cell = cell
        self.options = options
        self.folder = f"{cell.mount}/twice"
        self.programs = []
        self.skipped = {}
        self.lost = None
        self.figures = {}

    def prepare(self, local):
        cell = self.cell
        cell.zonal("mkdir", "--zone", "1", self.folder)
        cell.zonal("layout", "set", "--copies", "2", self.folder)
        os.chmod(self.folder, 0o755)
        for kind in self.options.only.split(","):
            why = PROGRAMS[kind].missing()
            if why:
                print(f"  {kind}: skipped: {why}", flush=True)
                self.skipped[kind] = why
                continue
            other = f"{cell.other_mount}/twice"
            program = PROGRAMS[kind](self.folder, other, local, self.options.seconds)
            self.programs.append(program)
            began = time.monotonic()
            program.prepare()
            print(f"  {kind} is prepared ({time.monotonic() - began:.1f} s)", flush=True)
        if not self.programs:
            raise SystemExit("no program can run here")

    def lose(self, rng):
        """Kills a storage server for good; waits for the end of the rebuild, without a hand."""
        cell = self.cell
        server = rng.choice(cell.storage_servers())
        target = cell.target_of(server)
        self.lost, cell.dead = (server, target), server
        server.end(signal.SIGKILL)
        began = time.monotonic()
        shutil.rmtree(server.folder)
        print(f"  node {server.node} (target {target}) is killed, its folder deleted", flush=True)
        seen = {}
        while "Drained" not in seen:
            state, took = state_of(target, cell.map()), time.monotonic() - began
            if state not in SERVE and state not in seen:
                seen[state] = round(took, 1)
                print(f"  {took:.1f} s after the kill the target is {state}", flush=True)
            if took > REBUILD_SECONDS_MAX:
                shown = cell.tried("recovery", "--json")
                raise SystemExit(f"target {target} stays {state}: {shown.stdout}{shown.stderr}")
            self.check()
            time.sleep(0.1)
        self.figures["out_s"] = seen.get(OUT)
        self.figures["rebuilt_s"] = seen["Drained"]
        self.figures["programs_at_that_end"] = sum(one.is_alive() for one in self.programs)

    def check(self):
        errors = [error for one in self.programs for error in one.errors]
        if errors:
            raise SystemExit("\n".join(errors))
        self.cell.check_servers()

    def join(self):
        for program in self.programs:
            program.stop()
            program.join(LIMIT_SECONDS)
            if program.is_alive():
                raise SystemExit(f"{program.kind} does not end")
            print(f"  {program.kind}: {json.dumps(program.figures)}", flush=True)
        self.check()

    def mount_anew(self):
        """Reads come from the servers again, and no longer from caches of the kernel."""
        self.cell.unmount()
        for mount in (self.cell.mount, self.cell.other_mount):
            self.cell.zonal("mount", "--zone", "1", mount)

    def verify(self):
        for program in self.programs:
            began = time.monotonic()
            try:
                program.verify()
            except AssertionError as error:
                raise SystemExit(f"{program.kind}: {error}") from error
            print(f"  {program.kind} is verified ({time.monotonic() - began:.1f} s)", flush=True)

    def remove_lost(self):
        server, target = self.lost
        self.cell.zonal("target", "remove", "--target", str(target))
        self.cell.await_state(target, {"removed"})
        del self.cell.servers[server.node]
        self.cell.dead = None

    def fsck(self):
        self.cell.zonal("fsck", limit=300)
        print("  fsck finds nothing", flush=True)

    def take_turns(self):
        """While each storage server in turn is away, all files have the same bytes."""
        cell, known = self.cell, digests(self.folder)
        self.figures["files"] = len(known)
        self.figures["bytes"] = sum(size for size, _ in known.values())
        self.figures["wrong_files"] = 0
        for server in cell.storage_servers():
            cell.dead = server
            server.end(signal.SIGKILL)
            began = time.monotonic()
            self.mount_anew()
            found = digests(self.folder)
            names = {*known, *found}
            wrong = sorted(name for name in names if known.get(name) != found.get(name))
            took = time.monotonic() - began
            print(f"  all read without node {server.node} ({took:.1f} s)", flush=True)
            if wrong:
                self.figures["wrong_files"] += len(wrong)
                raise SystemExit(f"{len(wrong)} files differ without {server.node}: {wrong[:10]}")
            cell.start_server(server)
            cell.dead = None
            cell.await_whole()


def state_of(target, zone_map):
    """The target's state; that of its slots where it is out, and nothing else is done about it."""
    state = next(one["state"] for one in zone_map["targets"] if one["id"] == target)
    slots = [slot for one in zone_map["sets"] for slot in one["slots"] if slot["target"] == target]
    is_out = any(slot["state"] != "Serving" for slot in slots)
    return OUT if is_out and state in SERVE else state


def digests(folder):
    """Size and hash of all files below a directory."""
    found = {}
    for base, _, names in os.walk(folder, onerror=raised):
        for name in names:
            path = f"{base}/{name}"
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    size = os.fstat(file.fileno()).st_size
                found[os.path.relpath(path, folder)] = (size, digest)
    return found


def raised(error):
    raise error


def run(cell, one, options, folder):
    cell.up()
    local = f"{folder}/local"
    one.prepare(local)
    for program in one.programs:
        program.start()
    time.sleep(options.seconds / 3)
    one.check()
    one.lose(random.Random(options.seed))
    one.join()
    one.mount_anew()
    one.verify()
    one.fsck()
    one.remove_lost()
    one.fsck()
    one.take_turns()
    longest = {program.kind: round(program.longest, 2) for program in one.programs}
    one.figures["longest_pause_s"] = longest
    late = {kind: took for kind, took in longest.items() if took > options.pause}
    if late:
        raise SystemExit(f"a program waited longer than {options.pause} s: {late}")


def descendants(pid):
    """Processes that a process has started, and theirs."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    except OSError:
        pass
    return found


def end_programs(cell, one):
    """Ends all programs, whatever came before. The cell's servers go on."""
    for program in one.programs:
        program.stop()
        program.end()
    for _ in range(10):
        servers = {server.pid for server in cell.servers.values()}
        for pid in [pid for pid in descendants(os.getpid()) if pid not in servers]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)


def show_logs(cell):
    """Warnings and errors of mounts and servers, from the end of each log."""
    for path in sorted([*glob.glob(f"{cell.dir}/*/log"), *glob.glob(f"{cell.dir}/mounts/*.log")]):
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if " WARN " in line or " ERROR " in line]
        if lines:
            print(f"--- {path}\n{''.join(lines[-8:])}", end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long the programs run")
    parser.add_argument("--only", default=",".join(PROGRAMS), help="some of fio, postgres, tree")
    parser.add_argument("--pause", type=float, default=10, help="longest pause, in seconds")
    parser.add_argument("--seed", type=int, default=1, help="chooses the server that is lost")
    parser.add_argument("--work", help="where the cell goes; a directory [default: temporary]")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a failed run")
    options = parser.parse_args()
    if not set(options.only.split(",")) <= set(PROGRAMS):
        parser.error(f"--only takes some of {', '.join(PROGRAMS)}")
    folder = tempfile.mkdtemp(prefix="zonal-programs-", dir=options.work)
    # PostgreSQL runs as another user.
    os.chmod(folder, 0o755)
    cell = LosingCell(folder, random.Random(options.seed))
    one = Run(cell, options)
    failure = "it was interrupted"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("it was ended by SIGTERM"))
    try:
        run(cell, one, options, folder)
        failure = None
    except (SystemExit, OSError, subprocess.SubprocessError) as error:
        failure = str(error)
        print(failure)
        show_logs(cell)
    finally:
        end_programs(cell, one)
        cell.down()
        if failure and options.keep:
            print(f"kept {folder}")
        elif not any(map(os.path.ismount, (cell.mount, cell.other_mount))):
            shutil.rmtree(folder, ignore_errors=True)
    of_programs = {program.kind: program.figures for program in one.programs}
    said = {"passed": not failure, **one.figures, **of_programs, "skipped": one.skipped}
    print(json.dumps({**said, "failure": failure} if failure else said))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
