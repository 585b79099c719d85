#!/usr/bin/env python3
"""A mixed load over two mounts of a cell; every gauge of every process must stay within its bound.

    tests/cell/mixed.py --cell DIR --mount A --second-mount B [--seconds 20] [--workers 6] [--seed 1]

The cell is one that `zonal up` made, with the directories `one` and `two` at its top. Workers
create, write, overwrite, truncate, read, rename, unlink and list files of their own, set extended
attributes, and count in shared files under locks.

Every two seconds all of `/metrics` and of `zonal.gauges` is read. A gauge with a `_max` beside it
must not exceed that, nor a process's memory its bound in docs/limits.md. At the end each mount must
show the files of the other one's workers. Then all is removed, and the numbers of files, objects,
locks and opens must be as before. Prints the peak of each gauge and of each process's memory. Ends
with `mixed: N passed, N failed`.
"""
import argparse
import collections
import fcntl
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import urllib.request

KIB, MIB = 1 << 10, 1 << 20
SCRAPE_SECONDS = 2
SHARED = 4  # files in which all workers count
SMALL, LARGE = 30, 2  # files of a worker at most
LISTED_DIRECTORIES_MAX = 65  # counted by themselves, and the others
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "metrics.md")


def write_all(fd, data, offset):
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def digest(data):
    return hashlib.blake2b(data).hexdigest()


