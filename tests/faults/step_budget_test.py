"""scripts/step_budget.py: the costs that a simulated GPU's trace tells of a step (docs/notes/step_budget.md), and the time made of them.

    python3 tests/faults/step_budget_test.py build/hyperion [Recorded | Simulated | Peer]

Standard library only. Recorded needs no program, Peer the interop environment.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from xml.etree import ElementTree

from jobs import BINARY, ROOT, JobTest, main

sys.path.insert(0, str(ROOT / "scripts"))

import cards  # noqa: E402
import step_budget  # noqa: E402
import step_pipeline  # noqa: E402
from step_collectives import Cluster  # noqa: E402
from step_context import sequence_exchange  # noqa: E402
from step_experts import expert_tensor_degree, ranks_of_experts, seconds_of_dispatch  # noqa: E402
from step_families import Record, Widths, family_of  # noqa: E402

LAYERS, TOKENS, WORLD = 2, 2 * 32, 8
CARD = cards.Range(step_budget.CARDS, "h100-700w")
WIDTH, HIDDEN, VOCABULARY = 32, 768, 2048  # of the folder's job: jobs.TOML
PARAMETERS = 286_880  # as the program's log says
PRODUCTS = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN) + WIDTH * VOCABULARY  # parameters that are multiplied with
# Of a block of the small model without checkpointing, forward and backward: as few as have been reached.
KERNELS_OF_A_BLOCK = 33
KERNELS_OF_BIASES = 2  # of a block, more with biases of attention: the gradients of those of wq, wk and wv, and of wo's
KERNELS_OF_FLOAT8_BIASES = 8  # of products that are not packed and leave the biases to a kernel
KERNELS_OF_A_STAGE = 6  # of a pipeline, that a microbatch needs besides those of its units
# A step of a rank of four on the fake backend: one block of one product, a norm, an attention, an update of 1,000 parameters, and kernels of
# no operator.
RECORDED = """
range	all-gather layers.0
range	fake all_gather 3000 bytes sent in fsdp/0 of 4 ranks
kernel	copy
cost	aten::copy_	kernels=1	read=1000	written=4000	of=ComplexDouble[4,62]	in=fake all_gather 3000 bytes sent in fsdp/0 of 4 ranks
range	forward layers.0
operator	aten::_fused_rms_norm
kernel	norm
cost	aten::_fused_rms_norm	kernels=1	read=1500000	written=1200000	of=bf16[10,64]	in=forward layers.0
kernel	not counted
kernel	gemm
cost	aten::mm	kernels=1	read=100	written=50	flops=720000000	of=bf16 10x64x64	in=forward layers.0
cost	aten::_scaled_dot_product_cudnn_attention	kernels=0	read=10	written=10	flops=600000000	of=bf16[1,2,10,32]	in=forward layers.0
cost	aten::_scaled_dot_product_cudnn_attention_backward	kernels=0	read=10	written=10	flops=480000000	of=bf16[1,2,10,32]	in=backward layers.0
range	reduce-scatter layers.0
kernel	pack
cost	aten::_chunk_cat	kernels=1	read=2700000	written=2700000	of=fp32[4,250]	in=reduce-scatter layers.0
range	fake reduce_scatter 3000 bytes sent in fsdp/0 of 4 ranks
cost	aten::copy_	kernels=0	copies=1	read=1000	written=1000	of=fp32[250]	in=fake reduce_scatter 3000 bytes sent in fsdp/0 of 4 ranks
range	optimizer
range	fake all_reduce 0 bytes sent in fsdp/0 of 4 ranks
kernel	adam
cost	aten::_fused_adamw_	kernels=1	read=16000	written=12000	of=fp32[1000]	in=optimizer
"""


class Recorded(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.short, self.long = self.folder / "short", self.folder / "long"
        self.short.write_text("kernel\tonly in the first step\n" + 2 * RECORDED)
        self.long.write_text("kernel\tonly in the first step\n" + 4 * RECORDED)

    def run_script(self, *arguments, code=0):
        done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_families_bytes_and_seconds_are_those_of_the_trace(self):
        for what in (f"a={self.short}", f"a={self.long},{self.short}"):
            with self.subTest(what):
                found = json.loads(self.run_script(what, "--tokens", 10, "--json"))["a"]
                rows = found["families"]
                card = CARD.middle
                self.assertEqual(found["layers"], 1)
                self.assertEqual(found["kernels"], 6)
                expected = {  # family: launches, bytes, FLOPs, seconds
                    "norms": (1, 2.7e6, 0, 2.7e6 / card.memory + card.launch),
                    "products": (1, 150, 720e6, 720e6 / card.rates["bf16"] + card.launch),
                    "attention": (4, 40, 1080e6, 600e6 / card.rates["cudnn_forward"] + 480e6 / card.rates["cudnn_backward"] + 4 * card.launch),
                    "gather, pack, reduce": (1, 5.4e6, 0, 5.4e6 / card.memory + card.launch),
                    "optimizer": (1, 28e3, 0, 28e3 / card.memory + card.launch),
                    "other": (1, 0, 0, card.launch),
                    "collectives": (3, 3000 + 3000, 0, 6000 / card.link),
                }
                expected["not modelled"] = (0, 0, 0, (card.overhead - 1) * sum(row[3] for row in expected.values()))
                self.assertEqual(set(rows), set(expected))
                for family, (launches, size, flops, seconds) in expected.items():
                    row = rows[family]
                    self.assertEqual((row["launches"], row["bytes"], row["flops"]), (launches, size, flops), family)
                    self.assertAlmostEqual(row["seconds"], seconds, delta=1e-12)
                self.assertEqual(found["other"], {"kernel not counted": 1})
                self.assertAlmostEqual(found["kib_per_token_and_layer"], 2.7e6 / 10 / 1024)
                self.assertAlmostEqual(found["tokens_per_second"], 10 / sum(row["seconds"] for row in rows.values()), places=3)

    def test_flash_attention_has_a_rate_of_its_own_for_heads_above_128(self):
        for head_dim, name in ((128, "flash"), (192, "flash_192")):
            for end, direction in (("", "forward"), ("_backward", "backward")):
                record = step_budget.Record(f"aten::_scaled_dot_product_flash_attention{end}", flops=1, of=f"bf16[1,2,10,{head_dim}]")
                self.assertEqual(step_budget.work_of(record, 1, "attention").compute, f"{name}_{direction}")

    def test_what_is_printed_are_ranges_of_a_prediction(self):
        text = self.run_script(f"first={self.short}", f"second={self.long}", "--tokens", 10, "--world", 4)
        self.assertRegex(text, r"(?m)^first: predicted [\d,]+ to [\d,]+ tokens a second and GPU")
        self.assertRegex(text, r"(?m)^1.00 times the tokens a second of first on the same card")
        found = json.loads(self.run_script(f"first={self.short}", "--tokens", 10, "--json"))["first"]
        low, high = found["range"]["tokens_per_second"]
        self.assertTrue(low < found["tokens_per_second"] < high, found)
        self.assertAlmostEqual(10 / found["range"]["seconds"][1], low)

    def test_the_ratio_of_two_steps_takes_the_same_card_for_both_and_its_ends_are_the_worst(self):
        fp8 = self.folder / "fp8"
        fp8.write_text(2 * RECORDED.replace("of=bf16 10x64x64", "of=fp8_slow 10x64x64"))
        low, high = json.loads(self.run_script(f"a={self.short}", f"b={fp8}", "--tokens", 10, "--json"))["b"]["ratio"]
        steps = [step_budget.Step(step_budget.steady_step(path)[0], Cluster(4), layers=1, tokens=10) for path in (self.short, fp8)]
        self.assertLess(1, low)
        for drawn in range(300):
            draw = random.Random(drawn)
            card = CARD.with_values({constant: draw.choice(ends) for constant, ends in CARD.ends.items()})
            ratio = steps[0].seconds(card) / steps[1].seconds(card)
            self.assertTrue(low - 1e-9 <= ratio <= high + 1e-9, (drawn, ratio, low, high))
        self.assertLess(high / low, steps[0].seconds(CARD.slow) / steps[0].seconds(CARD.fast))

    def test_rows_for_experts_go_over_the_links_of_a_node_and_over_each_adapter_at_the_same_time(self):
        card, sent = CARD.middle, 63e9
        adapter = card.network_share * 400e9 / 8
        within, between = 63e9 * 7 / 63 / card.link, 63e9 * 56 / 63 / adapter
        for cluster, seconds in ((Cluster(8, experts=8), sent / card.link), (Cluster(1024, experts=64), max(within, between)),
                                 (Cluster(1024, experts=8, expert_tensor=8), sent / adapter), (Cluster(8), 0)):
            self.assertAlmostEqual(seconds_of_dispatch({"ep": sent}, cluster, card), seconds, places=12, msg=cluster)
        self.assertAlmostEqual(seconds_of_dispatch({"ep_nodes": 7e9, "ep_in_node": sent}, Cluster(1024, experts=64), card),
                               7e9 / adapter + sent / card.link, places=12)
        self.assertEqual(Cluster(1024, 2, experts=16, expert_tensor=2).members("ep_nodes"), (4, 1))
        self.assertEqual(ranks_of_experts({"ep_nodes": 8, "ep_in_node": 8}), 64)
        self.assertGreater(between, within)
        self.assertEqual(Cluster(4096, 8, 2, experts=16, expert_tensor=8, pipeline=4).members("efsdp"), (4, 1))  # 512 ranks are 4 x 16 x 8
        self.assertEqual(Cluster(64, 2, experts=4, expert_tensor=1).members("ep"), (4, 4))
        self.assertEqual(expert_tensor_degree({"ep": 4, "efsdp": 8}, 32, 2), 2)
        self.assertEqual(expert_tensor_degree({"ep": 64}, 64, 1), 1)

    def test_what_experts_add_to_a_block_has_families_of_its_own(self):
        block = "forward layers.1"
        records = {
            "products of experts": Record("aten::_grouped_mm", 2, flops=1, of="bf16 128x64x32", range=block),
            "products": Record("aten::mm", 1, flops=1, of="bf16 128x64x32", range=block),
            "routing and order": Record("aten::index_copy_", 1, read=8, written=8, of="Long[128]", range=block),
            "SwiGLU": Record("hyperion::gated_activation", 1, read=8, written=8, of="bf16[128,32]", range=block),
            "embedding": Record("aten::index_select", 1, read=8, written=8, of="bf16[64,64]", range="forward tok_embeddings"),
            "fills": Record("aten::zero_", 1, written=8, of="fp32[64,64]"),
            "loss": Record("aten::_softmax", 1, read=8, written=8, of="fp32[64,2048]", range="forward and backward norm, output"),
        }
        more = [Record("aten::_softmax", 1, of="fp32[64,8]", range=block), Record("aten::mul", 1, of="fp32[64,64]"),  # backward: in no range
                Record("aten::mul", 1, of="fp32[16,8,64]"), Record("aten::sum", 1, of="bf16[16,8,64]"),  # of a token's rows
                Record("aten::index_select", 1, of="bf16[128,64]"), Record("aten::cumsum", 2, of="Long[8]", range=block)]
        widths = Widths([*records.values(), *more])
        for family, record in records.items():
            self.assertEqual(family_of(record, widths), family)
        for record in more:
            self.assertEqual(family_of(record, widths), "routing and order", record)
        work = step_budget.work_of(records["products of experts"], 1, "products of experts")
        self.assertEqual(work.seconds(CARD.middle), 1 / CARD.middle.rates["grouped"])

    def test_fp8_products_of_gradients_and_casts_have_rates_of_their_own(self):
        rates = CARD.middle.rates
        records = {"fp8": step_budget.Record("aten::_scaled_mm", 1, flops=10**12, of="fp8 8x8x8"),
                   "fp8_slow": step_budget.Record("aten::_scaled_mm", 1, flops=10**12, of="fp8_slow 8x8x8"),
                   "cast": step_budget.Record("hyperion::float8_cast_", 1, read=2 * 10**9, written=2 * 10**9, of="bf16[8,8]"),
                   "memory": step_budget.Record("hyperion::float8_amax_", 1, read=10**9, written=4, of="bf16[8,8]")}
        widths = step_budget.Widths(records.values())
        for rate, record in records.items():
            seconds = step_budget.work_of(record, 1, step_budget.family_of(record, widths)).seconds(CARD.middle)
            self.assertAlmostEqual(seconds, (record.flops or record.read + record.written) / rates[rate], places=12, msg=rate)
        self.assertTrue(1.1 <= rates["fp8"] / rates["fp8_slow"] <= 1.2)
        self.assertLess(rates["cast"], rates["memory"])

    def test_every_constant_of_a_card_is_a_range_with_its_source_and_the_peak_is_the_step_lines(self):
        for name, entry in step_budget.CARDS.items():
            self.assertEqual(set(cards.Range(step_budget.CARDS, name).ends), {*cards.NAMES} - {"flops"})
            for constant in entry["constants"].values():
                self.assertLessEqual({"low", "high", "unit", "source", "date", "what"}, set(constant))
                self.assertRegex(constant["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual((ROOT / "scripts/cards.json").read_text(), cards.text_of(step_budget.CARDS))
        peak = re.search(r'\{"h100", "", (\d+)e12\}', (ROOT / "trainer/metrics/flops.cpp").read_text())
        self.assertEqual(CARD.middle.peak, float(peak[1]) * 1e12)

    def test_a_card_with_a_wrong_constant_is_refused_with_its_name(self):
        for key, value, expected in (("low", 800, "800 to 740 is no range"), ("source", "guessed", "source 'guessed'"), (None, "", "no such constant")):
            entry = json.loads((ROOT / "scripts/cards.json").read_text())
            constants = entry["h100-700w"]["constants"]
            if key:
                constants["bf16"][key] = value
            else:
                constants["bf15"] = constants["bf16"]
            (self.folder / "cards.json").write_text(json.dumps(entry))
            with self.assertRaisesRegex(SystemExit, f"h100-700w, bf1[56]: {expected}"):
                cards.read(self.folder / "cards.json")

    def test_reports_are_taken_for_the_one_card_that_all_of_them_name(self):
        file = self.folder / "cards.json"
        file.write_text((ROOT / "scripts/cards.json").read_text())
        h100, h200 = "NVIDIA H100 80GB HBM3, 580.0", "NVIDIA H200, 580.0"

        def update(*machines, options=()):
            paths = [self.folder / f"report{number}.json" for number in range(len(machines))]
            rows = [{"name": "copy on the device, bytes read and written", "gb_per_s": 3000.0}]
            for path, machine in zip(paths, machines):
                path.write_text(json.dumps({"small": False, "checks": [{"outcome": "passed", "figures": {"rows": rows}}],
                                            "machine": {"date": "2027-01-01", "clocks": ["1980 MHz, 700.00 W, 30"], **machine}}))
            return subprocess.run([sys.executable, ROOT / "scripts/cards.py", *paths, "--file", file, *options], capture_output=True, text=True)

        real = {"gpus": [h100], "simulated": False}
        for machines, said in (([real, {**real, "gpus": [h200]}], "several cards: h100-700w, h200"),
                               ([real, {**real, "clocks": []}], "report1.json: the report is of NVIDIA H100 80GB HBM3, of unknown power"),
                               ([real, {"gpus": [h100]}], "report1.json does not say whether its GPU is simulated"),
                               ([{**real, "gpus": ["NVIDIA B200, 580.0"]}], '"like": "h100-700w", "constants": {}')):
            done = update(*machines)
            self.assertEqual((done.returncode, file.read_text()), (2, (ROOT / "scripts/cards.json").read_text()), done.stderr)
            self.assertIn(said, done.stderr)
        self.assertEqual(update({**real, "clocks": []}, options=["--card", "h200"]).returncode, 0)
        self.assertEqual(update(real, real).returncode, 0)
        self.assertEqual([cards.read(file)[name]["constants"]["copy"]["source"] for name in ("h100-700w", "h200")], ["measured"] * 2)

    def test_a_slower_card_takes_longer_for_every_family(self):
        rows = {card: json.loads(self.run_script(f"a={self.short}", "--tokens", 10, "--world", 4, "--card", card, "--json"))["a"]["families"]
                for card in step_budget.CARDS}
        for family in ("norms", "products", "attention"):
            self.assertGreater(rows["h100-500w"][family]["seconds"], rows["h100-700w"][family]["seconds"])

    def test_the_picture_and_the_table_show_each_family(self):
        svg = self.folder / "bars.svg"
        text = self.run_script(f"first={self.short}", f"second={self.long}", "--tokens", 10, "--world", 4, "--svg", svg)
        for family in ("norms", "products", "attention", "collectives", "other"):
            self.assertIn(family, text)
            self.assertIn(family, [element.text for element in ElementTree.parse(svg).iter()])
        self.assertIn("kernel not counted", text)

    def test_a_tensor_parallel_group_shares_its_tokens_and_what_it_waits_for_adds_to_the_step(self):
        forward = "range\tfake all_gather 700000 bytes sent in tp/0 of 8 ranks\n"
        pieces = forward.replace("all_gather", "transfers")
        found = {}
        for name, more in (("none", ""), ("waits", forward), ("in pieces", pieces)):
            trace = self.folder / "tensor"
            trace.write_text(2 * RECORDED.replace("range\tforward layers.0\n", "range\tforward layers.0\n" + more))
            found[name] = json.loads(self.run_script(f"a={trace}", "--tokens", 10, "--json"))["a"]
        card = CARD.middle
        self.assertEqual(found["waits"]["cluster"]["world"], 8 * 4)
        tp, fsdp = zip(*((one.link / 1e9, one.network_share * 50) for one in (CARD.slow, CARD.fast)))
        self.assertEqual(found["waits"]["groups"], [f"tp 8 ranks on 1 node at {tp[0]:.0f} to {tp[1]:.0f} GB/s",
                                                    f"fsdp 4 ranks on 4 nodes at {fsdp[0]:.0f} to {fsdp[1]:.0f} GB/s"])
        # Four ranks that are on four nodes send over the network.
        fsdp = 6000 / (card.network_share * 50e9)
        for name, seconds in (("none", 6000 / card.link), ("waits", fsdp + 7e5 / card.link), ("in pieces", fsdp + card.link_share * 7e5 / card.link)):
            self.assertAlmostEqual(found[name]["families"]["collectives"]["seconds"], seconds, delta=1e-12, msg=name)

    def test_collectives_between_nodes_take_what_the_network_leaves(self):
        link, gpu = CARD.middle.link, CARD.middle.network_share * 50e9
        for cluster, group, rate in ((Cluster(8), "fsdp", link), (Cluster(16), "fsdp", link), (Cluster(16, network=200), "fsdp", 8 * gpu / 2),
                                     (Cluster(16, node=4), "fsdp", 4 * gpu), (Cluster(256, tensor=8), "tp", link),
                                     (Cluster(256, tensor=8), "fsdp", gpu), (Cluster(256, tensor=4), "fsdp", 2 * gpu),
                                     (Cluster(256, tensor=16), "tp", link), (Cluster(256, replicas=32), "fsdp", link),
                                     (Cluster(256, replicas=32), "dp_replicate", gpu), (Cluster(8, replicas=2), "dp_replicate", link)):
            with self.subTest(cluster=cluster, group=group):
                self.assertAlmostEqual(cluster.bytes_per_second(group, CARD.middle), min(rate, link))

    def test_transfers_that_last_longer_than_the_step_computes_are_not_hidden(self):
        long = self.folder / "network"
        long.write_text(2 * RECORDED.replace("3000 bytes", "3000000000 bytes").replace("range\tforward", 9 * (
            "range\tfake all_gather 3000000000 bytes sent in fsdp/0 of 4 ranks\n") + "range\tforward"))
        seconds = {network: json.loads(self.run_script(f"a={long}", "--tokens", 10, "--node", 1, "--network", network, "--json"))["a"]["seconds"]
                   for network in (400, 800)}
        for network, found in seconds.items():  # eleven transfers of 3 GB
            self.assertAlmostEqual(found, CARD.middle.overhead * 33e9 / (network / 8 * 1e9 * CARD.middle.network_share), places=9)
        self.assertIn("is not above 0", self.run_script(f"a={long}", "--network", 0, code=2))

    def test_a_trace_that_is_too_short_or_says_too_little_is_refused(self):
        one = self.folder / "one"
        one.write_text(RECORDED)
        self.assertIn("train for 3 steps or more", self.run_script(f"a={one}", code=1))
        self.assertIn("the first must be the longer", self.run_script(f"a={self.short},{self.long}", code=1))
        self.assertIn("give --tokens and --layers", self.run_script(f"a={self.short}", code=1))


class Simulated(JobTest):
    def step(self, *options, mode="none", rank=0):
        """The records of a steady step of the folder's job as a rank of 8."""
        trace = self.folder / "trace"
        trace.unlink(missing_ok=True)
        self.run_job("--training.steps=3", "--metrics.log_freq=100", "--comm.mode=fake_backend", f"--activation_checkpoint.mode={mode}",
                     "--activation_checkpoint.selective_ac_option=op", *options, code=0,
                     env={"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so", "NGPU": WORLD, "RANK": rank, "WORLD_SIZE": "",
                          "HYPERION_SIMULATED_GPUS": 8, "HYPERION_SIMULATED_COMPUTE": "off", "HYPERION_SIMULATED_TRACE": trace})
        self.trace = trace.read_text().splitlines()
        return step_budget.steady_step(trace)[0]

    def budget(self, records, tensor=1, **options):
        return step_budget.budget(step_budget.Step(records, Cluster(WORLD, tensor), layers=LAYERS, tokens=TOKENS / tensor, **options), CARD.middle)

    def sum(self, step, key, expression=""):
        return sum(times * getattr(record, key) for record, times in step.items() if expression in record.operator)

    def test_flops_of_products_and_attention_are_the_models(self):
        forward = 4 * 2 * 32 * 32 * WIDTH // 2  # two products over half of the pairs of tokens, of two sequences
        for options, repeated in (([], {"none": 0, "full": 1}), (["--model.converters=float8"], {"none": 0})):
            for mode, times in repeated.items():
                with self.subTest(options=options, mode=mode):
                    step = self.step(*options, mode=mode)
                    attention = self.sum(step, "flops", "attention")
                    again = times * LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)  # the last product is not needed again
                    self.assertEqual(self.sum(step, "flops") - attention, TOKENS * (6 * PRODUCTS + 2 * again))
                    self.assertEqual(attention, LAYERS * forward * (3.5 + times))
                    dtypes = {record.dtype for record in step if record.flops and "attention" not in record.operator}
                    self.assertEqual(dtypes, {"fp8", "fp8_slow"} if options else {"bf16"})

    def test_products_of_gradients_in_fp8_are_the_two_thirds_that_accumulate_slowly(self):
        step = self.step("--model.converters=float8")
        flops = {dtype: sum(times * record.flops for record, times in step.items() if record.dtype == dtype) for dtype in ("fp8", "fp8_slow")}
        self.assertEqual(flops, {"fp8": TOKENS * 2 * PRODUCTS, "fp8_slow": TOKENS * 4 * PRODUCTS})

    def test_bytes_of_an_update_and_of_collectives_are_those_of_the_shard(self):
        step = self.step()
        adam = [record for record in step if "_fused_adamw_" in record.operator]
        shard = PARAMETERS // WORLD
        # Weight and both moments read and written, the gradient read, and written too where Adam clips it.
        clips = not any(record.operator == "aten::mul_" and record.range == "gradient clipping" and record.sizes for record in step)
        self.assertAlmostEqual(sum(record.read + record.written for record in adam) / shard, 32 if clips else 28, delta=0.1)
        result = self.budget(step)
        # bf16 weights of blocks gathered twice, of embedding and head once, and fp32 gradients scattered.
        ends = 2 * WIDTH * VOCABULARY + WIDTH
        sent = (2 * (2 * PARAMETERS - ends) + 4 * PARAMETERS) * (WORLD - 1) / WORLD
        self.assertAlmostEqual(result["families"]["collectives"]["bytes"] / sent, 1, delta=1e-3)
        sums = 3  # of one number: labels, gradient norm, verdict
        self.assertEqual(result["families"]["collectives"]["launches"], 2 * LAYERS + 2 + LAYERS + 2 + sums)

    def test_ranks_of_a_tensor_parallel_group_share_flops_and_send_each_other_their_parts_of_the_tokens(self):
        T = 2
        whole, step = self.step(), self.step(f"--parallelism.tensor_parallel_degree={T}")
        self.assertEqual(self.sum(step, "flops"), self.sum(whole, "flops") / T)
        self.assertEqual(step_budget.group_sizes(step), {"tp": T, "fsdp": WORLD // T, "world": WORLD})
        sent = sum(times * found.sent for record, times in step.items()
                   if (found := step_budget.collective_of(record, Cluster(WORLD, T))) and found.group == "tp")
        # In bf16 forward and backward: two gathers and two sums of a block, a sum of the embedding, a gather of the head; and what rows of
        # logits exchange: three numbers a rank in fp32.
        part = TOKENS * WIDTH * 2 * (T - 1) / T
        self.assertAlmostEqual(sent / (2 * part * (4 * LAYERS + 2)), 1, delta=0.1)
        alone, shared = (self.budget(records, ranks, flops_per_token=1e6) for records, ranks in ((whole, 1), (step, T)))
        self.assertLess(shared["tokens_per_second"], alone["tokens_per_second"])  # of a GPU: it launches as much for half of the tokens
        self.assertAlmostEqual(shared["mfu"] / shared["tokens_per_second"], alone["mfu"] / alone["tokens_per_second"])

    def test_a_run_of_a_configuration_with_tensor_parallelism_counts_the_tokens_of_one_gpu(self):
        config = self.folder / "tensor.toml"
        config.write_text((ROOT / "configs/debug_model.toml").read_text().replace("tensor_parallel_degree = 1", "tensor_parallel_degree = 2"))
        done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", "--run", config, "--world", "32", "--mode", "none", "--column", "ours",
                               "--build", BINARY.parent, "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        (result,) = json.loads(done.stdout).values()
        training = tomllib.loads(config.read_text())["training"]
        self.assertEqual(result["tokens"], training["seq_len"] * training["local_batch_size"] / 2)
        self.assertEqual([text.partition(" at ")[0] for text in result["groups"]], ["tp 2 ranks on 1 node", "fsdp 16 ranks on 4 nodes"])
        self.assertLess(result["mfu"], 1)

    def test_a_stage_launches_few_kernels_a_microbatch_more_than_its_blocks_without_a_pipeline(self):
        def launches(*options, batch, ranks=(0,)):
            """Of one microbatch more, on the ranks together, but for gathers, which only the job without a pipeline has in each."""
            def of(many):
                return sum(times * (record.kernels + record.copies) for rank in ranks for record, times in self.step(*options, *batch(many), rank=rank).items()
                           if not re.match("fake (all_gather|reduce_scatter)", record.range))
            return (of(6) - of(4)) / 2
        alone = launches("--parallelism.fsdp_reduce_gradients=once_per_step",
                         batch=lambda many: ("--training.local_batch_size=1", f"--training.global_batch_size={WORLD * many}"))
        for schedule, stages in (("1F1B", 2), ("ZBVZeroBubble", 4)):
            with self.subTest(schedule=schedule):
                piped = launches("--parallelism.pipeline_parallel_degree=2", f"--parallelism.pipeline_parallel_schedule={schedule}", ranks=(0, WORLD - 1),
                                 batch=lambda many: (f"--training.local_batch_size={many}", f"--training.global_batch_size={WORLD // 2 * many}"))
                print(f"\n{schedule}: {(piped - alone) / stages:.1f} kernels of a stage and microbatch", flush=True)
                self.assertLessEqual((piped - alone) / stages, KERNELS_OF_A_STAGE)

    def test_a_pipeline_adds_its_bubble_and_the_transfers_that_nothing_hides(self):
        def budget(*more, code=0):
            done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", "--run", ROOT / "configs/debug_model_pp2.toml", "--world", "4", "--mode",
                                   "none", "--build", BINARY.parent, "--json", *map(str, more)], capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            return json.loads(done.stdout)["ours, none"] if code == 0 else done.stderr
        self.assertIn("torchtitan has no dry run of a pipeline", budget("--column", "torchtitan", code=1))
        result = budget("--column", "ours", "--keep", self.folder)
        rows = {family: row["seconds"] for family, row in result["families"].items()}
        self.assertEqual(result["tokens"], 8 * 2048 / 2)
        self.assertEqual(result["layers"], 6)  # of the model: this rank has the half
        self.assertIn("pp 2 ranks on 1 node at", result["groups"][1])
        computing = sum(rows.values()) - sum(rows[family] for family in ("optimizer", *step_pipeline.ADDED, "not modelled"))
        self.assertAlmostEqual(rows["pipeline bubble"] / computing, 1 / 16, delta=1e-4)  # (P - 1) / (v M) of what is not bubble
        self.assertGreater(rows["exposed transfers"], 0)
        # Without its facts a trace of a pipeline has no schedule.
        trace = self.folder / "ours.none.4"
        trace.write_text("".join(line for line in trace.read_text().splitlines(keepends=True) if not line.startswith("step_budget")))
        done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", f"a={trace}"], capture_output=True, text=True)
        self.assertIn("is a pipeline's and does not say its schedule", done.stderr)

    def test_ranks_that_share_sequences_exchange_keys_values_and_sums_of_their_gradients_and_share_flops(self):
        C, kv_heads, head_dim = 2, 4, 8
        alone = self.step()
        for method, records in ((method, self.step(f"--parallelism.context_parallel_degree={C}",
                                                   f"--parallelism.context_parallel_rotate_method={method}")) for method in ("allgather", "alltoall")):
            with self.subTest(method):
                self.assertEqual(self.sum(records, "flops"), self.sum(alone, "flops") / C)
                exchange = sequence_exchange(records)
                self.assertEqual((exchange.ranks, exchange.runs), (C, LAYERS))
                elements = 2 * TOKENS * kv_heads * head_dim * (C - 1) / C
                self.assertEqual(exchange.bytes, elements * (2 + 2 + 4))
                self.assertEqual(step_budget.group_sizes(records), {"cp": C, "fsdp": WORLD, "world": WORLD})
                step = step_budget.Step(records, Cluster(WORLD, context=C), layers=LAYERS, tokens=TOKENS / C)
                result = step_budget.budget(step, CARD.middle)
                row = result["families"]["exposed sequence exchange"]
                self.assertEqual(row["bytes"], LAYERS * exchange.bytes)
                self.assertGreater(row["seconds"], 0)

    def test_rows_that_are_sent_to_experts_are_those_of_a_balanced_step_and_their_products_are_counted(self):
        dim, hidden, top_k, blocks, sequences, length = 256, 256, 3, 2, 2, 128

        def budget(degree):
            settings = ("model.name=deepseek_v3", "model.args.n_layers=3", f"training.seq_len={length}", f"training.local_batch_size={sequences}",
                        f"parallelism.expert_parallel_degree={degree}")
            done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", "--run", ROOT / "configs/debug_model.toml", "--world", "8", "--mode", "none",
                                   "--column", "ours", "--set", *settings, "--build", BINARY.parent, "--json"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["ours, none"]
        alone, divided = budget(1), budget(4)
        tokens = sequences * length
        self.assertEqual(divided["families"]["exposed dispatch"]["bytes"], blocks * 4 * tokens * top_k * dim * 2 * 3 / 4)
        self.assertEqual(divided["families"]["exposed dispatch"]["launches"], blocks * 4)
        self.assertNotIn("exposed dispatch", alone["families"])
        self.assertIn("ep 4 ranks on 1 node", " ".join(divided["groups"]))
        products = blocks * 9 * 2 * dim * hidden  # of a row: three matrices, forward and both gradients
        counted = alone["families"]["products of experts"]["flops"]
        self.assertTrue(tokens * top_k * products <= counted <= (tokens * top_k + 9 * 8) * products, counted)  # groups are padded
        for result in (alone, divided):
            self.assertGreater(result["families"]["routing and order"]["seconds"], 0)
            self.assertLess(result["families"]["other"]["bytes"], 0.02 * result["bytes"], result["other"])

    def test_every_kernel_of_a_step_is_counted_and_nearly_all_bytes_have_a_family(self):
        for mode in ("none", "selective"):
            step = self.step(mode=mode)
            optimizers = [i for i, line in enumerate(self.trace) if line == "range\toptimizer"]
            lines = sum(line.startswith("kernel\t") for line in self.trace[optimizers[-2]:optimizers[-1]])
            result = self.budget(step)
            self.assertEqual(result["kernels"], lines)
            self.assertLess(result["families"]["other"]["bytes"], 0.02 * result["bytes"], result["other"])

    def test_a_block_launches_no_more_kernels_than_has_been_reached(self):
        step = self.step()
        result = self.budget(step)
        self.assertGreater(result["blocks"]["products"]["launches"], 6)
        self.assertLessEqual(sum(row["launches"] for row in result["blocks"].values()), KERNELS_OF_A_BLOCK, result["blocks"])

    def test_products_add_biases_and_each_gradient_of_a_product_is_one_kernel(self):
        for options, more in (((), KERNELS_OF_BIASES), (("--model.converters=float8",), KERNELS_OF_FLOAT8_BIASES)):
            plain, biased = (self.step(*options, *biases) for biases in ((), ("--model.args.qkv_bias", "--model.args.output_bias")))
            self.assertEqual(self.sum(biased, "kernels") - self.sum(plain, "kernels"), more * LAYERS, options)


@unittest.skipUnless((ROOT / ".venv-interop/bin/python").exists(), "there is no interop environment: scripts/setup.sh --interop")
class Peer(unittest.TestCase):
    def test_torchtitan_multiplies_the_same_and_its_compiled_kernels_are_counted_with_their_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, ROOT / "scripts/step_budget.py", "--run", ROOT / "configs/debug_model.toml", "--mode", "none",
                                   "--column", "ours", "torchtitan", "torchtitan-compiled", "--build", BINARY.parent, "--keep", folder, "--json"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            compiled = Path(folder, "torchtitan-compiled.none.8").read_text()
        ours, eager, compiled_row = json.loads(done.stdout).values()
        self.assertEqual(ours["flops"], eager["flops"])
        self.assertEqual(ours["flops"], compiled_row["flops"])
        self.assertLess(compiled_row["kernels"], eager["kernels"])
        self.assertRegex(compiled, "(?m)^kernel\ttriton_")
        self.assertRegex(compiled, "(?m)^cost\ttriton_[^\t]*\tkernels=1\tread=[1-9]\\d*\twritten=[1-9]")
        for row in (ours, eager, compiled_row):
            self.assertLess(row["families"]["other"]["bytes"], 0.02 * row["bytes"], row["other"])


if __name__ == "__main__":
    main()
