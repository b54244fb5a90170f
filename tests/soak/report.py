"""What a soak found: whether the losses are those of the undisturbed run, what was left behind, and the figures of faults and processes.

Standard library only.
"""

import collections
import json
import statistics
import subprocess

import processes
from jobs import BINARY

GROWTH_LIMIT = 0.01  # an hour
RSS_LIMIT = 1.05  # of the last quarter of a run with restarts, to the first
LONG_SECONDS = 1800  # a run without restarts of less is not judged by growth
WARM_UP = 0.25  # the share of such a run that is left out
STARTED_SECONDS = 20  # of a start, in which memory grows


def lines(out):
    """All lines of the metrics files of a run, those of starts that continued nothing too."""
    return [json.loads(line) for path in sorted(out.glob("metrics*.jsonl")) for line in path.read_text().splitlines()]


def losses(out):
    """step -> the values that were logged for it; several where steps were made again."""
    found = collections.defaultdict(set)
    count = 0
    for line in lines(out):
        if "grad_norm" in line:
            found[line["step"]].add((line["loss_metrics/global_avg_loss"], line["grad_norm"], line["lr"]))
            count += 1
    return found, count


def compare(soak, steps):
    expected, _ = losses(soak.folder / "undisturbed")
    found, count = losses(soak.folder / "disturbed")
    different = [step for step in range(1, steps + 1) if found.get(step) != expected.get(step)]
    digests = {subprocess.run([BINARY, "ckpt", "digest", soak.folder / name / "checkpoint" / f"step-{steps}"], capture_output=True, text=True).stdout
               for name in ("undisturbed", "disturbed")}
    return {"lines": count, "different_steps": different, "last_checkpoint_equal": len(digests) == 1 and "" not in digests}


def of_kinds(soak):
    """Kind -> how often, the codes that followed, and the seconds until the job was further than before."""
    found = {}
    for event in soak.events:
        entry = found.setdefault(event.kind, {"faults": 0, "restarts": 0, "codes": collections.Counter(), "lost": []})
        entry["faults"] += 1
        entry["restarts"] += sum(code != 0 for code in event.codes)
        entry["codes"].update(str(code) for code in event.codes)
        entry["lost"] += [event.lost_seconds] if event.lost_seconds is not None else []
    return found


def of_processes(soak):
    """Process -> resident memory, open files and threads, first and last, and their growth per hour after the warm-up."""
    begin = WARM_UP * soak.seconds if soak.options.no_restarts else 0
    found = {}
    for name in sorted({name for *_, sample in soak.samples for name in sample}):
        taken = [(at, sample[name]) for at, age, sample in soak.samples
                 if name in sample and at >= begin and (soak.options.no_restarts or age >= STARTED_SECONDS)]
        if len(taken) < 8:
            continue
        quarter = len(taken) // 4
        entry = {"samples": len(taken)}
        for i, what in enumerate(("rss_kib", "files", "threads")):
            points = [(at, values[i]) for at, values in taken]
            entry[what] = {"first": statistics.median(value for _, value in points[:quarter]), "last": statistics.median(value for _, value in points[-quarter:]),
                           "most": max(value for _, value in points), "growth_per_hour": processes.growth_per_hour(points)}
        found[name] = entry
    return found


