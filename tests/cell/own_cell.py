"""A mounted cell for one check: 2 zones with 2 storage nodes each. ZONAL names the binary."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from checks import argument_parser, equal  # noqa: E402

ZONAL = os.environ.get("ZONAL", "zonal")


class OwnCell:
    """A cell below `work`, with a directory in each zone; removed after its check."""

    def __init__(self, work):
        self.base = tempfile.mkdtemp(prefix="cell-", dir=work)
        self.folder, self.mount = f"{self.base}/cell", f"{self.base}/mnt"
        self.said = ""
        os.mkdir(self.mount)

    def __enter__(self):
        try:
            self.make()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def make(self):
        self.up()
        for zone, name in ((1, "one"), (2, "two")):
            self.zonal("mkdir", "--zone", str(zone), f"{self.mount}/{name}")

    def __exit__(self, *_):
        subprocess.run([ZONAL, "down", "--dir", self.folder], capture_output=True, timeout=60, check=False)
        if not os.path.ismount(self.mount):
            shutil.rmtree(self.base, ignore_errors=True)

    def zonal(self, *args, code=0, limit=120):
        done = subprocess.run([ZONAL, *args], capture_output=True, text=True, timeout=limit, check=False)
        equal(done.returncode, code, f"exit of zonal {' '.join(args)}: {done.stderr.strip()[-400:]}")
        return done

    def json(self, *args, **more):
        return json.loads(self.zonal(*args, **more).stdout)

    def up(self):
        self.said = self.zonal("up", "--dir", self.folder, "--mount", self.mount, "--zones", "2", "--storage-nodes", "2",
                               "--capacity", "1 GiB").stdout

    def down(self):
        self.zonal("down", "--dir", self.folder)


def run(title, registry, text):
    """Runs the checks that the command line selects; each gets the folder for its cells."""
    parser = argument_parser(text)
    parser.add_argument("--work", required=True, help="where the cells go; a directory")
    registry.run(title, parser, lambda args, _check: ((args.work,), lambda _result: None))
