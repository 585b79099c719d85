"""Figures of the ZoneFS publication: jobs that `zonal run` starts near their files."""
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from testbed import HERE, MIB, Testbed, drop_caches, moved_on, note, rate_bits

RECORD = 100
# The nodes of a rack have ten times the bandwidth of its uplink, as in the publication.
OVERSUBSCRIPTION = 10
PLACES = {"zone": "zone", "cell": "cell-wide", "node": "node-local"}
# Edge of the images, and how many a node: JPEG of about 1 and 4 MB; 200 a node in the publication.
SMALL, LARGE = (1760, 2), (3456, 1)


class PlacedJobs:
    """Jobs over two racks whose files have one placement. A zone's nodes use files of their zone."""

    def __init__(self, bed, place, count):
        self.bed, self.count = bed, 2 * count
        racks = (1, 2) if place == "zone" else (1,)
        self.tops = [bed.make_dir(rack, f"{place}-{count}-{rack}", place) for rack in racks]
        self.near = [["--near", f"/{top.rsplit('/', 1)[1]}"] for top in self.tops]
        if place != "zone":
            self.near = [["--any"]]

    def run(self, words):
        """Runs a rank on each node; returns what the ranks printed. `words`: of a directory's ranks,
        from its number and the number of the first one."""
        each = self.count // len(self.near)

        def job(number):
            out = self.bed.exec("r1n1", self.bed.zonal, "run", *self.near[number], "-n", each,
                                "--per-node", 1, "--no-prefix", "--no-stdin", "--",
                                sys.executable,
                                *words(self.tops[number], number * each))
            return [json.loads(text) for text in out.splitlines()]

        with ThreadPoolExecutor() as pool:
            return [rank for ranks in pool.map(job, range(len(self.near))) for rank in ranks]

    def sort(self, phase, mib):
        """Runs a phase of a sort; returns records and the sum of their checksums."""
        found = self.run(lambda top, first: [
            HERE / "shuffle_worker.py", phase, ",".join(self.tops), top, first, self.count,
            mib * MIB // RECORD])
        return sum(rank["records"] for rank in found), sum(rank["sum"] for rank in found)

    def images(self, phase, edge, images):
        found = self.run(lambda top, first: [
            HERE / "image_worker.py", phase, top, first, images, edge])
        return {key: sum(rank[key] for rank in found) for key in ("images", "jpeg", "bmp")}


def measure(bed, work):
    before, begun = bed.links(), time.monotonic()
    found = work()
    took = time.monotonic() - begun
    crossed = sum(link["up_bytes"] for link in moved_on(before, bed.links()).values()
                  if link["uplink"])
    return found, took, crossed / MIB


def by_placement(args, folder, uplink, work):
    """Seconds of each placement by nodes. `work` prepares, and returns what is measured."""
    lines, table = {place: [] for place in PLACES}, []
    with Testbed(args.zonal, folder, 2, args.nodes, args.rate, uplink=f"{uplink}bit") as bed:
        for count in (count for count in (2, 4, 8) if count <= args.nodes):
            for place, name in PLACES.items():
                measured = work(PlacedJobs(bed, place, count))
                drop_caches()
                _found, took, crossed = measure(bed, measured)
                lines[place].append([2 * count, took])
                table.append({"nodes": 2 * count, "placement": name, "seconds": round(took, 2),
                              "MiB across the core": round(crossed, 1)})
                note(f"  {name}, {2 * count} nodes: {took:.1f} s, {crossed:.1f} MiB crossed")
    last = {place: points[-1][1] for place, points in lines.items()}
    return {"x_label": "nodes of two racks", "y_label": "s", "table": table,
            "lines": [{"name": PLACES[place], "points": points}
                      for place, points in lines.items()]}, \
        {place: last[place] / last["zone"] for place in PLACES}


def narrow_uplink(args):
    return rate_bits(args.rate) * args.nodes // OVERSUBSCRIPTION


def generate(args, folder):
    """Fig 11: every node generates records, 10:1 oversubscription."""
    figure, factors = by_placement(
        args, folder, narrow_uplink(args),
        lambda jobs: lambda: jobs.sort("generate", args.mib // 2))
    return figure | {"title": "ZoneFS Fig 11: teragen, seconds", "sentence":
                     f"Cell-wide takes {factors['cell']:.2f} of the zone's time, node-local "
                     f"{factors['node']:.2f}; the publication has 1.70 and about 1.1 with 16 nodes."}


def sort(args, folder):
    """Fig 12: all nodes sort those records, each with a part of the keys."""
    def work(jobs):
        made = jobs.sort("generate", args.mib // 2)

        def measured():
            for phase in ("map", "reduce"):
                if jobs.sort(phase, 0) != made:
                    raise RuntimeError(f"{phase}: other records than were generated")
        return measured

    figure, factors = by_placement(args, folder, narrow_uplink(args), work)
    return figure | {"title": "ZoneFS Fig 12: terasort, seconds", "sentence":
                     f"Cell-wide takes {factors['cell']:.2f} of the zone's time, node-local "
                     f"{factors['node']:.2f}; in the publication cell-wide is worst, and the zone "
                     f"slightly ahead of node-local."}


def convert(args, folder, title, published, edge, images):
    def work(jobs):
        jobs.images("make", edge, images)
        return lambda: jobs.images("convert", edge, images)

    figure, factors = by_placement(args, folder, rate_bits(args.rate), work)
    return figure | {"title": title, "sentence":
                     f"Cell-wide takes {factors['cell']:.2f} of the zone's time, node-local "
                     f"{factors['node']:.2f}; {published}."}


def small_images(args, folder):
    """Fig 14: every node converts images of 1 MB to BMP."""
    return convert(args, folder, "ZoneFS Fig 14: JPEG of 1 MB to BMP, seconds",
                   "in the publication GPFS is behind, and HDFS takes 2 to 6 times as long, since "
                   "its one name node is the limit", *SMALL)


def large_images(args, folder):
    """Fig 15: every node converts images of 4 MB to BMP."""
    return convert(args, folder, "ZoneFS Fig 15: JPEG of 4 MB to BMP, seconds",
                   "in the publication ZoneFS is 64% faster than HDFS with 4 nodes, and GPFS falls "
                   "behind as the uplink fills", *LARGE)
