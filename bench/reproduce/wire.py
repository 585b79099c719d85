"""Figures of the wire: our own counters beside the links' bytes, and mounts beside plain TCP."""
import statistics

from placed import counts, line, series
from testbed import Testbed, drop_caches, note

MIB = 1 << 20
ROUNDS = 3
JOBS = ("write", "read")


def payload(found, uplinks):
    """Bytes without headers that went up on the uplinks, or on the links of nodes."""
    return sum(link["up_payload"] for link in found["links"].values() if link["uplink"] == uplinks)


def all_pairs(froms, tos, size):
    """A stream between each two nodes, as files of `size` bytes a node in stripes need them."""
    return [(one, other, size // len(tos)) for one in froms for other in tos]


def beside_raw(bed, files, pairs, mib):
    """Rounds of plain TCP and of mounts in turn."""
    found = {name: [] for name in ("raw write", "write", "raw read", "read")}
    for _round in range(ROUNDS):
        for job in JOBS:
            way = pairs if job == "write" else [(to, one, size) for one, to, size in pairs]
            found[f"raw {job}"].append(bed.raw(way))
            found[job].append(bed.load(job, files, mib))
    for name, rounds in found.items():
        note(f"  {name}: " + ", ".join(f"{of['mib_per_s']:.1f}" for of in rounds) + f" MiB/s, {drops(rounds)} drops")
    return found


def drops(rounds):
    return sum(link["up_drops"] + link["down_drops"] for one in rounds
               for link in one["links"].values())


def plain_tcp(args, folder):
    """Mounts beside plain TCP between the same nodes: in a rack, and across the core."""
    rows = []
    for place, racks in (("rack", 1), ("core", 2)):
        with Testbed(args.zonal, f"{folder}/{place}", racks, args.nodes, args.rate) as bed:
            top = bed.make_dir(racks, place)
            clients, servers = bed.names(1), bed.names(racks)
            pairs = all_pairs(clients, servers, args.mib * MIB)
            files = [(node, f"{top}/{node}") for node in clients]
            # Connections are made before: files live longer than the start of a TCP stream.
            bed.load("write", files, 1)
            found = beside_raw(bed, files, pairs, args.mib)
        for job in JOBS:
            rows.append(row_beside_raw(place, job, found))
    shares = [row["of plain TCP"] for row in rows]
    last = rows[len(JOBS):]
    sentence = (f"{args.nodes} writers and {args.nodes} readers of a rack have {shares[0]:.2f} and "
                f"{shares[1]:.2f} of plain TCP between the same nodes (asked 0.9). Writers and "
                f"readers of another rack put {last[0]['excess on core %']:.1f}% and "
                f"{last[1]['excess on core %']:.1f}% more bytes on the core than arrive (asked 3%), "
                f"and their senders {last[0]['excess of senders %']:.1f}% and "
                f"{last[1]['excess of senders %']:.1f}% more, headers left out; plain TCP sends "
                f"{last[0]['excess of plain TCP %']:.1f}% and "
                f"{last[1]['excess of plain TCP %']:.1f}% more.")
    names = [f"{row['place']} {row['job']}" for row in rows]
    lines = [line(name, [[at, row[name]] for at, row in enumerate(rows)])
             for name in ("plain TCP", "mounts")]
    return series("Mounts beside plain TCP", "", lines, sentence, bars=names, table=rows)


def row_beside_raw(place, job, found):
    raw, mounts = found[f"raw {job}"], found[job]
    senders = "r2" if (place, job) == ("core", "read") else "r1"

    def excess(rounds, of):
        """Bytes more than arrive, in percent, of the median round."""
        return round(100 * statistics.median(of(one) / one["bytes"] - 1 for one in rounds), 2)

    def sent(one):
        return sum(link["up_payload"] for name, link in one["links"].items()
                   if name.startswith(f"{senders}n"))

    row = {"place": place, "job": job, "plain TCP": rate(raw), "mounts": rate(mounts),
           "of plain TCP": round(rate(mounts) / rate(raw), 3),
           "drops": drops(mounts), "drops of plain TCP": drops(raw)}
    if place == "core":
        row["excess on core %"] = excess(mounts, lambda one: payload(one, uplinks=True))
        row["excess of senders %"] = excess(mounts, sent)
        row["excess of plain TCP %"] = excess(raw, sent)
    return row


def rate(rounds):
    return round(statistics.median(of["mib_per_s"] for of in rounds), 2)
