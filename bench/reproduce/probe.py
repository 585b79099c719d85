"""One call on a path, with its time and its error.

    probe.py stat|list|read|create PATH [UNTIL]

With UNTIL, of the monotonic clock, the call is repeated until it succeeds.
"""
import errno
import json
import os
import sys
import time


def read(path):
    with open(path, "rb") as file:
        file.read(4096)


def create(path):
    with open(path, "xb") as file:
        file.write(b"new")


def main():
    job, path = sys.argv[1:3]
    until = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    call = {"stat": os.stat, "list": os.listdir, "read": read, "create": create}[job]
    begun = time.monotonic()
    while True:
        error = None
        try:
            call(path)
        except OSError as found:
            error = errno.errorcode[found.errno]
        if error is None or time.monotonic() > until:
            break
        time.sleep(0.05)
    ended = time.monotonic()
    print(json.dumps({"error": error, "seconds": round(ended - begun, 3), "ended": ended}))


main()
