"""Experts on simulated GPUs (docs/simulated_gpu.md): what a step launches, copies, exchanges and waits for.

    python3 tests/faults/simulated_experts_test.py build/hyperion

Standard library only.
"""

import json
import re

from jobs import main
from simulated_jobs import EP, EXPERTS, FP8_EXPERTS, ONCE, SimulatedJobTest


class SimulatedExperts(SimulatedJobTest):
    def test_gradients_of_experts_are_added_to_their_sum_where_it_is(self):
        step = self.steady_step(*EXPERTS, EP, ONCE, "--comm.mode=fake_backend", "--activation_checkpoint.mode=none", "--model.args.moe_hidden_dim=1024",
                                "--training.local_batch_size=1", "--training.global_batch_size=12",
                                env={"NGPU": "4", "HYPERION_SIMULATED_GPUS": "8", "HYPERION_SIMULATED_COMPUTE": "off"})
        moved = 0
        for line, times in step.items():
            if line.startswith("cost\t") and "\tin=accumulate layers.0" in line:  # of its experts too
                moved += times * sum(map(int, re.findall(r"\t(?:read|written)=(\d+)", line)))
        elements = 3 * 32 * 1024 * 32  # w1, w2 and w3 of 32 of the 64 experts
        written, added = 2 + 4, 2 + 4 + 4  # bytes of an element of the first microbatch and of the second; the third one is reduced
        self.assertGreaterEqual(moved, (written + added) * elements)
        self.assertLess(moved, 1.01 * (written + added) * elements)

    def test_experts_take_as_many_launches_whatever_their_number_and_no_wait_for_their_counts(self):
        none = "--activation_checkpoint.mode=none"
        steps = {number: self.steady_step(*EXPERTS, none, f"--model.args.num_experts={number}") for number in (8, 256)}
        launches = {number: sum(times for line, times in step.items() if line.startswith("kernel")) for number, step in steps.items()}
        blocks = 2
        self.assertEqual(launches[256], launches[8])
        products = blocks * (2 + 2 + 3)  # forward, of the inputs' gradients and the weights': w1 and w3 are one stack for the first two
        in_float8 = {number: self.steady_step(*EXPERTS, *FP8_EXPERTS, none, f"--model.args.num_experts={number}") for number in (8, 256)}
        launches = {number: sum(times for line, times in step.items() if line.startswith("kernel")) for number, step in in_float8.items()}
        self.assertLessEqual(launches[256] - launches[8], blocks)
        for operator, found in (("_grouped_mm", steps), ("_scaled_grouped_mm", in_float8)):
            for step in found.values():
                self.assertEqual(step[f"operator\taten::{operator}"], products)
                self.assertEqual({line: times for line, times in step.items() if line.startswith(("synchronize", "copy\tto pageable"))},
                                 {"synchronize\tevent": 1.0})
                copies = [line for line in step if re.match(r"cost\taten::copy_\t.*of=bf16\[\d+,16\]", line)]
                self.assertEqual(copies, [])  # the gradients of gate and up are read side by side
        for step in in_float8.values():  # maxima of groups are of our kernel: of the rows and gradients of w1, w2 and w3
            self.assertEqual(step["operator\thyperion::float8_amax_groups"], blocks * (5 + 2))  # and of the stacks' columns
            self.assertEqual(step["operator\thyperion::float8_cast_stack"], blocks * 2)
            passes = r"cost\taten::((segment_reduce|abs)\t.*of=bf16|copy_\t.*of=bf16\[\d+,(16,32|32,16)\])"  # copies: of transposed stacks
            self.assertEqual([line for line in step if re.match(passes, line)], [])
        one_by_one = self.run_job(*EXPERTS, none, "--training.mixed_precision_param=float32", "--training.steps=2", code=0, env=self.gpu())
        self.assertIn("Experts: multiplied one by one, and in each layer the host waits once for their counts of tokens: libtorch's grouped "
                      "product is one of bfloat16", one_by_one.text())

    def test_experts_of_gpt_oss_take_one_launch_for_each_bias_and_no_wait(self):
        gpt_oss = ["--model.name=gpt_oss", "--model.flavor=debugmodel", "--model.args.moe_hidden_dim=16", "--model.args.n_heads=4",
                   "--model.args.n_kv_heads=2", "--model.args.vocab_size=2048", "--model.args.n_layers=2", "--activation_checkpoint.mode=none"]
        steps = [self.steady_step(*gpt_oss, f"--model.args.num_experts={number}") for number in (8, 256)]
        launches = [sum(times for line, times in step.items() if line.startswith("kernel")) for step in steps]
        self.assertEqual(*launches)
        blocks = 2
        for step in steps:
            expected = {"aten::_grouped_mm": 6, "hyperion::add_group_bias_": 2, "hyperion::clamped_gate": 1, "hyperion::clamped_gate_backward": 1}
            self.assertEqual({name: step.get(f"operator\t{name}") for name in expected}, {name: blocks * times for name, times in expected.items()})
            self.assertEqual({line: times for line, times in step.items() if line.startswith(("synchronize", "copy\tto pageable"))},
                             {"synchronize\tevent": 1.0})

    def test_expert_parallel_ranks_exchange_by_one_call_each_and_wait_once_a_block_for_the_copies_of_their_counts(self):
        step = self.steady_step(*EXPERTS, EP, "--activation_checkpoint.mode=none", ranks=2)
        blocks = 2
        self.assertEqual([step.get(f"c10d\t{call}") for call in ("all_to_allv", "send", "recv")], [blocks * 5, None, None])
        counts = f"copy\tto pinned, {8 * 64} bytes"  # of 64 experts: those to send, and those to receive
        self.assertEqual({line: times for line, times in step.items() if line.startswith("synchronize") or "pageable" in line or line == counts},
                         {"synchronize\tevent": blocks + 1, counts: blocks * 2})
        self.assertEqual(step["operator\taten::_grouped_mm"], blocks * (2 + 2 + 3))  # also with the experts of one rank
        # Rows are permuted by the rank whose tokens they are: as they leave, and as they or their gradients come back.
        passes = {"order_rows": 1, "gather_rows": 1 + 2, "sum_rows": 1 + 1, "products_of_rows": 1, "weight_rows": None}
        self.assertEqual({name: step.get(f"operator\thyperion::{name}") for name in passes},
                         {name: times and blocks * times for name, times in passes.items()})
        self.assertEqual([line for line in step if "repeat_interleave" in line or "index_fill" in line], [])

    def test_auxiliary_losses_run_in_the_kernels_of_the_loss_and_of_the_routers_backward(self):
        none, blocks = "--activation_checkpoint.mode=none", 2
        losses = ("--training.z_loss=1e-4", "--model.args.router_z_loss_coeff=1e-3", "--model.args.sequence_aux_loss_coeff=1e-3",
                  "--model.args.global_aux_loss_coeff=1e-3")
        without, step = (self.steady_step(*EXPERTS, none, "--model.args.num_experts=8", *options) for options in ((), losses))
        kernels = [sum(times for line, times in of.items() if line.startswith("kernel")) for of in (without, step)]
        self.assertLessEqual(kernels[1] - kernels[0], 1 + blocks * 12)  # of the counts of tokens, which the note on the arithmetic lists
        for operator in ("cross_entropy_", "routing_weights_backward"):
            self.assertEqual(step[f"operator\thyperion::{operator}"], without[f"operator\thyperion::{operator}"])
        waits = [{line: times for line, times in of.items() if line.startswith("synchronize") or "pageable" in line} for of in (without, step)]
        self.assertEqual(waits[0], waits[1])

    def trace_of_shared_experts(self, *options):
        """The names of what one rank of two queues and waits for, in order, in a job of one block with shared experts."""
        trace = self.folder / "trace"
        shared = ["--model.name=deepseek_v3", "--model.args.n_layers=1", "--model.args.n_dense_layers=0", "--model.args.num_experts=4",
                  "--model.args.top_k=2", "--model.args.num_shared_experts=1", "--model.args.moe_hidden_dim=16", "--model.args.kv_lora_rank=8",
                  "--model.args.qk_nope_head_dim=4", "--model.args.qk_rope_head_dim=4", "--model.args.v_head_dim=8"]
        self.run_job(*shared, EP, *options, "--activation_checkpoint.mode=none", "--training.steps=3", "--metrics.log_freq=100", code=0, ranks=2,
                     env=self.gpu("eager"), env_of={0: {"HYPERION_SIMULATED_TRACE": trace}})
        names = {"operator\thyperion::order_rows": "order", "operator\thyperion::gather_rows": "gather", "operator\thyperion::sum_rows": "sum",
                 "operator\taten::mm": "product", "operator\taten::_grouped_mm": "experts", "c10d\tall_to_allv": "exchange", "c10d\twait": "arrived",
                 "synchronize\tevent": "host waits", "copy\tfrom pinned, 8 bytes": "ends of groups"}
        return [names.get(line, "copy of counts" if line.startswith("copy\tto pinned") else line)
                for line in trace.read_text().splitlines() if line in names or line.startswith("copy")]

    def from_first(self, forward, found):
        """The names from the first place where `forward` stands, without those of rows and copies."""
        first = next((i for i in range(len(found)) if found[i:i + len(forward)] == forward), None)
        self.assertIsNotNone(first, found)
        return " ".join(name for name in found[first:] if name not in ("gather", "sum", "ends of groups") and not name.startswith("copy"))

    def test_rows_travel_while_the_shared_experts_run_and_the_host_waits_under_the_gather_of_the_rows_to_send(self):
        # Nothing else is copied before the first rows leave, and nothing orders those that come.
        forward = ["order", "exchange", "arrived", *2 * ["copy of counts"], "gather", "arrived", "host waits", "exchange", "ends of groups", *2 * ["product"], "arrived"]
        step = self.from_first(forward, self.trace_of_shared_experts())
        self.assertRegex(step, "(experts ){2}exchange arrived (product )+exchange arrived (experts ){5}exchange (product ){4}arrived")

    def test_rows_of_a_slice_travel_while_the_experts_multiply_those_of_another(self):
        forward = ["order", "exchange", "arrived", *2 * ["copy of counts"], "gather", "arrived", "host waits", *2 * ["exchange"], *2 * ["ends of groups"], *2 * ["product"], "arrived"]
        step = self.from_first(forward, self.trace_of_shared_experts("--parallelism.expert_parallel_slices=2"))
        self.assertRegex(step, "(experts ){2}exchange arrived (experts ){2}exchange (arrived ){2}(product )+(exchange ){2}arrived (experts ){5}exchange arrived "
                               "(experts ){5}exchange (product ){4}(arrived ){2}")

    def test_rows_beyond_twice_the_mean_run_in_chunks_which_bounds_the_memory_of_a_rank_that_the_router_prefers(self):
        (self.folder / "data.jsonl").write_text(json.dumps({"text": " a" * 100_000}) + "\n")  # all tokens alike, and their experts
        tokens = 8 * 256
        job = self.run_job(*EXPERTS, "--parallelism.expert_parallel_degree=4", "--model.args.num_experts=4", "--model.args.top_k=1", "--model.args.moe_hidden_dim=2048",
                     "--activation_checkpoint.mode=none", "--training.seq_len=256", "--training.local_batch_size=8", "--training.steps=2", code=0, ranks=4,
                     env=self.gpu(HYPERION_SIMULATED_MEMORY=200 << 20, HYPERION_SIMULATED_NCCL_MEMORY=1 << 20))
        said = [f".moe.experts: {4 * tokens} rows for the experts of this rank run in chunks of the ranks' mean, {tokens}" in job.text(r) for r in range(4)]
        self.assertEqual(sum(said), 1)
        self.assertEqual(self.metrics()[0]["experts/most_rows_of_a_rank"], 4 * tokens)

    def test_memory_that_runs_out_on_the_rows_of_experts_is_said_with_block_rows_and_mean(self):
        job = self.start(*EXPERTS, EP, "--model.args.moe_hidden_dim=2048", "--activation_checkpoint.mode=none", "--training.seq_len=256",
                         "--training.local_batch_size=8", ranks=2, env=self.gpu(HYPERION_SIMULATED_MEMORY=700 << 20, HYPERION_SIMULATED_NCCL_MEMORY=60 << 20))  # which the bound does not count
        self.assertIn(72, job.codes(), job.text())
        self.assertRegex(job.text() + job.text(1), r"layers\.\d\.moe\.experts: memory ran out with 1\d{4} rows for the experts of this rank; the mean of the "
                                                   r"ranks is 16384\n")


if __name__ == "__main__":
    main()
