#!/usr/bin/env python3
"""Checks of a whole cell: places of bytes, traffic of servers, effects of damage and loss.

    tests/cell/checks.py --cell DIR --mount PATH [--second-mount PATH] [--only PART,...] [--list]

The cell is one that `zonal up` made (2 zones, 3 storage nodes each), with the directories `one` and
`two` at its top, homed in zones 1 and 2. ZONAL names the binary. Root only: it reads and damages
the cell's own files, and stops its processes.
"""
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from cell import MIB, data_id, run  # noqa: E402
from checks import Registry, equal, fails, pattern, read, reap, true, write, write_all  # noqa: E402

R = Registry()
check = R.check


def per_target(record):
    """The bytes on each target, from any form of the list."""
    targets = record.get("targets")
    if isinstance(targets, dict):
        return sorted(v if isinstance(v, int) else v["bytes"] for v in targets.values())
    return sorted(t["bytes"] if isinstance(t, dict) else t[1] for t in targets)


def per_zone(record):
    zones = record.get("zones") or record.get("bytes_per_zone")
    if isinstance(zones, dict):
        pairs = zones.items()
    else:
        pairs = [(z.get("zone", z.get("id")), z["bytes"]) if isinstance(z, dict) else z for z in zones]
    return {int(re.sub(r"\D", "", str(k))): v for k, v in pairs if v}


def big(path, mib):
    """Writes and syncs a file of random-looking bytes; returns its digest."""
    digest, block = hashlib.blake2b(), os.urandom(MIB)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    for i in range(mib):
        data = i.to_bytes(8, "little") + block[8:]
        write_all(fd, data)
        digest.update(data)
    os.fsync(fd)
    os.close(fd)
    return digest.hexdigest()


def digest_of(path):
    digest = hashlib.blake2b()
    with open(path, "rb", buffering=0) as f:
        while part := f.read(MIB):
            digest.update(part)
    return digest.hexdigest()


def drop_caches():
    subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, check=True)


# Number of first bytes of a file that its shard stores.
INLINE = 4096


def on_targets(c, path):
    """Bytes of a file on each target, as the targets report them: {target: bytes}.

    (`zonal locate` would compute them from the size.)
    """
    number, found = data_id(path), {}
    for target in range(1, 7):
        lines = c.zonal("target", "ls", "--json", "--cell", c.folder, "--target", str(target)).stdout.splitlines()
        for line in map(json.loads, lines):
            if line["data_id"] == number:
                found[target] = found.get(target, 0) + line["allocated_bytes"]
    return found


@check("striping-even", "96 MiB lie as 32 + 32 + 32 MiB on the three targets of one zone (the first 4 KiB in its shard), as the targets say and as `zonal locate` does", limit=120)
def _(c, d):
    for zone, name in ((1, "one"), (2, "two")):
        path = f"{c.mount}/{name}/even"
        big(path, 96)
        record = c.locate(path)
        equal(sorted(b for b in per_target(record) if b), [32 * MIB - INLINE] + [32 * MIB] * 2, "bytes per target")
        equal(per_zone(record), {zone: 96 * MIB}, "bytes per zone")
        stored = on_targets(c, path)
        equal(sorted(stored.values()), [32 * MIB - INLINE] + [32 * MIB] * 2, "bytes that the targets have")
        equal({str(target): size for target, size in stored.items()}, record["targets"], "bytes of each target, as it says and as `zonal locate` does")
        equal(set(stored), {3 * zone - 2, 3 * zone - 1, 3 * zone}, "targets, in the order in which zones have them")
        os.unlink(path)


@check("striping-spread", "a file of one stripe unit takes one target, and many small files take all of them", limit=120)
def _(c, d):
    seen = set()
    for i in range(30):
        write(f"{d}/s{i}", b"x" * 65536)
        record = c.locate(f"{d}/s{i}")
        used = [b for b in per_target(record) if b]
        true(len(used) == 1, f"a file of 64 KiB lies on {len(used)} targets: {record}")
        seen |= {target for target, size in record["targets"].items() if size}
    equal(len(seen), 3, "targets of 30 small files")


