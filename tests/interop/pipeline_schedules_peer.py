"""Are pipeline schedules those of PyTorch, and splits into stages those of torchtitan?

    pipeline_schedules_peer.py PIPELINE_SCHEDULE_TOOL

For 2 to 8 ranks, 1 to 32 microbatches and 2 to 4 stages a rank, the list of each rank equals what PyTorch's schedule makes, or both
refuse; 1F1B is compared with the textbook, because PyTorch's list of the last rank leaves out a forward. Each list passes
PyTorch's own check, and so does a file of it in PyTorch's reader; lists with transfers parse and print there as the same text.
For 1 to 64 stages and models of 1 to 130 blocks, each stage has the modules that torchtitan gives it, or both refuse.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.distributed.pipelining import schedules as peer
from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

RANKS, MICROBATCHES, STAGES = range(2, 9), range(1, 33), range(2, 5)


class Stage:
    """What a schedule's constructor asks of a stage."""

    has_backward = True
    stage_index_to_group_rank = submod = None

    def __init__(self, index: int, ranks: int, stages: int):
        self.stage_index, self.group_size, self.num_stages, self.group_rank = index, ranks, stages, 0
        self.is_first, self.is_last = index == 0, index == stages - 1


def textbook_1f1b(rank: int, ranks: int, microbatches: int) -> list[str]:
    warm_up = min(microbatches, ranks - rank)
    order = [f"{rank}F{m}" for m in range(warm_up)]
    for m in range(microbatches):
        order.append(f"{rank}B{m}")
        if warm_up + m < microbatches:
            order.append(f"{rank}F{warm_up + m}")
    return order


def peer_order(kind: str, ranks: int, stages_per_rank: int, microbatches: int) -> list[list[str]] | None:
    """The entries of each rank; None where PyTorch refuses."""
    if kind == "1F1B":
        return [textbook_1f1b(rank, ranks, microbatches) for rank in range(ranks)]
    chosen = peer.get_schedule_class(kind)
    if kind == "GPipe":
        schedule = chosen.__new__(chosen)
        schedule.pp_group_size, schedule._num_stages, schedule._n_microbatches = ranks, ranks, microbatches
        order = schedule._get_pipeline_order()
    else:
        stages = [Stage(local * ranks, ranks, ranks * stages_per_rank) for local in range(stages_per_rank)]
        try:
            order = chosen(stages, microbatches).pipeline_order
        except ValueError:
            return None
    computes = [[action for action in order[rank] if action is not None and action.is_compute_op] for rank in range(ranks)]
    return [[str(action) for action in actions] for actions in computes]


def ask(tool: str, questions: list[str]) -> list[str]:
    result = subprocess.run([tool], input="\n".join(questions) + "\n", stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    answers = result.stdout.splitlines()
    assert len(answers) == len(questions), f"{len(answers)} answers to {len(questions)} questions"
    return answers


def check_schedules(tool: str) -> int:
    shapes = [(kind, ranks, stages, microbatches)
              for kind in ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
              for ranks in RANKS for microbatches in MICROBATCHES
              for stages in ((1,) if kind in ("GPipe", "1F1B") else (2,) if kind in ("ZBVZeroBubble", "DualPipeV") else STAGES)]
    answers = ask(tool, ["schedule {} {} {} {}".format(*shape) for shape in shapes])
    refused = 0
    for shape, answer in zip(shapes, answers):
        kind, ranks, stages, microbatches = shape
        expected = peer_order(*shape)
        if expected is None:
            assert answer.startswith("refused: "), f"{shape}: PyTorch refuses it, here it is {answer}"
            refused += 1
            continue
        rows = [row.split(",") for row in answer.split("|")]
        for rank, (row, peer_row) in enumerate(zip(rows, expected, strict=True)):
            assert row == peer_row, f"{shape}: rank {rank}:\n  here    {row}\n  PyTorch {peer_row}"
        actions = {rank: [peer._Action.from_str(text) for text in row] for rank, row in enumerate(rows)}
        peer._validate_schedule(actions, ranks, ranks * stages, microbatches)
    print(f"{len(shapes) - refused} schedules equal PyTorch's, both refuse {refused}")
    return refused


def check_lowered(tool: str) -> None:
    shapes = [("1F1B", 4, 1, 8), ("Interleaved1F1B", 4, 2, 8), ("InterleavedZeroBubble", 4, 4, 8), ("ZBVZeroBubble", 4, 2, 8),
              ("DualPipeV", 4, 2, 8)]
    for shape, answer in zip(shapes, ask(tool, ["lowered {} {} {} {}".format(*shape) for shape in shapes])):
        for text in answer.replace("|", ",").split(","):
            assert str(peer._Action.from_str(text)) == text, f"{shape}: {text} is {peer._Action.from_str(text)} in PyTorch"
        assert "SEND_F" in answer and "REDUCE_GRAD" in answer and "UNSHARD" in answer
    print(f"actions of {len(shapes)} lists with transfers mean the same to PyTorch")


def check_files(tool: str) -> None:
    """PyTorch reads a file of our list as that list."""
    for kind, ranks, stages, microbatches in (("Interleaved1F1B", 4, 2, 8), ("ZBVZeroBubble", 4, 2, 8), ("DualPipeV", 2, 2, 4)):
        rows = [row.split(",") for row in ask(tool, [f"schedule {kind} {ranks} {stages} {microbatches}"])[0].split("|")]
        reader = peer.PipelineScheduleMulti([Stage(i * ranks, ranks, ranks * stages) for i in range(stages)], microbatches)
        reader.pipeline_order = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            with path.open("w", newline="") as file:
                csv.writer(file).writerows(rows)
            reader._load_csv(str(path))
        assert [[str(action) for action in reader.pipeline_order[rank]] for rank in range(ranks)] == rows
    print("PyTorch reads files of these lists")


def check_splits(tool: str) -> None:
    shapes = [(stages, blocks, first, last) for stages in (*range(1, 18), 24, 32, 64) for blocks in (*range(1, 41), 80, 126, 130)
              for first in (0, 1, 2, 3) for last in (0, 1, 2, 3)]
    refused = 0
    for shape, answer in zip(shapes, ask(tool, ["split {} {} {} {}".format(*shape) for shape in shapes])):
        stages, blocks, first, last = shape
        units = [["tok_embeddings"], *([f"layers.{i}"] for i in range(blocks)), ["norm", "output"]]
        try:
            expected = generate_llm_fqn_per_model_part(stages, blocks, first, last)
        except ValueError:
            assert answer.startswith("refused: "), f"{shape}: torchtitan refuses it, here it is {answer}"
            refused += 1
            continue
        ranges = [map(int, part.split("-")) for part in answer.split()]
        here = [[name for unit in units[begin:end] for name in unit] for begin, end in ranges]
        assert here == expected, f"{shape}:\n  here       {here}\n  torchtitan {expected}"
    print(f"{len(shapes) - refused} splits equal torchtitan's, both refuse {refused}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    tool = parser.parse_args().tool
    # What PyTorch adds to its lists is not compared, and takes a minute.
    peer._PipelineScheduleRuntime._prepare_schedule_with_comms = lambda self, actions, format="compute_only": None
    check_schedules(tool)
    check_lowered(tool)
    check_files(tool)
    check_splits(tool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
