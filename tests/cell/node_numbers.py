#!/usr/bin/env python3
"""Which server owns a node's id: copies of its node.toml and folder, moves to another address.

    tests/cell/node_numbers.py --work DIR [--only PART,...] [--list]

Each check has a cell of its own, made below DIR. ZONAL names the binary. Root only.
"""
import contextlib
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
from checks import Registry, equal, read, true, write  # noqa: E402
from own_cell import ZONAL, OwnCell, run  # noqa: E402

R = Registry()
check = R.check
NODE = "storage1-1"
REFUSED, IN_USE = 5, 6


class NumberedCell(OwnCell):
    """A cell with the changes that checks make to its nodes."""

    def config(self, node):
        return f"{self.folder}/{node}/node.toml"

    def address(self, node):
        return re.search(r'^listen = "(.*)"', read(self.config(node)).decode(), re.M)[1]

    def log(self, node):
        return read(f"{self.folder}/{node}/log").decode()

    def pid(self, node):
        return int(read(f"{self.folder}/{node}/pid"))

    def kill(self, node):
        pid = self.pid(node)
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while alive(pid):
            true(time.monotonic() < end, f"{node} outlives SIGKILL")
            time.sleep(0.01)

    def map(self):
        return self.json("zone-map", "show", "--json", "--cell", self.folder)

    def targets(self, path):
        """The targets of a file's layout; empty if the file is missing."""
        if not os.path.exists(path):
            return set()
        used = int(re.search(r" set=(\d+) ", self.zonal("layout", "show", path).stdout)[1])
        return {slot["target"] for one in self.map()["sets"] if one["id"] == used for slot in one["slots"]}

    def copy(self, of, name, stores=False, **changes):
        """Copies a node's folder: its node.toml with another address and `changes`; its stores on
        request.
        """
        folder = f"{self.base}/{name}"
        os.mkdir(folder)
        text = read(self.config(of)).decode()
        address = free_address()
        text = re.sub(r"^\[admin\]\nlisten = .*\n", "", text, flags=re.M)
        text = re.sub(r'^listen = ".*"', f'listen = "{address}"', text, flags=re.M)
        for key, value in changes.items():
            text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.M)
            true(count, f"{key} in the config of {of}")
        write(f"{folder}/node.toml", text.encode())
        # A credential of its own for the id that it claims: stores identify nodes, not keys.
        node = re.search(r"^node = (\d+)", text, re.M)[1]
        self.zonal("key", "create", "--cell", self.folder, "--node", node, "--roles", "manager,meta,storage", "--to", f"{folder}/node.key")
        if stores:
            shutil.copytree(f"{self.folder}/{of}/target", f"{folder}/target")
        return f"{folder}/node.toml", address

    def refused(self, config, code=REFUSED):
        """The error of a server that does not start."""
        done = subprocess.run([ZONAL, "server", "--config", config, "--format"], capture_output=True, text=True, timeout=30, check=False)
        equal(done.returncode, code, f"exit of a server that is to be refused: {done.stderr[-600:]}")
        return done.stderr

    def finds_target(self):
        """Waits until the mount reads over all targets again."""
        end = time.monotonic() + 60
        while True:
            try:
                for name in ("one", "two"):
                    read(f"{self.mount}/{name}/f0")
                return
            except OSError as error:
                true(time.monotonic() < end, f"a minute later still: {error}")

    def works(self, number):
        """Checks that old files are intact, and new ones over all targets can be written."""
        for name in ("one", "two"):
            for made in range(number):
                equal(read(f"{self.mount}/{name}/f{made}"), content(made), "an old file")
            write(f"{self.mount}/{name}/f{number}", content(number))
            equal(read(f"{self.mount}/{name}/f{number}"), content(number), "a new file")

    def clean(self):
        """Stops the cell and checks it."""
        self.zonal("down", "--dir", self.folder)
        said = self.zonal("fsck", "--json", "--data", "--cell", self.folder).stdout
        found = [json.loads(line) for line in said.splitlines()][:-1]
        equal([finding for finding in found if finding["class"] != "note"], [], "what fsck finds")