@check("small-files", "a file of 4 KiB lies in the shard of its zone alone, and grows from there", limit=120)
def _(c, d):
    data = os.urandom(3 * INLINE)
    write(f"{d}/f", data[:INLINE])
    record = c.locate(f"{d}/f")
    equal((sum(per_target(record)), sum(per_zone(record).values())), (0, INLINE), "bytes at targets and in zones")
    equal(os.stat(f"{d}/f").st_blocks, 8, "blocks")
    with open(f"{d}/f", "ab") as f:
        f.write(data[INLINE:])
    equal(sum(per_target(c.locate(f"{d}/f"))), 2 * INLINE, "bytes at targets")
    drop_caches()
    true(read(f"{d}/f") == data, "the file is not what was written")


@check("layout-inherited", "a stripe unit and count set on a directory hold for what is made below it", limit=120)
def _(c, d):
    os.makedirs(f"{d}/s")
    c.zonal("layout", "set", "--stripe-unit", "64KiB", "--stripe-count", "1", f"{d}/s")
    os.mkdir(f"{d}/s/deeper")
    big(f"{d}/s/deeper/f", 6)
    equal([b for b in per_target(c.locate(f"{d}/s/deeper/f")) if b], [6 * MIB - INLINE], "bytes per target with stripe count 1")
    c.zonal("layout", "set", "--stripe-unit", "64KiB", "--stripe-count", "3", f"{d}/s")
    big(f"{d}/s/g", 6)
    equal(sorted(b for b in per_target(c.locate(f"{d}/s/g")) if b), [2 * MIB - INLINE] + [2 * MIB] * 2, "bytes per target with stripe count 3")
    shown = json.loads(c.zonal("layout", "show", "--json", f"{d}/s").stdout)
    equal([(one["path"], one["unit"], one["count"]) for one in shown], [(f"{d}/s", 64 << 10, 3)], "layout as JSON")
    bad = c.zonal("layout", "set", "--stripe-unit", "1KiB", f"{d}/s", ok=False)
    true(bad.returncode != 0, "a stripe unit of 1 KiB is accepted")
    os.mkdir(f"{d}/t")
    before = c.zonal("layout", "show", f"{d}/s", f"{d}/t").stdout
    bad = c.zonal("layout", "set", "--stripe-count", "99", f"{d}/t", f"{d}/s", ok=False)
    equal(bad.returncode, 2, "exit of a stripe count above the targets of the zone")
    true("3 targets; nothing was changed" in bad.stderr and "Hint: " in bad.stderr, f"what is said: {bad.stderr}")
    fails(errno.ERANGE, os.setxattr, f"{d}/t", "zonal.layout", b"count=4")
    equal(c.zonal("layout", "show", f"{d}/s", f"{d}/t").stdout, before, "layouts")
    for every in ("0", "all"):
        c.zonal("layout", "set", "--stripe-count", every, f"{d}/t")


@check("layout-apply", "existing files get as many copies as their directory has by now, more or fewer; a second run changes none", limit=600)
def _(c, d):
    os.mkdir(f"{d}/s")
    names = [f"{d}/s/f{i}" for i in range(3)]
    data = [pattern(i, MIB + 777) for i in range(3)]
    for name, content in zip(names, data):
        write(name, content)

    def stored():
        return sum(sum(on_targets(c, name).values()) for name in names)

    one = stored()
    for copies, more, fewer in ((3, 3, 0), (1, 0, 3), (2, 3, 0), (1, 0, 3)):
        c.zonal("layout", "set", "--copies", str(copies), f"{d}/s")
        end = time.monotonic() + 120
        # Files of which copies are still made are named, and passed over.
        done = c.zonal("layout", "apply", "-r", "--json", f"{d}/s", ok=False)
        counts = json.loads(done.stdout)
        changed = (counts["more"], counts["fewer"])
        while done.returncode and time.monotonic() < end:
            time.sleep(0.5)
            done = c.zonal("layout", "apply", "-r", "--json", f"{d}/s", ok=False)
            counts = json.loads(done.stdout)
            changed = (changed[0] + counts["more"], changed[1] + counts["fewer"])
        equal(changed, (more, fewer), f"files that get more and fewer copies, for {copies}")
        again = json.loads(c.zonal("layout", "apply", "-r", "--json", f"{d}/s").stdout)
        equal((again["changed"], again["unchanged"]), (0, 3), "counts of a second run")
        while stored() != copies * one and time.monotonic() < end:
            time.sleep(0.5)
        equal(stored(), copies * one, f"bytes that targets store with {copies} copies")
        drop_caches()
        for name, content in zip(names, data):
            true(read(name) == content, f"{name} is not what was written")


