#!/usr/bin/env python3
"""No file with two copies is lost while storage servers are killed, lost, drained and stopped.

    tests/cell/losses.py [--minutes 15] [--rounds N] [--seed N] [--only KIND,...] [--work DIR] [--keep]

Makes a cell of one zone with four storage servers, which rebuilds a target that is out for 3 s.
Programs on two mounts make, change, read and remove files with two copies, and know what must be in
each. Each round does one thing, by chance:

* kill: a storage server is killed (SIGKILL), and started again;
* return: it is started again once its target is being rebuilt;
* lose: it is killed and its folder is deleted; its target is rebuilt and removed, and a new node with
  an empty folder joins;
* leave: its target is drained and removed, its server ends, and a new node joins;
* cancel: a drain of its target begins and is cancelled;
* stop: it hangs for some seconds (SIGSTOP).

A round ends once all targets serve and no file has a stale copy, so there is no second loss before.
No program may see an error and no file may differ. At the end all files are compared once more by a
new mount, and `zonal fsck` must find nothing.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from changing_cell import ChangingCell, Server
from file_load import FileLoad, difference
from replicas import ZONAL

REBUILD_AFTER = "3s"
STATE_SECONDS = 120
PROGRAMS = 3
LENGTHS_AT_REST = [0, 1, 5_000, 65_536, 200_000, 1_000_000, 3_000_001]
SERVE = {"Serving", "Returned"}


class LosingCell(ChangingCell):
    """One zone with four storage servers; a lost one is replaced by a new node."""

    shape = ["--zones", "1", "--storage-nodes", "4", "--capacity", "1 GiB"]

    def up(self):
        os.mkdir(self.own)
        os.mkdir(self.other_mount)
        self.zonal("up", "--dir", self.dir, *self.shape)
        path = f"{self.dir}/manager/node.toml"
        with open(path, encoding="utf-8") as file:
            config = file.read()
        with open(path, "w", encoding="utf-8") as file:
            key = f'[manager]\nrebuild_after = "{REBUILD_AFTER}"\n'
            file.write(config.replace("[manager]\n", key, 1))
        self.zonal("down", "--dir", self.dir)
        self.zonal("up", "--dir", self.dir, "--mount", self.mount)
        for name in sorted(os.listdir(self.dir)):
            folder = f"{self.dir}/{name}"
            if os.path.exists(f"{folder}/pid"):
                with open(f"{folder}/node.toml", encoding="utf-8") as file:
                    node = int(re.search(r"^node = (\d+)", file.read(), re.M)[1])
                self.servers[node] = Server(node, folder)
        self.zonal("mount", "--zone", "1", self.other_mount)

    def storage_servers(self):
        return [one for one in self.servers.values() if one.has_target]

    def map(self):
        return json.loads(self.insisted("zone-map", "show", "--json"))

    def target_of(self, server):
        targets = self.map()["targets"]
        return next(one["id"] for one in targets if one["node"] == server.node)

    def state(self, target):
        found = [one["state"] for one in self.map()["targets"] if one["id"] == target]
        return found[0] if found else "removed"

    def await_state(self, target, states, seconds=STATE_SECONDS):
        until = time.monotonic() + seconds
        while (state := self.state(target)) not in states:
            if time.monotonic() > until:
                shown = self.tried("target", "drain", "--target", str(target), "--preview")
                raise SystemExit(f"target {target} stays {state}: {shown.stdout}{shown.stderr}")
            time.sleep(0.1)
        return state

    def await_whole(self):
        """Waits until every target serves, and no file has a stale copy."""
        until = time.monotonic() + STATE_SECONDS
        while True:
            targets = self.map()["targets"]
            recovery = json.loads(self.insisted("recovery", "--json"))
            states = {one["state"] for one in [*targets, *recovery["targets"]]}
            if recovery["files"] == 0 and states <= {*SERVE, "serving"}:
                return
            if time.monotonic() > until:
                raise SystemExit(f"the cell is not whole: {targets} {recovery}")
            time.sleep(0.2)

    def start_server(self, server):
        """Starts a server again, as a child of this process."""
        words = [ZONAL, "server", "--config", f"{server.folder}/node.toml"]
        with open(f"{server.folder}/log", "ab") as log:
            child = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        self.servers[server.node] = Server(server.node, server.folder, child)

    def join_new(self):
        node = self.next_number()
        words = ["--roles", "storage", "--zone", "1", "--node", str(node)]
        words += ["--authority", f"{self.dir}/authority.pem"]
        token = self.insisted("token", "create", *words).strip()
        words = ["--dir", f"{self.own}/{node}", "--listen", f"127.0.0.1:{self.free_port()}"]
        self.zonal("node", "join", "--token", token, *words, "--capacity", "1 GiB")
        self.start(node)
        until = time.monotonic() + STATE_SECONDS
        while node not in [one["node"] for one in self.map()["targets"]]:
            self.check_servers()
            if time.monotonic() > until:
                raise SystemExit(f"node {node} has no target in the map")
            time.sleep(0.1)
        return node


def kill(cell, server, rng):
    server.end(signal.SIGKILL)
    pause = rng.uniform(0.2, 7)
    time.sleep(pause)
    cell.start_server(server)
    return f"killed node {server.node} for {pause:.1f} s"


def come_back(cell, server, rng):
    target = cell.target_of(server)
    server.end(signal.SIGKILL)
    cell.dead = server
    state = cell.await_state(target, {"Rebuilding", "Drained"})
    if state == "Rebuilding":
        time.sleep(rng.uniform(0, 2))
        state = cell.state(target)
    if state == "Drained":
        return f"too late: {replace(cell, server, target)}"
    cell.start_server(server)
    cell.dead = None
    state = cell.await_state(target, {*SERVE, "Drained"})
    if state == "Drained":
        server = cell.servers[server.node]
        return f"drained before it came back: {replace(cell, server, target)}"
    return f"node {server.node} came back while it was rebuilt"


def lose(cell, server, _rng):
    target = cell.target_of(server)
    server.end(signal.SIGKILL)
    shutil.rmtree(server.folder)
    cell.dead = server
    cell.await_state(target, {"Drained"})
    return f"lost node {server.node}: {replace(cell, server, target)}"


def replace(cell, server, target):
    """Removes a drained target; a new node joins in its place."""
    cell.insisted("target", "remove", "--target", str(target))
    cell.await_state(target, {"removed"})
    server.end(signal.SIGTERM)
    del cell.servers[server.node]
    cell.dead = None
    return f"node {cell.join_new()} replaces it"


def leave(cell, server, _rng):
    target = cell.target_of(server)
    cell.insisted("target", "drain", "--target", str(target))
    cell.await_state(target, {"Drained"})
    return f"drained node {server.node}: {replace(cell, server, target)}"


def cancel(cell, server, rng):
    target = str(cell.target_of(server))
    cell.insisted("target", "drain", "--target", target)
    pause = rng.uniform(0, 6)
    time.sleep(pause)
    done = cell.tried("target", "drain", "--target", target, "--cancel")
    if done.returncode and cell.state(int(target)) == "Drained":
        return f"drained before it was cancelled: {replace(cell, server, int(target))}"
    if done.returncode:
        raise SystemExit(f"a drain is not cancelled: {done.stderr}")
    cell.await_state(int(target), SERVE)
    return f"drain of node {server.node} cancelled after {pause:.1f} s"


def stop(cell, server, rng):
    pause = rng.uniform(0.5, 9)
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(pause)
    os.kill(server.pid, signal.SIGCONT)
    target = cell.target_of(server)
    state = cell.await_state(target, {*SERVE, "Drained"})
    if state == "Drained":
        return f"drained while it was stopped: {replace(cell, server, target)}"
    return f"stopped node {server.node} for {pause:.1f} s"


KINDS = {
    "kill": kill,
    "return": come_back,
    "lose": lose,
    "leave": leave,
    "cancel": cancel,
    "stop": stop,
}


class Programs:
    """All programs, and files that none of them changes."""

    def __init__(self, cell, seed):
        self.cell = cell
        self.rest = {}
        folder, other = f"{cell.mount}/twice", f"{cell.other_mount}/twice"
        cell.zonal("mkdir", "--zone", "1", folder)
        cell.zonal("layout", "set", "--copies", "2", "--stripe-unit", "64KiB", folder)
        rng = random.Random(seed)
        for number, length in enumerate(LENGTHS_AT_REST):
            content = rng.randbytes(length)
            with open(f"{folder}/rest-{number}", "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.rest[f"rest-{number}"] = content
        pairs = [(folder, other), (other, folder)]
        loads = range(PROGRAMS)
        self.loads = [FileLoad(number, *pairs[number % 2], seed) for number in loads]
        for load in self.loads:
            load.start()

    def errors(self):
        return [error for load in self.loads for error in load.errors]

    def differing(self):
        return [name for load in self.loads for name in load.differing]

    def check(self):
        if self.errors() or self.differing():
            raise SystemExit("\n".join([*self.errors()[:10], *self.differing()[:10]]))

    def end(self):
        for load in self.loads:
            load.is_stopping = True
        for load in self.loads:
            load.join(60)
            if load.is_alive():
                load.errors.append(f"program {load.number} does not end")

    def compare_all(self, folder):
        """Names of all files that are missing, too many, or have other bytes."""
        known = dict(self.rest)
        for load in self.loads:
            known.update(load.files)
        wrong = [*(set(os.listdir(folder)) ^ set(known))]
        for name, content in known.items():
            with open(f"{folder}/{name}", "rb") as file:
                found = file.read()
            if found != content:
                wrong.append(f"{name}: {difference(found, content)}")
        return wrong

    def figures(self):
        changes = sum(load.changes for load in self.loads)
        longest = max(load.longest for load in self.loads)
        return f"{changes} changes and reads, longest pause {longest:.1f} s"


def run(cell, options, rng):
    cell.up()
    programs = Programs(cell, options.seed)
    kinds = options.only.split(",") if options.only else list(KINDS)
    began, done = time.monotonic(), dict.fromkeys(KINDS, 0)
    while sum(done.values()) < options.rounds or not sum(done.values()):
        if time.monotonic() - began > options.minutes * 60:
            break
        kind = rng.choice(kinds)
        server = rng.choice(cell.storage_servers())
        at = time.monotonic()
        said = KINDS[kind](cell, server, rng)
        cell.await_whole()
        done[kind] += 1
        took = f"{time.monotonic() - at:.1f} s"
        print(f"  {sum(done.values())}, {time.strftime('%H:%M:%S')}: {said} ({took})", flush=True)
        cell.check_servers()
        programs.check()
        time.sleep(rng.uniform(0, 2))
    programs.end()
    wrong = programs.differing()
    cell.unmount()
    cell.zonal("mount", "--zone", "1", cell.mount)
    wrong += programs.compare_all(f"{cell.mount}/twice")
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.items())
    print(
        f"losses: {sum(done.values())} rounds ({kinds}), {len(programs.errors())} errors, "
        f"{len(wrong)} wrong files, {programs.figures()}"
    )
    for line in [*programs.errors()[:5], *wrong[:5]]:
        print(f"  {line}")
    if programs.errors() or wrong or not sum(done.values()):
        raise SystemExit(1)
    cell.zonal("fsck", limit=300)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=1_000_000, help="rounds at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help=f"these kinds of rounds: {', '.join(KINDS)}")
    parser.add_argument("--work", help="where the cell goes; a directory [default: temporary]")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a failed run")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    folder = tempfile.mkdtemp(prefix="zonal-losses-", dir=options.work)
    cell = LosingCell(folder, rng)
    failed = True
    try:
        run(cell, options, rng)
        failed = False
    finally:
        cell.down()
        if failed and options.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
