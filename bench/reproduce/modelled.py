"""Figures of the flow-level model (docs/datacenter-model.md): predictions, not measurements."""
import json
import subprocess

from placed import line, series
from testbed import MIB, rate_bits

# MiB of a file in the presets of the testbed.
PRESET_MIB = 16
# A measured rate is near where it differs from the prediction by this part at most.
TOLERANCE = 0.15


def predict(args, preset):
    command = [args.zonal, "simulate", "--preset", preset, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def drawn(found, sentence):
    lines = [line(of["name"], [[at["x"], at["bytes_per_second"] / 1e6] for at in of["points"]])
             for of in found["lines"]]
    return series(found["title"], found["x_label"], lines, sentence) | {
        "y_label": "MB/s, all nodes together", "predicted": True}


def last(found):
    return {of["name"]: of["points"][-1]["bytes_per_second"] / 1e6 for of in found["lines"]}


def racks_grow(args, _folder):
    """Fig 5, predicted: bandwidth by racks, without and with data shared between them."""
    found = predict(args, "fig5")
    at = last(found)
    sentence = (f"Predicted for 48 racks of 40 nodes: zones reach {at['zones, no sharing']:.0f} "
                f"MB/s without sharing, a separate file system {at['separate, no sharing']:.0f}, "
                f"zones with sharing {at['zones, sharing']:.0f}. Published: {found['published']}.")
    return drawn(found, sentence)


def one_chunk(args, _folder):
    """Fig 6, predicted: nodes of one rack read one chunk."""
    found = predict(args, "fig6")
    at = last(found)
    sentence = (f"Predicted for 20 readers: the zone gives {at['zone']:.0f} MB/s, a separate file "
                f"system {at['separate']:.0f}, 3 copies on nodes "
                f"{at['Internet-scale, 3 copies']:.0f}. Published: {found['published']}.")
    return drawn(found, sentence)


def calibration(args, _folder):
    """The model beside the testbed: figures 9, 10 and 13 that this folder has already."""
    rows = []
    for name in ("fig9", "fig10", "fig13"):
        path = args.out / f"{name}.json"
        if not path.exists():
            continue
        measured = json.loads(path.read_text())
        if measured["mib"] != PRESET_MIB:
            raise SystemExit(f"calibration: {name} is of {measured['mib']} MiB a file, the model "
                             f"of {PRESET_MIB}")
        # The presets are of links of 100 Mbit/s, where queues are shortest beside the rate. So at
        # other rates the prediction is rough.
        scale = rate_bits(measured["rate"]) / 100e6
        for of in predict(args, f"testbed-{name}")["lines"]:
            model = {at["x"]: at["bytes_per_second"] * scale / MIB for at in of["points"]}
            points = [at["points"] for at in measured["lines"] if at["name"] == of["name"]]
            for x, found in points[0] if points else ():
                if x in model:
                    rounds = measured.get("rates", {}).get(f"{of['name']} {x}") or [found]
                    rows.append({"figure": name, "line": of["name"], "nodes": x,
                                 "predicted MiB/s": round(model[x], 1),
                                 "measured MiB/s": round(found, 1),
                                 "rounds": f"{min(rounds):.1f} to {max(rounds):.1f}",
                                 "measured / predicted": round(found / model[x], 2)})
    if not rows:
        raise SystemExit("calibration: make fig9, fig10 or fig13 first, in the same folder")
    ratios = [row["measured / predicted"] for row in rows]
    far = [f"{row['figure']} {row['line']} {row['nodes']}" for row in rows
           if abs(row["measured / predicted"] - 1) > TOLERANCE]
    sentence = (f"{len(rows) - len(far)} of {len(rows)} measured rates are within 15% of the "
                f"prediction{' (not: ' + ', '.join(far) + ')' if far else ''}; the ratios are "
                f"{min(ratios):.2f} to {max(ratios):.2f}. Windows, buffers and queues of the "
                "model are those of the client, of Linux and of the testbed.")
    lines = [line("measured / predicted", list(enumerate(ratios, 1)))]
    lines += [line(f"{edge:.2f}", [[1, edge], [len(rows), edge]])
              for edge in (1 - TOLERANCE, 1 + TOLERANCE)]
    return series("Calibration: the testbed beside the model", "row of the table", lines, sentence,
                  table=rows) | {
        "y_label": "measured / predicted", "predicted": True}
