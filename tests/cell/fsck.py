#!/usr/bin/env python3
"""`zonal fsck` on real cells: stopped, damaged, repaired and restarted, or running under load.

    tests/cell/fsck.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own below DIR (2 zones, 2 storage nodes each), mounted; ZONAL names the
binary. Root only: it mounts, and removes and damages the cell's own files.
"""
import contextlib
import glob
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from cell import data_id  # noqa: E402
from checks import Registry, equal, true  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
CLEAN, REPAIRED, LEFT, NOT_CHECKED = 0, 1, 4, 8


class Cell(OwnCell):
    """A cell with files whose contents are known."""

    def __init__(self, work):
        super().__init__(work)
        self.sums = {}

    def __enter__(self):
        super().__enter__()
        for name in ("one", "two"):
            self.fill(name)
        return self

    def fsck(self, *args, code, data=True):
        """Findings and totals."""
        done = subprocess.run([ZONAL, "fsck", "--cell", self.folder, "--json", *["--data"] * data, *args],
                              capture_output=True, text=True, timeout=300, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        told = [(line["name"], line.get("path"), line["text"]) for line in lines[:-1] if line["class"] != "note"]
        equal(done.returncode, code, f"exit of fsck {args}: {done.stderr[-400:]} {told[:6]} {lines[-1:]}")
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
        """Files that are intact, that give an error, and that are missing; wrong bytes fail."""
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

    def look(self, code=CLEAN):
        """Runs a check of the running cell."""
        findings, sums = self.fsck(code=code, data=False)
        true(sums["running"], "the cell was taken for a stopped one")
        return findings, sums

    def objects(self):
        """The objects on all targets."""
        listed = [self.zonal("target", "ls", "--cell", self.folder, "--target", str(target)) for target in (1, 2, 3, 4)]
        return sum(len(done.stdout.splitlines()) for done in listed)

    def up_again(self):
        """Starts stopped servers."""
        self.zonal("up", "--dir", self.folder)

    def servers(self):
        """{node: pid}"""
        pids = {}
        for name in sorted(os.listdir(self.folder)):
            if os.path.exists(f"{self.folder}/{name}/pid"):
                with open(f"{self.folder}/{name}/pid", encoding="utf-8") as file:
                    pids[name] = int(file.read().split()[0])
        return pids

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


class Load:
    """A load of several processes on several mounts, until told to end.

    They make, write, truncate, rename, link and remove files, hold removed files open, and make and
    remove first-level directories. Errors caused by killed servers are ignored.
    """

    def __init__(self, cell, mounts, threads=6):
        # Processes, not threads: a child that starts `zonal up` first closes inherited files, which
        # would wait for a killed server.
        context = multiprocessing.get_context("fork")
        self.cell, self.mounts, self.over, self.broken = cell, mounts, context.Value("b", 0), context.SimpleQueue()
        self.steps, self.failed = context.Array("q", threads), context.Array("q", threads)
        self.threads = [context.Process(target=self.run, args=(number,)) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.value = 1
        # A process that waits for a killed server would wait for ever.
        self.cell.up_again()
        limit = time.monotonic() + 120
        for thread in self.threads:
            thread.join(max(0, limit - time.monotonic()))
        true(not any(thread.is_alive() for thread in self.threads), "the load does not end")
        true(self.broken.empty(), "the load broke")

    def more(self, steps):
        """Waits until this many more steps are done."""
        wanted, limit = sum(self.steps) + steps, time.monotonic() + 120
        while sum(self.steps) < wanted:
            true(time.monotonic() < limit and self.broken.empty(), f"the load hangs: {list(self.steps)}")
            time.sleep(0.01)

    def run(self, number):
        source, have, held, born = random.Random(number), [], [], 0
        mount = self.mounts[number % len(self.mounts)]
        home = f"{mount}/{('one', 'two')[number // 2 % 2]}/load{number}"
        # Names that other processes use too, through another mount.
        shared = f"{mount}/one/shared"
        try:
            os.makedirs(home, exist_ok=True)
            os.makedirs(shared, exist_ok=True)
            while not self.over.value:
                try:
                    born += 1
                    self.step(source, mount, home, shared, have, held, born)
                except OSError:
                    self.failed[number] += 1
                self.steps[number] += 1
        except BaseException as error:  # noqa: B036 (told to the test)
            print(repr(error), file=sys.stderr)
            self.broken.put(1)
        finally:
            for file in held:
                try:
                    os.close(file)
                except OSError:
                    pass

    def step(self, source, mount, home, shared, have, held, born):
        kind = source.randrange(11)
        if kind <= 2 or not have:
            path = f"{home}/f{born}"
            with open(path, "wb") as file:
                have.append(path)
                file.write(source.randbytes(source.choice((0, 100, 5000, 70_000, 1_500_000))))
        elif kind == 3:
            os.truncate(source.choice(have), source.choice((0, 4096, 50_000, 400_000)))
        elif kind == 4:
            at = source.randrange(len(have))
            new = f"{home}/r{born}"
            os.rename(have[at], new)
            have[at] = new
        elif kind == 5:
            other = f"{home}/l{born}"
            os.link(source.choice(have), other)
            have.append(other)
        elif kind == 6:
            os.unlink(have.pop(source.randrange(len(have))))
        elif kind == 7:
            # A file held open without a name, and written to.
            path = have.pop(source.randrange(len(have)))
            held.append(os.open(path, os.O_RDWR))
            os.unlink(path)
            os.pwrite(held[-1], source.randbytes(90_000), source.randrange(200_000))
            if len(held) > 8:
                os.close(held.pop(0))
        elif kind == 8:
            os.rename(source.choice(have), f"{shared}/{source.randrange(20)}")
        elif kind == 9:
            with open(source.choice(have), "r+b") as file:
                file.seek(source.randrange(300_000))
                file.write(source.randbytes(30_000))
        else:
            top = f"{mount}/top{source.randrange(4)}"
            source.choice((os.mkdir, os.rmdir, lambda path: os.rename(path, f"{path}x"), lambda path: os.rmdir(f"{path}x")))(top)
        if len(have) > 60:
            for path in [have.pop(0) for _ in range(30)]:
                os.unlink(path)


def damage(path, change):
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        file.seek(0)
        change(data)
        file.write(data)
        file.truncate(len(data))


@check("clean", "a cell that was stopped is clean, also after its processes were killed; one that runs is not repaired", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.fsck(code=NOT_CHECKED)
        cell.fsck("--repair", code=NOT_CHECKED, data=False)
        cell.down()
        findings, sums = cell.fsck(code=CLEAN)
        equal(findings, [], "findings")
        true(sums["inodes"] > 240 and sums["objects"] > 140, f"too little was seen: {sums}")
        cell.up()
        for pid in cell.servers().values():
            os.kill(pid, 9)
        cell.down()
        findings, _ = cell.fsck(code=CLEAN)
        true(all(found["class"] == "note" for found in findings), f"findings after a kill: {findings}")


@contextlib.contextmanager
def read_only(folder):
    """Makes the disk read-only within a `with`, as after a disk error."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@check("read-only", "on a read-only file system a cell is stopped and checked, but not started", limit=300)
def _(work):
    refused = 5
    with Cell(work) as cell:
        servers = cell.servers()
        with read_only(cell.folder):
            cell.down()
            left = [name for name, pid in servers.items() if os.path.exists(f"/proc/{pid}/exe")]
            equal(left, [], "servers that go on")
            told = cell.zonal("fsck", "--cell", cell.folder, code=NOT_CHECKED).stderr
            true("Read-only file system" in told and "--scratch" in told, told)
            findings, _ = cell.fsck("--scratch", f"{cell.base}/scratch", code=CLEAN)
            equal(findings, [], "findings")
            for folder in (cell.folder, f"{cell.folder}/new"):
                told = cell.zonal("up", "--dir", folder, code=refused).stderr
                true("Read-only file system" in told, told)
        cell.up()
        equal(len(cell.read_all()[0]), len(cell.sums), "files that are whole")


@check("resumed", "a check that is killed in the middle goes on where it was and tells the same; a cell that was started meanwhile is checked anew", limit=600)
def _(work):
    with Cell(work) as cell:
        # Enough files that the first store is read long before the last.
        for number in range(24):
            with open(f"{cell.mount}/{('one', 'two')[number % 2]}/large{number}", "wb") as file:
                file.write(random.Random(number).randbytes(8 << 20))
        os.sync()
        cell.down()
        for number, node in enumerate(("storage1-1", "storage2-2")):
            folder = f"{cell.folder}/{node}/target/segments"
            # Somewhere in the data of files.
            def spoil(found):
                for at in range(4096 * 9, len(found), 4096 * 97):
                    found[at] ^= 1 << number
            damage(f"{folder}/{sorted(os.listdir(folder))[0]}", spoil)
        wanted, sums = cell.fsck(code=LEFT)
        true(sums["kept"] == 0 and sums["found"] > 5, f"too little is damaged: {sums}")
        folder, ended = f"{cell.folder}/fsck", []
        equal(os.path.exists(folder), False, "a folder stays")
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            for _ in range(40):
                if kill_in_the_middle(cell, folder, how):
                    break
            kept = os.listdir(f"{folder}/zonal-fsck.work") if os.path.exists(folder) else []
            true(any(name.startswith("part.") for name in kept), f"no check could be ended by {how!r} in the middle: {kept}")
            equal(os.stat(f"{folder}/zonal-fsck.work").st_mode & 0o777, 0o700, "mode of the folder")
            if how == signal.SIGINT:
                break
            findings, again = cell.fsck(code=LEFT)
            equal(findings, wanted, f"findings behind {how!r}")
            true(again["kept"] > 0, f"nothing was kept: {again}")
            equal([again[key] for key in ("found", "notes", "inodes", "objects", "records")],
                  [sums[key] for key in ("found", "notes", "inodes", "objects", "records")], "sums")
            equal(os.path.exists(folder), False, "a folder stays")
            ended.append(again["kept"])
        print(f"    stores that were read when the check was ended: {ended}, of 7")
        # The saved state is of a cell that was not started since.
        cell.up()
        cell.down()
        done = subprocess.run([ZONAL, "fsck", "--cell", cell.folder, "--json", "--data"], capture_output=True, text=True, timeout=300, check=False)
        true("starts over" in done.stderr and "has changed since" in done.stderr, f"what is said: {done.stderr!r}")
        anew = [json.loads(line) for line in done.stdout.splitlines()]
        equal([found for found in anew[:-1] if found["class"] != "note"], [found for found in wanted if found["class"] != "note"], "findings")
        equal(anew[-1]["kept"], 0, "stores kept")


def kill_in_the_middle(cell, folder, how):
    """Kills a check after it has read some stores; returns whether it was still running."""
    shutil.rmtree(folder, ignore_errors=True)
    with subprocess.Popen([ZONAL, "fsck", "--cell", cell.folder, "--json", "--data"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as checking:
        limit = time.monotonic() + 60
        while checking.poll() is None and time.monotonic() < limit:
            try:
                if any(name.startswith("part.") and not name.endswith(".new") for name in os.listdir(f"{folder}/zonal-fsck.work")):
                    checking.send_signal(how)
                    break
            except FileNotFoundError:
                pass
        return checking.wait(timeout=60) == -how and os.path.exists(folder)


@check("progress", "--progress prints the number of records read on standard error; without it nothing is printed there", limit=300)
def _(work):
    with Cell(work) as cell:
        for number in range(8):
            with open(f"{cell.mount}/one/large{number}", "wb") as file:
                file.write(random.Random(number).randbytes(8 << 20))
        os.sync()
        cell.down()
        for asked in (True, False):
            with subprocess.Popen([ZONAL, "fsck", "--cell", cell.folder, "--data", *["--progress"] * asked], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as checking:
                # Progress comes twice a second, and the check would be over before: it runs in
                # short steps with pauses.
                while checking.poll() is None:
                    time.sleep(0.005)
                    checking.send_signal(signal.SIGSTOP)
                    time.sleep(0.1)
                    checking.send_signal(signal.SIGCONT)
                said = checking.communicate(timeout=60)
            equal(checking.returncode, CLEAN, f"exit, with {said}")
            lines = said[1].splitlines()
            told = [line for line in lines if re.fullmatch(r"pass 1: \d+ records, \d+ a second(, about \d+ s left)?", line)]
            equal((bool(told), told), (asked, lines), "lines of progress, which are all that is said")


@check("running", "a running cell under load is clean, each time, also while servers are killed and come back", limit=600)
def _(work):
    with Cell(work) as cell:
        second = f"{cell.base}/second"
        os.mkdir(second)
        cell.zonal("mount", "--cell", cell.folder, second)
        try:
            source = random.Random(11)
            with Load(cell, [cell.mount, second]) as load:
                for number in range(4):
                    load.more(150)
                    findings, sums = cell.look()
                    true(sums["inodes"] > 240 and sums["objects"] > 140, f"too little was seen: {sums}")
                    true(all(found["class"] == "note" for found in findings), f"findings under load: {findings}")
                    victims = source.sample(sorted(cell.servers().items()), (1, 2, 7)[number % 3])
                    for _, pid in victims:
                        os.kill(pid, 9)
                    if number % 2:
                        # The server comes back while the check waits for it.
                        back = threading.Thread(target=cell.up_again)
                        back.start()
                        findings, _ = cell.look()
                        back.join()
                        equal([found for found in findings if found["class"] != "note"], [], "findings around a kill")
                    else:
                        cell.up_again()
                print(f"    {sum(load.steps)} steps, {sum(load.failed)} failed, last sums {sums}")
            findings, _ = cell.look()
            true(all(found["class"] == "note" for found in findings), f"findings behind the load: {findings}")
        finally:
            cell.zonal("umount", second)
        cell.down()
        findings, _ = cell.fsck(code=CLEAN)
        true(all(found["class"] == "note" for found in findings), f"findings of the stopped cell: {findings}")


@check("running-planted", "a running check finds objects without inodes and inodes without objects, under load", limit=600)
def _(work):
    with Cell(work) as cell:
        # Files in the backup whose bytes are removed later, and later files whose inodes the
        # restored shards lack.
        doomed = [f"{cell.mount}/one/doomed{number}" for number in range(5)]
        for path in doomed:
            with open(path, "wb") as file:
                file.write(os.urandom(200_000))
        os.sync()
        cell.zonal("meta", "backup", "--cell", cell.folder, "--to", f"{cell.base}/backup")
        before, limit = cell.objects(), time.monotonic() + 60
        for path in doomed:
            os.unlink(path)
        while cell.objects() > before - len(doomed):
            true(time.monotonic() < limit, "objects of removed files stay")
            time.sleep(0.05)
        for number in range(7):
            with open(f"{cell.mount}/two/young{number}", "wb") as file:
                file.write(random.Random(f"young {number}").randbytes(150_000))
        os.sync()
        cell.zonal("umount", cell.mount)
        cell.down()
        cell.zonal("meta", "restore", "--cell", cell.folder, "--from", f"{cell.base}/backup", "--force")
        cell.up()
        with Load(cell, [cell.mount]) as load:
            load.more(100)
            findings, _ = cell.look(code=LEFT)
        names = [found["name"] for found in findings]
        equal({found["name"] for found in findings if found["class"] != "note"}, {"object-no-inode"}, "kinds found")
        equal(names.count("object-no-inode"), 7, "files without an inode")
        paths = {found.get("path") for found in findings if found["name"] == "allocated"}
        equal({f"/one/doomed{number}" for number in range(5)} - paths, set(), "files without bytes that are not told")
        cell.down()
        stopped, _ = cell.fsck(code=LEFT)
        equal([found["text"] for found in stopped if found["name"] == "object-no-inode"],
              [found["text"] for found in findings if found["name"] == "object-no-inode"], "what the stopped check says")
        cell.fsck("--repair", code=REPAIRED)
        cell.up()
        findings, _ = cell.look()
        equal([found for found in findings if found["class"] != "note"], [], "findings after the repair")
        # The first bytes of a file were in the shard that was restored.
        young = sorted(random.Random(f"young {number}").randbytes(150_000)[4096:] for number in range(7))
        equal(sorted(data[4096:] for data, *_ in lost_and_found(cell, 2)) == young, True, "that the objects are files in lost+found")


def lost_and_found(cell, zone):
    """(bytes, mode, owner, group) of each file in the lost+found of a zone, as a mount shows them."""
    folder, found = f"{cell.mount}/lost+found-{zone}", []
    for entry in os.scandir(folder):
        s = entry.stat(follow_symlinks=False)
        with open(entry.path, "rb") as file:
            found.append((file.read(), s.st_mode & 0o7777, s.st_uid, s.st_gid))
    return found


@check("lost-names", "files whose names are gone are in lost+found of a mounted cell, with their bytes, modes and owners", limit=300)
def _(work):
    with Cell(work) as cell:
        source, made = random.Random(3), []
        folder = f"{cell.mount}/one/nameless"
        os.mkdir(folder)
        for number in range(40):
            data = source.randbytes(source.choice((10, 100, 5000, 70_000)))
            path = f"{folder}/needle-in-an-entry-{number}"
            with open(path, "wb") as file:
                file.write(data)
            os.chown(path, 1000 + number, 2000 + number)
            os.chmod(path, 0o400 + number)
            made.append((data, 0o400 + number, 1000 + number, 2000 + number))
        os.sync()
        cell.down()
        # With the index copy, nothing would be lost.
        for path in glob.glob(f"{cell.folder}/meta1/shard/copy.*"):
            os.remove(path)
        spoilt = []

        def spoil(found):
            spoilt.extend({match.start() // 4096 for match in re.finditer(b"needle-in-an-entry", found)})
            for page in spoilt:
                found[page * 4096:page * 4096 + 4096] = bytes(4096)
        damage(f"{cell.folder}/meta1/shard/index.redb", spoil)
        true(spoilt, "the index has no such entries")
        findings, _ = cell.fsck("--repair", code=REPAIRED)
        true(sum(found["name"] == "inode-no-name" for found in findings) >= 40, "too few files without a name are told")
        cell.fsck(code=CLEAN)
        cell.up()
        found = lost_and_found(cell, 1)
        equal([one for one in made if one not in found], [], "nameless files that are not in lost+found as they were")
        # Other files had their entries, or other records, in the same pages.
        whole, errors, missing = cell.read_all()
        sums = [hashlib.sha256(data).hexdigest() for data, *_ in found]
        nowhere = [path for path in missing if cell.sums[path] not in sums]
        print(f"  {len(spoilt)} pages; {len(whole)} whole, {len(missing)} without a name, of which {nowhere} are not in lost+found", flush=True)
        equal(errors, [], "files that give errors")
        # Some files had their inodes there: their remains have no size, and not always their first
        # bytes.
        gone = sum(one["name"] == "object-no-inode" for one in findings)
        true(all("/one/" in path for path in missing) and len(nowhere) <= max(4, gone), f"missing {missing}, {nowhere} of them not in lost+found")
        cell.works()


@check("flipped-bit", "a flipped bit in an index loses nothing", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.down()
        source = random.Random(5)
        for store in ("meta1/shard", "storage1-1/target"):
            path = f"{cell.folder}/{store}/index.redb"
            # One bit in every page that may hold entries, including pages no longer in use.
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


@check("lost-index", "stores whose indexes are gone or noise get them from their copies: nothing is lost", limit=300)
def _(work):
    with Cell(work) as cell:
        count = len(cell.read_all()[0])
        # Killed, so that the logs continue after the copies.
        cell.zonal("umount", cell.mount)
        for pid in cell.servers().values():
            os.kill(pid, signal.SIGKILL)
        cell.down()
        stores = sorted(glob.glob(f"{cell.folder}/*/*/index.redb"))
        true(len(stores) >= 6, f"stores: {stores}")
        for number, path in enumerate(stores):
            size = os.path.getsize(path)
            os.remove(path)
            if number % 2:
                with open(path, "wb") as file:
                    file.write(random.Random(number).randbytes(size))
        findings, _ = cell.fsck(code=LEFT)
        equal({found["name"] for found in findings}, {"index-from-copy"}, "what is found")
        cell.fsck("--repair", code=REPAIRED)
        cell.fsck(code=CLEAN)
        cell.up()
        whole, errors, missing = cell.read_all()
        equal((len(whole), errors, missing), (count, [], []), "files")
        cell.works()


@check("lost-index-and-copy", "a target whose index is gone with its copy: files are named, errors are errors, the rest is whole", limit=300)
def _(work):
    with Cell(work) as cell:
        cell.down()
        target = f"{cell.folder}/storage1-1/target"
        for name in ("index.redb", "copy.0", "copy.1"):
            if os.path.exists(f"{target}/{name}"):
                os.remove(f"{target}/{name}")
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


@check("lost-target", "a target that is gone: all files that had bytes there are listed by name, with the ranges that their layout gives, and no others", limit=300)
def _(work):
    with Cell(work) as cell:
        # Files over several rows of units, with holes, or with bytes in the shard alone.
        for name, size, places in (("large", 5_300_000, ((0, 5_300_000),)), ("holes", 9 << 20, ((2 << 20, 5000), (5 << 20, 5000))), ("small", 4000, ((0, 4000),)),
                                   ("empty", 9 << 20, ())):
            with open(f"{cell.mount}/two/{name}", "wb") as file:
                file.truncate(size)
                for at, length in places:
                    file.seek(at)
                    file.write(random.Random(name).randbytes(length))
        os.sync()
        # The target's own list of objects: {data id: column}.
        lines = cell.zonal("target", "ls", "--json", "--cell", cell.folder, "--target", "3").stdout.splitlines()
        columns = {line["data_id"]: line["column"] for line in map(json.loads, lines)}
        wanted = {}
        for base, _folders, names in os.walk(cell.mount):
            for name in names:
                path = f"{base}/{name}"
                number = data_id(path) if os.path.isfile(path) and not os.path.islink(path) else 0
                if number in columns:
                    wanted[path.removeprefix(cell.mount)] = pieces(columns[number], os.path.getsize(path))
        true(len(wanted) == len(columns) > 20 and {"/two/large", "/two/holes"} <= set(wanted), f"files on the target: {sorted(wanted)}")
        cell.down()
        shutil.rmtree(f"{cell.folder}/storage2-1/target")
        findings, _ = cell.fsck(code=LEFT)
        lost = {found["path"]: found["ranges"] for found in findings if found["name"] == "lost-with-target"}
        equal(sorted(lost), sorted(wanted), "files that are told")
        for path, ranges in lost.items():
            equal(ranges, wanted[path], f"ranges of {path}")


def pieces(column, size, unit=1 << 20, count=2, inline=4096):
    """Ranges [[begin, length]] of a file that are in a column."""
    units = [(at, min(at + unit, size)) for at in range(column * unit, size, unit * count)]
    return [[max(begin, inline), end - max(begin, inline)] for begin, end in units]


@check("damaged-block", "a damaged block is reported by file and range, reads as an error, and is gone after a rewrite", limit=300)
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