@check("stripe-units", "stripe units of 64 KiB and of 64 MiB are stored as set; a smaller or larger unit, or no power of two, is refused")
def _(c, d):
    for unit in (64 << 10, 64 * MIB):
        os.mkdir(f"{d}/{unit}")
        c.zonal("layout", "set", "--stripe-unit", f"{unit >> 10} KiB", f"{d}/{unit}")
        # At the start, after it, at the end of the first unit, in the second, the third, and in the
        # fourth, which is on the first target again.
        places = {0: 0, INLINE: 0, unit - INLINE: 0, unit: 1, 3 * unit - 2 * INLINE: 2, 3 * unit - INLINE: 2, 3 * unit: 0, 3 * unit + INLINE: 0}
        fd = os.open(f"{d}/{unit}/f", os.O_CREAT | os.O_RDWR, 0o644)
        for number, at in enumerate(places):
            write_all(fd, pattern(number, INLINE), at)
        os.fsync(fd)
        drop_caches()
        for number, at in enumerate(places):
            equal(os.pread(fd, INLINE, at), pattern(number, INLINE), f"bytes at {at}")
        os.close(fd)
        columns = [sum(INLINE for at, column in places.items() if at and column == wanted) for wanted in range(3)]
        equal(sorted(on_targets(c, f"{d}/{unit}/f").values()), sorted(columns), f"bytes that the targets have, with a unit of {unit}")
    os.mkdir(f"{d}/refused")
    before = c.zonal("layout", "show", f"{d}/refused").stdout
    for unit in (32 << 10, 96 << 10, 65 * MIB, 128 * MIB):
        bad = c.zonal("layout", "set", "--stripe-unit", f"{unit >> 10} KiB", f"{d}/refused", ok=False)
        equal(bad.returncode, 2, f"exit of a stripe unit of {unit >> 10} KiB")
        fails(errno.EINVAL, os.setxattr, f"{d}/refused", "zonal.layout", b"unit=%d" % unit)
    equal(c.zonal("layout", "show", f"{d}/refused").stdout, before, "layout of the directory that was refused all of them")


@check("locate-recursive", "`zonal locate --recursive` adds up what single files say, in each zone, without following links", limit=120)
def _(c, d):
    os.makedirs(f"{d}/a/b")
    for name, size in (("f", 3), ("a/g", 2), ("a/b/h", 1)):
        big(f"{d}/{name}", size)
    write(f"{d}/a/small", b"x" * INLINE)
    os.symlink(d, f"{d}/a/loop")
    one = c.locate(d)
    equal((one["home_zone"], one["zones"]), (1, {}), "a directory alone")
    [all_of] = json.loads(c.zonal("locate", "--recursive", "--json", d).stdout)
    equal((all_of["home_zone"], all_of["files"], all_of["directories"]), (1, 4, 2), "home zone, files, directories")
    equal(per_zone(all_of), {1: 6 * MIB + INLINE}, "bytes per zone")
    singles = [c.locate(f"{d}/{name}") for name in ("f", "a/g", "a/b/h", "a/small")]
    equal(sum(per_target(all_of)), sum(sum(per_target(one)) for one in singles), "bytes at targets")
    said = c.zonal("locate", "--recursive", d).stdout
    true("home zone 1; files 4, directories 2 below; bytes in zones 1: 6.0 MiB" in said, said)


