#!/usr/bin/env python3
"""Maintenance of a cell: backup and restore of metadata, export and import of objects, a new zone.

    tests/cell/upkeep.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own below DIR (2 zones, 2 storage nodes each), mounted. ZONAL names the
binary. Root only: it mounts, and removes and damages the cell's own files.
"""
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from cell import data_id  # noqa: E402
from checks import Registry, equal, read, true, write  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
MIB = 1 << 20


def tree(base, count=30):
    """Makes files of all sizes, links, attributes."""
    for name in ("a", "a/b", "c"):
        os.makedirs(f"{base}/{name}", exist_ok=True)
    for i in range(count):
        folder = ("a", "a/b", "c")[i % 3]
        write(f"{base}/{folder}/f{i}", os.urandom(i * 37_123 % (3 * MIB)))
    os.symlink("a/f0", f"{base}/symlink")
    os.link(f"{base}/a/f3", f"{base}/hard")
    os.setxattr(f"{base}/c/f2", "user.color", b"blue")
    os.chmod(f"{base}/a/f6", 0o4711)
    os.chown(f"{base}/a/f9", 12, 34)


def manifest(base):
    """Everything that a program sees below a directory."""
    out = {}
    for folder, folders, files in os.walk(base):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            seen = [s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_mtime_ns, s.st_ino, sorted(
                (k, os.getxattr(path, k, follow_symlinks=False)) for k in os.listxattr(path, follow_symlinks=False))]
            if os.path.islink(path):
                seen.append(os.readlink(path))
            elif name in files:
                with open(path, "rb") as f:
                    seen += [s.st_size, hashlib.blake2b(f.read()).hexdigest()]
            out[os.path.relpath(path, base)] = seen
    return out


class Load:
    """Makes, writes and removes files and first-level directories until told to end."""

    def __init__(self, mount):
        self.mount, self.over, self.rounds, self.error = mount, False, 0, None
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join(60)
        true(not self.thread.is_alive(), "the load does not end")
        if self.error:
            raise self.error

    def until(self, rounds):
        while self.rounds < rounds and self.thread.is_alive():
            time.sleep(0.005)

    def run(self):
        try:
            while not self.over:
                i = self.rounds
                folder = f"{self.mount}/one/load{i % 7}"
                os.makedirs(folder, exist_ok=True)
                write(f"{folder}/f{i}", os.urandom(5000))
                os.rename(f"{folder}/f{i}", f"{folder}/g{i}")
                if i % 3 == 0:
                    os.unlink(f"{folder}/g{i}")
                if i % 20 == 0:
                    os.mkdir(f"{self.mount}/top{i}")
                if i % 40 == 0:
                    os.rmdir(f"{self.mount}/top{i}")
                self.rounds += 1
        except OSError as error:
            self.error = error


@check("up-says", "`zonal up` prints the zones with their nodes, shards and targets, and what to type next: typed so, it works", limit=120)
def _(work):
    with OwnCell(work) as c:
        rows = re.findall(r"^([12]) zone[12] +(\d+) +127\.0\.0\.1:\d+ +(root|\d+|-) +(\d+ \(1\.0 GiB\)|-)$", c.said, re.M)
        equal([row[0] for row in rows], ["1"] * 4 + ["2"] * 3, f"zones of the rows of {c.said}")
        equal(sorted(row[2] for row in rows if row[2] != "-"), ["1", "2", "root"], "shards")
        equal([row[3].split(" ")[0] for row in rows if row[3] != "-"], ["1", "2", "3", "4"], "targets")
        equal(re.findall(r"^new files of zone (\d) use stripe set \d+ \(targets (.*)\)$", c.said, re.M), [("1", "1, 2"), ("2", "3, 4")], "stripe sets")
        said, _, commands = c.said.partition(f"\nmounted on {c.mount}; try:\n")
        true(commands, f"what is said: {said}")
        # Replaces the machine's include files, which may be many or none.
        os.makedirs(f"{c.base}/include")
        write(f"{c.base}/include/stdio.h", b"int puts(const char *);\n")
        os.makedirs(f"{c.base}/bin")
        os.symlink(ZONAL, f"{c.base}/bin/zonal")
        typed = [line.strip().replace("/usr/include", f"{c.base}/include") for line in commands.splitlines() if line.strip()]
        true(len(typed) >= 4 and all(line.startswith("zonal ") for line in typed), f"commands: {typed}")
        for line in typed:
            done = subprocess.run(["sh", "-c", line], env={**os.environ, "PATH": f"{c.base}/bin:{os.environ['PATH']}"}, capture_output=True, text=True,
                                  timeout=60, check=False, cwd="/")
            equal(done.returncode, 0, f"exit of {line}: {done.stderr}")
            true("stdio.h" not in line or "zone 1" in done.stdout, f"{line} says {done.stdout}")
        true(not os.path.ismount(c.mount), "the last of them was not `zonal down`")