class Worker:
    """One process; `have` is {path below the top: [content, extended attributes]}."""

    def __init__(self, top, number, seed):
        self.top, self.number = top, number
        self.random = random.Random(seed * 1000 + number)
        self.have, self.counted, self.born, self.steps = {}, 0, 0, collections.Counter()
        self.home = f"{('one', 'two')[number // 2 % 2]}/mixed/w{number}"
        os.makedirs(self.path(self.home) + "/sub")

    def path(self, name):
        return f"{self.top}/{name}"

    def new_name(self):
        self.born += 1
        return f"{self.home}/{self.random.choice(('', 'sub/'))}f{self.born}"

    def pick(self, large=None):
        fits = [name for name, (content, _) in self.have.items() if large is None or (len(content) > MIB) == large]
        return self.random.choice(fits) if fits else None

    def noise(self, size):
        return self.random.randbytes(size)

    def make(self, size):
        name, data = self.new_name(), self.noise(size)
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        self.have[name] = [bytearray(), {}]
        step = self.random.choice((4 * KIB, 37 * KIB, 128 * KIB, MIB))
        for at in range(0, size, step):
            write_all(fd, data[at:at + step], at)
        self.have[name][0][:] = data
        if self.random.random() < 0.2:
            os.fsync(fd)
        os.close(fd)

    def make_small(self):
        if sum(len(content) <= MIB for content, _ in self.have.values()) < SMALL:
            self.make(self.random.choice((0, 1, 100, 4096, 5000, 70 * KIB, 300 * KIB)))

    def make_large(self):
        if sum(len(content) > MIB for content, _ in self.have.values()) < LARGE:
            self.make(self.random.randrange(2 * MIB, 24 * MIB))

    def overwrite(self):
        name = self.pick()
        if name:
            content = self.have[name][0]
            fd = os.open(self.path(name), os.O_WRONLY)
            for _ in range(self.random.randrange(1, 20)):
                at = self.random.randrange(len(content) + 1)
                data = self.noise(self.random.choice((1, 50, 4096, 10_000)))
                write_all(fd, data, at)
                content[at:at + len(data)] = data
            os.close(fd)

    def append(self):
        name = self.pick(large=False)
        if name:
            data = self.noise(self.random.randrange(1, 3000))
            fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
            os.write(fd, data)
            os.close(fd)
            self.have[name][0].extend(data)

    def truncate(self):
        name = self.pick()
        if name:
            content = self.have[name][0]
            size = self.random.choice((0, self.random.randrange(len(content) + 1), len(content) + self.random.randrange(9000)))
            os.truncate(self.path(name), size)
            content[:] = content[:size].ljust(size, b"\0")

    def rename(self):
        name = self.pick()
        if name:
            new = self.random.choice((self.new_name(), self.pick()))
            os.rename(self.path(name), self.path(new))
            self.have[new] = self.have.pop(name)

    def unlink(self):
        name = self.pick(large=self.random.random() < 0.2)
        if name:
            os.unlink(self.path(name))
            del self.have[name]

    def read_back(self):
        name = self.pick()
        if name:
            with open(self.path(name), "rb", buffering=0) as f:
                got = f.readall()
            if got != self.have[name][0]:
                raise AssertionError(f"{name} reads {len(got)} bytes that differ from its {len(self.have[name][0])}")

    def read_pieces(self):
        name = self.pick()
        if name and self.have[name][0]:
            content = self.have[name][0]
            fd = os.open(self.path(name), os.O_RDONLY)
            for _ in range(20):
                at = self.random.randrange(len(content))
                if os.pread(fd, 4096, at) != content[at:at + 4096]:
                    raise AssertionError(f"{name} differs at {at}")
            os.close(fd)

    def list(self):
        for folder in (self.home, f"{self.home}/sub"):
            found = {f"{folder}/{e.name}": e.stat(follow_symlinks=False).st_size for e in os.scandir(self.path(folder)) if e.name != "sub"}
            want = {name: len(content) for name, (content, _) in self.have.items() if os.path.dirname(name) == folder}
            if found != want:
                raise AssertionError(f"a listing of {folder} differs: {sorted(found.items() ^ want.items())[:4]}")

    def look_around(self):
        """Looks at the other workers' files while they change: only errors of a race are allowed."""
        base = os.path.dirname(self.path(self.home))
        for entry in os.scandir(base):
            if entry.is_dir():
                for name in os.listdir(entry.path)[:20]:
                    try:
                        with open(f"{entry.path}/{name}", "rb", buffering=0) as f:
                            f.read(5000)
                    except (FileNotFoundError, IsADirectoryError):
                        pass

    def xattrs(self):
        name = self.pick()
        if name:
            known, path = self.have[name][1], self.path(name)
            key = f"user.{self.random.choice('abc')}"
            if key in known and self.random.random() < 0.4:
                os.removexattr(path, key)
                del known[key]
            else:
                known[key] = self.noise(self.random.randrange(200))
                os.setxattr(path, key, known[key])
            if {k: os.getxattr(path, k) for k in os.listxattr(path) if k.startswith("user.")} != known:
                raise AssertionError(f"{name}: extended attributes differ")

    def count_under_lock(self):
        fd = os.open(self.path(f"one/mixed/shared{self.random.randrange(SHARED)}"), os.O_RDWR)
        (fcntl.flock if self.random.random() < 0.5 else range_lock)(fd, fcntl.LOCK_SH)
        os.close(fd)
        fd = os.open(self.path(f"one/mixed/shared{self.random.randrange(SHARED)}"), os.O_RDWR)
        range_lock(fd, fcntl.LOCK_EX)
        number = int(os.pread(fd, 20, 0))
        os.pwrite(fd, b"%020d" % (number + 1), 0)
        self.counted += 1
        range_lock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def burst(self):
        """Makes many short-lived files, some opened but not read."""
        folder = self.path(f"{self.home}/burst")
        os.mkdir(folder)
        for i in range(60):
            os.close(os.open(f"{folder}/{i}", os.O_CREAT | os.O_WRONLY, 0o600))
            os.close(os.open(f"{folder}/{i}", os.O_RDONLY))
        if len(os.listdir(folder)) != 60:
            raise AssertionError("a listing misses some of 60 files")
        shutil.rmtree(folder)

    def run(self, end):
        often = [self.make_small] * 6 + [self.overwrite, self.append, self.truncate, self.rename, self.unlink] * 2
        steps = often + [self.read_back, self.read_pieces, self.list, self.look_around, self.xattrs,
                         self.count_under_lock, self.count_under_lock, self.make_large, self.burst]
        while time.monotonic() < end:
            step = self.random.choice(steps)
            step()
            self.steps[step.__name__] += 1


def range_lock(fd, kind):
    fcntl.lockf(fd, kind)


