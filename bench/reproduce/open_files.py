"""A program that keeps a file and its folder open: it writes, syncs and reads back, until a time.

    open_files.py PATH UNTIL

Each round writes 1 MiB of PATH, syncs it, drops the pages and reads 1 MiB that an earlier round
wrote. Then it makes and removes a name in the open folder. UNTIL is of the monotonic clock. Prints
[when, bytes] of each round, and each error.
"""
import errno
import json
import os
import sys
import time

PIECE = 1 << 20
PIECES = 16


def main():
    path, until = sys.argv[1], float(sys.argv[2])
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    name = os.path.basename(path) + "-name"
    rounds, errors, number, worst = [], [], 0, 0.0
    while time.monotonic() < until:
        begun = time.monotonic()
        try:
            piece = number.to_bytes(8, "big") * (PIECE // 8)
            os.pwrite(fd, piece, number % PIECES * PIECE)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            old = max(0, number - PIECES // 2)
            if os.pread(fd, PIECE, old % PIECES * PIECE) != old.to_bytes(8, "big") * (PIECE // 8):
                sys.exit(f"{path}: round {number} read other bytes than round {old} wrote")
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder))
            os.unlink(name, dir_fd=folder)
            number += 1
            rounds.append([time.monotonic(), 2 * PIECE])
        except OSError as error:
            errors.append([time.monotonic(), errno.errorcode[error.errno]])
        worst = max(worst, time.monotonic() - begun)
    print(json.dumps({"rounds": rounds, "errors": errors, "worst_seconds": worst}))


main()