@check("names-shown", "reports show a name of any bytes on one line, with \\\\xNN for what cannot be printed", limit=60)
def _(c, d):
    odd = os.fsencode(d) + b"/\xff\nhome: home zone 9\x1b[31m\\"
    os.mkdir(odd)
    shown = d + r"/\xff\x0ahome: home zone 9\x1b[31m\\"
    equal(c.zonal("locate", os.fsdecode(odd)).stdout, f"{shown}: home zone 1\n", "locate")
    equal(c.locate(os.fsdecode(odd))["path"], shown, "path of locate --json")
    said = c.zonal("layout", "show", os.fsdecode(odd)).stdout
    true(said.startswith(f"{shown}: ") and said.count("\n") == 1, said)
    text = d + "/a\nb\\c"
    os.mkdir(text)
    equal(c.locate(text)["path"], text, "what is text stays itself in JSON")
    top = f"{c.mount}/top\nlevel"
    os.mkdir(top)
    try:
        lines = c.zonal("zone-map", "show", "--cell", c.folder).stdout.splitlines()
        true(r"/top\x0alevel is homed in zone 1" in lines, "zone-map show")
    finally:
        os.rmdir(top)


@check("home-zones", "first-level directories are homed in the given zone, or in the mount's; deeper ones inherit", limit=120)
def _(c, d):
    homes = []
    for top, how in (("h1", None), ("h2", 2)):
        path = f"{c.mount}/{top}"
        shutil.rmtree(path, ignore_errors=True)
        if how:
            c.zonal("mkdir", "--zone", str(how), path)
        else:
            os.mkdir(path)
        os.makedirs(f"{path}/a/b")
        big(f"{path}/a/b/f", 3)
        homes.append(per_zone(c.locate(f"{path}/a/b/f")))
        shutil.rmtree(path)
    equal(homes, [{1: 3 * MIB}, {2: 3 * MIB}], "bytes per zone")
    if c.second:
        os.mkdir(f"{c.second}/h3")
        big(f"{c.second}/h3/f", 3)
        equal(per_zone(c.locate(f"{c.mount}/h3/f")), {2: 3 * MIB}, "made through the mount of zone 2")
        shutil.rmtree(f"{c.mount}/h3")


@check("rename-between-zones", "rename and link between zones are EXDEV; mv copies")
def _(c, d):
    a, b = f"{c.mount}/one/xdev", f"{c.mount}/two/xdev"
    write(a, pattern(1, 100_000))
    fails(errno.EXDEV, os.rename, a, b)
    fails(errno.EXDEV, os.link, a, b)
    subprocess.run(["mv", a, b], check=True)
    true(read(b) == pattern(1, 100_000) and not os.path.exists(a), "mv")
    os.unlink(b)


@check("data-passes-no-metadata-server", "512 MiB of data, half of them in a zone that is not the mount's, move under 2 MiB through each metadata server", limit=300)
def _(c, d):
    names = ("zonal_net_bytes_in", "zonal_net_bytes_out")
    servers = [n for n in c.nodes() if n.startswith(("meta", "manager"))]

    def traffic():
        out = {}
        for s in servers:
            found = [v for k, v in c.metrics(s).items() if k.split("{")[0].removesuffix("_total") in names]
            true(found, f"{s} has no metric {' or '.join(names)}")
            out[s] = sum(found)
        return out
    elsewhere = f"{c.mount}/two/data-passes"
    before = traffic()
    try:
        for zone, path in ((1, f"{d}/f"), (2, elsewhere)):
            want = big(path, 128)
            drop_caches()
            equal(digest_of(path), want, "digest")
            equal(per_zone(c.locate(path)), {zone: 128 * MIB}, "bytes per zone")
        for server, now in traffic().items():
            moved = now - before[server]
            true(moved < 2 * MIB, f"{moved / MIB:.1f} MiB passed {server}")
    finally:
        os.unlink(elsewhere)


