"""What benchmarks/step_profile.py makes of a trace; no program is started.

    python3 tests/step_profile_test.py SOURCE_FOLDER

Standard library only.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]).resolve() / "benchmarks"))

from context_parallel import attention_of  # noqa: E402
from step_profile import REST, Profile, flops  # noqa: E402


def event(name: str, begin: float = 0, microseconds: float = 1, **args) -> dict:
    return {"ph": "X", "name": name, "tid": 1, "ts": begin, "dur": microseconds, "args": args}


def attention(queries: int, keys: int, causal: bool = True, backward: bool = False, **when) -> dict:
    """As the program records it: 2 sequences, 3 heads of 4 elements, of keys and values one."""
    q, k = [2, 3, queries, 4], [2, 1, keys, 4]
    shapes = [q] * backward + [q, k, k, []]
    return event("hyperion::attention_backward" if backward else "hyperion::attention",
                 **when, **{"Input Dims": shapes, "Concrete Inputs": [""] * (len(shapes) - 1) + [str(causal)]})


class Traces(unittest.TestCase):
    def trace(self, *events: dict) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "rank0_trace.json"
        path.write_text(json.dumps({"traceEvents": list(events)}))
        return path


class Attention(Traces):
    def test_flops_are_those_of_the_pairs_that_the_call_needs(self):
        element = 2 * 3 * 4  # of all sequences and heads
        for queries, keys, causal, pairs in ((5, 5, True, 15),  # of one rank
                                             (3, 8, True, 6 + 7 + 8),  # a range of a sequence whose keys have been gathered
                                             (4, 4, False, 16), (2, 4, False, 8)):  # keys of another rank of a ring
            self.assertEqual(flops(attention(queries, keys, causal)), 4 * pairs * element)
            self.assertEqual(flops(attention(queries, keys, causal, backward=True)), 10 * pairs * element)

    def test_context_parallel_adds_up_the_same_pairs(self):
        self.assertEqual(attention_of(self.trace(attention(3, 8), attention(4, 4, False, backward=True, microseconds=2), event("aten::mm"))),
                         (0.003, 21 + 16))


class OfSteps(Traces):
    def test_time_within_an_operation_counts_to_its_kind_and_the_rest_of_the_step_to_none(self):
        profile = Profile(self.trace(
            event("ProfilerStep#3", 0, 50), event("ProfilerStep#4", 50, 50),
            event("hyperion::gather_rows", 10, 8), event("aten::empty", 11, 2), event("hyperion::gather_rows", 60, 4),
            event("hyperion::sum_rows", 70, 5), event("aten::add_", 80, 6, **{"Input Dims": [[4], []], "Input type": ["float"]})))
        self.assertEqual((profile.steps, profile.microseconds), (2, 100))
        self.assertEqual(profile.time, {"routing and order": 17, "copies and sums of tensors": 6, REST: 77})
        self.assertEqual(profile.calls["routing and order"], 3)
        self.assertEqual(profile.operations["routing and order", "hyperion::gather_rows"], [12, 2])
        self.assertEqual(profile.operations["routing and order", "hyperion::sum_rows"], [5, 1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
