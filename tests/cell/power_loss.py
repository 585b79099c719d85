#!/usr/bin/env python3
"""State of a cell after a power loss; each store is on a disk that drops unflushed data
(zonal-faultfs).

    tests/cell/power_loss.py [--only PART,...] [--long] [--list]

Makes a cell of its own (1 zone, 2 targets) in a temporary folder, with the folders of the shard and
of both targets on disks of their own. Stops it at the end. ZONAL and FAULTFS name the binaries.
Root only.
"""
import errno
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, equal, true  # noqa: E402
from failing import MIB, ZONAL, bytes_of, drop, fresh, lose_power, run, run_checks, same, save, told, wait_for  # noqa: E402

R = Registry()
check = R.check


# Ways to make writes durable: flags of the open, and a call after the writes.
WAYS = {"fsync": (0, os.fsync), "fdatasync": (0, os.fdatasync), "O_SYNC": (os.O_SYNC, None), "O_DSYNC": (os.O_DSYNC, None)}


def check_power(c, d, rounds):
    known, ways = {}, random.Random("ways")
    for seed in range(rounds):
        rng = random.Random(seed)
        for number in range(12):
            path, size = f"{d}/f{rng.randrange(20)}", rng.choice([1, 5000, 70_000, 3 * MIB])
            data = bytes_of(seed * 100 + number, size)
            if rng.random() < 0.5:
                way = ways.choice(list(WAYS.values()))
                try:
                    save(path, data, *way)
                except OSError as e:
                    # An error once: data of this file from before the loss that was not flushed may
                    # be gone.
                    equal(errno.errorcode[e.errno], "EIO", "the error of an fsync after a loss of power")
                    save(path, data, *way)
                known[path] = data
            else:
                # Not flushed: old or new bytes may be left; the file is not checked any more.
                known.pop(path, None)
                with open(path, "wb", buffering=0) as f:
                    f.write(data)
        fd = os.open(d, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        lose_power(c, seed)
        for path, data in known.items():
            same(path, data, f"round {seed}: {os.path.basename(path)}")
    print(f"  {rounds} losses of power, {len(known)} files compared at the end", flush=True)


@check("power-loss", "fsynced data survives a loss of power on all disks, whatever else they keep", limit=300)
def _(c, d):
    check_power(c, d, 3)


@check("power-loss-root", "fsync of the mount's root directory alone keeps what was written before it over a loss of power on all disks, also where the mount's process goes", limit=300)
def _(c, d):
    # Errors of earlier losses are reported once, here.
    top = os.open(c.mount, os.O_RDONLY | os.O_DIRECTORY)
    told(os.fsync, top)
    os.close(top)
    for turn in range(3):
        made, fds = {}, []
        for number, size in enumerate((1, 5000, 70_000, 3 * MIB + 5, 200_000)):
            path = f"{d}/root{turn}-{number}"
            made[path] = bytes_of(7000 + turn * 10 + number, size)
            fds.append(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            os.write(fds[-1], made[path])
        os.close(fds.pop())
        top = os.open(c.mount, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(top)
        os.close(top)
        # The last time the mount is killed too, and cannot send anything again.
        lose_power(c, 100 + turn, with_mount=turn == 2)
        if turn == 2:
            drop(fds)
        for path, data in made.items():
            same(path, data, f"turn {turn}: {os.path.basename(path)}")
        for fd in fds if turn < 2 else ():
            os.close(fd)


@check("power-loss-ways", "data made durable by fdatasync, O_SYNC and O_DSYNC survives a loss of power on all disks that takes the mount's process, too: bytes and size, over older bytes and after them", limit=300)
def _(c, d):
    for turn, way in enumerate(("fdatasync", "O_SYNC", "O_DSYNC")):
        flags, call = WAYS[way]
        made, fds = {f"{d}/{way}-{size}": bytes_of(8000 + size, size) for size in (100, 5000, 70_000, 3 * MIB + 5)}, []
        for path, old in made.items():
            save(path, old)
        # Each is made durable alone; no later flush covers the last one.
        for path, old in made.items():
            middle, behind = bytes_of(8100 + turn, len(old) // 3), bytes_of(8200 + turn, MIB // 2)
            fds.append(os.open(path, os.O_WRONLY | flags))
            os.pwrite(fds[-1], middle, len(old) // 3)
            os.pwrite(fds[-1], behind, len(old))
            if call:
                call(fds[-1])
            made[path] = old[:len(old) // 3] + middle + old[len(old) // 3 + len(middle):] + behind
        lose_power(c, 200 + turn, with_mount=True)
        drop(fds)
        for path, data in made.items():
            same(path, data, os.path.basename(path))


def acl_of(path, name="access"):
    try:
        return os.getxattr(path, f"system.posix_acl_{name}")
    except OSError as e:
        equal(errno.errorcode[e.errno], "ENODATA", "the error of a missing ACL")
        return b""


def xattr_of(path):
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}


def what_is_there(path):
    """Type, size, links and target of a name; None if it is missing."""
    try:
        s = os.lstat(path)
    except FileNotFoundError:
        return None
    return s.st_mode >> 12, s.st_size, s.st_nlink, os.readlink(path) if os.path.islink(path) else ""


def changes(d):
    """Makes durable files, then returns the changes: (name, function, check of what it changes)."""
    for name in ("linked", "moved", "over", "replaced", "gone", "attribute", "no-attribute", "acl", "mode", "owner", "times", "cut", "longer"):
        save(f"{d}/{name}", name.encode() * 1000)
    for name in ("removed", "default-acl"):
        os.mkdir(f"{d}/{name}")
    os.setxattr(f"{d}/no-attribute", "user.k", b"value")
    sync_folder(d)

    def mode_and_owner(path):
        s = os.stat(path)
        return s.st_mode, s.st_uid, s.st_gid
    two = ("moved", "moved-here"), ("over", "replaced")
    return [
        ("link", lambda: os.link(f"{d}/linked", f"{d}/link"), lambda: [what_is_there(f"{d}/{n}") for n in ("linked", "link")]),
        ("symlink", lambda: os.symlink("where/it/points", f"{d}/symlink"), lambda: what_is_there(f"{d}/symlink")),
        ("mkdir", lambda: os.mkdir(f"{d}/dir"), lambda: what_is_there(f"{d}/dir")),
        ("rmdir", lambda: os.rmdir(f"{d}/removed"), lambda: what_is_there(f"{d}/removed")),
        ("rename", lambda: os.rename(*(f"{d}/{n}" for n in two[0])), lambda: [what_is_there(f"{d}/{n}") for n in two[0]]),
        ("rename over a name", lambda: os.rename(*(f"{d}/{n}" for n in two[1])), lambda: [what_is_there(f"{d}/{n}") for n in two[1]]),
        ("unlink", lambda: os.unlink(f"{d}/gone"), lambda: what_is_there(f"{d}/gone")),
        ("mkfifo", lambda: os.mkfifo(f"{d}/fifo"), lambda: what_is_there(f"{d}/fifo")),
        ("setxattr", lambda: os.setxattr(f"{d}/attribute", "user.k", b"v" * 3000), lambda: xattr_of(f"{d}/attribute")),
        ("removexattr", lambda: os.removexattr(f"{d}/no-attribute", "user.k"), lambda: xattr_of(f"{d}/no-attribute")),
        ("setfacl", lambda: run("setfacl", "-m", "u:12345:rw,g:12346:r", f"{d}/acl"), lambda: acl_of(f"{d}/acl")),
        ("setfacl -d", lambda: run("setfacl", "-d", "-m", "u:12345:rwx", f"{d}/default-acl"), lambda: acl_of(f"{d}/default-acl", "default")),
        ("chmod", lambda: os.chmod(f"{d}/mode", 0o4751), lambda: mode_and_owner(f"{d}/mode")),
        ("chown", lambda: os.chown(f"{d}/owner", 12345, 12346), lambda: mode_and_owner(f"{d}/owner")),
        ("utimens", lambda: os.utime(f"{d}/times", ns=(123_456_789, 987_654_321)), lambda: os.stat(f"{d}/times").st_mtime_ns),
        ("truncate", lambda: os.truncate(f"{d}/cut", 1234), lambda: os.stat(f"{d}/cut").st_size),
        ("a longer truncate", lambda: os.truncate(f"{d}/longer", 123_456), lambda: os.stat(f"{d}/longer").st_size),
    ]


def sync_folder(d):
    fd = os.open(d, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


@check("power-loss-names", "names, links, symlinks, attributes, ACLs, modes, owners, times and sizes are there after a loss of power when the directory, or any file of the shard, was fsynced", limit=300)
def _(c, d):
    ways = {"the directory": lambda folder: sync_folder(folder), "a file of the shard": lambda folder: save(f"{d}/any", b"any")}
    for turn, (what, sync) in enumerate([*ways.items()] * 2):
        folder = f"{d}/{turn}"
        os.mkdir(folder)
        every = changes(folder)
        old = [look() for _, _, look in every]
        for _, act, _ in every:
            act()
        new = [look() for _, _, look in every]
        true(all(one != other for one, other in zip(old, new)), "a change that changes nothing")
        sync(folder)
        lose_power(c, 300 + turn, with_mount=True)
        for (name, _, look), wanted in zip(every, new):
            equal(look(), wanted, f"{name}, {what} fsynced")


@check("power-loss-names-prefix", "without any fsync the same changes are a prefix after a loss of power: up to one of them all are done, behind it none", limit=300)
def _(c, d):
    for turn in range(3):
        folder, left = f"{d}/{turn}", []
        os.mkdir(folder)
        every = changes(folder)
        # Some of them are flushed for other reasons; the changes before them must be there, too.
        every = every[6 * turn:] + every[:6 * turn]
        old = [look() for _, _, look in every]
        for _, act, _ in every:
            act()
        new = [look() for _, _, look in every]
        lose_power(c, 310 + turn, with_mount=True)
        for (name, _, look), before, after in zip(every, old, new):
            found = look()
            true(found in (before, after), f"{name}: neither {before} nor {after} but {found}")
            left.append(found == after)
        print(f"  {sum(left)} of {len(left)} changes are left", flush=True)
        equal(left, sorted(left, reverse=True), f"which of the changes are left in turn {turn}")


@check("power-loss-truncations", "after a loss of power a file that was truncated or made longer has the new size where it was fsynced, else the old or the new one, and the bytes that belong to it", limit=300)
def _(c, d):
    # Truncates to these lengths, one after the other.
    steps = ((0,), (100,), (5000,), (MIB + 4097,), (3 * MIB,), (100, 2 * MIB), (MIB + 5, 0, 70_000))
    for turn, is_synced in enumerate((False, False, True, True)):
        states, fds, left = {}, [], []
        for number, lengths in enumerate(steps):
            path = f"{d}/cut{turn}-{number}"
            states[path] = [bytes_of(9000 + number, 2 * MIB + 777)]
            save(path, states[path][0])
        for path, lengths in zip(states, steps):
            fds.append(os.open(path, os.O_RDWR))
            for number, length in enumerate(lengths):
                os.truncate(path, length) if number % 2 else os.ftruncate(fds[-1], length)
                states[path].append(states[path][-1][:length].ljust(length, b"\0"))
            if is_synced:
                os.fsync(fds[-1])
                del states[path][:-1]
        lose_power(c, 320 + turn, with_mount=True)
        drop(fds)
        for path, allowed in states.items():
            found = fresh(path)
            left.append(allowed.index(found) if found in allowed else None)
            true(found in allowed, f"{os.path.basename(path)}, fsynced {is_synced}: {len(found)} bytes, {[len(one) for one in allowed]} fit, or others")
        print(f"  fsynced {is_synced}: lengths that are left {left}", flush=True)


# Takes a lock of a kind and reports it. For each input line it writes a byte and fsyncs it. Ends
# with its input.
HOLDER = """import fcntl,os,struct,sys
f = open(sys.argv[1], 'rb+', buffering=0)
take = {'flock': lambda: fcntl.flock(f, fcntl.LOCK_EX), 'fcntl': lambda: fcntl.lockf(f, fcntl.LOCK_EX),
        'ofd': lambda: fcntl.fcntl(f, 38, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))}[sys.argv[2]]
take(); print('held', flush=True)
for line in sys.stdin: f.write(b'x'); os.fsync(f.fileno()); print('wrote', flush=True)
"""


@check("power-loss-locks", "locks are held over a loss of power of all servers: others are refused through another mount, and a waiter gets the lock when its holder ends", limit=300)
def _(c, d):
    other, holders, waiters = f"{c.work}/mnt-locks", {}, {}
    os.mkdir(other)
    run(ZONAL, "mount", "--cell", c.dir, other)
    e = f"{other}/{os.path.relpath(d, c.mount)}"

    def start(path, kind):
        return subprocess.Popen([sys.executable, "-c", HOLDER, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def is_free(kind):
        with open(f"{e}/{kind}", "rb+") as f:
            try:
                (fcntl.flock if kind == "flock" else fcntl.lockf)(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
    try:
        for kind in ("flock", "fcntl", "ofd"):
            save(f"{d}/{kind}", b"")
            holders[kind] = start(f"{d}/{kind}", kind)
            equal(holders[kind].stdout.readline(), b"held\n", "the first lock")
            waiters[kind] = start(f"{e}/{kind}", kind)
        wait_for("waiters that wait", lambda: not any(is_free(kind) for kind in holders))
        time.sleep(0.5)
        lose_power(c, 400)
        for kind, holder in holders.items():
            true(not is_free(kind), f"{kind}: the lock was given away")
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            equal(holder.stdout.readline(), b"wrote\n", f"{kind}: a write and fsync of the holder")
            equal(waiters[kind].poll(), None, f"{kind}: the status of who waits")
            equal(select.select([waiters[kind].stdout], [], [], 0)[0], [], f"{kind}: what who waits has")
        for kind, holder in holders.items():
            holder.communicate(timeout=20)
            equal(holder.returncode, 0, f"{kind}: status of the holder")
            equal(waiters[kind].stdout.readline(), b"held\n", f"{kind}: the lock of who waited")
            true(not is_free(kind), f"{kind}: two have the lock")
            waiters[kind].communicate(timeout=20)
            equal((waiters[kind].returncode, os.stat(f"{d}/{kind}").st_size), (0, 1), f"{kind}: status of who waited, and size")
            wait_for("a lock that nobody has", lambda kind=kind: is_free(kind))
    finally:
        for process in (*holders.values(), *waiters.values()):
            process.kill()
        run(ZONAL, "umount", "--force", other, ok=False)


@check("power-loss-many", "fsynced data survives forty losses of power on all disks", long=True, limit=2400)
def _(c, d):
    check_power(c, d, 40)


if __name__ == "__main__":
    run_checks(R, "power loss", __doc__.split("\n", 1)[0])
