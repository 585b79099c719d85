#!/usr/bin/env python3
"""`kill -9` of servers and mounts under a mixed load, in rounds; all data is checked after each.

    tests/cell/kill.py --dir EMPTY-FOLDER [--rounds 10] [--seed 1] [--workers 6] [--check-every 1] [--keep]

Starts a cell of its own (2 zones, 3 storage nodes each) in the folder and mounts it twice. Workers
(`kill_worker.py`) change files of their own through both mounts, and count under locks in shared
files. A round kills one server, several, all, or a mount at a random moment. It restarts them with
`zonal up` (and `zonal mount`), and stops the workers. Then these must hold:

* Every call ended within 30 s. A call failed only during an outage, and the mount's log names a
  server that was killed in this round.
* Names, contents, links, modes and extended attributes equal the workers' models, through both
  mounts and through descriptors that stayed open. A change with an unknown outcome is done or not
  done.
* Counters equal the counts, and locks held before are still held.
* Every server is healthy.
* `zonal fsck` of the running cell is clean (with --check-every N after each N-th round): no entry
  or object without its inode.

After the last round the servers are killed once more, and `zonal fsck` must find the stopped stores
clean. Then all files are removed, and no object, orphan, open or lock may be left. ZONAL names the
binary; root only. The seed decides what is killed and when, but not how the kernel schedules it.
Ends with `kill: N passed, N failed`.
"""
import argparse
import collections
import datetime
import fcntl
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kill_worker  # noqa: E402
import mixed  # noqa: E402

ZONAL = os.environ.get("ZONAL", "zonal")
ANSWER_SECONDS = 240  # a worker's reply to a command: some calls of at most 30 s, and waits for locks
LONG_OUTAGE = 12.0  # past the deadline of a request, every tenth round
COMES_BACK_SECONDS = 10
NAMED_ONCE_SECONDS = 5  # a mount's log names the same server at most once in this time