@check("scattered-writes", "8,000 writes of 256 bytes, each in a block of its own, are under 120 messages to the targets; another mount writes and `zonal status` is answered meanwhile", limit=180)
def _(c, d):
    rounds, pieces = 3, 8000
    servers = [n for n in c.nodes() if n.startswith("storage")]
    true(len(servers) == 6, f"storage nodes are {servers}")

    def messages():
        per_server = [c.metrics(s).items() for s in servers]
        is_write = re.compile(r'zonal_request_seconds_count\{.*operation="Write(Ranges)?"')
        return sum(v for metrics in per_server for k, v in metrics if is_write.match(k))
    contents = [pattern(seed, 256) for seed in range(251)]
    before, child = messages(), os.fork()
    if not child:
        try:
            for number in range(rounds):
                fd = os.open(f"{d}/scattered", os.O_WRONLY | os.O_CREAT)
                for piece in range(pieces):
                    os.pwrite(fd, contents[(number + piece) % 251], piece * 4096 + 700)
                os.fsync(fd)
                os.close(fd)
            os._exit(0)
        finally:
            os._exit(1)
    other = (c.second or c.mount) + d[len(c.mount):] + "/beside"
    want = pattern(3, 8 * MIB)
    turns = 0
    while not turns or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        write(other, want)
        status = json.loads(c.zonal("status", "--cell", c.folder, "--json", limit=20).stdout)
        true(status["healthy"], f"status beside scattered writes: {status}")
        turns += 1
    equal(os.waitpid(child, 0)[1], 0, "status of the writer")
    # Sequential writes come by whole stripe units and the rest.
    sent = messages() - before - turns * 12
    true(sent < rounds * 120, f"{rounds * pieces} pieces took {sent} messages")
    true(read(other) == want, "what was written beside differs")
    with open(f"{d}/scattered", "rb") as f:
        for piece in range(pieces):
            f.seek(piece * 4096)
            block = f.read(4096)
            true(block[700:956] == contents[(rounds - 1 + piece) % 251], f"piece {piece} differs")
            true(not any(block[:700]) and not any(block[956:]), f"bytes beside piece {piece}")


@check("status-json", "zonal status --json lists zones, nodes and targets; the capacity of its targets is what df of the root says")
def _(c, d):
    status = json.loads(c.zonal("status", "--cell", c.folder, "--json").stdout)
    nodes = [node for zone in status["zones"] for node in zone["nodes"]]
    equal((len(status["zones"]), len(nodes), sum(len(node["targets"]) for node in nodes)), (2, 9, 6), "zones, nodes and targets")
    true(status["healthy"] and all(node["healthy"] for node in nodes), "a healthy cell is not said to be one")
    write(f"{d}/f", b"x" * 5 * MIB)
    end = time.monotonic() + 30
    while True:
        # Space that earlier checks freed may still come back.
        status, space = json.loads(c.zonal("status", "--cell", c.folder, "--json").stdout), os.statvfs(c.mount)
        targets = [target for zone in status["zones"] for node in zone["nodes"] for target in node["targets"]]
        told = [sum(target[key] for target in targets) for key in ("total_bytes", "free_bytes")]
        if told == [space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize]:
            break
        true(time.monotonic() < end, f"status says {told}, df {space}")
        time.sleep(0.2)
    true(all(0 < target["free_bytes"] < target["total_bytes"] for target in targets), f"targets: {targets}")


@check("zone-space", "df below a directory says the space and the inodes of its home zone, whichever zone the mount is in; of the root those of the cell", limit=120)
def _(c, d):
    status = json.loads(c.zonal("status", "--cell", c.folder, "--json").stdout)
    told = {zone["id"]: sum(target["total_bytes"] for node in zone["nodes"] for target in node["targets"]) for zone in status["zones"]}
    equal(sorted(told), [1, 2], "zones")

    def space(path):
        s = os.statvfs(path)
        return s.f_blocks * s.f_frsize

    def used(path):
        s = os.statvfs(path)
        return (s.f_blocks - s.f_bfree) * s.f_frsize
    for mount in filter(None, (c.mount, c.second)):
        equal([space(f"{mount}/{path}") for path in ("one", "two", "")], [told[1], told[2], told[1] + told[2]], f"bytes through {mount}")
        # Those in use: how many more fit changes with the disk, which others use, too.
        made = [f"{mount}/{zone}/zone-space{n}" for zone in ("one", "two") for n in range(3)]
        for path in made:
            write(path, b"")
        one, whole = (s.f_files - s.f_ffree for s in (os.statvfs(f"{mount}/one"), os.statvfs(mount)))
        # The root is one, too.
        true(3 <= one <= whole - 4, f"inodes of one zone and of all: {one}, {whole}")
        for path in made:
            os.unlink(path)
    big(f"{d}/f", 64)
    fd = os.open(f"{d}/f", os.O_RDONLY)
    equal(os.fstatvfs(fd).f_blocks, os.statvfs(d).f_blocks, "blocks by a descriptor")
    os.close(fd)
    other = used(f"{c.mount}/two")
    end = time.monotonic() + 30
    while used(d) < 60 * MIB:
        true(time.monotonic() < end, "what was written is not in df of its zone")
        time.sleep(0.2)
    true(used(f"{c.mount}/two") < other + 32 * MIB, "what was written is in df of the other zone")