@check("down-without-servers", "`zonal down` ends the mount of a cell whose servers are all gone, without killing it", limit=120)
def _(work):
    with OwnCell(work) as c:
        write(f"{c.mount}/one/f", b"kept", os.O_SYNC)
        servers = glob.glob(f"{c.folder}/*/pid")
        equal(len(servers), 7, "servers")
        for path in servers:
            os.kill(int(read(path)), signal.SIGKILL)
        done = c.zonal("down", "--dir", c.folder)
        equal(done.stderr, "", "what it says")
        true("unmounted 1, stopped 0 of" in done.stdout, done.stdout)
        c.up()
        equal(read(f"{c.mount}/one/f"), b"kept", "what was synced")


@check("backup-waits", "a backup that meets another one's snapshots waits until they are let go, and says so; each has all", limit=180)
def _(work):
    with OwnCell(work) as c:
        tree(f"{c.mount}/one/kept")
        os.sync()

        def backup(name):
            args = [ZONAL, "meta", "backup", "--cell", c.folder, "--to", f"{c.base}/{name}", "--force"]
            with open(f"{c.base}/{name}.said", "wb") as said:
                return subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=said)

        def waits(name):
            return b"waiting for it" in read(f"{c.base}/{name}.said")

        begun = time.monotonic()
        equal(backup("first").wait(60), 0, "exit of the first")
        whole, met, turn = time.monotonic() - begun, 0, 0
        while time.monotonic() < begun + 120:
            first, turn = backup("first"), turn + 1
            time.sleep(whole * (turn % 20) / 20)
            first.send_signal(signal.SIGSTOP)
            second = backup("second")
            # It reports the wait at once, or ends.
            end = time.monotonic() + 10
            while not waits("second") and second.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            first.send_signal(signal.SIGCONT)
            equal((first.wait(60), second.wait(60)), (0, 0), f"exits: {[read(f'{c.base}/{name}.said') for name in ('first', 'second')]}")
            met += waits("second")
            if met == 3:
                break
        equal(met, 3, "backups that met another one")


