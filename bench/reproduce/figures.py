"""Published figures, repeated on testbeds. Each figure writes NAME.json, NAME.svg and NAME.png, and
one sentence that compares with the publication; index.html collects them."""
import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import compared
import cut
import jobs
import modelled
import placed
import racks
import wire
from page import write_page
from plots import plot
from testbed import note

FIGURES = {
    "fig5": modelled.racks_grow,
    "fig6": modelled.one_chunk,
    "fig9": placed.local_and_cross_rack,
    "fig10": placed.zones_and_cell,
    "fig11": jobs.generate,
    "fig12": jobs.sort,
    "fig13": placed.one_writer,
    "fig14": jobs.small_images,
    "fig15": jobs.large_images,
    "calibration": modelled.calibration,
    "dcfs1": compared.storage_servers,
    "zfs": compared.native_disk,
    "hotfile": racks.hot_file,
    "zones": racks.growing_zones,
    "counters": wire.own_counters,
    "rawtcp": wire.plain_tcp,
    "cutrack": cut.cut_rack,
}


def peers(text):
    """Directories of other file systems by name."""
    return dict(peer.split("=", 1) for peer in text.replace(",", " ").split())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zonal", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--peers", type=peers, default={}, help="NAME=DIR, with spaces between")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    args = parser.parse_args()
    if unknown := [name for name in args.figures if name not in FIGURES]:
        parser.error(f"no figure {unknown[0]}; there are: {', '.join(FIGURES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.figures or FIGURES:
        note(f"{name}: {FIGURES[name].__doc__.splitlines()[0]}")
        folder = tempfile.mkdtemp(prefix=f"zonal-{name}-")
        begun = time.monotonic()
        try:
            figure = FIGURES[name](args, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        figure = {"nodes": args.nodes, "mib": args.mib, "rate": args.rate, **figure,
                  "name": name, "seconds": round(time.monotonic() - begun, 1)}
        (args.out / f"{name}.json").write_text(json.dumps(figure, indent=2) + "\n")
        plot(figure, args.out / name)
        print(f"{name}: {figure['sentence']} ({figure['seconds']} s)", flush=True)
    write_page(args.out)
    print(f"page: {args.out}/index.html")


main()
