"""Tables of the DCFS publication and of the ZFS report."""
import csv
import io
import os
import statistics
import subprocess
import time
from pathlib import Path

from testbed import MIB, Testbed, drop_caches, note

# DCFS, table 1: efficiency of reads and writes by storage servers, relative to one.
PUBLISHED = {1: (1.0, 1.0), 2: (1.95, 1.88), 4: (3.22, 3.34), 8: (5.72, 4.91)}
SERVERS = (1, 2, 4, 8)
CLIENTS = (1, 4, 8, 22)
SERVER_RATE = "30mbit"
# MiB that one server moves in about four seconds; a client moves as much at most.
SERVER_MIB = 16


def storage_servers(args, folder):
    """DCFS table 1: peak bandwidth, speed-up and efficiency by storage servers."""
    # Every node has the same link, slow enough that the servers' links are the limit, and not the
    # processors of one machine.
    lines = {"read": [], "write": []}
    rows = []
    for servers in SERVERS:
        peak = {"read": (0.0, 0, 0.0), "write": (0.0, 0, 0.0)}
        with Testbed(args.zonal, f"{folder}/{servers}", 1, servers + CLIENTS[-1], SERVER_RATE,
                     storage_nodes=servers) as bed:
            top = bed.make_dir(1, "peak")
            # The last nodes have no target, so each byte passes a server's link.
            clients = bed.names(1)[-CLIENTS[-1]:]
            nodes = bed.names(1)[:servers]
            for count in CLIENTS:
                files = [(node, f"{top}/{count}-{node}") for node in clients[:count]]
                # Whole stripes, so that each server has the same to do.
                mib = min(SERVER_MIB, max(1, SERVER_MIB * servers // count))
                mib = -(-mib // servers) * servers
                for job, way in (("write", "down"), ("read", "up")):
                    found = bed.load(job, files, mib)
                    links = found["together"]
                    rate = sum(links[node][way] for node in nodes) if links else found["mib_per_s"]
                    peak[job] = max(peak[job], (rate, count, found["mib_per_s"]))
        row = {"servers": servers}
        for job, (rate, count, whole) in peak.items():
            row |= {job: round(rate, 2), f"{job} clients": count,
                    f"{job} to the last": round(whole, 2)}
            lines[job].append([servers, rate])
        rows.append(row)
        note(f"  {servers} servers: read {row['read']}, write {row['write']} MiB/s")
    for row in rows:
        for job in lines:
            row[f"{job} speed-up"] = round(row[job] / rows[0][job], 2)
            row[f"{job} efficiency"] = round(row[job] / rows[0][job] / row["servers"], 2)
    last = rows[-1]
    read, write = (PUBLISHED[8][at] / 8 for at in (0, 1))
    sentence = (f"With 8 servers the efficiency relative to one is {last['read efficiency']:.2f} "
                f"for reads and {last['write efficiency']:.2f} for writes while all clients run; "
                f"DCFS had {read:.2f} and {write:.2f}.")
    return {"title": "DCFS table 1: peak bandwidth by storage servers",
            "x_label": f"storage servers behind links of {SERVER_RATE}", "y_label": "MiB/s, peak",
            "lines": [{"name": job, "points": points} for job, points in lines.items()],
            "table": rows, "sentence": sentence}


def dd(folder, mib):
    path = Path(folder) / "dd"
    begun = time.monotonic()
    call = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=fsync",
            "status=none"]
    subprocess.run(call, check=True, timeout=300)
    write = mib / (time.monotonic() - begun)
    drop_caches()
    begun = time.monotonic()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"], check=True,
                   timeout=300)
    read = mib / (time.monotonic() - begun)
    path.unlink()
    return {"dd write": write, "dd read": read}


def bonnie(folder, mib):
    # It prints no rate for work of less than half a second, hence four times the size of dd.
    call = ["bonnie++", "-q", "-f", "-d", folder, "-s", str(4 * mib), "-r", str(2 * mib), "-n", "0",
            "-u", "root", "-m", "zonal"]
    out = subprocess.run(call, check=True, capture_output=True, text=True, timeout=600).stdout
    fields = next(csv.reader(io.StringIO(out.strip().splitlines()[-1])))
    # Format 1.98: sequential output of blocks and sequential input of blocks, KiB/s.
    kib = {"bonnie++ write": fields[11], "bonnie++ read": fields[17]}
    return {name: float(value) / 1024 for name, value in kib.items() if value.strip("+")}


def native_disk(args, folder):
    """ZFS report: dd and bonnie++ through the mount, beside the native disk."""
    mib = 16 * args.mib
    cell, mount, disk = (f"{folder}/{name}" for name in ("cell", "mnt", "disk"))
    for path in (mount, disk):
        os.makedirs(path)
    up = [args.zonal, "up", "--dir", cell, "--mount", mount, "--zones", "1", "--storage-nodes", "3"]
    subprocess.run(up, check=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    try:
        os.mkdir(f"{mount}/one")
        places = {"native": disk, "zonal": f"{mount}/one"}
        runs = {name: [] for name in places}
        # Interleaved, so that both meet the same machine.
        for _round in range(3):
            for name, place in places.items():
                runs[name].append({**dd(place, mib), **bonnie(place, mib)})
                note(f"  {name}: " + ", ".join(f"{k} {v:.0f}" for k, v in runs[name][-1].items()))
    finally:
        subprocess.run([args.zonal, "down", "--dir", cell], check=True, capture_output=True,
                       timeout=60)
    rows = []
    # Work that was too short for a rate in every round is left out.
    for work in sorted({work for run in runs["native"] for work in run}
                       & {work for run in runs["zonal"] for work in run}):
        found = {name: statistics.median(run[work] for run in list_ if work in run)
                 for name, list_ in runs.items()}
        rows.append({"work": work, **{name: round(of, 1) for name, of in found.items()},
                     "share": round(found["zonal"] / found["native"], 2)})
    read = next(row["share"] for row in rows if row["work"] == "dd read")
    sentence = (f"dd reads through the mount {read:.0%} of the native disk; the report had 97 to "
                "100% of a disk of 10 MB/s, its goal was 80%.")
    lines = [{"name": name, "points": [[at, row[name]] for at, row in enumerate(rows)]}
             for name in ("native", "zonal")]
    return {"title": "ZFS report: through the mount and native", "y_label": "MiB/s, median of 3",
            "x_label": "", "bars": [row["work"] for row in rows], "lines": lines, "table": rows,
            "sentence": sentence, "bytes": mib * MIB}
