"""Work on names by processes that start together, for bench/replicas and bench/shards."""
import multiprocessing as mp
import os
import time


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def run_all(folders, run):
    """Calls run(folder, number) for each folder in a process of its own; all start together."""
    gate, ready = mp.Event(), mp.Semaphore(0)

    def go(folder, number):
        ready.release()
        gate.wait()
        run(folder, number)
        os._exit(0)

    workers = [mp.Process(target=go, args=(folder, number)) for number, folder in enumerate(folders)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    begun = time.perf_counter()
    gate.set()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begun
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process of the load failed")
    return took


def together(folders, work, letter, count):
    """Does the work so often in each folder; returns the seconds until the last has ended."""

    def run(folder, _):
        for number in range(count):
            work(f"{folder}/{letter}{number}")

    return run_all(folders, run)


def for_seconds(folders, work, letter, seconds):
    """Does the work in each folder for so long; returns how often in all."""
    counts = mp.Array("L", len(folders))

    def run(folder, place):
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            work(f"{folder}/{letter}{number}")
            number += 1
        counts[place] = number

    run_all(folders, run)
    return sum(counts)


def cpu_seconds(pid):
    """CPU time of a process so far, in steps of 10 ms."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