@check("backup", "a backup taken under load brings back every name, attribute and byte of what was settled", limit=300)
def _(work):
    with OwnCell(work) as c:
        for zone in ("one", "two"):
            tree(f"{c.mount}/{zone}/kept")
        before = {zone: manifest(f"{c.mount}/{zone}/kept") for zone in ("one", "two")}
        inodes = {s[5] for seen in before.values() for s in seen.values()}
        kept = [os.path.join(c.mount, zone, "kept", path) for zone, seen in before.items() for path in seen]
        data_ids = {data_id(path) for path in kept if os.path.isfile(path) and not os.path.islink(path)}
        os.sync()
        backup = f"{c.base}/backup"
        with Load(c.mount) as load:
            load.until(20)
            taken = c.json("meta", "backup", "--cell", c.folder, "--to", backup, "--json")
            equal(len(taken["shards"]), 3, "shards in the backup")
            load.until(60)
        c.zonal("meta", "backup", "--cell", c.folder, "--to", backup, code=6)
        write(f"{c.mount}/one/young", b"younger than the backup" * 1000)
        # Changes that the targets have and the backup has not: a longer file, a truncated and
        # rewritten one.
        longer, cut = f"{c.mount}/one/kept/a/f15", f"{c.mount}/two/kept/c/f20"
        with open(longer, "ab") as f:
            f.write(b"Z" * 400_000)
            f.flush()
            os.fsync(f.fileno())
        for size in (70_000, 10):
            os.truncate(cut, size)
        write(cut, b"anew")
        cut_before = before["two"].pop("c/f20")
        young, young_data = os.stat(f"{c.mount}/one/young").st_ino, data_id(f"{c.mount}/one/young")
        c.zonal("meta", "restore", "--cell", c.folder, "--from", backup, "--force", code=6)
        c.down()
        c.zonal("meta", "restore", "--cell", c.folder, "--from", backup, code=5)
        for node, store in (("manager", "manager"), ("meta1", "shard"), ("meta2", "shard")):
            shutil.rmtree(f"{c.folder}/{node}/{store}")
        restored = c.json("meta", "restore", "--cell", c.folder, "--from", backup, "--json")
        equal(len(restored["shards"]), 3, "shards restored")
        # Files newer than the backup have objects but no name: a check lists them.
        listed = c.zonal("fsck", "--cell", c.folder, "--json", code=4).stdout
        true(str(young_data) in listed, "the check does not list the object of a file that is younger than the backup")
        c.up()
        after = {zone: manifest(f"{c.mount}/{zone}/kept") for zone in ("one", "two")}
        equal(after["two"].pop("c/f20")[:7], cut_before[:7], "attributes of a file that was cut")
        equal(os.path.getsize(cut), cut_before[7], "its size")
        for zone in ("one", "two"):
            equal(after[zone], before[zone], f"what zone {zone} has after the restore")
        size = os.path.getsize(longer)
        os.truncate(longer, size + 500_000)
        with open(longer, "rb") as f:
            f.seek(size)
            true(not any(f.read()), "bytes written after the backup are in a file that grew")
        with open(cut, "r+b") as f:
            f.seek(1000)
            f.write(b"new")
            f.flush()
            os.fsync(f.fileno())
        with open(cut, "rb") as f:
            data = f.read()
        true(data[1000:1003] == b"new" and len(data) == cut_before[7], "a file that was cut takes no writes")
        os.truncate(cut, 500)
        equal(os.path.getsize(cut), 500, "size after it was cut again")
        true(not os.path.exists(f"{c.mount}/one/young"), "a file that is younger than the backup is there")
        # New files get ids, and so objects, that nobody had before, the newer file's included.
        for i in range(100):
            path = f"{c.mount}/{('one', 'two')[i % 2]}/new{i}"
            write(path, b"x" * i)
            made = os.stat(path).st_ino
            true(made not in inodes and made != young, f"inode number {made} is given twice")
            true(data_id(path) not in {*data_ids, young_data}, f"data id {data_id(path)} is given twice")
        # A truncated and grown file shows zeros, not its old bytes; rewriting works.
        path = f"{c.mount}/one/kept/a/f27"
        size = os.path.getsize(path)
        os.truncate(path, 10)
        os.truncate(path, size)
        with open(path, "rb") as f:
            data = f.read()
        true(not any(data[10:]), "bytes behind a cut came back")
        write(path, b"again")
        c.down()
        # With --force the old stores are moved aside and kept.
        again = c.json("meta", "restore", "--cell", c.folder, "--from", backup, "--force", "--json")
        for shard in again["shards"]:
            true(os.path.exists(f"{shard['kept']}/identity"), "the store that was replaced is gone")
        c.up()
        equal(c.json("status", "--cell", c.folder, "--json")["healthy"], True, "health")


