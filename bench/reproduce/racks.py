"""Figures of bandwidth by racks: one hot file, and zones that grow in number."""
import statistics

from placed import counts, line, series
from testbed import MIB, Testbed, note, racks_within, rate_bits

# Sixteen nodes at this rate are 320 Mbit/s in all, a quarter of what two cores carry.
ZONES_RATE = "20mbit"
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
                   for name, points in lines.items()], sentence, links_used=on_links, mib=mib,
                  share_of_links={"zone": zone / limit, "node": node / limit})


def growing_zones(args, folder):
    """Zones: each node writes and reads a file of its own zone, with 1, 2 and 4 racks."""
    rate = min(ZONES_RATE, args.rate, key=rate_bits)
    lines = {"write": [], "read": []}
    until_last = {}
    counted = racks_within(RACKS, args.nodes)
    for racks in counted:
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
                    rates.append(bed.load(job, files, args.mib))
            for job, rates in rounds.items():
                sums = [of["sum_of_rates"] for of in rates]
                lines[job].append([racks, statistics.median(sums)])
                until_last[job, racks] = statistics.median(of["mib_per_s"] for of in rates)
                note(f"  {racks} racks, {job}: " + ", ".join(f"{of:.1f}" for of in sums)
                     + " MiB/s")
    rows = [{"racks": racks, **{f"{job} MiB/s": round(points[at][1], 2)
                               for job, points in lines.items()},
             **{f"{job} of ideal": round(points[at][1] / points[0][1] / racks, 3)
                for job, points in lines.items()},
             **{f"{job} MiB/s until the last node ends": round(until_last[job, racks], 2)
                for job in lines}} for at, racks in enumerate(counted)]
    last = rows[-1]
    sentence = (f"The nodes of {counted[-1]} racks, {args.nodes} each behind links of {rate}, "
                f"write {last['write of ideal']:.2f} and read {last['read of ideal']:.2f} of "
                f"{counted[-1]} times one rack, as the sum of their rates; asked is 0.95.")
    lines = [line(name, points) for name, points in lines.items()]
    lines.append(line("ideal", [[racks, racks * rows[0]["write MiB/s"]] for racks in counted]))
    return series("Bandwidth by the number of zones", "racks, each node in its own zone", lines,
                  sentence, table=rows, rate=rate)
