"""Figures of the ZoneFS publication: where data lies, and what that costs."""
import os

from testbed import Testbed, note

# Rounds of each load on our own files, each with new files; the round of median rate counts.
ROUNDS = 5


def counts(nodes):
    return [count for count in (1, 2, 4, 8, 16) if count <= nodes]


def line(name, points):
    return {"name": name, "points": points}


def peer_lines(bed, args, racks, written_by=None):
    """The same load in each peer's directory: a file a node, or all written by one node."""
    lines = []
    for name, top in args.peers.items():
        # A relative directory is in the testbed's folder.
        folder = os.path.join(bed.folder, top, f"zonal-{os.getpid()}")
        bed.exec("r1n1", "mkdir", folder)
        of = {job: [] for job in (("read",) if written_by else ("write", "read"))}
        for count in counts(args.nodes)[1 if written_by else 0:]:
            files = [(node, f"{folder}/{count}-{node}") for rack in racks
                     for node in bed.names(rack, count)]
            for _node, path in files if written_by else ():
                bed.load("write", [(written_by, path)], args.mib)
            for job, points in of.items():
                found = bed.load(job, files, args.mib)
                points.append([len(files), found["mib_per_s"]])
                note(f"  {name} {job}, {len(files)} nodes: {found['mib_per_s']:.1f} MiB/s")
        bed.exec("r1n1", "rm", "-r", folder)
        lines += [line(f"{name} {job}", points) for job, points in of.items()]
    return lines


def warm_up(bed, top, nodes):
    """Makes connections, and has targets that have just started ask their shards."""
    bed.load("write", [(node, f"{top}/first-{node}") for node in nodes], len(nodes))


