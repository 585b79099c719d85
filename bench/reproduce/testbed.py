"""A testbed for figures: racks of nodes, loads on several nodes at once, bytes on links."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
MIB = 1 << 20
# A load that takes longer is an error.
LOAD_SECONDS_MAX = 300


class Testbed:
    def __init__(self, zonal, folder, racks, nodes, rate, uplink=None, storage_nodes=None):
        self.zonal, self.folder, self.racks, self.nodes = zonal, folder, racks, nodes
        self.mount = f"{folder}/mnt"
        args = ["--racks", racks, "--nodes", nodes, "--node-rate", rate]
        args += ["--uplink-rate", uplink or rate]
        if storage_nodes:
            args += ["--storage-nodes", storage_nodes]
        self.command("up", *args)

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

    def make_dir(self, rack, name, placement="zone"):
        """Makes a first-level directory homed in a rack's zone."""
        path = f"{self.mount}/{name}"
        self.exec(f"r{rack}n1", self.zonal, "mkdir", "--zone", rack, path)
        self.exec(f"r{rack}n1", self.zonal, "layout", "set", "--placement", placement, path)
        return path

    def links(self):
        links = json.loads(self.command("status", "--json"))["links"]
        return {link["name"]: link for link in links}

    def load(self, job, files, mib):
        """Runs one stream a (node, path); returns MiB/s of all together and bytes over uplinks."""
        if job == "read":
            drop_caches()
        before = self.links()
        start = time.monotonic() + 0.5 + 0.05 * len(files)
        running = []
        for node, path in files:
            call = [self.zonal, "testbed", "exec", "--dir", self.folder, node, "--", "python3",
                    str(WORKER), job, path, str(mib), str(start)]
            running.append(subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                            stdin=subprocess.DEVNULL, text=True))
        streams = []
        for process in running:
            out, err = process.communicate(timeout=LOAD_SECONDS_MAX)
            if process.returncode != 0:
                raise RuntimeError(f"{job} on a node: {err.strip()}")
            streams.append(json.loads(out))
        after = self.links()
        moved = sum(stream["bytes"] for stream in streams)
        took = max(of["ended"] for of in streams) - min(of["begun"] for of in streams)
        crossed = sum(after[name]["up_bytes"] - before[name]["up_bytes"]
                      for name in after if after[name]["uplink"])
        return {"mib_per_s": moved / MIB / took, "bytes": moved, "seconds": took,
                "uplink_bytes": crossed, "uplink_share": crossed / moved}


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def note(text):
    print(text, file=sys.stderr, flush=True)