def result(soak, steps):
    seconds = 5 * soak.start_seconds + soak.timeout
    left = soak.left.found(soak.folder / "disturbed", soak.temporary, seconds)
    curve = compare(soak, steps)
    measured = of_processes(soak)
    problems = list(soak.problems) + [f"left behind: {line}" for line in left]
    problems += [f"no fault of kind {name} came" for name in sorted(set(soak.options.kinds or ()) - {event.kind for event in soak.events})]
    if curve["different_steps"]:
        problems.append(f"losses of {len(curve['different_steps'])} steps differ from those of the undisturbed run: {curve['different_steps'][:8]}")
    if not curve["last_checkpoint_equal"]:
        problems.append("the last checkpoint is not that of the undisturbed run")
    if not soak.options.no_restarts and soak.seconds >= 2 * LONG_SECONDS:
        for name, entry in measured.items():
            rss = entry["rss_kib"]
            problems += [f"{name}: RSS goes from {rss['first']:.0f} to {rss['last']:.0f} KiB"] * (rss["last"] > RSS_LIMIT * rss["first"])
    if soak.options.no_restarts and soak.seconds >= LONG_SECONDS:
        for name, entry in measured.items():
            problems += [f"{name}: {what} grows by {100 * entry[what]['growth_per_hour']:.2f} % an hour" for what in ("rss_kib", "files", "threads")
                         if entry[what]["growth_per_hour"] > GROWTH_LIMIT]
    faults = {name: {**entry, "codes": dict(entry["codes"])} for name, entry in of_kinds(soak).items()}
    return {
        "holds": not problems, "problems": problems, "seed": soak.options.seed, "ranks": soak.ranks, "model": soak.options.model, "steps": steps,
        "no_restarts": soak.options.no_restarts, "seconds": soak.seconds, "step_seconds": soak.step_seconds, "start_seconds": soak.start_seconds,
        "faults": faults, "restarts": sum(entry["restarts"] for entry in faults.values()), "failed_saves": soak.failed_saves,
        "not_possible_here": soak.missing,
        "curve": curve, "left_behind": left, "processes": measured, "events": [vars(event) for event in soak.events],
        "samples": [[round(at, 1), sample] for at, _, sample in soak.samples],
    }


def table(found):
    rows = [f"{'fault':<16}{'faults':>8}{'restarts':>10}  {'codes':<24}{'seconds lost: median':>22}{'most':>8}{'sum':>8}"]
    for name, entry in sorted(found["faults"].items()):
        codes = " ".join(f"{code} x{count}" if count > 1 else code for code, count in sorted(entry["codes"].items()))
        lost = entry["lost"] or [0.0]
        rows.append(f"{name:<16}{entry['faults']:>8}{entry['restarts']:>10}  {codes:<24}{statistics.median(lost):>22.1f}{max(lost):>8.1f}{sum(lost):>8.0f}")
    total = sum(sum(entry["lost"]) for entry in found["faults"].values())
    rows.append(f"{'all':<16}{sum(entry['faults'] for entry in found['faults'].values()):>8}{found['restarts']:>10}  {'':<24}{'':>22}{'':>8}{total:>8.0f}")
    shown = found["seconds"] >= LONG_SECONDS
    rows += ["", f"{'process':<16}{'RSS MiB: first':>16}{'last':>8}{'most':>8}{'an hour':>10}{'files':>8}{'an hour':>10}{'threads':>9}{'an hour':>10}"]
    for name, entry in found["processes"].items():
        rss, files, threads = entry["rss_kib"], entry["files"], entry["threads"]
        growth = [f"{100 * one['growth_per_hour']:+.2f}%" if shown else "-" for one in (rss, files, threads)]
        rows.append(f"{name:<16}{rss['first'] / 1024:>16.1f}{rss['last'] / 1024:>8.1f}{rss['most'] / 1024:>8.1f}{growth[0]:>10}"
                    f"{files['last']:>8.0f}{growth[1]:>10}{threads['last']:>9.0f}{growth[2]:>10}")
    curve = found["curve"]
    same = "all equal to those of the undisturbed run" if not curve["different_steps"] else f"{len(curve['different_steps'])} steps DIFFER"
    rows += ["", f"{found['steps']} steps on {found['ranks']} ranks in {found['seconds'] / 60:.1f} minutes, seed {found['seed']}; "
             f"a step takes {found['step_seconds']:.2f} s, a start {found['start_seconds']:.1f} s",
             f"failed saves after which training went on: {found['failed_saves']}",
             f"losses: {curve['lines']} lines, {same}; the last checkpoint is {'equal' if curve['last_checkpoint_equal'] else 'NOT equal'}",
             f"left behind: {'; '.join(found['left_behind']) or 'nothing'}"]
    if found["not_possible_here"]:
        rows.append(f"not possible here: {', '.join(found['not_possible_here'])}")
    rows += [f"PROBLEM: {text}" for text in found["problems"]]
    rows.append("all of it holds" if found["holds"] else f"{len(found['problems'])} problem(s)")
    return "\n".join(rows)
