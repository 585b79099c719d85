"""A testbed for figures: racks of nodes, loads on several nodes at once, bytes on links."""
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
MIB = 1 << 20
# Headers of a full frame of TCP: Ethernet 14, IP 20, TCP 20 with time stamps 12.
HEADER_BYTES = 66
FRAME_BYTES = 1514
# A load that takes longer is an error.
LOAD_SECONDS_MAX = 300
PEERS_SECONDS_MAX = 120
# Most nodes of a testbed.
NODES_MAX = 32


class Testbed:
    def __init__(self, zonal, folder, racks, nodes, rate, uplink=None, storage_nodes=None):
        self.zonal, self.folder, self.racks, self.nodes = zonal, folder, racks, nodes
        self.mount = f"{folder}/mnt"
        args = ["--racks", racks, "--nodes", nodes, "--node-rate", rate]
        args += ["--uplink-rate", uplink or rate]
        if storage_nodes:
            args += ["--storage-nodes", storage_nodes]
        self.command("up", *args)
        if start := os.environ.get("ZONAL_PEERS_START"):
            env = {**os.environ, "ZONAL_TESTBED": folder, "ZONAL": zonal}
            subprocess.run(start, shell=True, check=True, env=env, timeout=PEERS_SECONDS_MAX,
                           stdin=subprocess.DEVNULL)

    def command(self, name, *args, timeout=120):
        call = [self.zonal, "testbed", name, "--dir", self.folder, *map(str, args)]
        done = subprocess.run(call, capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(call)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.command("down")

    def exec(self, node, *args):
        return self.command("exec", node, "--", *args)

    def names(self, rack, count=None):
        return [f"r{rack}n{node}" for node in range(1, (count or self.nodes) + 1)]

    def make_dir(self, rack, name, placement="zone", copies=1):
        """Makes a first-level directory homed in a rack's zone."""
        path = f"{self.mount}/{name}"
        self.exec(f"r{rack}n1", self.zonal, "mkdir", "--zone", rack, path)
        layout = ["--placement", placement, "--copies", copies]
        self.exec(f"r{rack}n1", self.zonal, "layout", "set", *layout, path)
        return path

    def links(self):
        return {link["name"]: link for link in self.status()["links"]}

    def status(self):
        """Nodes and links, also where processes of nodes have ended."""
        call = [self.zonal, "testbed", "status", "--dir", self.folder, "--json"]
        done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False,
                              stdin=subprocess.DEVNULL)
        if not done.stdout:
            raise RuntimeError(f"{' '.join(call)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self, node, worker, *args):
        """Starts a Python program of this folder on a node."""
        call = [self.zonal, "testbed", "exec", "--dir", self.folder, node, "--", "python3",
                str(HERE / worker), *map(str, args)]
        return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True)

    def load(self, job, files, mib):
        """Runs one stream a (node, path); returns MiB/s of all together and bytes on links."""
        if job == "read":
            drop_caches()
        return self.measure(len(files), lambda start: [
            self.start(node, "worker.py", job, path, mib, start) for node, path in files])

    def raw(self, pairs):
        """Sends bytes over TCP, one connection for each (from, to, bytes); returns as `load`."""
        senders, receivers = {}, {}
        for number, (sender, receiver, size) in enumerate(pairs):
            port = 20_000 + number
            senders.setdefault(sender, []).append([address(receiver), port, size])
            receivers.setdefault(receiver, []).append(port)
        nodes = sorted({*senders, *receivers})
        return self.measure(len(nodes), lambda start: [
            self.start(node, "raw_worker.py", json.dumps(receivers.get(node, [])),
                       json.dumps(senders.get(node, [])), start) for node in nodes])

    def measure(self, processes, run):
        before = self.links()
        running = run(time.monotonic() + 0.5 + 0.05 * processes)
        samples, is_over = [], threading.Event()
        sampler = threading.Thread(target=self.sample, args=(samples, is_over))
        sampler.start()
        try:
            streams = [result(process) for process in running]
        finally:
            is_over.set()
            sampler.join()
        links = moved_on(before, self.links())
        moved = sum(stream["bytes"] for stream in streams)
        took = max(of["ended"] for of in streams) - min(of["begun"] for of in streams)
        crossed = sum(link["up_bytes"] for link in links.values() if link["uplink"])
        rates = [of["bytes"] / MIB / (of["ended"] - of["begun"]) for of in streams if of["bytes"]]
        return {"mib_per_s": moved / MIB / took, "sum_of_rates": sum(rates), "bytes": moved,
                "seconds": took, "links": links, "together": together(samples, streams),
                "uplink_bytes": crossed, "uplink_share": crossed / moved}

    def sample(self, samples, is_over):
        """Looks at the links until the event, four times a second."""
        while not is_over.wait(0.25):
            samples.append((time.monotonic(), self.links()))

    def payload_rate(self, name):
        """MiB/s that full frames of TCP carry over a link at its rate."""
        bits = self.links()[name]["bits_per_second"]
        return bits / 8 / MIB * (FRAME_BYTES - HEADER_BYTES) / FRAME_BYTES

    def traffic(self):
        """Bytes that targets counted, as `zonal status` of the cell has them."""
        return json.loads(self.exec("r1n1", self.zonal, "status", "--json"))["traffic"]


def together(samples, streams):
    """Payload of each link, MiB/s, while all streams ran; empty where that was too short."""
    begun = max(of["begun"] for of in streams) + 0.3
    ended = min(of["ended"] for of in streams)
    inside = [sample for sample in samples if begun <= sample[0] <= ended]
    if len(inside) < 4:
        return {}
    (first, before), (last, after) = inside[0], inside[-1]
    moved = moved_on(before, after)
    return {name: {way: link[f"{way}_payload"] / MIB / (last - first) for way in ("up", "down")}
            for name, link in moved.items()}


def rate_bits(text):
    """Bits a second of a link's rate."""
    number = text.rstrip("kmgbit")
    return int(number) * {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}[text[len(number):]]


def racks_within(racks, nodes):
    """Those numbers of racks that a testbed can have with so many nodes each."""
    return [count for count in racks if count * nodes <= NODES_MAX]


def address(node):
    rack, index = node[1:].split("n")
    return f"10.77.{rack}.{index}"


def moved_on(before, after):
    """Bytes, frames and drops of each link between two reports. Payload is without headers."""
    found = {}
    for name, link in after.items():
        moved = {key: link[key] - before[name][key] for key in link
                 if key.startswith(("up_", "down_"))}
        payload = {f"{way}_payload": moved[f"{way}_bytes"] - HEADER_BYTES * moved[f"{way}_frames"]
                   for way in ("up", "down")}
        found[name] = {"uplink": link["uplink"], **moved, **payload}
    return found


def result(process):
    """The JSON that a program on a node printed."""
    out, err = process.communicate(timeout=LOAD_SECONDS_MAX)
    if process.returncode != 0:
        raise RuntimeError(f"a program on a node: {err.strip()}")
    return json.loads(out)


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def note(text):
    print(text, file=sys.stderr, flush=True)
