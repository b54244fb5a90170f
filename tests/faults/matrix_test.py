"""Cells of the fault matrix (docs/reliability.md) that no other test has: each fault of a process on each mesh of two ranks, each kind of damage to
the newest checkpoint, signals at each kind of moment, and odd surroundings.

    python3 tests/faults/matrix_test.py build/hyperion [sample]

In each cell the fault comes, and the same command is run again, as in kill_matrix_test.py. After it:
  I1  every folder named step-N verifies fully        I4  the restart leaves nothing unfinished behind
  I2  the checkpoint before the fault is intact       I5  the ranks end by themselves with a documented code
  I3  curve and last checkpoint equal the control's   I6  one names a rank, or the file and what is wrong with it

`sample`: each mesh and each fault once, and the damage that no other test has.
"""

import dataclasses
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kill_matrix_test as kills
from expert_parallel_test import EP, MOE
from jobs import BINARY, PATIENCE, Job
from pipeline_test import FOUR, PP

MESHES = {"FSDP": (), "TP": ("--parallelism.tensor_parallel_degree=2",), "PP": (*FOUR, PP + "2"),
          "CP": ("--parallelism.context_parallel_degree=2",), "EP": (*MOE, EP + "2")}
TIMEOUT = "--comm.train_timeout_seconds="


class Mesh(kills.Family):
    """Two ranks, with what they train undisturbed, a folder that has step-2, and one that has step-2 and step-4."""

    def __init__(self, base, name):
        super().__init__(base, name, 2, MESHES[name])

    @functools.cached_property
    def two_saved(self):
        folder = self.base / "two saved"
        kills.prepare(folder)
        codes, texts = self.run(folder, "--training.steps=4")
        assert codes == [0, 0], texts[0]
        return folder


def wait_and_continue(job, rank, seconds=1.0):
    """A rank that a fault has stopped stands still a little longer."""
    job.wait_for_stop(rank)
    time.sleep(seconds)
    job.ranks[rank][0].send_signal(signal.SIGCONT)


def wait_for_the_other_and_continue(job, rank):
    job.wait_for_stop(rank)
    job.ranks[1 - rank][0].wait(timeout=PATIENCE)
    job.ranks[rank][0].send_signal(signal.SIGCONT)


@dataclasses.dataclass(frozen=True)
class Fault:
    """`spec`: of FAULT, with R for the rank. `codes`: what the rank may end with, and the other one."""

    spec: str
    codes: tuple[set, set]
    act: Callable[[Job, int], object] = lambda job, rank: None
    options: tuple[str, ...] = ()
    says: str = ""  # by the other rank


KILLED, LOST, SAVED, DONE = {-9}, {71, 74}, {75}, {0}
# Of a process, on every mesh. The job has resumed after step 2, and saves after step 4. Its first step waits as long as init_timeout_seconds says.
FAULTS = {
    "killed in the forward": Fault("rank=R;point=step.fwd;nth=2;action=kill", (KILLED, LOST), says="rank "),
    "killed in the backward": Fault("rank=R;point=step.bwd;nth=2;action=kill", (KILLED, LOST), says="rank "),
    "killed in the update": Fault("rank=R;point=step.opt;nth=3;action=kill", (KILLED, LOST), says="rank "),
    "killed in a save": Fault("rank=R;point=ckpt.mid_data;action=kill", (KILLED, LOST), says="rank "),
    "killed while it loads": Fault("rank=R;point=load.mid_data;action=kill", (KILLED, LOST), says="rank "),
    "an exception while it loads": Fault("rank=R;point=load.mid_data;action=throw", ({70}, {70}), says="rank "),
    "stopped for less than the timeout": Fault("rank=R;point=step.opt;nth=2;action=stop", (DONE, DONE), wait_and_continue),
    "stopped for longer than the timeout": Fault("rank=R;point=step.opt;nth=2;action=stop", ({71}, {71}), wait_for_the_other_and_continue,
                                                 (TIMEOUT + "15",), says="rank "),
    "TERM in the forward": Fault("rank=R;point=step.fwd;nth=2;action=stop", (SAVED, SAVED), lambda job, rank: job.signal_at_stop(rank, signal.SIGTERM)),
    "USR1 in the update": Fault("rank=R;point=step.opt;action=stop", (SAVED, SAVED), lambda job, rank: job.signal_at_stop(rank, signal.SIGUSR1)),
}


def term(job, rank):
    job.signal_at_stop(rank, signal.SIGTERM)


