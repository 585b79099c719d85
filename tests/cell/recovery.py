#!/usr/bin/env python3
"""Time until a cell with many files serves again after all its processes were killed.

    tests/cell/recovery.py --dir EMPTY-FOLDER [--files 10000] [--times 3] [--limit 3] [--every-turn]

Starts a cell of its own in the folder and makes the files through a mount in parallel; one in a
hundred holds 8 KiB. While it makes more, it kills every server process and runs `zonal up`. It
measures the time until `zonal up` returns, until a file is looked up and read, and until a file is
made in each zone through each of two older mounts.

Every file must be there; a sample is looked up, or each with `--check all`. Each turn must end
within 30 s, and the fastest within the limit: a busy machine is no failure, a cell that is never
fast is one. With --every-turn, for an idle machine, each turn must end within the limit. A start
reads the logs again: just before each kill their length is checked against its bound, which does
not depend on the number of files.

Then the cell is stopped and checked by `zonal fsck`: it must be clean, with at most 500 MiB of
memory. ZONAL names the binary. Ends with `recovery: N passed, N failed`.
"""
import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cell import Cell  # noqa: E402

ZONAL = os.environ.get("ZONAL", "zonal")
FSCK_BYTES = 500 << 20
PROCESSES, PER_FOLDER, SAMPLE = 8, 10_000, 2_000
EACH_SECONDS = 30


