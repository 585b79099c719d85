#!/usr/bin/env python3
"""Processes that change one directory through two mounts at once; the final state is checked.

    tests/posix/stress.py A B [--workers 8] [--seconds 10] [--seed 1] [--kill COMMAND | --lose-b COMMAND]

A and B are the same directory seen through two mounts (or one local directory twice). Each worker
makes, writes, appends, renames, links, lists and removes files of its own. It renames over shared
names, and moves files into a subdirectory and back. Only errors that this race has in Linux are
allowed. At the end both sides must list exactly the workers' files with their contents.

One worker is killed and replaced; its unfinished operation may be done or not, in whole or in part;
all else must be there. --kill COMMAND is run in the middle by a shell (it may kill and start a
server of the cell). --lose-b COMMAND takes mount B away: the workers there then end with errors,
and A must have their completed work. Ends with `stress: N passed, N failed`.
"""
import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SHARED = 6  # names that all workers replace and open


def content(name, version):
    """The content of version `version` of a worker's file."""
    line = b"%s %d " % (name.encode(), version)
    return line * (1 + version * 7919 % 700)


def shared_content(worker, n):
    line = b"shared by %d, number %d\n" % (worker, n)
    return line * (1 + n * 31 % 400)


class Worker:
    """One process; `have` is what its files should be: {path below the directory: (name at birth, version)}."""

    def __init__(self, top, number, seed, log):
        self.top, self.number, self.log = top, number, log
        self.random = random.Random(seed * 1000 + number)
        self.have, self.born, self.count = {}, 0, 0

    def path(self, name):
        return f"{self.top}/{name}"

    def note(self, doing, *names):
        """Notes, before each step, the operation about to run; after it, the state."""
        text = repr((doing, names, self.have, self.count)) + "\n"
        # One call, so a kill before or after it leaves a valid note. Bytes after the line are older
        # and longer.
        os.pwrite(self.log, text.encode(), 0)

    def pick(self):
        return self.random.choice(sorted(self.have)) if self.have else None

    def new_name(self):
        self.born += 1
        return f"w{self.number}.{os.getpid()}.{self.born}"

    def make(self):
        name = self.new_name()
        self.note("make", name)
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        write_all(fd, content(name, 0))
        os.close(fd)
        self.have[name] = (name, 0)

    def rewrite(self):
        name = self.pick()
        if not name:
            return
        birth, version = self.have[name]
        self.note("rewrite", name)
        fd = os.open(self.path(name), os.O_WRONLY | os.O_TRUNC)
        write_all(fd, content(birth, version + 1))
        os.close(fd)
        self.have[name] = (birth, version + 1)

    def read_back(self):
        name = self.pick()
        if name:
            self.note("read")
            check_file(self.path(name), *self.have[name])

    def rename(self):
        name = self.pick()
        if not name:
            return
        new = self.random.choice(("", "sub/")) + self.new_name()
        self.note("rename", name, new)
        os.rename(self.path(name), self.path(new))
        self.have[new] = self.have.pop(name)

    def rename_over(self):
        one, two = self.pick(), self.pick()
        if not one or one == two:
            return
        self.note("rename", one, two)
        os.rename(self.path(one), self.path(two))
        self.have[two] = self.have.pop(one)

    def remove(self):
        name = self.pick()
        if not name:
            return
        self.note("remove", name)
        os.unlink(self.path(name))
        del self.have[name]

    def link_and_remove(self):
        name = self.pick()
        if not name:
            return
        new = self.new_name()
        self.note("rename", name, new)
        os.link(self.path(name), self.path(new))
        os.unlink(self.path(name))
        self.have[new] = self.have.pop(name)

    def list(self):
        self.note("list")
        for folder in ("", "sub/"):
            there = {folder + entry.name for entry in os.scandir(self.path(folder or "."))}
            mine = {name for name in self.have if os.path.dirname(name) == folder.rstrip("/")}
            if not mine <= there:
                raise AssertionError(f"a listing misses {sorted(mine - there)[:3]}")

    def replace_shared(self):
        name = self.new_name()
        n = self.random.randrange(1000)
        self.note("shared", name)
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        write_all(fd, shared_content(self.number, n))
        os.close(fd)
        os.rename(self.path(name), self.path(f"shared{self.random.randrange(SHARED)}"))

    def read_shared(self):
        """Checks a shared file: always there, always one worker's whole content."""
        self.note("read")
        check_shared(self.path(f"shared{self.random.randrange(SHARED)}"))

    def append_log(self):
        self.note("append", self.count)
        fd = os.open(self.path("log"), os.O_WRONLY | os.O_APPEND)
        write_all(fd, b"%03d %08d %s\n" % (self.number, self.count, b"." * (self.count % 50)))
        os.close(fd)
        self.count += 1

    def one(self, end):
        steps = [self.make] * 4 + [self.rewrite, self.read_back, self.rename, self.rename_over, self.link_and_remove,
                                   self.list, self.replace_shared, self.read_shared, self.read_shared, self.append_log]
        while time.monotonic() < end:
            (self.remove if len(self.have) > 40 else self.random.choice(steps + [self.remove] * 2))()
        self.note("")