ASYNC = ("--checkpoint.async_mode=async_with_pinned_mem",)
# On FSDP alone: signals at other moments.
MOMENTS = {
    "TERM while it waits for data": Fault("rank=R;point=step.data;nth=2;action=stop", (SAVED, SAVED), term),
    "TERM in a save": Fault("rank=R;point=ckpt.mid_data;action=stop", (SAVED, SAVED), term),
    "TERM in a save in the background": Fault("rank=R;point=ckpt.mid_data;action=stop", (SAVED, SAVED), term, ASYNC),
    "TERM while a checkpoint is removed": Fault("rank=0;point=purge.mid;action=stop", (SAVED, SAVED), lambda job, rank: term(job, 0),
                                                ("--checkpoint.keep_latest_k=2", "--checkpoint.interval=1")),
    "killed in the save of a stop": Fault("rank=R;point=step.opt;action=stop,rank=R;point=ckpt.mid_data;action=kill", (KILLED, LOST), term, says="rank "),
}


def change(name, edit):
    def damage(step):
        path = step / name
        path.write_bytes(edit(path.read_bytes()))
    return damage


def flip(share):
    def edit(data):
        place = int(len(data) * share)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1:]
    return edit


def swap(step):
    first, second = step / "__0_0.distcp", step / "__1_0.distcp"
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def take_from_before(name):
    return lambda step: shutil.copy(step.with_name("step-2") / name, step / name)


def remove(name):
    return lambda step: (step / name).unlink()