@check("space-given-back", "space that a file took is in df at once and given back after unlink", limit=120)
def _(c, d):
    def free():
        s = os.statvfs(d)
        return s.f_bfree * s.f_frsize
    # Files that earlier checks removed are still being deleted: wait until nothing changes for four
    # seconds.
    end, start = time.monotonic() + 60, free()
    at_rest = time.monotonic() + 4
    while time.monotonic() < at_rest:
        time.sleep(0.2)
        if abs(start - free()) >= MIB:
            start, at_rest = free(), time.monotonic() + 4
        true(time.monotonic() < end, "the free space does not come to rest")
    big(f"{d}/f", 96)
    end = time.monotonic() + 15
    while start - free() < 80 * MIB:
        true(time.monotonic() < end, f"96 MiB written lowered the free space by {(start - free()) / MIB:.0f} MiB")
        time.sleep(0.2)
    os.unlink(f"{d}/f")
    end = time.monotonic() + 60
    while start - free() > 16 * MIB:
        true(time.monotonic() < end, f"{(start - free()) / MIB:.0f} MiB are still missing a minute after unlink")
        time.sleep(0.2)


@check("random-bytes", "a megabyte of random bytes thrown at each port changes nothing: no process ends, all files stay", limit=300)
def _(c, d):
    want, before = big(f"{d}/f", 8), c.alive()
    for name, (_pid, *ports) in c.nodes().items():
        for port in filter(None, ports):
            for size in (1, 128, 4096, MIB):
                throw(port, os.urandom(size))
            # A plausible start: zeros and ones, which pass checks without the real magic number.
            throw(port, bytes(4096))
            throw(port, b"\xff" * 4096)
    equal(c.alive(), before, "running processes")
    drop_caches()
    equal(digest_of(f"{d}/f"), want, "digest")
    c.works("one")
    c.works("two")


def throw(port, data):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.settimeout(5)
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass
    except OSError:
        pass


