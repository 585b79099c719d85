#!/usr/bin/env python3
"""`zonal fsck` on a real cell that is stopped, damaged, repaired and started again.

    tests/cell/fsck.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own below DIR (2 zones, 2 storage nodes each), mounted; ZONAL names the binary. Root only: it
mounts, and removes and damages the cell's own files.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, equal, true  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
CLEAN, REPAIRED, LEFT, NOT_CHECKED = 0, 1, 4, 8


class Cell(OwnCell):
    """With files whose contents are known."""

    def __init__(self, work):
        super().__init__(work)
        self.sums = {}

    def __enter__(self):
        super().__enter__()
        for name in ("one", "two"):
            self.fill(name)
        return self

    def fsck(self, *args, code):
        """Findings and sums."""
        done = subprocess.run([ZONAL, "fsck", "--cell", self.folder, "--json", "--data", *args],
                              capture_output=True, text=True, timeout=300, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        equal(done.returncode, code, f"exit of fsck {args}: {done.stderr[-400:]} {lines[-6:]}")
        return lines[:-1], (lines[-1] if lines else {})

    def fill(self, name):
        source = random.Random(name)
        for number in range(120):
            folder = f"{self.mount}/{name}/d{number % 8}"
            os.makedirs(folder, exist_ok=True)
            data = source.randbytes(source.choice((0, 100, 5000, 70_000, 2_500_000 if number % 30 == 0 else 9000)))
            path = f"{folder}/f{number}"
            with open(path, "wb") as file:
                file.write(data)
            self.sums[path] = hashlib.sha256(data).hexdigest()
        os.sync()

    def read_all(self):
        """Files that are whole, that give an error, and that are not there. Wrong bytes are a failure at once."""
        whole, errors, missing = [], [], []
        for path, wanted in self.sums.items():
            try:
                with open(path, "rb") as file:
                    found = hashlib.sha256(file.read()).hexdigest()
                equal(found, wanted, f"contents of {path}")
                whole.append(path)
            except FileNotFoundError:
                missing.append(path)
            except OSError:
                errors.append(path)
        return whole, errors, missing

    def works(self):
        """A small workload in both zones."""
        for name in ("one", "two"):
            folder = f"{self.mount}/{name}/after"
            os.mkdir(folder)
            for number in range(40):
                with open(f"{folder}/{number}", "wb") as file:
                    file.write(bytes([number]) * 30_000)
                    os.fsync(file.fileno())
            for number in range(40):
                with open(f"{folder}/{number}", "rb") as file:
                    equal(file.read(), bytes([number]) * 30_000, "what was written after the repair")
            shutil.rmtree(folder)


def damage(path, change):
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        file.seek(0)
        change(data)
        file.write(data)
        file.truncate(len(data))


@check("clean", "a cell that was stopped is clean, also after its processes were killed; one that runs is refused", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.fsck(code=NOT_CHECKED)
        cell.down()
        findings, sums = cell.fsck(code=CLEAN)
        equal(findings, [], "findings")
        true(sums["inodes"] > 240 and sums["objects"] > 140, f"too little was seen: {sums}")
        cell.up()
        for name in sorted(os.listdir(cell.folder)):
            pid = f"{cell.folder}/{name}/pid"
            if os.path.exists(pid):
                with open(pid, encoding="utf-8") as file:
                    os.kill(int(file.read().split()[0]), 9)
        cell.down()
        findings, _ = cell.fsck(code=CLEAN)
        true(all(found["class"] == "note" for found in findings), f"findings after a kill: {findings}")


@check("flipped-bit", "a flipped bit in an index loses nothing", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.down()
        source = random.Random(5)
        for store in ("meta1/shard", "storage1-1/target"):
            path = f"{cell.folder}/{store}/index.redb"
            # One bit in every page that may hold entries, those that are not in use any more included.
            def flip(data):
                for at in range(4096, len(data), 4096):
                    if data[at] == 1 and any(data[at + 2000:at + 2100]):
                        data[at + 2050] ^= 1 << source.randrange(8)

            damage(path, flip)
        cell.fsck("--repair", code=REPAIRED)
        cell.fsck(code=CLEAN)
        cell.up()
        equal(cell.read_all()[1:], ([], []), "errors and missing files")
        cell.works()


@check("lost-index", "a target whose index is gone: files are named, errors are errors, the rest is whole", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.down()
        os.remove(f"{cell.folder}/storage1-1/target/index.redb")
        findings, _ = cell.fsck("--repair", code=REPAIRED)
        cell.fsck(code=CLEAN)
        cell.up()
        whole, errors, missing = cell.read_all()
        equal(missing, [], "missing files")
        true(all("/one/" in path for path in errors), "a file of the other zone suffers")
        named = {f"{cell.mount}{found['path']}" for found in findings if "path" in found}
        true(set(errors) <= named, f"suffering and not named: {sorted(set(errors) - named)[:3]}")
        true(len(whole) >= 120, f"only {len(whole)} whole")
        cell.works()


@check("lost-target", "a target that is gone: each file with its ranges is listed", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.down()
        shutil.rmtree(f"{cell.folder}/storage2-1/target")
        findings, sums = cell.fsck(code=LEFT)
        lost = [found for found in findings if found["name"] == "lost-with-target"]
        true(lost and all(found["path"].startswith("/two/") and found["ranges"] for found in lost),
             f"{len(lost)} files of {sums}")


@check("damaged-block", "a damaged block is told by file and range, is an error, and goes when it is written anew", limit=300)
def _(work):
    with Cell(work) as cell:
        path = f"{cell.mount}/one/marked"
        data = b"\x5a" * 4096 + bytes(range(256)) * 16 + b"\xa5" * 57_344
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        cell.down()
        hits = 0
        for node in ("storage1-1", "storage1-2"):
            folder = f"{cell.folder}/{node}/target/segments"
            for name in os.listdir(folder):
                def spoil(found):
                    nonlocal hits
                    at = found.find(bytes(range(256)) * 16)
                    if at >= 0:
                        found[at + 7] ^= 1
                        hits += 1
                damage(f"{folder}/{name}", spoil)
        equal(hits, 1, "places of the block")
        findings, _ = cell.fsck(code=LEFT)
        told = [found for found in findings if found["name"] == "damaged"]
        equal([(found["path"], found["ranges"]) for found in told], [("/one/marked", [[4096, 4096]])], "what is told")
        cell.fsck("--repair", code=REPAIRED)
        findings, _ = cell.fsck(code=CLEAN)
        equal([found["name"] for found in findings], ["known-lost"], "what is known")
        cell.up()
        with open(path, "r+b") as file:
            equal(file.read(4096), data[:4096], "what lies before")
            try:
                os.pread(file.fileno(), 4096, 4096)
                true(False, "the block can be read")
            except OSError:
                pass
            os.pwrite(file.fileno(), data[4096:8192], 4096)
            os.fsync(file.fileno())
        with open(path, "rb") as file:
            equal(file.read(), data, "after it was written anew")


if __name__ == "__main__":
    run("fsck", R, __doc__)
