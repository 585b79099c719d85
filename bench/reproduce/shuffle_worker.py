"""One rank of a sort over all nodes, as terasort does it: records of 100 bytes, keys of 10.

    shuffle_worker.py generate|map|reduce TOPS OWN BASE RANKS RECORDS

TOPS are the directories of all ranks, in equal parts; OWN is this rank's. The rank is BASE plus
ZONAL_RANK. Each phase prints how many records it had and the sum of their checksums.
"""
import json
import os
import sys
import zlib

RECORD = 100
KEY = 10


def records(data):
    return [data[at:at + RECORD] for at in range(0, len(data), RECORD)]


def save(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def load(path):
    with open(path, "rb") as file:
        return file.read()


def generate(tops, own, rank, ranks, count):
    data = os.urandom(RECORD * count)
    save(f"{own}/in-{rank}", data)
    return records(data)


def map_records(tops, own, rank, ranks, count):
    parts = [[] for _ in range(ranks)]
    found = records(load(f"{own}/in-{rank}"))
    for record in found:
        # The first two bytes of the key select the rank.
        parts[(record[0] * 256 + record[1]) * ranks // 65_536].append(record)
    for to, part in enumerate(parts):
        with open(f"{own}/part-{rank}-{to}", "wb") as file:
            file.write(b"".join(part))
    return found


def reduce(tops, own, rank, ranks, count):
    found = []
    for of in range(ranks):
        # Each begins with another, so that not all read one at a time.
        of = (of + rank) % ranks
        found += records(load(f"{tops[of * len(tops) // ranks]}/part-{of}-{rank}"))
    found.sort()
    bounds = [(record[0] * 256 + record[1]) * ranks // 65_536 for record in found[:1] + found[-1:]]
    if any(bound != rank for bound in bounds):
        sys.exit(f"rank {rank} has records of another")
    save(f"{own}/out-{rank}", b"".join(found))
    return found


def main():
    phase, tops, own, base, ranks, count = sys.argv[1:]
    rank = int(base) + int(os.environ["ZONAL_RANK"])
    run = {"generate": generate, "map": map_records, "reduce": reduce}[phase]
    found = run(tops.split(","), own, rank, int(ranks), int(count))
    total = sum(zlib.crc32(record) for record in found)
    print(json.dumps({"records": len(found), "sum": total}))


main()