def zonal(*args, limit=300):
    done = subprocess.run([ZONAL, *args], capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise AssertionError(f"zonal {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")


def path(top, number):
    return f"{top}/{('one', 'two')[number % 2]}/d{number // PER_FOLDER}/f{number}"


def make(top, number):
    fd = os.open(path(top, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    if number % 100 == 0:
        os.write(fd, number.to_bytes(8, "little") * 1024)
    os.close(fd)


def fill(top, numbers):
    for number in numbers:
        make(top, number)


def spill(top, first):
    """Makes files until it is killed."""
    number = first
    while True:
        try:
            os.close(os.open(f"{top}/{('one', 'two')[number % 2]}/more/f{number}", os.O_CREAT | os.O_WRONLY))
        except OSError:
            time.sleep(0.05)
        number += PROCESSES


def in_parallel(function, top, files):
    workers = [multiprocessing.Process(target=function, args=(top, range(n, files, PROCESSES))) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise AssertionError("a worker failed")


def look(top, numbers):
    for number in numbers:
        size = os.stat(path(top, number)).st_size
        if size != (8192 if number % 100 == 0 else 0):
            raise AssertionError(f"{path(top, number)} has {size} bytes")


def kill_servers(cell):
    for name in os.listdir(cell):
        if os.path.exists(f"{cell}/{name}/pid"):
            with open(f"{cell}/{name}/pid", encoding="utf-8") as f:
                os.kill(int(f.read()), signal.SIGKILL)


def within(seconds, function, *args):
    """Repeats a call until it succeeds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return function(*args)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def logged(cell):
    """The largest part of a server's log that a start reads again, and its bound."""
    used, most = 0, 0
    for node in cell.nodes():
        found = {name: value for name, value in cell.metrics(node).items() if "_log_used_bytes" in name}
        for name, value in found.items():
            if "_max" not in name:
                bound = found[name.replace("_bytes", "_bytes_max")]
                if value > bound:
                    raise AssertionError(f"{node}: {value:.0f} bytes in a log of {bound:.0f}")
                used, most = max(used, value), max(most, bound)
    if not most:
        raise AssertionError("no server tells of its log")
    return used, most


def check(cell):
    """Checks the stopped cell; returns a line with time and memory."""
    begun = time.monotonic()
    done = subprocess.run([ZONAL, "fsck", "--cell", cell, "--json"], capture_output=True, text=True, timeout=900, check=False)
    took, most = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    sums = json.loads(done.stdout.splitlines()[-1])
    if done.returncode or sums["found"] or most > FSCK_BYTES:
        raise AssertionError(f"zonal fsck: exit {done.returncode}, {most >> 20} MiB, {sums}")
    return f"{sums['inodes']:,} inodes and {sums['objects']:,} objects checked in {took:.1f} s, {sums['inodes'] / took:,.0f} inodes a second, {most >> 20} MiB"


def recover(top, second, cell, files, turn):
    """Kills everything under load; {what: seconds since `zonal up` began}."""
    spillers = [multiprocessing.Process(target=spill, args=(top, turn * 10_000_000 + n), daemon=True) for n in range(PROCESSES)]
    for one in spillers:
        one.start()
    time.sleep(1)
    used, most = logged(Cell(cell, top, second))
    print(f"  at most {used / 2**20:.1f} MiB of a log of {most / 2**20:.0f} MiB to be read again", flush=True)
    kill_servers(cell)
    for one in spillers:
        one.kill()
    begun = time.monotonic()
    zonal("up", "--dir", cell)
    times = {"zonal up": time.monotonic() - begun}
    number = random.Random(turn).randrange(files // 100) * 100
    within(30, look, top, [number])
    with open(path(top, number), "rb") as f:
        if f.read() != number.to_bytes(8, "little") * 1024:
            raise AssertionError("content")
    times["a file is read"] = time.monotonic() - begun
    for zone in ("one", "two"):
        for number, mount in enumerate((top, second)):
            within(30, lambda p=f"{mount}/{zone}/after-{turn}-{number}": os.close(os.open(p, os.O_CREAT | os.O_EXCL)))
    times["files are made"] = time.monotonic() - begun
    for one in spillers:
        one.join(30)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3.0, help="seconds until everything works, in the best of the turns")
    parser.add_argument("--every-turn", action="store_true", help="the limit is each turn's")
    parser.add_argument("--check", choices=("sample", "all"), default="sample")
    a = parser.parse_args()
    cell, top, second = (os.path.realpath(f"{a.dir}/{name}") for name in ("cell", "mnt", "mnt2"))
    os.makedirs(top, exist_ok=True)
    os.makedirs(second, exist_ok=True)
    passed = failed = 0
    try:
        zonal("up", "--dir", cell, "--mount", top)
        zonal("mount", "--cell", cell, second, "--zone", "2")
        for zone, name in ((1, "one"), (2, "two")):
            zonal("mkdir", "--zone", str(zone), f"{top}/{name}")
            os.mkdir(f"{top}/{name}/more")
            for folder in range((a.files - 1) // PER_FOLDER + 1):
                os.mkdir(f"{top}/{name}/d{folder}")
        begun = time.monotonic()
        in_parallel(fill, top, a.files)
        took = time.monotonic() - begun
        print(f"{a.files:,} files made in {took:.1f} s, {a.files / took:,.0f}/s", flush=True)
        slowest = []
        for turn in range(1, a.times + 1):
            os.listdir(f"{second}/one"), os.listdir(f"{second}/two")
            times = recover(top, second, cell, a.files, turn)
            slowest.append(max(times.values()))
            is_good = slowest[-1] <= (a.limit if a.every_turn else EACH_SECONDS)
            passed, failed = passed + is_good, failed + (not is_good)
            print(f"{'ok' if is_good else 'FAILED'}  {a.files:,} files, all killed under load: " + ", ".join(f"{what} after {s:.2f} s" for what, s in times.items()), flush=True)
        is_good = min(slowest) <= a.limit
        passed, failed = passed + is_good, failed + (not is_good)
        print(f"{'ok' if is_good else 'FAILED'}  the best of {a.times} took {min(slowest):.2f} s, {a.limit:g} s at most", flush=True)
        numbers = range(a.files) if a.check == "all" else random.Random(5).sample(range(a.files), min(SAMPLE, a.files))
        look(top, numbers)
        passed += 1
        print(f"ok  {len(numbers):,} of the files were looked up", flush=True)
        zonal("down", "--dir", cell)
        print(f"ok  {check(cell)}", flush=True)
        passed += 1
    except Exception as error:
        failed += 1
        print(f"FAILED  {error!r}", flush=True)
    finally:
        subprocess.run([ZONAL, "down", "--dir", cell], capture_output=True, timeout=120, check=False)
    print(f"recovery: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