def content(number):
    return bytes([number + 1]) * 9_000_000


def alive(pid):
    with contextlib.suppress(FileNotFoundError):
        return read(f"/proc/{pid}/cmdline") != b""
    return False


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def names(text, *addresses):
    for address in addresses:
        true(address in text, f"{address} is not named in: {text[-800:]}")


@check("number-copied-config", "a copied node.toml with a store, an address and a target of its own is refused while the node of its number runs and while it is stopped; both addresses are in its error, in the manager's log and, where it runs, in the node's; map and files stay as they were", limit=240)
def _(work):
    with NumberedCell(work) as cell:
        cell.works(0)
        before, true_one = cell.map(), cell.address(NODE)
        config, address = cell.copy(NODE, "copied", target="77")
        names(cell.refused(config), true_one, address)
        line = [line for line in cell.log("manager").splitlines() if "refused" in line]
        names(line[-1], true_one, address)
        line = [line for line in cell.log(NODE).splitlines() if "claims the number" in line]
        equal(len(line), 1, "lines of the node that has the number")
        names(line[0], true_one, address)
        equal(cell.map(), before, "the map beside the node that runs")
        cell.works(1)
        cell.kill(NODE)
        names(cell.refused(config), true_one, address)
        # The same target id, too: a new store in the place of the old one.
        config, address = cell.copy(NODE, "copied-whole")
        names(cell.refused(config), true_one, address)
        # The manager's id, and a shard's.
        for node in ("manager", "meta1"):
            number = re.search(r"^node = (.*)$", read(cell.config(node)).decode(), re.M)[1]
            config, address = cell.copy(NODE, f"as-{node}", node=number, target="78")
            names(cell.refused(config), cell.address(node), address)
        equal(cell.map(), before, "the map beside the node that is stopped")
        cell.up()
        cell.works(2)
        cell.clean()


@check("number-copied-store", "a copy of a node's folder is refused while the node runs, at an address of its own and at the node's; the node comes up again after a kill; where it is gone for good its folder is taken at another address, and the node's own older one is refused from then on", limit=240)
def _(work):
    with NumberedCell(work) as cell:
        cell.works(0)
        true_one = cell.address(NODE)
        config, address = cell.copy(NODE, "copy", stores=True)
        names(cell.refused(config), true_one, address)
        names(cell.log(NODE), true_one, address)
        # Copied unchanged to another machine: it announces the node's own address.
        text = read(config).decode()
        write(config, text.replace(f'listen = "{address}"', f'listen = "{address}"\nadvertise = "{true_one}"').encode())
        names(cell.refused(config, IN_USE), true_one, address)
        cell.works(1)
        cell.kill(NODE)
        cell.up()
        cell.works(2)
        # Now it moves: stopped here, its folder elsewhere.
        cell.kill(NODE)
        config, address = cell.copy(NODE, "moved", stores=True)
        with subprocess.Popen([ZONAL, "server", "--config", config], stderr=subprocess.PIPE) as moved:
            try:
                end = time.monotonic() + 20
                number = int(re.search(r"^node = (.*)$", text, re.M)[1])
                while [node["address"] for node in cell.map()["nodes"] if node["id"] == number] != [address]:
                    true(time.monotonic() < end and moved.poll() is None, "the node that moved does not come up")
                    time.sleep(0.05)
                cell.works(3)
                # The folder left behind is now the copy.
                left = cell.refused(cell.config(NODE))
                names(left, true_one, address)
            finally:
                moved.terminate()
                moved.communicate(timeout=30)
        left = cell.refused(cell.config(NODE))
        true("older image or a copy" in left, f"what the folder that was left behind hears: {left}")
        # It moves back, with its folder.
        shutil.rmtree(f"{cell.folder}/{NODE}/target")
        shutil.move(f"{cell.base}/moved/target", f"{cell.folder}/{NODE}/target")
        cell.up()
        # The mount fetches a newer map only once some server names one: a read may fail before.
        cell.finds_target()
        cell.works(4)
        cell.clean()