def zonal(*args, limit=90):
    done = subprocess.run([ZONAL, *args], capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise AssertionError(f"zonal {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


class Cell:
    def __init__(self, folder):
        self.folder, self.cell = folder, f"{folder}/cell"
        self.mounts = [f"{folder}/mnt1", f"{folder}/mnt2"]

    def up(self):
        zonal("up", "--dir", self.cell, "--zones", "2", "--storage-nodes", "3")

    def mount(self, index):
        zonal("mount", "--cell", self.cell, self.mounts[index], "--zone", str(index + 1))

    def servers(self):
        pids = {}
        for name in sorted(os.listdir(self.cell)):
            file = f"{self.cell}/{name}/pid"
            if os.path.exists(file):
                with open(file, encoding="utf-8") as f:
                    pids[name] = int(f.read())
        return pids

    def mount_pid(self, index):
        for pid, text in self.mount_records():
            if text == self.mounts[index]:
                return pid
        raise AssertionError(f"no record of {self.mounts[index]}")

    def mount_records(self):
        folder = f"{self.cell}/mounts"
        for name in os.listdir(folder):
            if name.endswith(".toml"):
                with open(f"{folder}/{name}", encoding="utf-8") as f:
                    text = f.read()
                yield int(re.search(r"^pid = (\d+)", text, re.M)[1]), re.search(r'^path = "(.*)"', text, re.M)[1]

    def log(self, index):
        name = os.path.basename(self.mounts[index])
        for file in os.listdir(f"{self.cell}/mounts"):
            if file.endswith(".log") and name in file:
                with open(f"{self.cell}/mounts/{file}", encoding="utf-8", errors="replace") as f:
                    return re.sub(r"\x1b\[[0-9;]*m", "", f.read())
        return ""

    def address(self, name):
        """The address of a node's service."""
        with open(f"{self.cell}/{name}/node.toml", encoding="utf-8") as f:
            return re.search(r'^listen = "(.*)"', f.read(), re.M)[1]

    def named(self, index, since):
        """Servers that did not answer since then: [(name in a mount's log, address)]."""
        lines = re.findall(r'^(\S+)Z +WARN no answer server="([^"]*) at ([^"]*)"', self.log(index), re.M)
        return [(server, address) for when, server, address in lines
                if datetime.datetime.fromisoformat(when).replace(tzinfo=datetime.timezone.utc).timestamp() >= since]

    def down(self):
        try:
            zonal("down", "--dir", self.cell)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(f"zonal down: {error}", flush=True)


def serve(tops, number, seed, pipe, is_over, is_gone):
    """A worker's process: carries out the driver's commands; replies with (errors, facts)."""
    try:
        worker = kill_worker.Worker(tops, number % 2, number, seed)
        pipe.send(("", {}))
        while True:
            command, bad = pipe.recv(), []
            if command == "work":
                worker.work(is_over.is_set, is_gone.is_set)
            elif command == "remounted":
                worker.resume_after_mount()
            elif command == "verify":
                bad = worker.verify()
            elif command == "end":
                break
            facts = {"doubts": worker.doubts, "slowest": worker.slowest, "steps": worker.steps, "sure": worker.sure, "perhaps": worker.perhaps}
            pipe.send(("; ".join(bad[:3]), facts))
            worker.doubts = []
    except BaseException:  # noqa: B036 (told to the parent)
        pipe.send((traceback.format_exc(limit=-3), {}))
    os._exit(0)


class Crew:
    """The workers."""

    def __init__(self, cell, count, seed):
        self.is_over, self.are_gone = multiprocessing.Event(), [multiprocessing.Event() for _ in range(2)]
        self.pipes, self.processes = [], []
        for number in range(count):
            here, there = multiprocessing.Pipe()
            process = multiprocessing.Process(target=serve, args=(cell.mounts, number, seed, there, self.is_over, self.are_gone[number % 2]), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)
        self.facts = [{} for _ in range(count)]

    def tell(self, command, numbers=None):
        for number in self.numbers(numbers):
            self.pipes[number].send(command)

    def numbers(self, numbers):
        return range(len(self.pipes)) if numbers is None else numbers

    def answers(self, numbers=None):
        """The errors, by worker."""
        bad, end = [], time.monotonic() + ANSWER_SECONDS
        for number in self.numbers(numbers):
            if not self.pipes[number].poll(max(0.0, end - time.monotonic())):
                pid = self.processes[number].pid
                with open(f"/proc/{pid}/stack", encoding="utf-8") as f:
                    raise AssertionError(f"worker {number} (process {pid}) does not answer; it is in {f.read().split(chr(10))[:4]}")
            wrong, facts = self.pipes[number].recv()
            self.facts[number] = facts or self.facts[number]
            bad += [f"worker {number}: {wrong}"] if wrong else []
        return bad

    def ask(self, command, numbers=None):
        self.tell(command, numbers)
        return self.answers(numbers)

    def end(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(5)


class Round:
    """The actions of one round, from the seed."""

    def __init__(self, seed, number, servers):
        chance = random.Random(seed * 1_000_003 + number)
        kind = chance.choices(("one", "several", "all", "mount", "mount and servers"), (35, 20, 25, 12, 8))[0]
        self.victims, self.mount = [], None
        if kind == "one":
            self.victims = chance.sample(servers, 1)
        elif kind in ("several", "mount and servers"):
            self.victims = chance.sample(servers, chance.randrange(2, len(servers)))
        elif kind == "all":
            self.victims = list(servers)
        if kind.startswith("mount"):
            self.mount = chance.randrange(2)
        self.before, self.down, self.after = chance.uniform(0.2, 1.5), chance.choice((0.0, chance.uniform(0, 1.5))), chance.uniform(0.3, 1.0)
        if number % 10 == 7 and self.victims:
            self.down = LONG_OUTAGE

    def __str__(self):
        what = self.victims + ([f"mount {self.mount + 1}"] if self.mount is not None else [])
        return f"{' '.join(what)}; after {self.before:.2f} s, down for {self.down:.1f} s"


class Test:
    def __init__(self, args):
        self.args, self.cell = args, Cell(os.path.realpath(args.dir))
        self.passed = self.failed = 0
        self.slowest, self.recoveries, self.remounts, self.checks, self.unknown = 0.0, [], [], [], 0

    def step(self, name, bad):
        self.passed, self.failed = self.passed + (not bad), self.failed + bool(bad)
        print(f"{'FAILED' if bad else 'ok'}  {name}{': ' if bad else ''}{bad or ''}", flush=True)
        return not bad

    def start(self):
        self.cell.up()
        for index in range(2):
            os.makedirs(self.cell.mounts[index], exist_ok=True)
            self.cell.mount(index)
        one, two = self.cell.mounts
        zonal("mkdir", "--zone", "1", f"{one}/one")
        zonal("mkdir", "--zone", "2", f"{one}/two")
        self.watch = mixed.Watch(self.cell.cell, self.cell.mounts)
        time.sleep(1.5)
        self.clean = self.left(self.watch)
        for zone in ("one", "two"):
            os.mkdir(f"{one}/{zone}/kill")
            # Small stripe units, so that most files are on all targets.
            zonal("layout", "set", "--stripe-unit", "64KiB", f"{one}/{zone}/kill")
        for name in ("shared0", "shared1", "shared-held"):
            with open(f"{one}/one/kill/{name}", "wb") as f:
                f.write(b"%020d" % 0)
        os.listdir(two)
        self.crew = Crew(self.cell, self.args.workers, self.args.seed)
        return self.step("workers begin", self.crew.answers())

    def round(self, number):
        plan = Round(self.args.seed, number, sorted(self.cell.servers()))
        self.crew.is_over.clear()
        self.crew.tell("work")
        time.sleep(plan.before)
        began = time.monotonic()
        at = time.time()
        self.kill(plan)
        time.sleep(plan.down)
        bad = self.restart(plan)
        ended = time.monotonic() + 5
        time.sleep(plan.after)
        self.crew.is_over.set()
        bad += self.crew.answers()
        bad += self.judge_doubts(plan, began, ended, at)
        if plan.mount is not None and not bad:
            bad += self.crew.ask("remounted", [n for n in range(self.args.workers) if n % 2 == plan.mount])
            self.crew.are_gone[plan.mount].clear()
        if not bad:
            bad += self.crew.ask("verify")
        bad += self.counts() + self.locks() + self.status()
        if number % self.args.check_every == 0:
            begun = time.monotonic()
            bad += self.fsck()
            self.checks.append(time.monotonic() - begun)
        return self.step(f"round {number}: {plan}", "\n  ".join(bad))

    def kill(self, plan):
        servers = self.cell.servers()
        pids = [servers[name] for name in plan.victims]
        if plan.mount is not None:
            pids.append(self.cell.mount_pid(plan.mount))
            self.crew.are_gone[plan.mount].set()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def restart(self, plan):
        """Starts stopped servers and mounts; each mount must answer soon after."""
        bad, begun = [], time.monotonic()
        self.cell.up()
        if plan.victims:
            self.recoveries.append(time.monotonic() - begun)
        if plan.mount is not None:
            begun = time.monotonic()
            self.cell.mount(plan.mount)
            self.remounts.append(time.monotonic() - begun)
        end = time.monotonic() + COMES_BACK_SECONDS
        for mount in self.cell.mounts:
            while True:
                try:
                    os.listdir(f"{mount}/one")
                    os.statvfs(mount)
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        bad.append(f"{mount} does not answer {COMES_BACK_SECONDS} s after the restart: {error}")
                        break
                    time.sleep(0.1)
        return bad

    def judge_doubts(self, plan, began, ended, at):
        bad, addresses = [], {self.cell.address(name) for name in plan.victims}
        for number, facts in enumerate(self.crew.facts):
            self.slowest = max(self.slowest, facts.get("slowest", 0))
            doubts = facts.get("doubts", [])
            self.unknown += len(doubts)
            early = [f"{what} {when - began:+.1f} s after the kill" for when, what in doubts if not began <= when <= ended]
            bad += [f"worker {number} failed while nothing was down: {early[:2]}"] if early else []
            side = number % 2
            if doubts and side != plan.mount:
                named = self.cell.named(side, at - NAMED_ONCE_SECONDS)
                # Since this kill; or before it, if the mount would log that server again only
                # later.
                if not any(address in addresses for _, address in named):
                    bad.append(f"worker {number} saw {doubts[0][1]}, and the mount's log names no server of {plan.victims} but {[text for text, _ in named][-3:]}")
        return bad

    def counts(self):
        sure, perhaps = (sum(f.get(key, 0) for f in self.crew.facts) for key in ("sure", "perhaps"))
        bad = []
        for mount in self.cell.mounts:
            total = 0
            for name in ("shared0", "shared1"):
                with open(f"{mount}/one/kill/{name}", "rb", buffering=0) as f:
                    total += int(f.read(20))
            if not sure <= total <= sure + perhaps:
                bad.append(f"{mount}: {total} counted, between {sure} and {sure + perhaps} expected")
        return bad

    def locks(self):
        """Checks that each worker's locks are refused to this process, through both mounts."""
        bad = []
        for mount in self.cell.mounts:
            with open(f"{mount}/one/kill/shared-held", "rb+", buffering=0) as f:
                for number in range(self.args.workers):
                    with open(f"{mount}/one/kill/flock-{number}", "rb+", buffering=0) as g:
                        for what, take in (("range", lambda n=number: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10 * n)),
                                           ("flock", lambda g=g: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB))):
                            try:
                                take()
                                bad.append(f"{what} of worker {number} was given away through {mount}")
                            except BlockingIOError:
                                pass
        return bad

    def status(self):
        """Checks that every server answers, and none reports a problem of its store."""
        status = json.loads(zonal("status", "--cell", self.cell.cell, "--json"))
        return [] if status["healthy"] else [f"zonal status: {json.dumps(status)[:500]}"]

    def fsck(self):
        done = subprocess.run([ZONAL, "fsck", "--cell", self.cell.cell], capture_output=True, text=True, timeout=300, check=False)
        return [f"zonal fsck: exit {done.returncode}: {(done.stdout + done.stderr).strip()[-1000:]}"] if done.returncode else []

    def finish(self):
        """Removes all files, and looks for leftovers."""
        self.crew.tell("end")
        self.crew.end()
        time.sleep(1)
        pids = self.cell.servers().values()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        while any(os.path.exists(f"/proc/{pid}/exe") for pid in pids):
            time.sleep(0.01)
        self.step("zonal fsck finds the killed stores clean", self.fsck())
        self.cell.up()
        for zone in ("one", "two"):
            shutil.rmtree(f"{self.cell.mounts[0]}/{zone}/kill")
        watch = mixed.Watch(self.cell.cell, self.cell.mounts)
        end, left = time.monotonic() + 90, {}
        while time.monotonic() < end:
            left = {name: f"{count} after {self.clean[name]}" for name, count in self.left(watch).items() if count > self.clean[name]}
            if not left:
                break
            time.sleep(0.5)
        self.step("nothing is left", left)

    @staticmethod
    def left(watch):
        """Leftover objects, orphans and opens; after a kill a shard only estimates its inodes."""
        return {name: count for name, count in mixed.left(watch.look()).items() if name != "shard_inodes"}

    def run(self):
        begun = time.monotonic()
        try:
            going = self.start()
            for number in range(1, self.args.rounds + 1):
                going = going and self.round(number)
            if going:
                self.finish()
        except Exception:
            self.step("the test itself", traceback.format_exc(limit=-4))
        finally:
            if hasattr(self, "crew"):
                self.crew.end()
            if not self.args.keep or not self.failed:
                self.cell.down()
        self.report(time.monotonic() - begun)

    def report(self, took):
        steps = collections.Counter()
        for facts in self.crew.facts if hasattr(self, "crew") else []:
            steps.update(facts.get("steps", {}))
        print("steps: " + ", ".join(f"{count} {name}" for name, count in sorted(steps.items())))
        for name, times in (("zonal up after a kill", self.recoveries), ("zonal mount after a kill", self.remounts),
                            ("zonal fsck of the running cell", self.checks)):
            if times:
                print(f"{name}: {sum(times) / len(times):.2f} s on average, {max(times):.2f} s at most")
        print(f"slowest call {self.slowest:.1f} s, {self.unknown} unknown outcomes, {took:.0f} s in all")
        if self.failed:
            print(f"again: tests/cell/kill.py --dir EMPTY-FOLDER --rounds {self.args.rounds} --seed {self.args.seed} --workers {self.args.workers}")
        print(f"kill: {self.passed} passed, {self.failed} failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--check-every", type=int, default=1, help="rounds from one `zonal fsck` of the running cell to the next")
    parser.add_argument("--keep", action="store_true", help="leave the cell up after a failure")
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    test = Test(args)
    test.run()
    sys.exit(1 if test.failed else 0)


if __name__ == "__main__":
    main()