def of_median_rate(rounds):
    rounds = sorted(rounds, key=lambda found: found["mib_per_s"])
    return rounds[len(rounds) // 2] | {"rates": [round(found["mib_per_s"], 2) for found in rounds]}


def write_and_read(bed, files_of, mib):
    """The round of median rate of each job. `files_of`: of a round's number."""
    found = {"write": [], "read": []}
    for number in range(ROUNDS):
        for job, rounds in found.items():
            rounds.append(bed.load(job, files_of(number), mib))
    return {job: of_median_rate(rounds) for job, rounds in found.items()}


def series(title, x_label, lines, sentence, **more):
    return {"title": title, "x_label": x_label, "y_label": "MiB/s, all nodes together",
            "lines": lines, "sentence": sentence} | more


def local_and_cross_rack(args, folder):
    """Fig 9: local and cross-rack I/O, separate files, by nodes of one rack."""
    places = {"local": 1, "cross-rack": 2}
    lines = {(place, job): [] for place in places for job in ("write", "read")}
    shares, rates = {}, {}
    with Testbed(args.zonal, folder, 2, args.nodes, args.rate) as bed:
        for place, rack in places.items():
            top = bed.make_dir(rack, place)
            warm_up(bed, top, bed.names(1))
            for count in counts(args.nodes):
                def files_of(number, top=top, count=count):
                    return [(node, f"{top}/{count}-{number}-{node}")
                            for node in bed.names(1, count)]

                for job, found in write_and_read(bed, files_of, args.mib).items():
                    lines[place, job].append([count, found["mib_per_s"]])
                    shares[f"{place} {job} {count}"] = found["uplink_share"]
                    rates[f"{place} {job} {count}"] = found["rates"]
                    note(f"  {place} {job}, {count} nodes: {found['mib_per_s']:.1f} MiB/s")
        peers = peer_lines(bed, args, [1])
    gain = lines["local", "write"][-1][1] / lines["cross-rack", "write"][-1][1]
    worst = max(share for name, share in shares.items() if name.startswith("local"))
    sentence = (f"With {args.nodes} nodes local writes are {gain:.1f} times cross-rack writes, "
                "which stop at the uplink; the publication had more than twice. Local I/O put "
                f"{worst:.2%} of its bytes on the uplinks at most.")
    return series("Fig 9: local and cross-rack, separate files", "nodes of one rack",
                  [line(" ".join(key), points) for key, points in lines.items()] + peers, sentence,
                  uplink_share=shares, rates=rates)


def zones_and_cell(args, folder):
    """Fig 10: the same load on both racks, files in zones and over the whole cell."""
    lines = {(placement, job): [] for placement in ("zone", "cell") for job in ("write", "read")}
    shares, rates = {}, {}
    with Testbed(args.zonal, folder, 2, args.nodes, args.rate) as bed:
        for placement in ("zone", "cell"):
            tops = {rack: bed.make_dir(rack, f"{placement}{rack}", placement) for rack in (1, 2)}
            for rack, top in tops.items():
                warm_up(bed, top, bed.names(rack))
            for count in counts(args.nodes):
                def files_of(number, tops=tops, count=count):
                    return [(node, f"{tops[rack]}/{count}-{number}-{node}") for rack in (1, 2)
                            for node in bed.names(rack, count)]

                for job, found in write_and_read(bed, files_of, args.mib).items():
                    lines[placement, job].append([2 * count, found["mib_per_s"]])
                    shares[f"{placement} {job} {count}"] = found["uplink_share"]
                    rates[f"{placement} {job} {2 * count}"] = found["rates"]
                    note(f"  {placement} {job}, 2 x {count} nodes: {found['mib_per_s']:.1f} MiB/s")
        peers = peer_lines(bed, args, [1, 2])
    gain = lines["zone", "write"][-1][1] / lines["cell", "write"][-1][1]
    crossed = shares[f"cell write {counts(args.nodes)[-1]}"]
    sentence = (f"With 2 x {args.nodes} nodes zones write {gain:.1f} times as fast as stripes over "
                f"the whole cell, which put {crossed:.0%} of the bytes on the uplinks ((racks - 1) "
                "/ racks = 50%); in the publication zones saturate the storage, and GPFS lies "
                "between local and cross-rack.")
    return series("Fig 10: zones and stripes over the cell", "nodes of both racks",
                  [line(" ".join(key), points) for key, points in lines.items()] + peers, sentence,
                  uplink_share=shares, rates=rates)


def one_writer(args, folder):
    """Fig 13: every node reads its own file, all written from one node."""
    series_of = {"zone placement": ("zone", 1), "node placement": ("node", 1),
                 "node placement, 2 copies": ("node", 2)}
    lines, rates = {name: [] for name in series_of}, {}
    with Testbed(args.zonal, folder, 1, args.nodes, args.rate) as bed:
        for name, points in lines.items():
            placement, copies = series_of[name]
            top = bed.make_dir(1, f"{placement}{copies}", placement, copies)
            warm_up(bed, top, bed.names(1))
            # One reader would be the writer itself, whose files need no link.
            for count in counts(args.nodes)[1:]:
                rounds = []
                for number in range(ROUNDS):
                    files = [(node, f"{top}/{count}-{number}-{node}")
                             for node in bed.names(1, count)]
                    for _node, path in files:
                        bed.load("write", [("r1n1", path)], args.mib)
                    rounds.append(bed.load("read", files, args.mib))
                found = of_median_rate(rounds)
                points.append([count, found["mib_per_s"]])
                rates[f"{name} {count}"] = found["rates"]
                note(f"  {name}, {count} nodes read: {found['mib_per_s']:.1f} MiB/s")
        peers = peer_lines(bed, args, [1], written_by="r1n1")
    last = {name: points[-1][1] for name, points in lines.items()}
    gain = last["zone placement"] / last["node placement"]
    copied = last["zone placement"] / last["node placement, 2 copies"]
    sentence = (f"With {args.nodes} readers files in the zone are read {gain:.1f} times as fast as "
                "files on their writer's node, which stop at the link of that node, and "
                f"{copied:.1f} times as fast as those with a second copy on another node. In the "
                "publication HDFS with one copy stops at that server.")
    return series("Fig 13: files written by one node", "nodes that read their own file",
                  [line(name, points) for name, points in lines.items()] + peers,
                  sentence, rates=rates)