SHARD = "__1_0.distcp"
# Of step-4: the job goes on from step-2, and says why. None: nothing is wrong with it.
DAMAGE = {
    "a shard cut short by a byte": (change(SHARD, lambda data: data[:-1]), SHARD),
    "a shard cut in half": (change(SHARD, lambda data: data[:len(data) // 2]), SHARD),
    "an empty shard": (change(SHARD, lambda data: b""), SHARD),
    "a bit of a tensor": (change(SHARD, flip(0.4)), SHARD),
    "a bit of the end of a shard": (change(SHARD, flip(0.999)), SHARD),
    "a bit of the index": (change(".metadata", flip(0.3)), ".metadata"),
    "a bit of the manifest": (change("hyperion.json", flip(0.6)), "hyperion.json"),
    "a shard of zeros": (change(SHARD, lambda data: bytes(len(data))), SHARD),
    "a missing shard": (remove(SHARD), SHARD),
    "a missing index": (remove(".metadata"), ".metadata"),
    "an empty index": (change(".metadata", lambda data: b""), ".metadata"),
    "half a manifest": (change("hyperion.json", lambda data: data[:len(data) // 2]), "hyperion.json"),
    "shards of two ranks swapped": (swap, ".distcp"),
    "a shard of another step": (take_from_before(SHARD), SHARD),
    "the index of another step": (take_from_before(".metadata"), ".metadata"),
    "the manifest of another step": (take_from_before("hyperion.json"), "is not resumed from"),
    "a stale shard of more ranks": (lambda step: shutil.copy(step / SHARD, step / "__2_0.distcp"), None),
}


def odd_host():
    """A host name with other characters, no HOME, a working folder that cannot be written."""
    script = r"printf 'h\303\266st;$(x) y' > /proc/sys/kernel/hostname && cd /proc && exec env -u HOME " + '"$@"'
    return {"before": {rank: ["unshare", "--uts", "sh", "-c", script, "-"] for rank in range(2)}}


def no_shared_memory():
    script = 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"'
    return {"before": {rank: ["unshare", "--mount", "sh", "-c", script, "-"] for rank in range(2)}}


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
/* The wall clock of this rank is an hour to five days off, other at each 20th question. */
int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  static long calls;
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(id, now);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += (__sync_fetch_and_add(&calls, 1) / 20 * 7 % 11 - 5) * 86400 + 3600;
  return result;
}
"""


def clock(base):
    source, library = base / "clock.c", base / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    return {"env": {"LD_PRELOAD": library}}


# Surroundings in which nothing is to change: how the ranks are started, and what that needs.
SURROUNDINGS = {
    "a clock that jumps by days": (clock, lambda: "" if shutil.which("cc") else "no C compiler"),
    "an odd host name, no HOME, a working folder that is read-only": (lambda base: odd_host(), lambda: unshare_refused("--uts")),
    "no room in /dev/shm": (lambda base: no_shared_memory(), lambda: unshare_refused("--mount")),
}


def unshare_refused(what):
    if os.geteuid() != 0:
        return "namespaces need root"
    done = subprocess.run(["unshare", what, "true"], capture_output=True, text=True)
    return done.stderr.strip()


# --- cells ---


def run_fault(mesh, name, rank):
    """The fault on the rank of a job that has resumed after step 2, then the restart."""
    fault = {**FAULTS, **MOMENTS}[name]
    folder = mesh.base / f"{name} {rank}"
    shutil.copytree(mesh.started, folder)
    kills.prepare(folder)
    problems = []
    job = Job(folder, *kills.OPTIONS, *mesh.options, *fault.options, "--allow-faults", ranks=2, env={"FAULT": fault.spec.replace("R", str(rank))})
    try:
        fault.act(job, rank)
        codes = job.codes()
        texts = [job.text(number) for number in range(2)]
    finally:
        job.end()
    own, other = fault.codes
    if codes[rank] not in own or codes[1 - rank] not in other:
        problems.append(f"I5: codes {codes}, expected {own} of rank {rank} and {other}: {texts[1 - rank][-600:]}")
    if fault.says not in "".join(texts[1 - rank].splitlines()[-1:]):
        problems.append(f"I6: rank {1 - rank} says: {texts[1 - rank][-300:]}")
    durable = [line for line in texts[0].splitlines() if "is durable" in line]
    if len(durable) != len(set(line.split("Checkpoint ")[1].split()[0] for line in durable)):
        problems.append(f"a step was saved twice: {durable}")
    kills.verify(folder, problems, "I1")
    if "step-2" not in kills.checkpoints(folder) and "keep_latest_k" not in str(fault.options):
        problems.append(f"I2: step-2 is gone: {kills.checkpoints(folder)}")
    kills.check_restart(mesh, folder, list(fault.options[:1] if fault.options == ASYNC else ()), problems)
    shutil.rmtree(folder)
    return problems


def run_damage(mesh, name):
    """The job whose newest checkpoint is damaged goes on from the one before, or from this one where it is not harmed."""
    damage, named = DAMAGE[name]
    folder = mesh.base / name
    shutil.copytree(mesh.two_saved, folder)
    kills.prepare(folder)
    damage(folder / "out" / "checkpoint" / "step-4")
    codes, texts = mesh.run(folder)
    problems = [] if codes == [0, 0] else [f"I5: codes {codes}: {texts[0][-600:]}"]
    said = [line for line in texts[0].splitlines() if "step-4" in line and (named or "") in line]
    if f"Training starts at step {3 if named else 5}" not in texts[0] or not said:
        problems.append(f"I6: {texts[0][-3000:]}")
    if kills.outcome(folder) != mesh.expected:
        problems.append("I3: the outcome is not that of the undisturbed run")
    kills.verify(folder, problems, "I1")
    shutil.rmtree(folder)
    return problems


def run_surroundings(mesh, name):
    make, _ = SURROUNDINGS[name]
    folder = mesh.base / name.replace("/", " ")
    kills.prepare(folder)
    how = make(mesh.base)
    job = Job(folder, *kills.OPTIONS, *mesh.options, ranks=2, **how)
    try:
        codes = job.codes()
        text = job.text()
    finally:
        job.end()
    problems = [] if codes == [0, 0] else [f"I5: codes {codes}: {text[-600:]}"]
    kills.check_restart(mesh, folder, [], problems)
    shutil.rmtree(folder)
    return problems


def cells(sample):
    """(name, mesh, what runs it)."""
    ranks = itertools.cycle((0, 1))
    pairs = list(itertools.product(MESHES, FAULTS))
    if sample:  # each fault on one mesh; the long one is left to the whole
        names = [name for name in FAULTS if "longer" not in name]
        pairs = [(list(MESHES)[i % len(MESHES)], name) for i, name in enumerate(names)]
    for mesh, name in pairs:
        yield name, mesh, functools.partial(run_fault, name=name, rank=next(ranks))
    for name in MOMENTS if not sample else ("killed in the save of a stop",):
        yield name, "FSDP", functools.partial(run_fault, name=name, rank=next(ranks))
    for name in DAMAGE if not sample else ("shards of two ranks swapped", "a shard of another step", "a missing shard"):
        yield name, "FSDP", functools.partial(run_damage, name=name)
    for name, (_, refused) in SURROUNDINGS.items():
        if reason := refused():
            print(f"left out: {name}: {reason}")
        elif not sample or "clock" in name:
            yield name, "FSDP", functools.partial(run_surroundings, name=name)


def main():
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        chosen = list(cells("sample" in sys.argv[2:]))
        meshes = {}
        for _, mesh, _ in chosen:
            if mesh not in meshes:
                meshes[mesh] = Mesh(Path(temporary), mesh)
        if any(run.func is run_damage for *_, run in chosen):
            meshes["FSDP"].two_saved  # made before two threads ask for it
        failed = 0
        for (name, mesh, _), problems in zip(chosen, pool.map(lambda cell: cell[2](meshes[cell[1]]), chosen)):
            failed += bool(problems)
            print(f"{'FAILED' if problems else 'holds '} {mesh:<5} {name}", *problems, sep="\n    ", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cells hold, in {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
