"""scripts/step_context.py: what context parallel ranks exchange for attention, and what of it a step waits for.

    python3 tests/faults/step_context_test.py

Standard library only, no program.
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import cards  # noqa: E402
from step_collectives import Cluster  # noqa: E402
from step_context import SequenceExchange, sequence_exchange, with_heads_exchanged  # noqa: E402
from step_families import Record  # noqa: E402

CARD = cards.Range(cards.read(), "h100-700w")


class StepContext(unittest.TestCase):
    def test_what_attention_hides_of_a_sequences_exchange_depends_on_its_form(self):
        card, cluster, runs = CARD.middle, Cluster(8, context=8), 3
        link, keys, sums = card.link, 7e9, 28e9
        k, g = keys / link, sums / link

        def seconds(form, forward, backward, parts=2, cluster=cluster):
            return SequenceExchange(form, 8, runs, parts, (keys, sums)).seconds(forward, backward, cluster, card)
        both = runs * (2 * 2 * k + 2 * g)
        # Only the second parts are hidden, by the attention of the first ones: none, some, all of them.
        for (forward, backward), waits in ((((0, 1), (0, 1)), 4 * k + 2 * g), (((k / 2, 9), (g / 4, 9)), 3.5 * k + 1.75 * g), (((9, 9), (9, 9)), 3 * k + g)):
            found = seconds("all_gather", forward, backward)
            for one, expected in zip(found, (runs * waits, both - runs * waits)):
                self.assertAlmostEqual(one, expected, places=9)
        self.assertAlmostEqual(seconds("all_gather", (9,), (9,), parts=1)[0], runs * (2 * k + g), places=9)
        # Of a ring's 7 hops each way the last one of the gradients, where the steps are long enough.
        self.assertAlmostEqual(seconds("transfers", (8 * k,), (8 * (k + g),))[0], runs * g, places=9)
        self.assertAlmostEqual(seconds("transfers", (0,), (0,))[0], runs * (2 * 7 * k + 7 * g), places=9)
        self.assertAlmostEqual(sum(seconds("transfers", (4 * k,), (4 * g,))), runs * (2 * 7 * k + 7 * g), places=9)
        self.assertAlmostEqual(seconds("all_to_all", (9, 9), (9, 9))[0], runs * k, places=9)
        # With tensor parallelism over a node each rank of a group is on a node of its own; two nodes pass one hop on over one adapter.
        adapter = card.network_share * 50e9
        apart, two = Cluster(64, 8, context=8), Cluster(16, context=16)
        self.assertAlmostEqual(seconds("transfers", (99,), (99,), cluster=apart)[0], runs * sums / adapter, places=9)
        self.assertEqual((two.hop_bytes_per_second("cp", card), two.bytes_per_second("cp", card)), (adapter, link))

    def test_the_form_of_a_sequences_exchange_is_read_from_what_a_dry_run_names(self):
        def ranges(**sent):
            return {Record("range", range=f"fake {kind} {size} bytes sent in cp/1 of 4 ranks"): times for kind, (size, times) in sent.items()}

        def attention(name, flops, of="bf16[1,8,64,32]", where=""):
            return Record(f"aten::_scaled_dot_product_{name}", 1, flops=flops, of=of, range=where)
        calls = {attention("flash_attention_backward", flops): 5 for flops in (10, 70)}
        found = sequence_exchange({**calls, **ranges(all_gather=(300, 20), reduce_scatter=(600, 10))})
        self.assertEqual(found, SequenceExchange("all_gather", 4, 5, 2, (300, 600)))
        self.assertEqual(found.bytes, 2 * (300 + 300 + 600))
        ring = {**ranges(transfers=(100, 30)), Record("range", range="fake transfers 200 bytes sent in cp/1 of 4 ranks"): 15}
        self.assertEqual(sequence_exchange({**calls, **ring}), SequenceExchange("transfers", 4, 5, 1, (100, 200)))
        self.assertIsNone(sequence_exchange({**calls, Record("range", range="fake transfers 9 bytes sent in pp/0 of 2 ranks"): 3}))
        # Heads: 8 of 32 and 2 of keys, of sequences of which a rank has 64 tokens. Attention runs a second time only in a job without the exchange.
        plain = {attention("flash_attention", 70, where="forward layers.0"): 1, attention("flash_attention", 70, where="recompute layers.0"): 1,
                 attention("flash_attention_backward", 175): 1, Record("aten::mm", 1, flops=9, of="bf16 64x256x384", range="forward layers.0"): 1}
        for recomputes, heads in ((False, 2 * (2 * 8 + 2 * 2)), (True, 2 * (2 * 8 + 2 * 2) + 8 + 2 * 2)):
            step = with_heads_exchanged(plain, 2, recomputes)
            self.assertEqual(sequence_exchange(step), SequenceExchange("all_to_all", 2, 1, 1, 2 * (heads * 64 * 32 * 2 // 2,)))
            self.assertEqual({record.operator: record.flops for record in step if "attention" in record.operator},
                             {"aten::_scaled_dot_product_cudnn_attention": 140, "aten::_scaled_dot_product_cudnn_attention_backward": 350})
        with self.assertRaisesRegex(SystemExit, "3 ranks cannot exchange 2 heads of keys and values; .*: 1, 2$"):
            with_heads_exchanged({record: times for record, times in plain.items()}, 3, False)


if __name__ == "__main__":
    unittest.main()
