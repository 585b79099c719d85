"""A cell whose nodes, shards and zones change while it runs; each change is made by commands."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from replicas import ZONAL, Cell, is_whole

FIRST_OWN_NODE = 100
SERVERS_OF_A_ZONE = 3
# The first command of a change names a leader that is gone, at worst; an operator tries again.
PATIENCE_SECONDS = 60


class Server:
    """A process of a node: of `zonal up`, or started here."""

    def __init__(self, node, folder, child=None):
        self.node = node
        self.folder = folder
        self.child = child
        with open(f"{folder}/node.toml", encoding="utf-8") as file:
            self.config = file.read()
        self.address = re.search(r'^listen = "(.*)"', self.config, re.M)[1]
        self.is_manager = "[manager]" in self.config
        self.has_target = "[storage]" in self.config
        self.pid = child.pid if child else self.pid_of_file()
        # Where the place is that a new node takes, once this one was killed.
        self.shard = self.zone = None

    def pid_of_file(self):
        with open(f"{self.folder}/pid", encoding="utf-8") as file:
            return int(file.read().split()[0])

    def lives(self):
        if self.child:
            return self.child.poll() is None
        try:
            with open(f"/proc/{self.pid}/cmdline", encoding="utf-8") as file:
                return f"{self.folder}/node.toml" in file.read()
        except OSError:
            return False

    def end(self, how, seconds=30):
        """Sends a signal and waits until the process is gone."""
        if self.lives():
            os.kill(self.pid, how)
        until = time.monotonic() + seconds
        while self.lives():
            if time.monotonic() > until:
                raise SystemExit(f"the server of node {self.node} does not end: {self.folder}")
            time.sleep(0.05)

    def last_lines(self):
        with open(f"{self.folder}/log", encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
        errors = [line for line in lines if " ERROR " in line]
        return f"--- {self.folder}/log\n" + "".join([*errors[:10], *lines[-5:]])


class Move(threading.Thread):
    """The command that waits for the end of a move that was ordered."""

    def __init__(self, path, command):
        super().__init__(daemon=True)
        self.path = path
        self.command = command
        self.done = None
        self.seconds = 0.0

    def run(self):
        began = time.monotonic()
        self.done = self.command()
        self.seconds = time.monotonic() - began


class ChangingCell(Cell):
    """Three managers, and a zone with two shards of three replicas each; zones are added."""

    shape = ["--zones", "1", "--storage-nodes", "2", "--replicas", "3", "--shards", "2"]
    shard_count = 3

    def __init__(self, work, rng):
        super().__init__(work)
        self.other_mount = os.path.join(work, "other-mount")
        self.own = os.path.join(work, "nodes")
        self.rng = rng
        self.servers = {}
        self.zones = [1]
        self.number = FIRST_OWN_NODE
        self.dead = None
        self.moving = None
        self.longest_move = 0.0
        self.done = {"kills": 0, "replacements": 0, "of managers": 0, "moves": 0, "zones": 0}

    def environment(self):
        """Commands name the managers by address: those that `zonal up` made may all be replaced."""
        managers = [one.address for one in self.servers.values() if one.is_manager]
        if not managers:
            return super().environment()
        key = {"ZONAL_KEY_FILE": f"{self.dir}/cell.key"}
        return {**os.environ, "ZONAL_CELL": ",".join(managers), **key}

    def up(self):
        os.mkdir(self.own)
        os.mkdir(self.other_mount)
        super().up()
        for name in sorted(os.listdir(self.dir)):
            folder = f"{self.dir}/{name}"
            if os.path.exists(f"{folder}/pid"):
                with open(f"{folder}/node.toml", encoding="utf-8") as file:
                    node = int(re.search(r"^node = (\d+)", file.read(), re.M)[1])
                self.servers[node] = Server(node, folder)
        self.zonal("mount", "--zone", "1", self.other_mount)

    def unmount(self):
        for mount in (self.other_mount, self.mount):
            self.zonal("umount", mount)

    def down(self):
        """Ends all that runs, whatever came before."""
        for mount in (self.other_mount, self.mount):
            if os.path.ismount(mount):
                self.tried("umount", "--force", mount)
        if not self.servers:
            self.tried("down", "--dir", self.dir)
        for server in self.servers.values():
            if server.lives():
                os.kill(server.pid, signal.SIGTERM)
        for server in self.servers.values():
            server.end(signal.SIGTERM)

    def check_servers(self):
        """No server has ended by itself."""
        for server in self.servers.values():
            if server is not self.dead and not server.lives():
                raise SystemExit(f"node {server.node} ended by itself:\n{server.last_lines()}")

    def insisted(self, *arguments, limit=150, done_if=None):
        """Runs a command again until it succeeds, within the patience of an operator.

        An order whose answer was lost is done where a later one fails with the text `done_if`.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = self.tried(*arguments, limit=limit)
            if done.returncode == 0 or done_if and done_if in done.stderr:
                return done.stdout
            said = f"zonal {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}"
            print(f"    again: {said}", flush=True)
            if time.monotonic() > until:
                raise SystemExit(said)
            time.sleep(1)

    def kill(self):
        """Kills a replica of any shard: its leader, or another one."""
        shards = [one for one in self.shards() if is_whole(one)]
        shard = self.rng.choice(shards)
        leader, others = shard["leader"], [one["node"] for one in shard["replicas"]]
        others = [node for node in others if node != leader]
        node = self.rng.choice([leader, self.rng.choice(others)])
        if self.servers[node].has_target:
            # There is one copy of data, so its node stays.
            node = next(one for one in others if not self.servers[one].has_target)
        self.dead = self.servers[node]
        self.dead.end(signal.SIGKILL)
        self.dead.shard, self.dead.zone = shard["shard"], shard["zone"]
        self.done["kills"] += 1
        part = "leader" if node == leader else "follower"
        return f"killed node {node}, a {part} of shard {shard['shard']}"

    def replace(self):
        """Gives the place of the killed node to a new one; removes the killed one from the map."""
        dead, shard = self.dead, str(self.dead.shard)
        self.await_leader(dead.shard)
        node = self.next_number()
        words = ["shard", "replace", shard, str(dead.node), str(node), "--wait", "120"]
        if dead.is_manager:
            self.make_manager(node, dead)
        else:
            self.join(node, "meta", str(dead.zone))
        said = f"{self.own}/{node}/replace"
        with open(said, "wb") as output:
            command = subprocess.Popen(
                [ZONAL, *words], env=self.environment(), stdout=output, stderr=output
            )
        while command.poll() is None and self.has_place(dead):
            time.sleep(0.1)
        self.start(node)
        if command.wait(150):
            with open(said, encoding="utf-8") as output:
                raise SystemExit(f"zonal {' '.join(words)}: {output.read()}")
        self.insisted("node", "remove", str(dead.node))
        del self.servers[dead.node]
        self.dead = None
        self.done["replacements"] += 1
        self.done["of managers"] += dead.is_manager
        return f"node {node} replaced node {dead.node} in shard {shard}"

    def await_leader(self, number):
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            shard = next(one for one in self.shards() if one["shard"] == number)
            parts = {one["part"] for one in shard["replicas"] if one["node"] != self.dead.node}
            if "leads" in parts:
                return
            time.sleep(0.2)
        raise SystemExit(f"shard {number} has no leader")

    def has_place(self, dead):
        shard = next(one for one in self.shards() if one["shard"] == dead.shard)
        return dead.node in [one["node"] for one in shard["replicas"]]

    def free_port(self):
        """A port of loopback that nobody listens on, below those that connections get."""
        while True:
            port = self.rng.randrange(20_000, 32_000)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)):
                    return port

    def next_number(self):
        self.number += 1
        return self.number

    def join(self, node, roles, zone):
        """Makes a node with a token, as on a new machine."""
        words = ["--roles", roles, "--zone", zone, "--node", str(node)]
        words += ["--authority", f"{self.dir}/authority.pem"]
        token = self.insisted("token", "create", *words).strip()
        listen = f"127.0.0.1:{self.free_port()}"
        words = ["--dir", f"{self.own}/{node}", "--listen", listen, "--replicated"]
        size = ["--capacity", "1 GiB"] if "storage" in roles else []
        self.zonal("node", "join", "--token", token, *words, *size)

    def make_manager(self, node, dead):
        """Makes a node with a manager by hand, since tokens make none."""
        folder = f"{self.own}/{node}"
        os.mkdir(folder)
        addresses = [one.address for one in self.servers.values() if one.is_manager]
        own = f"127.0.0.1:{self.free_port()}"
        lines = []
        for line in dead.config.split("[admin]")[0].splitlines():
            if line.startswith("node ="):
                line = f"node = {node}"
            elif line.startswith("listen ="):
                line = f'listen = "{own}"'
            elif line.startswith("manager_addresses ="):
                listed = [own if one == dead.address else one for one in addresses]
                line = f"manager_addresses = {json.dumps(listed)}"
            lines.append(line)
        with open(f"{folder}/node.toml", "x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        words = ["--authority", f"{self.dir}/authority.pem", "--node", str(node)]
        self.zonal("key", "create", *words, "--roles", "manager", "--to", f"{folder}/node.key")
        self.zonal("server", "--config", f"{folder}/node.toml", "--format-only")

    def start(self, node):
        folder = f"{self.own}/{node}"
        words = ["server", "--config", f"{folder}/node.toml"]
        with open(f"{folder}/log", "ab") as log:
            child = subprocess.Popen(
                [ZONAL, *words], stdout=log, stderr=log, start_new_session=True
            )
        self.servers[node] = Server(node, folder, child)

    def order_move(self, path):
        """Orders the move of a directory to the other shard of its zone; does not wait."""
        shards = [one["shard"] for one in self.shards() if one["zone"] == 1 and one["shard"]]
        self.rng.shuffle(shards)
        for to in shards:
            words = ["shard", "move", path, "--to", str(to)]
            done = self.tried(*words, "--no-wait")
            there = f"is in shard {to} already"
            if done.returncode == 5 and there in done.stderr:
                continue
            if done.returncode:
                self.insisted(*words, "--no-wait", done_if=there)
            self.moving = Move(path, lambda: self.tried(*words, "--wait", "120", limit=150))
            self.moving.start()
            return f"{path} moves to shard {to}"
        raise SystemExit(f"{path} moves to none of {shards}")

    def end_move(self):
        move, self.moving = self.moving, None
        move.join()
        done = move.done
        if done is None or done.returncode and "already" not in done.stderr:
            raise SystemExit(f"move of {move.path}: {done or 'it does not end'}")
        self.done["moves"] += 1
        self.longest_move = max(self.longest_move, move.seconds)
        return f"{move.path} has moved, {move.seconds:.1f} s after the order"

    def add_zone(self):
        """Adds a zone of three nodes, each with a replica of its shard; the first has a target."""
        zone = self.zones[-1] + 1
        name = f"added{zone}"
        self.insisted("zone", "add", name)
        for roles in ["meta,storage", *["meta"] * (SERVERS_OF_A_ZONE - 1)]:
            node = self.next_number()
            self.join(node, roles, name)
            self.start(node)
        self.zones.append(zone)
        self.shard_count += 1
        self.await_zone(zone)
        self.done["zones"] += 1
        return f"zone {zone} is added"

    def await_zone(self, zone):
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            of_zone = [one for one in self.shards() if one["zone"] == zone]
            if of_zone and is_whole(of_zone[0]):
                return
            self.check_servers()
            time.sleep(0.2)
        raise SystemExit(f"zone {zone} has no shard with three replicas: {of_zone}")