@check("target-remove", "a target that was added by mistake and holds nothing is taken out, while it runs and while it is stopped, and its store is refused from then on; where a file is laid out over it nothing is changed; `--retire` makes new files do without it", limit=240)
def _(work):
    with NumberedCell(work) as cell:
        cell.works(0)
        before = cell.map()

        def added(name, number):
            """Starts a server with a target of its own, like one added by mistake."""
            config, _address = cell.copy(NODE, name, node=str(number), target=str(number))
            log = open(f"{cell.base}/{name}.log", "wb")
            server = subprocess.Popen([ZONAL, "server", "--config", config, "--format"], stderr=log)
            end = time.monotonic() + 20
            while number not in [target["id"] for target in cell.map()["targets"]]:
                true(time.monotonic() < end and server.poll() is None, f"target {number} does not join")
                time.sleep(0.05)
            return config, server

        def ended(server):
            server.terminate()
            server.wait(30)

        def remove(number, *more, code=0):
            return cell.zonal("target", "remove", "--target", str(number), "--cell", cell.folder, *more, code=code).stderr

        def is_as_before():
            now = cell.map()
            for what in ("nodes", "targets", "zones", "shards", "junctions"):
                if what != "zones":
                    equal(now[what], before[what], f"{what} after the removal")
            used = [one for zone in now["zones"] for one in now["sets"] if one["id"] in zone["default_sets"]]
            equal([slot["target"] for slot in used[0]["slots"]],
                  [slot["target"] for slot in next(one for one in before["sets"] if one["id"] in before["zones"][0]["default_sets"])["slots"]], "where new files go")

        # While it runs, and while it is stopped.
        for number, is_stopped in ((88, False), (89, True)):
            config, server = added(f"mistake{number}", number)
            if is_stopped:
                ended(server)
            remove(number)
            is_as_before()
            if not is_stopped:
                ended(server)
            true("taken out of the cell" in cell.refused(config), "the store comes back")
            cell.works(1 if number == 88 else 2)
        # A file with a layout over it, and one that is removed again.
        config, server = added("used", 90)
        path = f"{cell.mount}/one/over"
        # A shard learns of a new map from peers that have it: here from a new mount.
        second = f"{cell.base}/second"
        os.mkdir(second)
        cell.zonal("mount", "--cell", cell.folder, second)
        write(f"{second}/one/over", content(7))
        cell.zonal("umount", second)
        true(90 in cell.targets(path), "the new file is not laid out over the new target")
        shown = cell.map()
        for _ in range(2):
            said = remove(90, code=REFUSED)
            true("target 90" in said and "Hint: " in said, said)
        equal(cell.map(), shown, "the map after a refusal")
        # An empty file has no object, but a layout.
        write(path, b"")
        said = remove(90, "--retire", code=REFUSED)
        true("/one/over" in said and "new files do without target 90" in said, said)
        cell.works(3)
        end = time.monotonic() + 30
        os.unlink(path)
        while subprocess.run([ZONAL, "target", "remove", "--target", "90", "--cell", cell.folder], capture_output=True, check=False).returncode:
            true(time.monotonic() < end, "the target cannot be taken out although its file is gone")
            time.sleep(0.3)
        is_as_before()
        ended(server)
        cell.works(4)
        # The zone has its earlier targets: none of them can be removed, since they hold data.
        said = remove(before["targets"][0]["id"], code=REFUSED)
        remove(77, code=7)
        cell.works(5)
        cell.clean()


if __name__ == "__main__":
    run("node-numbers", R, __doc__)
