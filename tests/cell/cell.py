"""The cell under test: `zonal up` made it, and it is mounted. ZONAL names the binary."""
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import argument_parser, pattern, read, true, write  # noqa: E402

ZONAL = os.environ.get("ZONAL", "zonal")
MIB = 1 << 20


def data_id(path):
    """The data id of a file's bytes, from its layout."""
    return int(re.search(r"data=(\d+)", os.getxattr(path, "zonal.layout").decode())[1])


class Cell:
    """The cell under test."""

    def __init__(self, folder, mount, second):
        self.folder, self.mount, self.second = folder, mount, second

    def zonal(self, *args, ok=True, limit=60):
        done = subprocess.run([ZONAL, *args], capture_output=True, text=True, timeout=limit, check=False)
        if ok and done.returncode:
            raise AssertionError(f"zonal {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def locate(self, path):
        """The JSON of `zonal locate --json` for one path."""
        records = json.loads(self.zonal("locate", "--json", path).stdout)
        while isinstance(records, dict) and len(records) == 1:
            records = next(iter(records.values()))
        return records[0] if isinstance(records, list) else records

    def nodes(self):
        """{name: (pid, port of the service, port of the admin page)} of the running nodes."""
        out = {}
        for name in sorted(os.listdir(self.folder)):
            config, pid = (os.path.join(self.folder, name, f) for f in ("node.toml", "pid"))
            if os.path.exists(config) and os.path.exists(pid):
                with open(config, encoding="utf-8") as f:
                    ports = [int(p) for p in re.findall(r'^listen = "[^"]*:(\d+)"', f.read(), re.M)]
                with open(pid, encoding="utf-8") as f:
                    out[name] = (int(f.read()), *(ports + [0, 0])[:2])
        true(len(out) >= 9, f"only these nodes have a pid: {sorted(out)}")
        return out

    def mount_pids(self):
        """The processes of the cell's mounts."""
        folder, out = os.path.join(self.folder, "mounts"), []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".toml"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    out.append(int(re.search(r"^pid = (\d+)", f.read(), re.M)[1]))
        return [pid for pid in out if os.path.exists(f"/proc/{pid}/exe")]

    def alive(self):
        return {name: pid for name, (pid, *_) in self.nodes().items() if os.path.exists(f"/proc/{pid}/exe")}

    def works(self, zone="one"):
        """Writes, reads and removes a file."""
        path = f"{self.mount}/{zone}/works"
        write(path, pattern(7, 3 * MIB))
        true(read(path) == pattern(7, 3 * MIB), "content differs")
        os.unlink(path)

    def metrics(self, name):
        """{metric with labels: value} of a node's /metrics."""
        port = self.nodes()[name][2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            text = page.read().decode()
        return {k: float(v) for k, v in re.findall(r"^([a-z_]+(?:\{[^}]*\})?) ([0-9.eE+-]+)$", text, re.M)}


def run(title, registry, text, kind=Cell):
    """Runs the checks that the command line selects.

    Each check gets the cell, as this class, and a directory of its own in zone 1.
    """
    parser = argument_parser(text.split("\n", 1)[0])
    parser.add_argument("--cell", required=True)
    parser.add_argument("--mount", required=True)
    parser.add_argument("--second-mount", default="")

    def make_args(args, c):
        folder = os.path.join(args.mount, "one", f"{title}-{c.ident}")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        cell = kind(os.path.abspath(args.cell), args.mount, args.second_mount)
        return (cell, folder), lambda _result: shutil.rmtree(folder, ignore_errors=True)

    registry.run(title, parser, make_args)