def write_all(fd, data):
    done = 0
    while done < len(data):
        step = 1 + (done * 7 + 1000) % 9000
        done += os.write(fd, data[done:done + step])


def read(path):
    with open(path, "rb", buffering=0) as f:
        return f.readall()


def check_file(path, birth, version):
    data, want = read(path), content(birth, version)
    if data != want:
        raise AssertionError(f"{path}: {len(data)} bytes {data[:40]!r}, expected {len(want)} of {want[:40]!r}")


def check_shared(path):
    data = read(path)
    words = data.split(b"\n")[0].split()
    if data and (len(words) != 5 or data != shared_content(int(words[2].rstrip(b",")), int(words[4]))):
        raise AssertionError(f"{path}: a mixture of {len(data)} bytes, {data[:40]!r}")
    if not data:
        raise AssertionError(f"{path}: empty")


def spawn(top, number, seed, end, log):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        worker = Worker(top, number, seed, log)
        worker.one(end)
        status = 0
    except AssertionError as e:
        print(f"worker {number}: {e}", flush=True)
    except OSError as e:
        step = os.pread(log, 200, 0).decode(errors="replace")
        print(f"worker {number}: {errno.errorcode.get(e.errno)} {e.filename} in {step}", flush=True)
    finally:
        os._exit(status)


class Run:
    def __init__(self):
        self.passed = self.failed = 0

    def step(self, name, problem):
        self.failed += bool(problem)
        self.passed += not problem
        print(f"{'FAILED' if problem else 'ok':8}{name}{'  ' + problem if problem else ''}", flush=True)


def left_by(log):
    """(the worker's unfinished operation, its names, its files, its appends)."""
    noted = os.pread(log, 1 << 20, 0).decode().partition("\n")[0]
    return eval(noted or "('', (), {}, 0)", {})  # written by our own process


def compare(top, want, loose):
    """Differences from {name: (birth, version)}; names in `loose` may be there or not."""
    there = {e.name for e in os.scandir(top) if e.is_file()}
    there |= {f"sub/{e.name}" for e in os.scandir(f"{top}/sub")}
    there -= {f"shared{i}" for i in range(SHARED)} | {"log"} | loose
    if there != set(want):
        return f"missing {sorted(set(want) - there)[:4]}, too many {sorted(there - set(want))[:4]}"
    for name, (birth, version) in sorted(want.items()):
        try:
            check_file(f"{top}/{name}", birth, version)
        except (AssertionError, OSError) as e:
            return str(e)
    for i in range(SHARED):
        try:
            check_shared(f"{top}/shared{i}")
        except (AssertionError, OSError) as e:
            return str(e)
    return ""


