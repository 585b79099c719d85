"""Figures of bandwidth by racks: one hot file, and zones that grow in number."""
import statistics

from placed import counts, line, series
from testbed import MIB, Testbed, note

# Sixteen nodes at this rate are 400 Mbit/s in all, well below what two cores carry.
ZONES_RATE = "25mbit"
RACKS = (1, 2, 4)
ROUNDS = 3
# The hot file is larger than other files, as there is one.
HOT_TIMES = 4


def hot_file(args, folder):
    """Hot file: all nodes of a rack read one file at once, cold."""
    lines = {"zone": [], "node": []}
    on_links = {}
    mib = HOT_TIMES * args.mib
    with Testbed(args.zonal, folder, 1, args.nodes, args.rate) as bed:
        one_link = bed.payload_rate("r1n1")
        for placement, points in lines.items():
            path = bed.make_dir(1, placement, placement) + "/hot"
            bed.load("write", [("r1n1", path)], mib)
            # The writer reads last: with placement `node` it needs no link.
            readers = bed.names(1)[::-1]
            for count in counts(args.nodes):
                found = bed.load("read", [(node, path) for node in readers[:count]], mib)
                points.append([count, found["mib_per_s"]])
                arrived = sum(link["down_payload"] for link in found["links"].values()
                              if not link["uplink"])
                on_links[f"{placement} {count}"] = arrived / found["seconds"] / MIB / one_link
                note(f"  {placement}, {count} readers: {found['mib_per_s']:.1f} MiB/s")
    limit = args.nodes * one_link
    zone, node = (points[-1][1] for points in lines.values())
    used = on_links[f"zone {args.nodes}"] / args.nodes
    stays = on_links[f"node {args.nodes}"]
    sentence = (f"{args.nodes} nodes read one file in the zone at {zone / limit:.0%} of the rack's "
                f"links together (asked 80%), {used:.0%} without the part that each node has "
                f"itself. A file on one node is read at {node / limit:.0%}: it stops at "
                f"{stays:.2f} of that node's link.")
    lines["links"] = [[count, count * one_link] for count in counts(args.nodes)]
    return series("One hot file, read by all nodes of a rack", "nodes that read the file",
                  [line(name if name == "links" else f"{name} placement", points)
                   for name, points in lines.items()], sentence, links_used=on_links,
                  share_of_links={"zone": zone / limit, "node": node / limit})


def growing_zones(args, folder):
    """Zones: each node writes and reads a file of its own zone, with 1, 2 and 4 racks."""
    rate = min(ZONES_RATE, args.rate, key=lambda text: int(text.removesuffix("mbit")))
    lines = {"write": [], "read": []}
    for racks in RACKS:
        with Testbed(args.zonal, f"{folder}/{racks}", racks, args.nodes, rate) as bed:
            files = []
            for rack in range(1, racks + 1):
                top = bed.make_dir(rack, f"zone{rack}")
                files += [(node, f"{top}/{node}") for node in bed.names(rack)]
            # Targets that have just started have asked their shards then.
            bed.load("write", files, args.nodes)
            rounds = {job: [] for job in lines}
            for number in range(ROUNDS):
                files = [(node, f"{path}-{number}") for node, path in files]
                for job, rates in rounds.items():
                    rates.append(bed.load(job, files, args.mib)["mib_per_s"])
            for job, rates in rounds.items():
                lines[job].append([racks, statistics.median(rates)])
                note(f"  {racks} racks, {job}: " + ", ".join(f"{of:.1f}" for of in rates)
                     + " MiB/s")
    rows = [{"racks": racks, **{f"{job} MiB/s": round(points[at][1], 2)
                               for job, points in lines.items()},
             **{f"{job} of ideal": round(points[at][1] / points[0][1] / racks, 3)
                for job, points in lines.items()}} for at, racks in enumerate(RACKS)]
    last = rows[-1]
    sentence = (f"With {RACKS[-1]} racks of {args.nodes} nodes at {rate} all together write "
                f"{last['write of ideal']:.2f} and read {last['read of ideal']:.2f} of "
                f"{RACKS[-1]} times one rack; asked is 0.95.")
    lines = [line(name, points) for name, points in lines.items()]
    lines.append(line("ideal", [[racks, racks * rows[0]["write MiB/s"]] for racks in RACKS]))
    return series("Bandwidth by the number of zones", "racks, each node in its own zone", lines,
                  sentence, table=rows, link_rate=rate)