@check("flipped-byte", "a byte flipped on a target is EIO when read, never a wrong byte; the rest stays readable", limit=300)
def _(c, d):
    mark = os.urandom(4096)
    data = bytearray(os.urandom(3 * MIB))
    data[MIB + 8192:MIB + 12288] = mark
    write(f"{d}/f", data)
    fd = os.open(f"{d}/f", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    places = find_on_disk(c.folder, mark)
    poke(places, 2000, bytes([mark[2000] ^ 0x10]))
    try:
        drop_caches()
        fd = os.open(f"{d}/f", os.O_RDONLY)
        fails(errno.EIO, os.pread, fd, 4096, MIB + 8192)
        true(os.pread(fd, 65_536, 0) == data[:65_536], "another stripe unit differs")
        os.close(fd)
    finally:
        poke(places, 2000, mark[2000:2001])
    drop_caches()
    true(read(f"{d}/f") == data, "content after the byte was put right")


def poke(places, offset, data):
    """Overwrites bytes of files without the knowledge of the processes that have them open."""
    for path, at in places:
        with open(path, "r+b", buffering=0) as f:
            f.seek(at + offset)
            f.write(data)
            os.fsync(f.fileno())


def find_on_disk(folder, mark):
    """Files below the storage nodes that hold these bytes, with offsets: [(path, offset)]."""
    found = []
    for base, _dirs, files in os.walk(folder):
        for name in files:
            path = os.path.join(base, name)
            if "storage" not in path or name in ("log", "pid", "node.toml"):
                continue
            with open(path, "rb") as f:
                at, kept = 0, b""
                while part := f.read(8 * MIB):
                    hit = (kept + part).find(mark)
                    if hit >= 0:
                        found.append((path, at - len(kept) + hit))
                        break
                    at, kept = at + len(part), part[-4095:]
    true(found, "the data is in no file of a storage node")
    return found


@check("lost-server-no-hang", "a storage server that does not answer gives an error within its deadline, a killed reader ends, and all is well when it is back", limit=180)
def _(c, d):
    want = big(f"{d}/f", 6)
    stopped = [pid for name, (pid, *_) in c.nodes().items() if name.startswith("storage")]
    drop_caches()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        victim = subprocess.Popen(["cat", f"{d}/f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        victim.kill()
        true(reap(victim.pid, 3), "a reader does not die at SIGKILL")
        reader = subprocess.Popen(["cat", f"{d}/f"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _out, err = reader.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            reader.kill()
            raise AssertionError("a reader still waits after a minute") from None
        true(reader.returncode != 0 and err, "a read from servers that are stopped succeeded")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + 30
    while True:
        try:
            equal(digest_of(f"{d}/f"), want, "digest")
            break
        except OSError:
            true(time.monotonic() < end, "reads fail 30 s after the servers went on")
            time.sleep(0.5)


@check("servers-killed", "data written and closed survives the kill of every server process; zonal up starts them again and the mount works again", limit=300)
def _(c, d):
    want = big(f"{d}/big", 12)
    for i in range(200):
        write(f"{d}/f{i}", b"%d" % i * 100)
    os.rename(f"{d}/f0", f"{d}/renamed")
    for pid, *_ in c.nodes().values():
        os.kill(pid, signal.SIGKILL)
    c.zonal("up", "--dir", c.folder, "--mount", c.mount, limit=120)
    end = time.monotonic() + 30
    while True:
        try:
            names = os.listdir(d)
            break
        except OSError:
            true(time.monotonic() < end, "the mount does not answer 30 s after the restart")
            time.sleep(0.5)
    equal(sorted(names), sorted(["big", "renamed"] + [f"f{i}" for i in range(1, 200)]), "names")
    for i in range(1, 200):
        equal(read(f"{d}/f{i}"), b"%d" % i * 100, f"f{i}")
    drop_caches()
    equal(digest_of(f"{d}/big"), want, "digest")
    c.works("one")
    c.works("two")


def wake_ups(pid):
    """How often the threads of a process went to sleep so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="utf-8") as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))
    return total


@check("idle-cost", "an idle cell, with its mounts, wakes up less than 300 times a second and takes under 250 MiB of memory in all", limit=60)
def _(c, d):
    servers, mounts = [pid for pid, *_ in c.nodes().values()], c.mount_pids()
    true(len(mounts) >= 1 + bool(c.second), f"{len(mounts)} mount processes are recorded")
    pids = servers + mounts
    time.sleep(2)

    def cpu():
        total = 0
        for pid in pids:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                fields = f.read().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")
    start, woken, begun = cpu(), sum(map(wake_ups, pids)), time.monotonic()
    time.sleep(10)
    passed = time.monotonic() - begun
    share, woken = (cpu() - start) / passed, (sum(map(wake_ups, pids)) - woken) / passed

    def memory(some):
        """In use by processes: pages that several of them map, as of the program, count once in all."""
        total = 0
        for pid in some:
            with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
                total += next(int(line.split()[1]) for line in f if line.startswith("Pss:")) * 1024
        return total
    resident = memory(pids)
    print(f"  idle: {woken:.0f} wake-ups a second, {share * 100:.2f}% of a core, {resident / MIB:.0f} MiB of memory: {memory(servers) / MIB:.0f} MiB in {len(servers)} servers, "
          f"{memory(mounts) / MIB:.0f} MiB in {len(mounts)} mounts", flush=True)
    # What they cost in time depends on what runs beside; on a quiet machine under 1% of a core.
    true(woken < 300, f"{woken:.0f} wake-ups a second")
    true(share < 0.1, f"{share * 100:.2f}% of a core")
    true(resident < 250 * MIB, f"{resident / MIB:.0f} MiB of memory")


if __name__ == "__main__":
    run("cell", R, __doc__)
