#!/usr/bin/env python3
"""`zonal fs` and a mount at once: each sees the other's writes, under the same rules.

    tests/cell/fs.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own, made below DIR. ZONAL names the binary. Root only.
"""
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, as_user, equal, read, true, write  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
MIB = 1 << 20


def fs(cell, command, *args, stdin=None, code=0):
    """Runs a command; returns its output as bytes."""
    done = subprocess.run([ZONAL, "fs", command, "--cell", cell.folder, *args], input=stdin, capture_output=True,
                          timeout=60, check=False)
    equal(done.returncode, code, f"exit of zonal fs {command} {args}: {done.stderr[-400:]!r}")
    return done.stdout


@check("fs-both-ways", "`zonal fs` and a mount see each other's writes, renames and removals at once", root=True, limit=300)
def both_ways(work):
    with OwnCell(work) as c:
        for n in range(15):
            new, old = f"made {n}".encode() * (1 + n * 5000), f"/one/f{n}"
            true(not os.path.exists(c.mount + old), "it is there before")
            fs(c, "put", "-", old, stdin=new)
            equal(read(c.mount + old), new, "what put wrote, on the mount")
            # The kernel now caches its name, attributes and pages.
            fs(c, "put", "-", old, stdin=b"replaced")
            equal(read(c.mount + old), b"replaced", "what put replaced, on the mount")
            write(c.mount + old, new[::-1])
            equal(fs(c, "cat", old), new[::-1], "what the mount wrote")
            fs(c, "mv", old, f"/one/g{n}")
            true(not os.path.exists(c.mount + old), "the old name is there")
            os.rename(f"{c.mount}/one/g{n}", c.mount + old)
            fs(c, "stat", f"/one/g{n}", code=7)
            os.chmod(c.mount + old, 0o640)
            true(b'"mode":"0640"' in fs(c, "stat", "--json", old), "the mode that the mount set")
            if n % 2:
                fs(c, "rm", old)
                true(not os.path.exists(c.mount + old), "what rm removed is there")
            else:
                os.unlink(c.mount + old)
                fs(c, "cat", old, code=7)
        equal(os.listdir(f"{c.mount}/one"), [], "what is left")


@check("fs-open-file", "a program that has a file open keeps it where put replaces it; its lock is no bar to that", root=True,
       limit=120)
def open_file(work):
    with OwnCell(work) as c:
        write(f"{c.mount}/one/f", b"old")
        with open(f"{c.mount}/one/f", "rb") as held:
            fcntl.lockf(held, fcntl.LOCK_SH)
            fs(c, "put", "-", "/one/f", stdin=b"the new one")
            equal(held.read(), b"old", "the open file")
            equal(read(f"{c.mount}/one/f"), b"the new one", "the name")


@check("fs-never-half", "a reader of a file that put replaces sees one of its contents, whole", root=True, limit=300)
def never_half(work):
    with OwnCell(work) as c:
        contents = [bytes([n]) * (3 * MIB + n) for n in range(4)]
        fs(c, "put", "-", "/one/f", stdin=contents[0])
        is_over, wrong, reads = threading.Event(), [], [0]

        def look():
            while not is_over.is_set():
                seen = read(f"{c.mount}/one/f")
                reads[0] += 1
                if seen not in contents:
                    wrong.append((len(seen), seen[:1]))

        reader = threading.Thread(target=look)
        reader.start()
        for n in range(12):
            fs(c, "put", "-", "/one/f", stdin=contents[n % 4])
        is_over.set()
        reader.join()
        equal(wrong, [], f"of {reads[0]} reads")
        true(reads[0] > 5, f"{reads[0]} reads")


@check("fs-users", "`zonal fs` of a user may do what the user may do on a mount", root=True, limit=120)
def users(work):
    with OwnCell(work) as c:
        write(f"{c.mount}/one/secret", b"root's", mode=0o600)
        os.chmod(f"{c.mount}/one/secret", 0o600)
        os.mkdir(f"{c.mount}/one/open")
        os.chmod(f"{c.mount}/one/open", 0o777)
        # In a folder that the user can reach.
        own = tempfile.mkdtemp(prefix="zonal-fs-")
        key = f"{own}/user.pem"
        with open(f"{c.folder}/cell.toml", encoding="utf-8") as f:
            manager = next(line.split('"')[1] for line in f if line.startswith("manager"))
        c.zonal("key", "create", "--cell", c.folder, "--to", key, "--client", "user")
        for path in (key, own):
            os.chown(path, 61000, 61000)

        def asks():
            def ask(command, *args, stdin=None):
                return subprocess.run([ZONAL, "fs", command, "--cell", manager, "--key-file", key, *args], input=stdin,
                                      capture_output=True, timeout=60, check=False)

            refused = ask("cat", "/one/secret")
            equal((refused.returncode, refused.stdout), (1, b""), "another's file")
            true(b"Hint: you ask as user id 61000" in refused.stderr, f"the hint: {refused.stderr!r}")
            done = ask("put", "-", "/one/open/f", stdin=b"mine")
            equal(done.returncode, 0, f"put: {done.stderr!r}")

        try:
            as_user(61000, 61000, [], asks)
        finally:
            shutil.rmtree(own)
        equal(os.stat(f"{c.mount}/one/open/f").st_uid, 61000, "its owner")


if __name__ == "__main__":
    run("fs", R, __doc__)
