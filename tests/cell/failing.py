"""A cell whose stores are on disks that fail on command (zonal-faultfs).

For media.py and power_loss.py. ZONAL and FAULTFS name the binaries.
"""
import argparse
import atexit
import contextlib
import errno
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import true  # noqa: E402

ZONAL = os.environ.get("ZONAL", "zonal")
FAULTFS = os.environ.get("FAULTFS", "zonal-faultfs")
MIB = 1 << 20
STORES = {"target1": "storage1-1/target", "target2": "storage1-2/target", "shard": "meta1/shard"}
NODES = {"target1": "storage1-1", "target2": "storage1-2", "shard": "meta1"}


def run(*args, ok=True, limit=120):
    done = subprocess.run(args, capture_output=True, text=True, timeout=limit, check=False)
    if ok and done.returncode:
        raise AssertionError(f"{' '.join(args)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done


def wait_for(what, condition, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        true(time.monotonic() < end, f"{seconds} s later still not: {what}")
        time.sleep(0.1)


class Cell:
    """A cell on disks that can fail."""

    def __init__(self):
        self.work = tempfile.mkdtemp(prefix="zonal-media.")
        self.dir, self.mount = f"{self.work}/cell", f"{self.work}/mnt"
        self.disks = {}

    def make(self):
        os.mkdir(self.mount)
        run(ZONAL, "up", "--dir", self.dir, "--zones", "1", "--storage-nodes", "2", "--capacity", "512 MiB", "--segment", "4 MiB")
        run(ZONAL, "down", "--dir", self.dir)
        for name, path in STORES.items():
            below, point = f"{self.work}/{name}", f"{self.dir}/{path}"
            shutil.move(point, below)
            os.mkdir(point)
            self.disks[name] = subprocess.Popen([FAULTFS, below, point, f"{self.work}/{name}.socket"])
            wait_for(f"{name} mounted", lambda point=point: os.path.ismount(point))
        self.up()
        os.mkdir(f"{self.mount}/d")

    def close(self):
        run(ZONAL, "down", "--dir", self.dir, ok=False)
        for name, disk in self.disks.items():
            run("umount", "-l", f"{self.dir}/{STORES[name]}", ok=False)
            try:
                disk.wait(5)
            except subprocess.TimeoutExpired:
                disk.kill()
        if os.path.ismount(self.mount):
            run("umount", "-l", self.mount, ok=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def up(self, ok=True):
        return run(ZONAL, "up", "--dir", self.dir, "--mount", self.mount, ok=ok)

    def order(self, disk, text):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"{self.work}/{disk}.socket")
            s.sendall(text.encode() + b"\n")
            answer = s.makefile().readline().strip()
        true(answer.startswith("ok"), f"{disk}: {text}: {answer}")
        return answer[3:]

    def heal(self):
        for disk in STORES:
            self.order(disk, "clear")
            self.order(disk, "budget off")

    def pid(self, name):
        with open(f"{self.dir}/{NODES.get(name, name)}/pid", encoding="utf-8") as f:
            return int(f.read())

    def kill(self, *names, by=signal.SIGKILL):
        for name in names:
            pid = self.pid(name)
            # A process that a failed check left stopped must not hide the reason of the failure.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, by)
            wait_for("its end", lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"))

    def mounts(self):
        """The processes of the cell's mounts."""
        found = []
        for name in os.listdir(f"{self.dir}/mounts"):
            if name.endswith(".toml"):
                with open(f"{self.dir}/mounts/{name}", encoding="utf-8") as f:
                    found.append(int(re.search(r"^pid = (\d+)", f.read(), re.M)[1]))
        return [pid for pid in found if os.path.exists(f"/proc/{pid}/exe")]

    def restart(self, *names, by=signal.SIGKILL):
        self.kill(*names, by=by)
        self.up()
        wait_for("a cell that serves", lambda: self.status()["healthy"])

    def restart_full(self, name):
        """For a full store: its server runs, and status reports the problem."""
        self.kill(name)
        self.up()
        wait_for("a store that serves", lambda: "inodes" in json.dumps(self.status()))

    def status(self):
        return json.loads(run(ZONAL, "status", "--cell", self.dir, "--json", ok=False).stdout)

    def trouble(self, name):
        """The reason why a node does not serve, from `zonal status`."""
        with open(f"{self.dir}/{NODES[name]}/node.toml", encoding="utf-8") as f:
            number = int(re.search(r"^node = (\d+)", f.read(), re.M)[1])
        nodes = [node for zone in self.status()["zones"] for node in zone["nodes"]]
        return next(node["error"] for node in nodes if node["id"] == number)

    @contextlib.contextmanager
    def changed(self, names, table, lines):
        """Adds lines to a table of the nodes' configs; restores them afterwards, on healthy disks."""
        texts = {}
        try:
            for name in names:
                config = f"{self.dir}/{NODES[name]}/node.toml"
                with open(config, encoding="utf-8") as f:
                    texts[config] = f.read()
                true(lines not in texts[config], "the config has it already")
                head, _, tail = texts[config].partition(f"\n[{table}]\n")
                with open(config, "w", encoding="utf-8") as f:
                    f.write(f"{head}\n[{table}]\n{lines}\n{tail}")
            self.restart(*names)
            yield
        finally:
            for config, text in texts.items():
                with open(config, "w", encoding="utf-8") as f:
                    f.write(text)
            self.heal()
            self.restart(*names)

    def log(self, name):
        with open(f"{self.dir}/{NODES[name]}/log", encoding="utf-8", errors="replace") as f:
            return f.read()

    def show_logs(self):
        """The ends of the logs of nodes and mounts."""
        logs = [f"{self.dir}/{node}/log" for node in NODES.values()] + glob.glob(f"{self.dir}/mounts/*.log")
        for path in logs:
            with open(path, encoding="utf-8", errors="replace") as f:
                lines = "\n    ".join(f.read().splitlines()[-12:])
            print(f"  {os.path.relpath(path, self.dir)}:\n    {lines}", flush=True)

    def metric(self, name, metric):
        with open(f"{self.dir}/{NODES[name]}/node.toml", encoding="utf-8") as f:
            address = re.findall(r'^listen = "([^"]*)"', f.read(), re.M)[1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
            text = page.read().decode()
        return float(re.search(rf"^zonal_{re.escape(metric)} (\S+)$", text, re.M)[1])

    def used(self, disk):
        """Bytes of the files of a store."""
        total = 0
        for base, _dirs, files in os.walk(f"{self.work}/{disk}"):
            total += 0 if ".faultfs" in base else sum(os.stat(os.path.join(base, f)).st_blocks * 512 for f in files)
        return total


def save(path, data, flags=0, sync=os.fsync):
    """Writes a file and makes it durable, by fsync or a flag of open; errors go to the caller."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | flags, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:])
        if sync:
            sync(fd)
    finally:
        try:
            os.close(fd)
        except OSError:
            pass


def fresh(path):
    """The bytes of a file, past the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        out = b""
        while part := os.read(fd, 4 * MIB):
            out += part
        return out
    finally:
        os.close(fd)


def bytes_of(seed, size):
    return random.Random(seed).randbytes(size)


def same(path, data, what):
    found = fresh(path)
    true(found == data, f"{what}: {len(found)} bytes, digest {hashlib.sha1(found).hexdigest()[:8]} not {hashlib.sha1(data).hexdigest()[:8]}")


def told(call, fd):
    """The result of a call on a descriptor: OK or the error's name."""
    try:
        call(fd)
        return "OK"
    except OSError as e:
        return errno.errorcode[e.errno]


def lose_power(c, seed, with_mount=False):
    """Ends all servers at once; each disk keeps a random part of what was not flushed.

    With `mount`, data that only the mount had is lost too.
    """
    pids = c.mounts() if with_mount else []
    pids += [c.pid(name) for name in ("manager", *STORES)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_for("its end", lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"))
    for number, disk in enumerate(STORES):
        c.order(disk, f"cut {seed * 10 + number} {512 if seed % 2 else 4096}")
        # The machine did not reboot, so the store must forget the boot under which it was open.
        os.unlink(f"{c.dir}/{STORES[disk]}/power")
    c.up()
    wait_for("a cell that serves", lambda: c.status()["healthy"])


def drop(fds):
    """Closes descriptors of a mount that may be dead."""
    for fd in fds:
        told(os.close, fd)


def run_checks(registry, title, summary):
    """Runs a registry's checks on one cell, each in a folder of its own; stops the cell at the end.

    Disks are healed after each check.
    """
    parser = argparse.ArgumentParser(description=summary)
    cell = Cell()
    owner = os.getpid()
    atexit.register(lambda: cell.close() if os.getpid() == owner else None)

    def make_args(_args, one):
        if not cell.disks:
            cell.make()
        folder = f"{cell.mount}/d/{one.ident}"
        os.mkdir(folder)

        def cleanup(result):
            if result == "FAILED":
                cell.show_logs()
            cell.heal()
            run(ZONAL, "up", "--dir", cell.dir, "--mount", cell.mount, ok=False)
            if not cell.status()["healthy"]:
                for name in STORES:
                    cell.kill(name)
                cell.up()
            shutil.rmtree(folder, ignore_errors=True)
        return (cell, folder), cleanup

    registry.run(title, parser, make_args)
