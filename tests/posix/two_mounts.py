#!/usr/bin/env python3
"""Coherence of two mounts of one cell: appends, locks, close-to-open, names.

    tests/posix/two_mounts.py A B [--only PART,...] [--list] [--scale 1.0]

A and B are the same directory seen through two mounts; given one local directory twice, every check
must pass as well. Standard library only; checks.py describes how a check runs.
"""
import atexit
import os
import shutil
import tempfile

from between import R, SCALE, appends, data, inside, lock_loops, locks, names, rights
from checks import argument_parser, fresh

AREAS = (appends, locks, lock_loops, data, names, rights, inside)


def main():
    parser = argument_parser(__doc__.split("\n", 1)[0], "a", "b")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rounds")

    def make_args(args, c):
        SCALE[0] = args.scale
        base = getattr(args, "base", None)
        if base is None:
            base = args.base = os.path.basename(tempfile.mkdtemp(prefix="two.", dir=args.a))
            os.chmod(os.path.join(args.a, base), 0o755)
            if not os.path.isdir(os.path.join(args.b, base)):
                raise SystemExit(f"error: {args.b} does not show what was made in {args.a}")
            atexit.register(shutil.rmtree, os.path.join(args.a, base), ignore_errors=True)
        fresh(os.path.join(args.a, base), c.ident)
        both = [os.path.join(side, base, c.ident) for side in (args.a, args.b)]
        return both, lambda result: shutil.rmtree(both[0], ignore_errors=True)

    R.run("two mounts", parser, make_args)


if __name__ == "__main__":
    main()