def compare_log(top, counts, extra):
    """Checks that each worker's appends are there in order, once; a killed one may have one more."""
    seen = {}
    for line in read(f"{top}/log").split(b"\n")[:-1]:
        line = line.lstrip(b"\0")  # a killed append may leave a hole
        try:
            number, n = int(line[:3]), int(line[4:12])
        except ValueError:
            return f"a torn line {line[:40]!r}"
        if line != b"%03d %08d %s" % (number, n, b"." * (n % 50)):
            return f"a torn line {line[:40]!r}"
        if n != seen.get(number, 0):
            return f"worker {number}: append {n} where {seen.get(number, 0)} was due"
        seen[number] = n + 1
    for number, count in counts.items():
        if seen.get(number, 0) - count not in ((0, 1) if number in extra else (0,)):
            return f"worker {number}: {seen.get(number, 0)} appends of {count}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", default="", help="run by a shell in the middle")
    parser.add_argument("--lose-b", default="", help="the same, and B is lost by it")
    a = parser.parse_args()
    run, end = Run(), time.monotonic() + a.seconds
    base = os.path.basename(tempfile.mkdtemp(prefix="stress.", dir=a.a))
    tops = [f"{side}/{base}" for side in (a.a, a.b)]
    logs = tempfile.mkdtemp(prefix="stress.")
    os.mkdir(f"{tops[0]}/sub")
    for i in range(SHARED):
        with open(f"{tops[0]}/shared{i}", "wb") as f:
            f.write(shared_content(0, i))
    open(f"{tops[0]}/log", "wb").close()
    pids, by_log, killed = {}, {}, set()
    try:
        for number in range(a.workers + 1):
            by_log[number] = os.open(f"{logs}/{number}", os.O_RDWR | os.O_CREAT)
            if number < a.workers:
                pids[spawn(tops[number % 2], number, a.seed, end, by_log[number])] = number
        time.sleep(a.seconds / 2)
        victim = next(iter(pids))
        os.kill(victim, signal.SIGKILL)
        killed.add(pids[victim])
        pids[spawn(tops[0], a.workers, a.seed, end, by_log[a.workers])] = a.workers
        if a.lose_b:
            killed |= {number for number in pids.values() if number % 2 and number < a.workers}
        if a.kill or a.lose_b:
            done = subprocess.run(a.kill or a.lose_b, shell=True, check=False)
            run.step("the command in the middle", "" if done.returncode == 0 else f"exit {done.returncode}")
        bad = []
        limit = time.monotonic() + a.seconds + 90
        while pids and time.monotonic() < limit:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.05)
                continue
            number = pids.pop(pid)
            if status and number not in killed:
                bad.append(number)
        run.step("workers end without unexpected errors", f"workers {bad}, hanging {sorted(pids.values())}" if bad or pids else "")
        want, loose, counts = {}, set(), {}
        for number, log in by_log.items():
            doing, names, have, counts[number] = left_by(log)
            want.update(have)
            if number in killed and doing not in ("", "read", "list"):
                loose |= {name for name in names if isinstance(name, str)}
        want = {name: value for name, value in want.items() if name not in loose}
        for side, top in zip("A" if a.lose_b else "AB", tops):
            run.step(f"{side} has exactly what was left ({len(want)} files)", compare(top, want, loose))
            run.step(f"{side} has every append ({sum(counts.values())}) once", compare_log(top, counts, killed))
        shutil.rmtree(tops[0])
        if not a.lose_b:
            run.step("nothing is left", "" if not os.path.lexists(tops[1]) else "the directory is still there")
        print(f"stress: {run.passed} passed, {run.failed} failed")
        sys.exit(1 if run.failed else 0)
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(tops[0], ignore_errors=True)
        shutil.rmtree(logs, ignore_errors=True)


if __name__ == "__main__":
    main()
