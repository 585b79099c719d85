"""Figures of the wire: our own counters beside the links' bytes, and mounts beside plain TCP."""
import statistics

from placed import line, series
from testbed import MIB, Testbed, note, racks_within, rate_bits

ROUNDS = 3
COUNTED_RACKS = (2, 4)
JOBS = ("write", "read")


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
        rates = ", ".join(f"{of['mib_per_s']:.1f}" for of in rounds)
        note(f"  {name}: {rates} MiB/s, {drops(rounds)} drops")
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
            # Connections are made before, and targets that have just started know their shards.
            bed.load("write", files, args.nodes)
            found = beside_raw(bed, files, pairs, args.mib)
        for job in JOBS:
            rows.append(row_beside_raw(place, job, found))
    shares = [row["of plain TCP"] for row in rows]
    last = rows[len(JOBS):]
    sentence = (f"{args.nodes} writers and {args.nodes} readers of a rack have {shares[0]:.2f} and "
                f"{shares[1]:.2f} of plain TCP between the same nodes (asked 0.9). Writers and "
                f"readers of another rack put {last[0]['excess on core %']:.1f}% and "
                f"{last[1]['excess on core %']:.1f}% more bytes on the core than arrive (asked "
                f"3%), and their senders {last[0]['excess of senders %']:.1f}% and "
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

    def onto_core(one):
        return sum(link["up_payload"] for link in one["links"].values() if link["uplink"])

    def sent(one):
        return sum(link["up_payload"] for name, link in one["links"].items()
                   if name.startswith(f"{senders}n"))

    row = {"place": place, "job": job, "plain TCP": rate(raw), "mounts": rate(mounts),
           "of plain TCP": round(rate(mounts) / rate(raw), 3),
           "drops": drops(mounts), "drops of plain TCP": drops(raw)}
    if place == "core":
        row["excess on core %"] = excess(mounts, onto_core)
        row["excess of senders %"] = excess(mounts, sent)
        row["excess of plain TCP %"] = excess(raw, sent)
    return row


def rate(rounds):
    return round(statistics.median(of["mib_per_s"] for of in rounds), 2)


def own_counters(args, folder):
    """Our own counters of traffic beside the bytes on links, for zone-local and cell-wide jobs."""
    rows = []
    counted_racks = racks_within(COUNTED_RACKS, args.nodes)
    # Bytes are counted behind the queues where frames are dropped. Slow uplinks are the limit, so
    # that nothing is dropped behind them.
    uplink = f"{rate_bits(args.rate) // 4}bit"
    for racks in counted_racks:
        # The last nodes of a rack have no target, so each byte passes the links of their clients.
        storage = max(1, args.nodes // 2)
        width = racks * storage
        with Testbed(args.zonal, f"{folder}/{racks}", racks, args.nodes, args.rate, uplink,
                     storage) as bed:
            for placement in ("zone", "cell"):
                tops = {rack: bed.make_dir(rack, f"{placement}{rack}", placement)
                        for rack in range(1, racks + 1)}
                files = [(node, f"{tops[rack]}/{node}") for rack in tops
                         for node in bed.names(rack)[storage:]]
                # A target that has just started asks each shard before its first write, and
                # refuses more writes until then: their bytes pass the links twice.
                bed.load("write", [(node, f"{path}-first") for node, path in files], width)
                for job in JOBS:
                    before = bed.traffic()
                    found = bed.load(job, files, args.mib)
                    counted = {key: value - before[key] for key, value in bed.traffic().items()
                               if key.endswith("_bytes")}
                    clients = {node for node, _path in files}
                    rows.append(counted_row(racks, placement, job, found, counted, clients))
                    note(f"  {rows[-1]}")
    worst = max(abs(row[f"{of} off %"]) for row in rows for of in ("in all", "cross-zone")
                if row[f"{of} off %"] is not None)
    zone = max(row["links cross %"] for row in rows if row["placement"] == "zone")
    wide = {racks: statistics.mean(row["links cross %"] for row in rows if row["racks"] == racks
                                   and row["placement"] == "cell") for racks in counted_racks}
    sentence = (f"Our own counters are within {worst:.1f}% of the bytes on links without headers "
                f"(asked 2%). Zone-local jobs put {zone:.2f}% of their bytes across the core "
                "(asked 1%), cell-wide ones " + ", ".join(
                    f"{share:.0f}% with {racks} racks (ideal {100 * (racks - 1) / racks:.0f}%)"
                    for racks, share in wide.items()) + ".")
    names = [f"{row['racks']} racks\n{row['placement']} {row['job']}" for row in rows]
    lines = [line(name, [[at, row[f"{name} cross %"]] for at, row in enumerate(rows)])
             for name in ("links", "counters")]
    return series("Bytes across the core: links and our own counters", "", lines, sentence,
                  y_label="% of the bytes of the job", bars=names, table=rows,
                  rate=f"{args.rate}, with uplinks of {rate_bits(uplink) / 1e6:g}mbit")


def counted_row(racks, placement, job, found, counted, clients):
    """The payload of a job by links and by the targets' counters."""
    # Written bytes arrive at nodes with targets, read ones at the clients.
    on_links = sum(link["down_payload"] for name, link in found["links"].items()
                   if not link["uplink"] and (name in clients) == (job == "read"))
    crossed = sum(link["down_payload"] for link in found["links"].values() if link["uplink"])
    word = "written" if job == "write" else "read"
    cross = counted[f"{word}_cross_zone_bytes"]
    in_all = cross + counted[f"{word}_in_zone_bytes"]

    def off(counter, links):
        return round(100 * (counter / links - 1), 2)

    return {"racks": racks, "placement": placement, "job": job, "moved": found["bytes"],
            "links": on_links, "counters": in_all, "in all off %": off(in_all, on_links),
            "cross-zone links": crossed, "cross-zone counters": cross,
            # Of a zone-local job both are next to nothing.
            "cross-zone off %": off(cross, crossed) if placement == "cell" else None,
            "links cross %": round(100 * crossed / found["bytes"], 3),
            "counters cross %": round(100 * cross / in_all, 3)}
