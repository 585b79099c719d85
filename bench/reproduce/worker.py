"""One stream of a node: writes or reads a file and prints when it began and ended.

    worker.py write|read PATH MIB START

START is a time of the monotonic clock: all workers of a load begin together. A write counts when it
is durable. A read checks the length.
"""
import json
import os
import sys
import time

BLOCK = 1 << 20


def write(path, mib):
    block = os.urandom(BLOCK)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for _ in range(mib):
        done = 0
        while done < BLOCK:
            done += os.write(fd, block[done:])
    os.fsync(fd)
    os.close(fd)
    return mib * BLOCK


def read(path, mib):
    fd = os.open(path, os.O_RDONLY)
    total = 0
    while data := os.read(fd, BLOCK):
        total += len(data)
    os.close(fd)
    if total != mib * BLOCK:
        sys.exit(f"{path}: {total} bytes, not {mib * BLOCK}")
    return total


def main():
    job, path, mib, start = sys.argv[1:]
    time.sleep(max(0.0, float(start) - time.monotonic()))
    begun = time.monotonic()
    moved = {"write": write, "read": read}[job](path, int(mib))
    print(json.dumps({"bytes": moved, "begun": begun, "ended": time.monotonic()}))


main()
