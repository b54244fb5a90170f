"""What benchmarks/vs_torchtitan.py does with the runs it has seen; no run is started.

    python3 tests/vs_torchtitan_test.py SOURCE_FOLDER

Standard library only.
"""

import argparse
import contextlib
import io
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]).resolve() / "benchmarks"))

import vs_torchtitan  # noqa: E402
from vs_torchtitan import COMPILED, EAGER, MODELS, THROUGHPUT, JobFailed, Run  # noqa: E402


class Bench:
    """Steps of known lengths in place of programs that run; `compiled`: a length or what is thrown."""

    def __init__(self, ours: float, eager: float, compiled=None, repetitions: int = 2):
        self.options = argparse.Namespace(repetitions=repetitions, steps=4, compile=compiled is not None)
        self.seconds, self.turns = {"hyperion": ours, EAGER: eager, COMPILED: compiled}, []

    def run(self, side: str, steps: int) -> Run:
        self.turns.append(side)
        if isinstance(self.seconds[side], Exception):
            raise self.seconds[side]
        return Run(step_seconds={k: 10 + k * self.seconds[side] for k in range(1, steps + 1)}, peak_rss=[2**20, 2**21], processor_seconds=3)

    def ours(self, model, precision, setting, steps, default_corpus=False):
        return self.run("hyperion", steps)

    def theirs(self, model, precision, setting, steps, compiled=False):
        return self.run(COMPILED if compiled else EAGER, steps)


def figures_of(bench: Bench, part: str = "one_rank") -> tuple[dict, dict]:
    measured = vs_torchtitan.measure_part(bench, "100M", "bf16", part)
    return measured, vs_torchtitan.summarise(measured["runs"])


class AgainstTheFaster(unittest.TestCase):
    def test_ratios_are_to_the_faster_of_eager_and_compiled(self):
        for eager, compiled, peer, ratio in ((2.0, 1.5, COMPILED, 1.5), (1.25, 1.5, EAGER, 1.25)):
            _, figures = figures_of(Bench(1.0, eager, compiled))
            self.assertEqual(figures["peer"], peer)
            self.assertAlmostEqual(figures["tokens_per_second_per_rank"]["ratio"], ratio)
            self.assertAlmostEqual(figures["tokens_per_second_per_rank"][COMPILED], 1024 / compiled)

    def test_all_three_run_in_turns(self):
        bench = Bench(1.0, 2.0, 3.0)
        figures_of(bench)
        self.assertEqual(bench.turns, 2 * ["hyperion", EAGER, COMPILED])

    def test_a_compiled_peer_that_does_not_run_is_named_with_the_reason_and_the_others_go_on(self):
        failure = JobFailed("rank 0 ended with 1: python train.py\nTraceback (most recent call last):\n"
                            "torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n\nSet TORCHDYNAMO_VERBOSE=1\n")
        bench = Bench(1.0, 2.0, failure)
        measured, figures = figures_of(bench)
        self.assertEqual(measured["compiled_does_not_run"], "torch._inductor.exc.InductorError: CppCompileError: C++ compile error")
        self.assertEqual(bench.turns, ["hyperion", EAGER, COMPILED, "hyperion", EAGER])
        self.assertEqual((figures["peer"], figures["step_seconds"]["ratio"]), (EAGER, 0.5))

    def test_an_eager_peer_that_does_not_run_ends_the_benchmark(self):
        with self.assertRaises(JobFailed):
            figures_of(Bench(1.0, JobFailed("rank 0 ended with 1")))


class Table(unittest.TestCase):
    def printed(self, bench: Bench, model: str, part: str = "one_rank") -> list[str]:
        measured = vs_torchtitan.measure_part(bench, model, "bf16", part)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            vs_torchtitan.print_header(bench.options.compile)
            vs_torchtitan.print_part(model, "bf16", part, vs_torchtitan.summarise(measured["runs"]), bench.options.compile)
        return text.getvalue().strip().splitlines()

    def test_the_rows_are_those_of_a_markdown_table(self):
        self.assertEqual(self.printed(Bench(1.0, 2.0), "debugmodel"), [
            "|  | Hyperion | torchtitan 0.2.2 | ratio |", "|---|---|---|---|",
            "| debugmodel, bf16, 1 rank x 2 threads, 2 x 1024 | 2,048 tok/s | 1,024 tok/s | 2.00 (2.00 .. 2.00) |",
            "| peak memory of a rank | 2 MiB | 2 MiB | 1.00 (1.00 .. 1.00) |",
            "| processor time of all ranks | 3.0 s | 3.0 s | 1.00 (1.00 .. 1.00) |"])

    def test_a_row_has_a_column_for_the_compiled_peer_also_where_it_does_not_run(self):
        for compiled, cell in ((4.0, "256 tok/s per rank"), (JobFailed("no compiler"), "-")):
            head, rule, row, *_ = self.printed(Bench(1.0, 2.0, compiled), "100M", "fsdp2")
            self.assertEqual(head, "|  | Hyperion | torchtitan 0.2.2 | compiled | ratio to the faster |")
            self.assertEqual(row, "| 100M, bf16, FSDP on 2 ranks x 1 thread, 1 x 1024 each | 1,024 tok/s per rank | 512 tok/s per rank | "
                                  f"{cell} | 2.00 (2.00 .. 2.00) |")


class Models(unittest.TestCase):
    def test_both_programs_get_the_same_dimensions_of_the_larger_model(self):
        options, environment = MODELS["100M"].theirs("100M")
        flavor = json.loads(environment["PEER_FLAVOR"])
        self.assertEqual((options, flavor["name"], flavor["base"]), (["--model.flavor=100M"], "100M", "debugmodel"))
        for key, value in flavor["args"].items():
            self.assertIn(f"--model.args.{key}={value}", MODELS["100M"].ours())
        self.assertEqual(flavor["args"]["dim"] // flavor["args"]["n_heads"], 64)
        self.assertEqual(MODELS["100M"].vocabulary, flavor["args"]["vocab_size"])

    def test_the_larger_model_trains_one_sequence_per_rank(self):
        self.assertEqual([THROUGHPUT["one_rank"].of(MODELS[name]).batch for name in ("debugmodel", "100M")], [2, 1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