def spawn(top, number, seed, end, out):
    """A worker process; writes its files, or the reason of its end, into the file `out`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        worker = Worker(top, number, seed)
        worker.run(end)
        have = {name: (digest(content), len(content), xattrs) for name, (content, xattrs) in worker.have.items()}
        result = (have, worker.counted, worker.steps, "")
    except BaseException:  # noqa: B036 (told to the parent)
        result = ({}, 0, {}, traceback.format_exc(limit=-3))
    with open(out, "wb") as f:
        pickle.dump(result, f)
    os._exit(1 if result[3] else 0)


class Watch:
    """All processes of the cell: gauges, peaks, violations of bounds."""

    def __init__(self, cell, mounts):
        self.cell, self.mounts = cell, mounts
        self.peaks, self.bounds, self.rss, self.above, self.scrapes = {}, {}, {}, {}, 0
        self.gauges = {}
        self.admins, self.pids = {}, {}
        for name in sorted(os.listdir(cell)):
            config, pid = (os.path.join(cell, name, f) for f in ("node.toml", "pid"))
            if os.path.exists(config) and os.path.exists(pid):
                with open(config, encoding="utf-8") as f:
                    self.admins[name] = re.findall(r'^listen = "[^"]*:(\d+)"', f.read(), re.M)[1]
                with open(pid, encoding="utf-8") as f:
                    self.pids[name] = int(f.read())
        records = os.path.join(cell, "mounts")
        for record in os.listdir(records):
            if record.endswith(".toml"):
                with open(os.path.join(records, record), encoding="utf-8") as f:
                    text = f.read()
                path, pid = re.search(r'^path = "(.*)"', text, re.M)[1], re.search(r"^pid = (\d+)", text, re.M)[1]
                self.pids[f"mount {path}"] = int(pid)

    def scrape(self):
        """{process: {gauge: value}}"""
        out = {}
        for name, port in self.admins.items():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
            found = re.findall(r"^zonal_([a-z_]+)(?:\{shard=\"\d+\"\})? (\d+)$", text, re.M)
            out[name] = {key: int(value) for key, value in found}
        for mount in self.mounts:
            out[f"mount {mount}"] = json.loads(os.getxattr(mount, "zonal.gauges"))
        return out

    def look(self):
        self.scrapes += 1
        scraped = self.scrape()
        for process, gauges in scraped.items():
            self.gauges[process] = gauges
            for name, value in gauges.items():
                bound = gauges.get(f"{name}_max")
                key = (process, name)
                if bound is not None:
                    self.peaks[key] = max(value, self.peaks.get(key, 0))
                    self.bounds[key] = bound
                    if value > bound:
                        self.above[key] = max(value, self.above.get(key, 0))
        for process, pid in self.pids.items():
            with open(f"/proc/{pid}/statm", encoding="ascii") as f:
                pages = int(f.read().split()[1])
            self.rss[process] = max(pages * os.sysconf("SC_PAGE_SIZE"), self.rss.get(process, 0))
        return scraped

    def memory_bound(self, process):
        """The memory bound of a process in docs/limits.md."""
        gauges = self.gauges[process]
        if process.startswith("mount "):
            return 96 * MIB + 2 * gauges["dirty_bytes_max"] + 3 * MIB * gauges["workers_active_max"]
        stores = [gauges.get(f"{kind}_{what}_bytes_max", 0) for kind in ("shard", "target") for what in ("overlay", "index_cache", "pending")]
        return 32 * MIB + sum(stores) + 3 * MIB * self.peaks[process, "net_connections"] + self.peaks[process, "net_region_bytes"]

    def too_large(self):
        bounds = {process: self.memory_bound(process) for process in self.rss if process in self.gauges}
        return {process: f"{self.rss[process] / MIB:.1f} MiB, {bound / MIB:.1f} at most" for process, bound in bounds.items() if self.rss[process] > bound}

    def report(self):
        print(f"peaks of {self.scrapes} looks (value of its bound, highest process):")
        by_name = {}
        for (process, name), value in self.peaks.items():
            by_name[name] = max(by_name.get(name, (-1, 0, "")), (value, self.bounds[process, name], process))
        for name, (value, bound, process) in sorted(by_name.items()):
            print(f"  {name:28} {value:>12,} of {bound:>13,}  {process}")
        for process, size in sorted(self.rss.items()):
            bound = f"of {self.memory_bound(process) / MIB:6.1f} " if process in self.gauges else ""
            print(f"  memory {size / MIB:8.1f} {bound}MiB  {process}")


def left(scraped):
    """The counts that must be as before after all files are removed."""
    total = collections.Counter()
    for process, gauges in scraped.items():
        names = ("open_files", "held_locks", "waiting_locks", "dirty_bytes", "lock_owners", "longest_close_queue", "queued_jobs")
        for name in names + ("shard_inodes", "shard_opens", "shard_orphans", "shard_locks", "shard_lock_waiters",
                             "shard_append_tickets", "target_objects"):
            total[name] += gauges.get(name, 0)
    return dict(total)


def documented():
    """Names of a mount's gauges in docs/metrics.md."""
    with open(DOCS, encoding="utf-8") as f:
        section = f.read().split("\n## A mount\n")[1]
    return set(re.findall(r"^\| `([a-z_]+)`", section, re.M))


def differences(top, want):
    """Files below `top` that differ from `want`."""
    bad, found = [], set()
    for zone in ("one", "two"):
        for folder, _, names in os.walk(f"{top}/{zone}/mixed"):
            found |= {os.path.relpath(f"{folder}/{name}", top) for name in names if not name.startswith("shared")}
    bad += [f"{name} should not be there" for name in sorted(found - set(want))]
    bad += [f"{name} is missing" for name in sorted(set(want) - found)]
    for name in sorted(set(want) & found):
        checksum, size, xattrs = want[name]
        with open(f"{top}/{name}", "rb", buffering=0) as f:
            content = f.readall()
        if (len(content), digest(content)) != (size, checksum):
            bad.append(f"{name}: {len(content)} bytes in place of {size}, or others")
        here = {k: os.getxattr(f"{top}/{name}", k) for k in os.listxattr(f"{top}/{name}") if k.startswith("user.")}
        if here != xattrs:
            bad.append(f"{name}: extended attributes differ")
    return bad


