#!/usr/bin/env python3
"""Mounting: as an ordinary user, by mount(8) and fstab, and of a cell named by an address.

    tests/cell/mounting.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own below DIR (2 zones, 2 storage nodes each) and a private mount name
space. ZONAL names the binary, fusermount3 is needed. Root only. Files that mounts by an address
leave in /run/zonal and /var/log/zonal are removed.
"""
import glob
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, Skip, equal, true  # noqa: E402
from own_cell import run  # noqa: E402
from private_mounts import PrivateCell  # noqa: E402

R = Registry()
check = R.check


def point(c, name="point"):
    path = f"{c.base}/{name}"
    os.makedirs(path, exist_ok=True)
    return path


def sample_lines(name):
    """The lines of a sample in deploy/ that are not comments."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", name), encoding="utf-8") as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def by_address(c, *options):
    return f"{c.address()}", "-o", ",".join((f"key-file={c.folder}/cell.key", *options))


@check("user-device", "if an ordinary user may not open /dev/fuse, a mount fails with the reason and a hint", root=True)
def _(work):
    with PrivateCell(work) as c:
        device = f"{c.base}/fuse"
        c.within("sh", "-c", f"touch {device} && chmod 600 {device} && mount --bind {device} /dev/fuse")
        done = c.within(c.binary, "up", "--dir", f"{c.home}/cell", "--mount", f"{c.home}/mnt", "--zones", "1", "--storage-nodes", "1",
                        user=True, code=1)
        true("/dev/fuse cannot be opened: permission denied" in done.stderr and "Hint: " in done.stderr, done.stderr)
        c.within(c.binary, "down", "--dir", f"{c.home}/cell", user=True)


@check("user", "an ordinary user brings a cell up in a folder of theirs, mounts it, works in it, unmounts it and takes it down", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        if not c.open_device():
            raise Skip("no device can be made here")
        cell, mnt = f"{c.home}/cell", f"{c.home}/mnt"
        c.within(c.binary, "up", "--dir", cell, "--mount", mnt, "--zones", "1", "--storage-nodes", "1", user=True)
        try:
            c.within("sh", "-c", f"mkdir {mnt}/d && echo hello >{mnt}/d/f && sync {mnt}/d/f", user=True)
            equal(c.within("cat", f"{mnt}/d/f", user=True).stdout, "hello\n", "content")
            [(source, kind, options)] = c.points(mnt)
            equal((source, kind), (cell, "fuse.zonal"), "the table of mounts")
            true("allow_other" not in options and "nosuid" in options, options)
            true(c.within("ls", mnt, code=None).returncode != 0, "root looks into a mount that is the user's alone")
            c.within(c.binary, "umount", mnt, user=True)
            equal(c.points(mnt), [], "mounts")
            refused = c.within(c.binary, "mount", "--cell", cell, "-o", "allow_other", mnt, user=True, code=1).stderr
            true("allow_other" in refused and "Hint: " in refused and "/etc/fuse.conf" in refused, refused)
            missing = c.within(c.binary, "mount", "--cell", cell, mnt, user=True, code=1, variables=[("PATH", "/nowhere")]).stderr
            true("fusermount3" in missing and "Hint: install the package fuse3" in missing, missing)
            with open(f"{cell}/cell.toml", encoding="utf-8") as f:
                address = next(line.split('"')[1] for line in f if line.startswith("manager"))
            c.within(c.binary, "mount", "--cell", address, "--key-file", f"{cell}/cell.key", mnt, user=True)
            equal(c.within("cat", f"{mnt}/d/f", user=True).stdout, "hello\n", "content by address")
            true(glob.glob(f"{c.home}/.local/state/zonal/*.log"), "a user's mount by address has no log")
            true(glob.glob(f"{c.home}/.local/state/zonal/mounts/*.toml"), "a user's mount by address has no record")
            c.within(c.binary, "umount", mnt, user=True)
            c.within("chmod", "700", point(c))
            foreign = c.within(c.binary, "mount", "--cell", cell, point(c), user=True, code=None)
            true(foreign.returncode in (1, 7) and "Hint: " in foreign.stderr, foreign.stderr)
            c.within(c.binary, "mount", "--cell", cell, mnt, user=True)
        finally:
            c.within(c.binary, "down", "--dir", cell, user=True)
        equal(c.points(mnt), [], "mounts after zonal down")


@check("user-fstab", "an ordinary user mounts and unmounts what fstab gives to users, without devices, set-id bits and programs", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        if not c.open_device():
            raise Skip("no device can be made here")
        path, key, table = f"{c.home}/mnt", f"{c.home}/key", f"{c.base}/fstab"
        c.within("mkdir", path, user=True)
        c.within("sh", "-c", f"cp {c.folder}/cell.key {key} && chown 12345 {key}")
        with open(table, "w", encoding="utf-8") as f:
            f.write(f"{c.address()} {path} zonal noauto,user,noatime,nodiratime,zone=1,key-file={key} 0 0\n")
        c.within("mount", "--bind", table, "/etc/fstab")
        equal(c.within("mount", path, user=True).stderr, "", "said")
        [(source, _, options)] = c.points(path)
        equal(source, c.address(), "source")
        true({"nosuid", "nodev", "noexec", "noatime"} <= set(options), options)
        equal(c.within("ls", path, user=True).stdout, "one\ntwo\n", "names")
        true(glob.glob(f"{c.home}/.local/state/zonal/*.log"), "it has no log")
        c.within("umount", path, user=True)
        equal(c.points(path), [], "mounts")


@check("fstab", "`mount -a` mounts what fstab names, and nothing again the second time; the table of mounts shows the source as fstab has it", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        table, words = f"{c.base}/fstab", "zone=1,_netdev,nofail,noatime,x-systemd.automount,comment=ours"
        host = f"localhost:{c.address().rsplit(':', 1)[1]}"
        sources = {point(c, "a"): c.address(), point(c, "b"): f"zonal:{c.address()}", point(c, "c"): host, point(c, "d"): c.folder}
        with open(table, "w", encoding="utf-8") as f:
            f.writelines(f"{source} {path} zonal key-file={c.folder}/cell.key,{words} 0 0\n" for path, source in sources.items())
            # The line of the sample, with this cell's address, key and mount point.
            [sample] = sample_lines("fstab.example")
            for old, new in (("10.1.0.10:7100", c.address()), ("/data", point(c, "e")), ("/etc/zonal/client.key", f"{c.folder}/cell.key")):
                true(old in sample, f"{old} is not in fstab.example")
                sample = sample.replace(old, new)
            f.write(sample + "\n")
            sources[point(c, "e")] = c.address()
        try:
            for turn in ("first", "second"):
                c.within("mount", "-a", "-T", table)
                for path, source in sources.items():
                    equal([(s, kind) for s, kind, _ in c.points(path)], [(source, "fuse.zonal")], f"{path} after the {turn} mount -a")
                    true("noatime" in c.points(path)[0][2] or path == point(c, "e"), "noatime is not set")
            for path, source in sources.items():
                equal(c.within("ls", path).stdout, "one\ntwo\n", f"names in {path}")
                lines = [line for line in c.command_lines() if path in line]
                lines.sort(key=lambda line: line[1])
                equal([line[1] for line in lines], ["mount", "mount-guard"], f"processes that name {path}")
                true(any(source.removeprefix("zonal:") in word for word in lines[0]), f"{source} is not in {lines[0]}")
        finally:
            for path in sources:
                c.within("umount", path, code=None)


@check("workers", "a mount has as many threads for the kernel's requests as --workers says, also under load", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        def names(pid):
            found = []
            for task in glob.glob(f"/proc/{pid}/task/*/comm"):
                with open(task, encoding="utf-8") as f:
                    found.append(f.read().strip())
            return found

        def threads(path):
            [pid] = [pid for pid in c.processes() if path in c.words_of(pid) and "mount" in c.words_of(pid)]
            # A thread gets its name when it first runs; before, it has that of the process.
            end = time.monotonic() + 20
            while names(pid).count("zonal") > 1 and time.monotonic() < end:
                time.sleep(0.01)
            return len([name for name in names(pid) if re.fullmatch(r"fuse-\d+", name)])
        for workers in (2, 8):
            path = point(c, f"w{workers}")
            c.within(c.binary, "mount", "--cell", c.folder, "--workers", str(workers), path)
            try:
                equal(threads(path), workers, "threads")
                c.within("sh", "-c", f"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (ls -lR {path} >{c.base}/list$i) & done; wait")
                equal(threads(path), workers, "threads after 12 readers")
            finally:
                c.within(c.binary, "umount", path)


@check("helper", "the helper takes what mount(8) hands over: -f mounts nothing, -s passes over what is unknown, -N is another name space; its exit codes are mount(8)'s", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        path = point(c)
        source, o, options = by_address(c, "zone=2")
        mount = ("mount", "-t", "zonal", source, path, o)
        c.within(*mount, options, "-f", "-v")
        equal(c.points(path), [], "mounts after mount -f")
        true("unknown" in c.within(*mount, f"{options},sync-everything", "-f", code=1).stderr, "no word on what is unknown")
        c.within("mount", "-f", "-t", "zonal", source, f"{path}/nowhere", code=32)
        true("unknown" in c.within(*mount, f"{options},sync-everything", code=1).stderr, "no word on what is unknown")
        said = c.within(*mount, f"{options},remount", code=1).stderr
        true("remounted" in said and "Hint: " in said, said)
        said = c.within("mount", "-t", "zonal", "127.0.0.1:1", path, code=32).stderr
        true("127.0.0.1:1" in said, said)
        equal(c.points(path), [], "mounts after what failed")
        c.within(*mount, f"{options},sync-everything", "-s", "-n", "-v")
        try:
            equal(len(c.points(path)), 1, "mounts")
            said = c.within("mount", "-o", "remount,ro", path, code=1).stderr
            true("remounted" in said and "Hint: " in said, said)
            c.within(*mount, options, code=32)
            equal(len(c.points(path)), 1, "mounts after a second one")
        finally:
            c.within("umount", path)
        other = point(c, "other")
        c.within("unshare", "-m", "sh", "-euc", 'mount -N "/proc/$1/ns/mnt" -t zonal "$2" "$3" -o "$4"; ! grep " $3 " /proc/self/mounts',
                 "-", str(c.space.pid), source, other, options)
        try:
            equal(len(c.points(other)), 1, "mounts in the name space that was named")
        finally:
            c.within("umount", other)


@check("flags", "ro, noexec, nosuid, noatime and sync act on a mount by mount(8), and are in the table of mounts", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        d, path = f"{c.mount}/one", point(c)
        c.within("sh", "-c", f"cp $(command -v id) {d}/id && chmod 4755 {d}/id && echo text >{d}/text && touch -a -d 2001-01-01 {d}/text")
        source, o, options = by_address(c)
        euid = ("setpriv", "--reuid", "12345", "--clear-groups", f"{path}/one/id", "-u")

        def mounted(*words):
            c.within("mount", "-t", "zonal", source, path, o, ",".join((options, *words)))
            [(_, _, found)] = c.points(path)
            true(set(words) <= set(found), f"{words} are not all in {found}")

        mounted("ro")
        true("Read-only" in c.within("touch", f"{path}/one/new", code=1).stderr, "ro")
        c.within("cat", f"{path}/one/text")
        c.within("umount", path)
        mounted("noexec", "nosuid")
        true("denied" in c.within(f"{path}/one/id", code=None).stderr, "noexec")
        c.within("umount", path)
        mounted("nosuid", "noatime", "sync", "dirsync")
        equal(c.within(*euid).stdout, "12345\n", "the user of a set-id program with nosuid")
        c.within("sh", "-c", f"cat {path}/one/text && echo more >>{path}/one/log")
        c.within("umount", path)
        equal(c.within("stat", "-c", "%x", f"{d}/text").stdout[:10], "2001-01-01", "the access time after reads with ro and noatime")


@check("set-id", "a set-uid program of root's raises nobody's rights and a device is none through a mount, unless it is asked for: zonal mount, mount(8), fstab, zonal up", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        d, path = f"{c.mount}/one", point(c)
        source, o, options = by_address(c)
        c.within("sh", "-c", f"cp $(command -v id) {d}/id && chown 0:0 {d}/id && chmod 4755 {d}/id && mknod -m 666 {d}/null c 1 3")

        def raises(mount, expected):
            said = c.within("setpriv", "--reuid", "12345", "--clear-groups", f"{mount}/one/id", "-u").stdout
            equal(said, "0\n" if expected else "12345\n", f"the user of a set-uid program on {mount}")

        def is_device(mount, expected):
            equal(c.within("sh", "-c", f"echo gone >{mount}/one/null", code=None).returncode == 0, expected, f"a device on {mount} can be used")

        def fstab(words):
            file = f"{c.base}/fstab-{words}"
            with open(file, "w", encoding="utf-8") as f:
                f.write(f"{source} {path} zonal {options},{words} 0 0\n")
            return "mount", "-T", file, path

        by_zonal = (c.binary, "mount", "--cell", c.folder, "--zone", "1", path)
        by_mount = ("mount", "-t", "zonal", source, path, o)
        raises(c.mount, False)
        is_device(c.mount, False)
        for command, suid, dev in (
            (by_zonal, False, False), ((*by_zonal, "-o", "suid"), True, False), ((*by_zonal, "-o", "dev"), False, True),
            ((*by_zonal, "-o", "suid,dev,nosuid"), False, True),
            ((*by_mount, options), False, False), ((*by_mount, f"{options},allow_suid,allow_dev"), True, True),
            (fstab("defaults"), False, False), (fstab("suid,dev"), False, False), (fstab("defaults,allow_suid,allow_dev"), True, True),
        ):
            c.within(*command)
            [(_, _, found)] = c.points(path)
            equal(("nosuid" not in found, "nodev" not in found), (suid, dev), f"the table of mounts after {command}")
            raises(path, suid)
            is_device(path, dev)
            c.within("umount", path)


@check("address", "a mount by address logs, is recorded, knows host names, and says which of several zones it took", root=True, limit=120)
def _(work):
    with PrivateCell(work) as c:
        path, key = point(c), f"{c.folder}/cell.key"
        host = f"localhost:{c.address().rsplit(':', 1)[1]}"
        said = c.within(c.binary, "mount", "--cell", host, "--key-file", key, path).stderr
        true("zone 1" in said and "--zone" in said, f"nothing said of the zone: {said}")
        equal([source for source, *_ in c.points(path)], [host], "source")
        logs = [file for file in c.machine_files() if file.endswith(".log")]
        true(logs and "zone 1" in open(logs[0], encoding="utf-8").read(), f"no log tells of the zone: {logs}")
        true([file for file in c.machine_files() if file.endswith(".toml")], "no record")
        c.within(c.binary, "umount", path)
        true(not [file for file in c.machine_files() if file.endswith(".toml")], "the record is left after umount")
        equal(c.within(c.binary, "mount", "--cell", host, "--key-file", key, "--zone", "2", path).stderr, "", "said with a zone")
        true("zones" in c.within(c.binary, "status", "--cell", host, "--key-file", key, "--json").stdout, "status by host name")
        c.within(c.binary, "umount", path)
        said = c.within(c.binary, "mount", "--cell", "no-such-host.invalid:7100", path, code=4).stderr
        true("no-such-host.invalid" in said and "Hint: " in said, said)
        # Another cell's credential. (One of another authority for this cell would work here: root
        # needs none on the servers' machine.)
        c.within(c.binary, "key", "init", "--to", f"{c.base}/other")
        c.within(c.binary, "key", "create", "--authority", f"{c.base}/other/authority.pem", "--admin", "a", "--to", f"{c.base}/other.key")
        said = c.within(c.binary, "mount", "--cell", host, "--key-file", f"{c.base}/other.key", path, code=4).stderr
        true("--key-file" in said, f"of a wrong key: {said}")
        # By folder: the log in the cell's folder does not follow a link.
        c.within(c.binary, "mount", "--cell", c.folder, path)
        c.within(c.binary, "umount", path)
        for log in glob.glob(f"{c.folder}/mounts/*.log"):
            os.unlink(log)
            os.symlink(f"{c.base}/planted", log)
        c.within(c.binary, "mount", "--cell", c.folder, path, code=1)
        true(not os.path.exists(f"{c.base}/planted"), "a planted link was followed")


if __name__ == "__main__":
    run("mounting", R, __doc__)
