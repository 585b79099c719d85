#!/usr/bin/env python3
"""Zone detection of mounts on simulated machines: network name spaces for each zone and a client.

    tests/cell/zone_detection.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own, made below DIR, whose servers get addresses outside loopback.
ZONAL names the binary; ip and nsenter are needed. Root only.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import Registry, Skip, equal, read, true, write  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
MACHINES = ("one", "two", "far")


class Machines(contextlib.ExitStack):
    """Three machines on one switch: servers of zone 1, servers of zone 2, and one without servers."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.servers = cell, {}
        self.log = ("--log", f"{cell.base}/mount.log")
        self.spaces = {name: f"zonal-{os.getpid()}-{name}" for name in ("switch", *MACHINES)}

    def __enter__(self):
        if not shutil.which("ip") or not shutil.which("nsenter"):
            raise Skip("ip or nsenter is missing")
        try:
            self.wire()
            self.move()
        except BaseException:
            self.close()
            raise
        return self

    def wire(self):
        for space in self.spaces.values():
            if subprocess.run(["ip", "netns", "add", space], capture_output=True, check=False).returncode:
                raise Skip("no network name space can be made here")
            self.callback(subprocess.run, ["ip", "netns", "del", space], check=False)
            ip("-n", space, "link", "set", "lo", "up")
        switch = self.spaces["switch"]
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(MACHINES, 1):
            ip("-n", switch, "link", "add", name, "type", "veth", "peer", "name", "net", "netns", self.spaces[name])
            ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            ip("-n", self.spaces[name], "addr", "add", f"10.99.0.{number}/24", "dev", "net")
            ip("-n", self.spaces[name], "link", "set", "net", "up")

    def move(self):
        """Starts the servers, each on the machine of its zone: the nodes come back at other addresses."""
        self.cell.down()
        nodes = [name for name in sorted(os.listdir(self.cell.folder)) if os.path.exists(f"{self.cell.folder}/{name}/node.toml")]
        for name in nodes:
            config = f"{self.cell.folder}/{name}/node.toml"
            text = read(config).decode()
            zone = int(re.search(r"^id = (\d+)$", text, re.M)[1])
            text = re.sub(r'^listen = "127.0.0.1', f'listen = "10.99.0.{zone}', text, count=1, flags=re.M)
            write(config, re.sub(r'^manager_address = "127.0.0.1', 'manager_address = "10.99.0.1', text, flags=re.M).encode())
            self.manager = re.search(r'^manager_address = "(.*)"', read(config).decode(), re.M)[1]
            self.start(name, MACHINES[zone - 1])
        end = time.monotonic() + 30
        while self.zonal("one", "status", code=None).returncode:
            true(time.monotonic() < end, "the cell does not come up on its machines")
            time.sleep(0.2)

    def start(self, name, machine):
        log = self.enter_context(open(f"{self.cell.base}/{name}.log", "wb"))
        command = [*self.at(machine), ZONAL, "server", "--config", f"{self.cell.folder}/{name}/node.toml"]
        self.servers[name] = subprocess.Popen(command, stderr=log)
        self.callback(self.stop, name)

    def stop(self, name):
        self.servers[name].terminate()
        self.servers[name].wait(30)

    def at(self, machine):
        return ["nsenter", f"--net=/run/netns/{self.spaces[machine]}"]

    def zonal(self, machine, command, *args, code=0):
        done = subprocess.run([*self.at(machine), ZONAL, command, *args, "--cell", self.manager, "--key-file", f"{self.cell.folder}/cell.key"],
                              capture_output=True, text=True, timeout=60, check=False)
        if code is not None:
            equal(done.returncode, code, f"exit of zonal {command} on {machine}: {done.stderr.strip()[-400:]}")
        return done

    @contextlib.contextmanager
    def mounted(self, machine, *args):
        said = self.zonal(machine, "mount", self.cell.mount, *self.log, *args).stderr
        try:
            yield said
        finally:
            self.cell.zonal("umount", self.cell.mount)

    def homes(self):
        lines = self.zonal("one", "zone-map", "show").stdout.splitlines()
        return {line.split()[0]: int(line.rsplit(None, 1)[1]) for line in lines if " is homed in zone " in line}


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    equal(done.returncode, 0, f"ip {' '.join(args)}: {done.stderr}")


@check("near-zone", "a mount without --zone is of the zone of its machine's own node; on a machine without one it is refused with the zones named; no hint there tells of `zonal up`", limit=240)
def _(work):
    with OwnCell(work) as cell, Machines(cell) as machines:
        for machine, options, zone in (("two", (), 2), ("one", (), 1), ("far", ("--zone", "2"), 2), ("one", ("--zone", "2"), 2)):
            with machines.mounted(machine, *options) as said:
                true(options or f"zone {zone};" in said, f"what a mount on {machine} says: {said}")
                name = f"{machine}{len(options)}"
                os.mkdir(f"{cell.mount}/{name}")
                write(f"{cell.mount}/{name}/f", b"x" * 100_000)
                equal(machines.homes()[f"/{name}"], zone, f"home of what is made on {machine} {options}")
        said = machines.zonal("far", "mount", cell.mount, *machines.log, code=2).stderr
        true("1 (zone1), 2 (zone2)" in said and "--zone N" in said, f"what a mount without a zone says: {said}")
        true(not os.path.ismount(cell.mount), "it is mounted all the same")
        machines.stop("storage2-1")
        said = machines.zonal("far", "status", code=1).stderr
        true("Hint: " in said and "zonal up" not in said, f"of a server that is down: {said}")
        machines.stop("manager")
        for command, args in (("status", ()), ("mount", (cell.mount, *machines.log, "--zone", "2")), ("mount", (cell.mount, *machines.log)), ("zone-map", ("show",))):
            said = machines.zonal("far", command, *args, code=4).stderr
            true("Hint: " in said and "zonal up" not in said, f"zonal {command} {args} without a manager: {said}")
        machines.start("manager", "one")


if __name__ == "__main__":
    run("zone-detection", R, __doc__)