@check("backup-damaged", "a backup that is damaged, cut short or of another cell changes nothing", limit=300)
def _(work):
    with OwnCell(work) as c, OwnCell(work) as other:
        backup = f"{c.base}/backup"
        c.zonal("meta", "backup", "--cell", c.folder, "--to", backup)
        c.down()
        other.down()
        c.zonal("meta", "restore", "--cell", other.folder, "--from", backup, "--force", code=5)
        with open(backup, "rb") as f:
            good = f.read()
        damaged = bytearray(good)
        damaged[len(good) // 2] ^= 4
        for what, data in (("damaged", bytes(damaged)), ("cut short", good[:-30]), ("empty", b"")):
            write(f"{c.base}/bad", data)
            done = c.zonal("meta", "restore", "--cell", c.folder, "--from", f"{c.base}/bad", "--force", code=5)
            true("stream" in done.stderr, f"{what}: {done.stderr}")
        for node, store in (("manager", "manager"), ("meta1", "shard"), ("meta2", "shard")):
            names = os.listdir(f"{c.folder}/{node}")
            true(not any("replaced" in name for name in names), f"{store} was replaced: {names}")
        c.up()
        true(os.path.isdir(f"{c.mount}/one"), "the cell lost a directory")


def data_of(c, stream):
    """{(data id, column): (length, [(offset, bytes of data)], lost ranges)} of exported objects, as `zonal dump` shows them."""
    out, now = {}, None
    for line in c.zonal("dump", "--json", stream).stdout.splitlines():
        record = json.loads(line)
        fields = record["fields"]
        if record["what"] == "object":
            now = (fields["data_id"], fields["column"])
            out[now] = [fields["object_bytes"], 0, []]
        elif record["what"] == "data":
            out[now][1] += fields["bytes"]
        elif record["what"] == "lost":
            out[now][2].append(fields["offset"])
    return out


def contents_of(stream):
    """{(data id, column): its bytes, holes as zeros} from the frames of exported objects
    (docs/on-disk-format.md).
    """
    out, now = {}, None
    with open(stream, "rb") as f:
        data = f.read()
    at = 64
    while at < len(data):
        kind, length = data[at], int.from_bytes(data[at + 4:at + 8], "little")
        body = data[at + 12:at + 12 + length]
        if kind == 1:
            now = (int.from_bytes(body[:8], "little"), int.from_bytes(body[8:10], "little"))
            out[now] = bytearray(int.from_bytes(body[10:18], "little"))
        elif kind == 2:
            offset = int.from_bytes(body[:8], "little")
            out[now][offset:offset + length - 8] = body[8:]
        at += 12 + length
    return {k: bytes(v) for k, v in out.items()}


@check("target-export", "objects come out of a target whole, running or stopped, and go back into it, never into another one", limit=300)
def _(work):
    with OwnCell(work) as c:
        tree(f"{c.mount}/one/kept")
        big = os.urandom(3 * MIB)
        write(f"{c.mount}/one/big", big)
        with open(f"{c.mount}/one/holes", "wb") as f:
            f.write(b"start")
            f.seek(5 * MIB + 77)
            f.write(b"end")
        os.truncate(f"{c.mount}/one/kept/c/f29", 100_000)
        fd = os.open(f"{c.mount}/one/holes", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        os.sync()
        os.fsync(fd := os.open(c.mount, os.O_RDONLY))
        os.close(fd)
        at = ("--cell", c.folder, "--target")
        listed = [json.loads(line) for line in c.zonal("target", "ls", *at, "1", "--paths", "--json").stdout.splitlines()]
        paths = {o["path"] for o in listed}
        true("/one/big" in paths and any(str(p).startswith("/one/kept/a/b/f") for p in paths), f"these paths only: {sorted(map(str, paths))}")
        number = data_id(f"{c.mount}/one/big")
        mine = [o for o in listed if o["data_id"] == number]
        equal([o["path"] for o in mine], ["/one/big"], "path of an object")
        one, two, again = (f"{c.base}/{name}" for name in ("one.out", "two.out", "again.out"))
        told = c.json("target", "export", *at, "1", "--to", one, "--json")
        equal((told["objects"], told["lost_bytes"]), (len(listed), 0), "objects exported")
        c.zonal("target", "export", *at, "1", "--to", one, code=6)
        c.zonal("target", "export", *at, "2", "--to", two)
        # The stripes together are the file.
        both = {**contents_of(one), **contents_of(two)}
        columns = sorted(k for k in both if k[0] == number)
        equal(len(columns), 2, "columns of a file over two targets")
        row = [both[k] for k in columns]
        whole = b"".join(part[i * MIB:(i + 1) * MIB] for i in range(3) for part in row)
        # The first bytes are in the shard.
        true(whole == bytes(4096) + big[4096:], "the exported stripes are not the file")
        # Importing over existing objects needs --force; a second export equals the first.
        c.zonal("target", "import", *at, "1", "--from", one, code=6)
        c.zonal("target", "import", *at, "1", "--from", one, "--force")
        c.zonal("target", "export", *at, "1", "--to", again)
        true(contents_of(again) == contents_of(one), "what was imported differs")
        equal({k: v[0] for k, v in data_of(c, again).items()}, {k: len(v) for k, v in contents_of(one).items()}, "lengths of objects")
        # On another target nobody would find it.
        before = c.zonal("target", "ls", *at, "2").stdout
        for force in ((), ("--force",)):
            done = c.zonal("target", "import", *at, "2", "--from", one, *force, code=5)
            true("of target 1" in done.stderr, f"it says: {done.stderr}")
        equal(c.zonal("target", "ls", *at, "2").stdout, before, "objects after a refused import")
        # A missing object cannot be exported.
        c.zonal("target", "export", *at, "1", "--to", f"{c.base}/none", "--object", "999999999.0", code=7)
        true(not os.path.lexists(f"{c.base}/none"), "an export of nothing made a file")
        with open(one, "rb") as f:
            data = bytearray(f.read())
        data[len(data) // 2] ^= 1
        write(f"{c.base}/bad", bytes(data))
        c.zonal("target", "import", *at, "1", "--from", f"{c.base}/bad", "--force", code=5)
        c.zonal("target", "export", *at, "1", "--to", again, "--force")
        true(contents_of(again) == contents_of(one), "a refused import changed something")
        store = f"{c.folder}/storage1-1/target"
        c.zonal("target", "ls", "--dir", store, code=6)
        c.down()
        stopped = f"{c.base}/stopped.out"
        c.zonal("target", "export", "--dir", store, "--to", stopped)
        true(contents_of(stopped) == contents_of(one), "a stopped target gives other bytes than a running one")
        # A damaged block is left out and named; the rest is there. The import wrote the bytes to new
        # places, so every place that holds the block is damaged.
        block = contents_of(one)[(number, columns_of(one, number))][8192:12288]
        found = 0
        for name in os.listdir(f"{store}/segments"):
            with open(f"{store}/segments/{name}", "r+b") as f:
                data = f.read()
                place = data.find(block)
                while place >= 0:
                    found += 1
                    f.seek(place + 5)
                    f.write(bytes([data[place + 5] ^ 1]))
                    place = data.find(block, place + 1)
        true(found in (1, 2), f"the block lies in {found} places")
        damaged = f"{c.base}/damaged.out"
        told = c.json("target", "export", "--dir", store, "--to", damaged, "--json", code=1)
        equal([(d["data_id"], d["offset"], d["length"]) for d in told["damaged"]], [(number, 8192, 4096)], "what is damaged")
        before, after = contents_of(one), contents_of(damaged)
        key = (number, columns_of(one, number))
        expected = bytearray(before[key])
        expected[8192:12288] = bytes(4096)
        true(after.pop(key) == bytes(expected) and before.pop(key) and after == before, "more than the block is missing")


def columns_of(stream, number):
    """The one column of a file in a stream."""
    return next(column for data_id, column in contents_of(stream) if data_id == number)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def joining(c, zone):
    """Starts a server of a new zone with a shard and a target; it ends with the caller."""
    manager = open(f"{c.folder}/manager/node.toml", encoding="utf-8").read()
    cell = re.search(r'^cell = "(.*)"', manager, re.M)[1]
    address = re.search(r'^listen = "(.*)"', manager, re.M)[1]
    configs = []
    for node, role in ((91, "[meta]\n"), (92, "[storage]\ntarget = 92\ncapacity = \"1 GiB\"\n")):
        folder = f"{c.base}/joining-{node}"
        os.mkdir(folder)
        write(f"{folder}/node.toml", f"""cell = "{cell}"
node = {node}
listen = "127.0.0.1:{free_port()}"
manager_address = "{address}"
key_file = "{folder}/node.key"
dir = "{folder}/store"
[zone]
id = {zone}
{role}""".encode())
        os.mkdir(f"{folder}/store")
        c.zonal("key", "create", "--cell", c.folder, "--node", str(node), "--roles", "meta,storage", "--to", f"{folder}/node.key")
        configs += ["--config", f"{folder}/node.toml"]
    log = open(f"{c.base}/joining.log", "wb")
    return subprocess.Popen([ZONAL, "server", "--format", *configs], stdout=log, stderr=log)


def soon(function, seconds=20):
    end = time.monotonic() + seconds
    while not function():
        true(time.monotonic() < end, f"not within {seconds} s")
        time.sleep(0.05)


@check("zone-joins", "mounts from before a zone joined use it: files, and locks that wait in it", limit=120)
def _(work):
    with OwnCell(work) as c:
        second = f"{c.base}/second"
        os.mkdir(second)
        c.zonal("mount", "--cell", c.folder, second)
        server = joining(c, 3)
        try:
            # The zone's shard joins first; until its target has joined, the zone has no space.
            soon(lambda: any(t["id"] == 92 for t in c.json("zone-map", "show", "--cell", c.folder, "--json")["targets"]))
            c.zonal("mkdir", "--zone", "3", f"{c.mount}/three")
            data = os.urandom(3 * MIB)
            write(f"{c.mount}/three/f", data)
            with open(f"{second}/three/f", "r+b") as there, open(f"{c.mount}/three/f", "r+b") as here:
                true(there.read() == data, "the second mount reads other bytes")
                fcntl.flock(here, fcntl.LOCK_EX)
                waiter = threading.Thread(target=fcntl.flock, args=(there, fcntl.LOCK_EX), daemon=True)
                waiter.start()
                waiter.join(1)
                true(waiter.is_alive(), "the lock is not exclusive")
                fcntl.flock(here, fcntl.LOCK_UN)
                waiter.join(10)
                true(not waiter.is_alive(), "the waiter hears of no grant")
        finally:
            subprocess.run([ZONAL, "umount", "--force", second], capture_output=True, timeout=60, check=False)
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    run("upkeep", R, __doc__)
