"""Jobs on simulated GPUs (docs/simulated_gpu.md), and what a steady step of one asks of the runtime."""

import collections

from jobs import BINARY, JobTest

FP8 = "--model.converters=float8"
ONCE = "--parallelism.fsdp_reduce_gradients=once_per_step"
EP = "--parallelism.expert_parallel_degree=2"
EXPERTS = ["--model.name=qwen3", "--model.flavor=debugmodel_moe", "--model.args.n_kv_heads=2", "--model.args.moe_hidden_dim=16"]
FP8_EXPERTS = ["--model.converters=quantize.grouped_mm.float8", "--quantize.grouped_mm.float8.fqns=experts"]


class SimulatedJobTest(JobTest):
    steps_of = {}  # what one steady step asks for, of each kind of job that was run

    def gpu(self, schedule="1", **more):
        return {"HYPERION_DEVICE": "cuda", "LD_PRELOAD": BINARY.parent / "libsimulated_gpu.so",
                "HYPERION_SIMULATED_SCHEDULE": schedule, **more}

    def steady_step(self, *options, ranks=1, env=None):
        """What 1 step asks of the runtime when all is warm: line of the trace -> times."""
        job = (tuple(sorted(options)), ranks, tuple(sorted((env or {}).items())))
        if job in self.steps_of:
            return self.steps_of[job]
        counts = []
        for steps in (4, 6):
            trace = self.folder / f"trace-{steps}"
            self.run_job(f"--training.steps={steps}", "--metrics.log_freq=100", *options, code=0, ranks=ranks,
                         env=self.gpu("eager", HYPERION_SIMULATED_TRACE=trace, **(env or {})))
            counts.append(collections.Counter(trace.read_text().splitlines()))
            self.assertGreater(counts[-1]["malloc\tpages"], 0, "expandable segments are not on")
            trace.unlink()
        few, many = counts
        self.steps_of[job] = {line: (many[line] - few[line]) / 2 / ranks for line in many if many[line] != few[line]}
        return self.steps_of[job]
