"""What a pipeline adds to the step of a rank, by the simulation of its schedule: for scripts/step_budget.py. Imported only."""
import dataclasses
import functools
import json
import re
import subprocess

from step_collectives import FAKE, is_transfer

BUBBLE, EXPOSED = ADDED = "pipeline bubble", "exposed transfers"


@dataclasses.dataclass(frozen=True)
class Pipeline:
    ranks: int
    stages_per_rank: int
    microbatches: int  # of a step
    schedule: str  # a name, or a CSV file
    recomputes: bool  # blocks are run again in backward
    program: str = dataclasses.field(compare=False)  # benchmark_pipeline_times

    @functools.lru_cache(maxsize=None)
    def _times(self, transfer):
        """Of the list where a stage's forward takes 1 and a transfer `transfer`: as benchmark_pipeline_times prints it."""
        repeated = int(self.recomputes)  # forwards of a stage in its backward
        done = subprocess.run([self.program, *(["--recompute"] if repeated else []), self.schedule, str(self.ranks), str(self.stages_per_rank),
                               str(self.microbatches), "F=1", f"B={2 + repeated}", f"I={1 + repeated}", "W=1", f"T={transfer:.4g}"],
                              capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"step_budget: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def seconds(self, computing, transfer):
        """(bubble, exposed transfers) of a rank that computes for `computing` seconds in its stages' actions, as every rank does, where a
        transfer takes `transfer` seconds. Stages that take longer than this rank's are not in it."""
        units = self.microbatches * self.stages_per_rank * (3 + self.recomputes)  # of a rank's list
        forward = computing / units
        times = self._times(float(f"{transfer / forward:.2g}"))
        return (times["seconds"] - times["exposed"] - units) * forward, times["exposed"] * forward


def pipeline_of_log(text, mode):
    """The fields of the Pipeline that a run's log names but for the program, or None."""
    found = re.search(r"(\d+) stages? \(.*\); (.+), ([\d,]+) microbatch", text)
    if not found:
        return None
    ranks = int(re.search(r"pp (\d+) x dp_replicate", text)[1])
    return {"ranks": ranks, "stages_per_rank": int(found[1]) // ranks, "schedule": found[2], "microbatches": int(found[3].replace(",", "")),
            "recomputes": mode == "full"}


def pipeline_of_facts(facts, sizes, build, trace):
    """The Pipeline of a trace, or None; facts, sizes: what it says besides its records (run() of step_budget, group_sizes())."""
    if facts.get("pipeline"):
        return Pipeline(**facts["pipeline"], program=str(build / "benchmark_pipeline_times"))
    if sizes.get("pp", 1) > 1:
        raise SystemExit(f"step_budget: {trace} is a pipeline's and does not say its schedule: make it with --run and --keep")
    return None


def transfer_bytes(step):
    """Of the largest transfer between two stages, counted on the rank that sends it."""
    return max((int(FAKE.match(record.range)[2]) for record in step if is_transfer(record)), default=0)
