"""A rack is cut off while its programs use open files of their own zone."""
import time

from placed import line, series
from testbed import MIB, Testbed, note, result

# The cut is longer than the term of a session, 60 s.
BEFORE, CUT, AFTER = 5, 70, 10
# A call that nobody answers ends after the deadline of 10 s and a fifth of it.
DEADLINE = 12


def cut_rack(args, folder):
    """Cut: a rack's uplink is cut while its programs write and read open files of their zone."""
    with Testbed(args.zonal, folder, 2, args.nodes, args.rate) as bed:
        own, other = bed.make_dir(2, "own"), bed.make_dir(1, "other")
        for top, node in ((own, "r2n1"), (other, "r1n1")):
            for name in ("known", "new"):
                bed.exec(node, "sh", "-c", f"mkdir {top}/{name} && echo {name} >{top}/{name}/file")
        # The mount of the cut rack has looked up one of the paths, never the other one.
        bed.exec("r2n3", "cat", f"{own}/known/file", f"{other}/known/file")
        begun = time.monotonic()
        cut, healed = begun + BEFORE, begun + BEFORE + CUT
        until = healed + AFTER
        programs = [bed.start(node, "open_files.py", f"{own}/{node}", until)
                    for node in ("r2n1", "r2n2")]
        time.sleep(cut - time.monotonic())
        bed.command("cut", "r2")
        note("  r2 is cut")
        during = probes(bed, own, other, "during")
        # Leases of names have ended since, which last 5 s.
        later = probes(bed, own, other, "later")
        time.sleep(max(0, healed - time.monotonic()))
        bed.command("heal", "r2")
        healed_at = time.monotonic()
        note("  r2 is healed")
        back = {name: bed.start("r2n3", "probe.py", *call, until)
                for name, call in calls(own, other, "after").items()}
        back = {name: result(process) for name, process in back.items()}
        found = [result(program) for program in programs]
    return figure(begun, cut, healed_at, until, found, during, later, back)


def calls(own, other, word):
    return {
        "known path of own zone": ("stat", f"{own}/known/file"),
        "new path of own zone": ("stat", f"{own}/new/file"),
        "create in own zone": ("create", f"{own}/known/{word}"),
        "list own zone": ("list", own),
        "known path of other zone": ("stat", f"{other}/known/file"),
        "new path of other zone": ("read", f"{other}/new/file"),
        "create in other zone": ("create", f"{other}/known/{word}"),
        "list the root": ("list", own.rsplit("/", 1)[0]),
    }


def probes(bed, own, other, word):
    """All calls at once, each by a program of its own, so that none waits for another one."""
    running = {name: bed.start("r2n3", "probe.py", *call)
               for name, call in calls(own, other, word).items()}
    found = {name: result(process) for name, process in running.items()}
    for name, of in found.items():
        note(f"  {word}, {name}: {of['error'] or 'fine'} after {of['seconds']:.1f} s")
    return found


def rate(found, begin, end):
    """MiB/s of all programs together."""
    moved = sum(size for of in found for when, size in of["rounds"] if begin <= when < end)
    return moved / MIB / (end - begin)


def figure(begun, cut, healed, until, found, during, later, back):
    # The first second is the start of the programs.
    rates = {"before": rate(found, begun + 1, cut), "during": rate(found, cut, healed),
             "after": rate(found, healed, until)}
    errors = [name for of in found for _when, name in of["errors"]]
    away = {name: of for probe in (during, later) for name, of in probe.items()
            if of["error"] is not None}
    worst = max((of["seconds"] for probe in (during, later) for of in probe.values()), default=0)
    heal = max(of["ended"] - healed for of in back.values())
    rows = [{"call": name, "during": shown(during[name]), "later": shown(later[name]),
             "after heal": shown(back[name])} for name in during]
    codes = sorted({of["error"] for of in away.values()})
    failed = sorted({name for name in away if "other" not in name})
    sentence = ("Programs with an open file and folder of their zone move "
                f"{rates['before']:.1f} MiB/s before the cut, {rates['during']:.1f} in the "
                f"{healed - cut:.0f} s of the cut and "
                f"{rates['after']:.1f} after it, with {len(errors)} errors; their longest round "
                f"took {max(of['worst_seconds'] for of in found):.1f} s. A path of the other zone "
                f"ends with {', '.join(codes) or 'no error'} after {worst:.1f} s at most "
                f"(deadline {DEADLINE} s). "
                + (f"So do calls of its own zone by a path, as they begin at the root in the other "
                   f"rack: {', '.join(failed)}. " if failed else "")
                + f"{heal:.1f} s after the heal all calls work, without a remount.")
    seconds = range(int(until - begun))
    line_of = [line(name, [[at, rate([of], begun + at, begun + at + 1)] for at in seconds])
               for name, of in zip(("program 1", "program 2"), found)]
    marks = [[name, when - begun] for name, when in (("cut", cut), ("healed", healed))]
    return series("A rack is cut off: open files of its own zone", "seconds", line_of, sentence,
                  table=rows, rates=rates, marks=marks, errors=errors, y_label="MiB/s")


def shown(probe):
    return f"{probe['error'] or 'fine'}, {probe['seconds']:.1f} s"
