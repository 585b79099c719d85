#!/usr/bin/env python3
"""Guarantees of a directory for Linux programs, one check for each statement.

    tests/posix/semantics.py DIR [--only PART,...] [--list] [--long] [--strict]

docs/semantics.md names these checks. They pass on a local ext4 or XFS. --strict (the default on a
FUSE mount) also checks guarantees that only Zonal gives, such as offsets up to 2^63-1.
"""
import atexit
import os
import shutil
import tempfile

from areas import R, STRICT, attributes, content, directories, mapped, names, permissions, space, special
from checks import argument_parser, fresh

AREAS = (content, mapped, space, names, directories, attributes, permissions, special)


def kind_of(path):
    """(mount point, type, options) of the mount that holds a path."""
    best = ("", "", "")
    path = os.path.realpath(path)
    with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            _source, point, kind, options, *_ = line.split()
            point = point.encode().decode("unicode_escape")
            if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = (point, kind, options)
    return best


def main():
    parser = argument_parser(__doc__.split("\n", 1)[0], "dir")
    parser.add_argument("--strict", action="store_true", help="demand what Zonal promises beyond ext4 and XFS")

    def make_args(args, c):
        if not hasattr(args, "base"):
            STRICT[0] = args.strict or kind_of(args.dir)[1].startswith("fuse")
            args.base = tempfile.mkdtemp(prefix="semantics.", dir=args.dir)
            atexit.register(shutil.rmtree, args.base, ignore_errors=True)
            os.chmod(args.base, 0o755)
        path = fresh(args.base, c.ident)
        return (path,), lambda _result: shutil.rmtree(path, ignore_errors=True)

    os.umask(0o022)
    R.run("semantics", parser, make_args)


if __name__ == "__main__":
    main()