class Run:
    passed = failed = 0

    def step(self, name, bad):
        self.passed, self.failed = self.passed + (not bad), self.failed + bool(bad)
        print(f"{'FAILED' if bad else 'ok'}  {name}{': ' if bad else ''}{bad or ''}", flush=True)


def load(a, run, watch, folder):
    """Runs the workers; returns their files, their counts, and how often each step was done."""
    end, pids = time.monotonic() + a.seconds, {}
    outs = [f"{folder}/{number}" for number in range(a.workers)]
    try:
        for number, out in enumerate(outs):
            pids[spawn((a.mount, a.second_mount)[number % 2], number, a.seed, end, out)] = number
        limit, due = end + 120, 0
        while pids and time.monotonic() < limit:
            if time.monotonic() >= due:
                watch.look()
                due = time.monotonic() + SCRAPE_SECONDS
            pid, _ = os.waitpid(-1, os.WNOHANG)
            pids.pop(pid, None)
            time.sleep(0.05 if pid == 0 else 0)
        run.step("workers end in time", sorted(pids.values()))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    want, counted, steps, errors = {}, 0, collections.Counter(), []
    for out in outs:
        with open(out, "rb") as f:
            have, count, done, error = pickle.load(f)
        want.update(have)
        counted += count
        steps.update(done)
        errors += [error] if error else []
    run.step("workers end without an error", "\n".join(errors))
    return want, counted, steps


def clean(a):
    for zone in ("one", "two"):
        shutil.rmtree(f"{a.mount}/{zone}/mixed", ignore_errors=True)


def settled(watch, before, seconds):
    """Waits until all counts are as before; returns those that are not."""
    end = time.monotonic() + seconds
    while True:
        now = left(watch.look())
        bad = {name: f"{now[name]} after {before[name]}" for name in now if now[name] > before[name]}
        if not bad or time.monotonic() > end:
            return bad
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", required=True)
    parser.add_argument("--mount", required=True)
    parser.add_argument("--second-mount", required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    a.mount, a.second_mount = os.path.realpath(a.mount), os.path.realpath(a.second_mount)
    run, watch = Run(), Watch(a.cell, [a.mount, a.second_mount])
    clean(a)
    # Wait until operations of earlier suites have ended.
    before, end = left(watch.look()), time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(1.5)
        last, before = before, left(watch.look())
        if last == before:
            break
    for name, gauges in watch.scrape().items():
        if name.startswith("mount "):
            names = {n.removesuffix("_max") for n in gauges}
            run.step(f"{name} has the gauges of docs/metrics.md", sorted(names ^ documented()))
            lists = {n for n in names if isinstance(gauges.get(n), list)}
            run.step(f"each gauge of {name} has its bound", sorted(n for n in names - lists if not n.endswith("_total") and f"{n}_max" not in gauges))
            run.step(f"each list of {name} is short", sorted(n for n in lists if len(gauges[n]) > LISTED_DIRECTORIES_MAX))
    folder = tempfile.mkdtemp(prefix="mixed.")
    try:
        for zone in ("one", "two"):
            os.mkdir(f"{a.mount}/{zone}/mixed")
        for i in range(SHARED):
            with open(f"{a.mount}/one/mixed/shared{i}", "wb") as f:
                f.write(b"%020d" % 0)
        want, counted, steps = load(a, run, watch, folder)
        for side in (a.mount, a.second_mount):
            run.step(f"{side} has exactly the {len(want)} files that were left", differences(side, want)[:5])
            numbers = [int(open(f"{side}/one/mixed/shared{i}", "rb").read()) for i in range(SHARED)]
            run.step(f"{side} has every count under a lock", "" if sum(numbers) == counted else f"{numbers} for {counted}")
        clean(a)
        run.step("nothing is left", settled(watch, before, 90))
        above = {f"{process} {name}": f"{value} above {watch.bounds[process, name]}" for (process, name), value in watch.above.items()}
        run.step(f"{len(watch.peaks)} gauges stay within their bounds", above)
        run.step(f"memory of {len(watch.gauges)} processes stays within its bound", watch.too_large())
        print("steps: " + ", ".join(f"{count} {name}" for name, count in sorted(steps.items())))
        watch.report()
        print(f"mixed: {run.passed} passed, {run.failed} failed")
        sys.exit(1 if run.failed else 0)
    finally:
        clean(a)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
