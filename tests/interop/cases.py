"""The runs in which Hyperion and torchtitan are compared, and the numbers recorded of them (tests/goldens/torchtitan)."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens" / "torchtitan"
SHARD = GOLDENS / "tokens"  # a token shard as `hyperion tokenize` writes it (data/token_shards.h)
TOKENS_SEED = 20261121
# With weights of some seeds qwen3's gradient is ill-conditioned in single steps: torchtitan's norm differs from its own on another
# mesh by 1e-2 there. With seed 11 step 17 of the small batch is the worst (docs/notes/agreement.md, "Conditioning").
WEIGHTS_SEEDS = {"llama3": 20261121, "qwen3": 11, "qwen3_moe": 11, "deepseek_v3": 11, "llama4": 11, "gpt_oss": 11}
# Smaller models than the debug flavours, which take minutes: by torchtitan's arguments, and by [model.args]. Of qwen3's experts biases do
# not move in either program: here they do, as in the other two models, so that they are compared.
SMALLER = {
    "qwen3_moe": ({"n_layers": 2, "moe_inter_dim": 64, "moe_args": {"num_experts": 16, "top_k": 4, "load_balance_coeff": 1e-3}},
                  {"n_layers": 2, "moe_hidden_dim": 64, "num_experts": 16, "top_k": 4, "load_balance_coeff": 1e-3}),
    "deepseek_v3": ({"n_layers": 3}, {"n_layers": 3}),
    "llama4": ({"n_layers": 2}, {"n_layers": 2}),
    "gpt_oss": ({"n_layers": 3, "n_heads": 8, "n_kv_heads": 2, "head_dim": 32, "vocab_size": 2048, "moe_inter_dim": 64, "sliding_window_size": 24},
                {"n_layers": 3, "n_heads": 8, "n_kv_heads": 2, "head_dim": 32, "vocab_size": 2048, "moe_hidden_dim": 64, "sliding_window_size": 24}),
}


@dataclass(frozen=True)
class Case:
    """One run: model, precision, mesh and batch. The global batch is the same on every mesh of a (model, precision)."""

    model: str
    precision: str = "fp32"
    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    schedule: str = "1F1B"  # of a pipeline
    context: int = 1
    balancer: str = "headtail"  # of context parallel ranks
    rotate: str = "allgather"
    expert: int = 1  # divides shard x context x tensor
    expert_tensor: int = 1
    accumulation: int = 1
    small: bool = False  # the batch of the bf16 runs: a CPU without AVX-512 computes bf16 a hundred times slower
    steps: int = 20
    first: int = 0  # the number of first steps that Hyperion runs and that are compared; 0: all
    float8: str = ""  # the recipe of the linears ("tensorwise": not named, as torchtitan wants it for its FP8 gather)
    gather: bool = False  # FP8 all-gather
    precompute: bool = False  # its scales after the optimizer step
    loop: bool = False  # the peer is float8_loop.py, on one rank
    judge: str = ""  # the case whose recorded numbers judge this one, where the peer does not run it

    @property
    def batches(self) -> int:
        """Ranks, or groups of tensor or context parallel ranks, that read different data."""
        return self.replicate * self.shard

    @property
    def world(self) -> int:
        return self.batches * self.context * self.tensor * self.pipeline

    @property
    def seq_len(self) -> int:
        return 64 if self.small else 128

    @property
    def global_batch(self) -> int:
        return 4 if self.small else 8

    @property
    def smaller(self) -> tuple[dict, dict] | None:
        """What differs from the flavour, in torchtitan's words and in ours."""
        return SMALLER.get(self.model)

    def arguments(self) -> list[str]:
        """Options of both programs, after configs/MODEL.toml."""
        dtype = {"fp32": "float32", "bf16": "bfloat16"}[self.precision]
        return [
            f"--training.steps={self.steps}",
            f"--training.seq_len={self.seq_len}",
            f"--training.local_batch_size={self.global_batch // (self.batches * self.accumulation)}",
            f"--training.global_batch_size={self.global_batch}",
            f"--training.mixed_precision_param={dtype}",
            f"--parallelism.data_parallel_replicate_degree={self.replicate}",
            f"--parallelism.data_parallel_shard_degree={self.shard}",
            *([f"--parallelism.tensor_parallel_degree={self.tensor}"] if self.tensor > 1 else []),
            *([f"--parallelism.pipeline_parallel_degree={self.pipeline}",
               f"--parallelism.pipeline_parallel_schedule={self.schedule}"] if self.pipeline > 1 else []),
            *([f"--parallelism.context_parallel_degree={self.context}",
               f"--parallelism.context_parallel_load_balancer={self.balancer}",
               f"--parallelism.context_parallel_rotate_method={self.rotate}"] if self.context > 1 else []),
            *([f"--parallelism.expert_parallel_degree={self.expert}",
               f"--parallelism.expert_tensor_parallel_degree={self.expert_tensor}"] if self.expert > 1 else []),
            *(self._float8_arguments() if self.float8 else []),
        ]

    def _float8_arguments(self) -> list[str]:
        section = "--quantize.linear.float8"
        named = [f"{section}.recipe_name={self.float8}"] if self.float8 != "tensorwise" else []
        flags = {"enable_fsdp_float8_all_gather": self.gather, "precompute_float8_dynamic_scale_for_fsdp": self.precompute}
        return ["--model.converters=quantize.linear.float8", f"{section}.filter_fqns=output", f"{section}.emulate",
                *named, *(f"{section}.{flag}" for flag, on in flags.items() if on)]

    @property
    def program(self) -> str:
        """The peer, a file of this folder."""
        return "float8_loop.py" if self.loop else "peer/torchtitan_cpu.py"

    @property
    def weights_seed(self) -> int:
        return WEIGHTS_SEEDS[self.model]

    @property
    def peer_float64(self) -> bool:
        """Whether the peer computes in fp64: its own fp32 rounding moves qwen3's gradient norms by up to 3e-4 (docs/notes/agreement.md)."""
        return self.model == "qwen3"

    @property
    def config(self) -> Path:
        return HERE / "configs" / f"{self.model}.toml"


def _meshes(model: str, judge: str = "") -> dict[str, Case]:
    """`judge` is the peer's case for all meshes with the large batch."""
    return {
        f"{model}-fp32-1": Case(model),
        f"{model}-fp32-fsdp2": Case(model, shard=2, judge=judge),
        f"{model}-fp32-fsdp2-accumulate": Case(model, shard=2, accumulation=2, judge=judge),
        f"{model}-fp32-fsdp4": Case(model, shard=4, judge=judge),
        f"{model}-fp32-hsdp2x2": Case(model, replicate=2, shard=2, judge=judge),
        f"{model}-fp32-tp2": Case(model, tensor=2, judge=judge),
        f"{model}-fp32-fsdp2-tp2": Case(model, shard=2, tensor=2, judge=judge),
        f"{model}-fp32-fsdp2-small": Case(model, shard=2, small=True),  # the twin that bf16 must differ from
    }


# qwen3's peer is one rank in fp64, where a mesh makes no difference; its tensor parallel attention does not run on a CPU at all:
# DTensor has no strategy for that kernel.
CASES: dict[str, Case] = _meshes("llama3") | _meshes("qwen3", judge="qwen3-fp32-1")
CASES["qwen3-fp32-fsdp2-accumulate-short"] = Case("qwen3", shard=2, accumulation=2, first=8, judge="qwen3-fp32-1")
# Of qwen3 torchtitan has no pipeline; its ZBVZeroBubble does not run on Gloo.
CASES["llama3-fp32-pp2"] = Case("llama3", pipeline=2)
CASES["llama3-fp32-pp2-interleaved"] = Case("llama3", pipeline=2, schedule="Interleaved1F1B")
CASES["llama3-fp32-pp2-fsdp2"] = Case("llama3", pipeline=2, shard=2)
CASES["llama3-fp32-pp2-tp2"] = Case("llama3", pipeline=2, tensor=2)
# The peer's attention is PyTorch's own ring, which judges our gathered form too.
for _mesh, _shard in (("cp2", 1), ("fsdp2-cp2", 2)):
    for _suffix, _balancer in (("", "headtail"), ("-unbalanced", "None")):
        _ring = f"llama3-fp32-{_mesh}-ring{_suffix}"
        CASES[_ring] = Case("llama3", shard=_shard, context=2, balancer=_balancer, rotate="alltoall")
        CASES[f"llama3-fp32-{_mesh}{_suffix}"] = Case("llama3", shard=_shard, context=2, balancer=_balancer, judge=_ring)
for _model in SMALLER:  # with experts
    CASES[f"{_model}-fp32-1"] = Case(_model, small=True)
    CASES[f"{_model}-fp32-fsdp2"] = Case(_model, small=True, shard=2, judge=f"{_model}-fp32-1")
    CASES[f"{_model}-fp32-ep2"] = Case(_model, small=True, shard=2, expert=2, judge="gpt_oss-fp32-1" if _model == "gpt_oss" else "")
    if _model != "qwen3_moe":  # whose tensor parallel attention torchtitan does not run on a CPU
        CASES[f"{_model}-fp32-tp2"] = Case(_model, small=True, tensor=2, judge="" if _model == "llama4" else f"{_model}-fp32-1")
    for _name, _mesh in {"tp2-ep2": {"tensor": 2, "expert": 2},
                         "fsdp2-tp2-ep2-etp2": {"shard": 2, "tensor": 2, "expert": 2, "expert_tensor": 2}}.items():
        CASES[f"{_model}-fp32-{_name}"] = Case(_model, small=True, judge=f"{_model}-fp32-1", **_mesh)
CASES["deepseek_v3-fp32-pp2"] = Case("deepseek_v3", small=True, pipeline=2)
CASES["deepseek_v3-fp32-pp2-fsdp2-ep2"] = Case("deepseek_v3", small=True, pipeline=2, shard=2, expert=2, judge="deepseek_v3-fp32-1")
# bf16 on llama3 alone: on a CPU without AVX-512 torchtitan takes an hour for qwen3's 20 steps
CASES["llama3-bf16-fsdp2"] = Case("llama3", "bf16", shard=2, small=True)
CASES["llama3-bf16-fsdp4"] = Case("llama3", "bf16", shard=4, small=True)
CASES["llama3-bf16-fsdp2-tp2"] = Case("llama3", "bf16", shard=2, tensor=2, small=True)

_FSDP2 = CASES["llama3-bf16-fsdp2"]
_LOOP = Case("llama3", "bf16", small=True, loop=True)

# FP8, for against_float8.py. torchtitan is the peer where it can be; the loop's plain run is what its FP8 runs are held against.
FLOAT8_CASES: dict[str, Case] = {
    "llama3-tensorwise-fsdp2": replace(_FSDP2, float8="tensorwise"),
    "llama3-tensorwise-gather-fsdp2": replace(_FSDP2, float8="tensorwise", gather=True),
    "llama3-tensorwise-precompute-fsdp2": replace(_FSDP2, float8="tensorwise", gather=True, precompute=True),
    "llama3-bf16-loop": _LOOP,
    "llama3-tensorwise-loop": replace(_LOOP, float8="tensorwise"),
    "llama3-tensorwise-gather-loop": replace(_LOOP, float8="tensorwise", gather=True),
    "llama3-rowwise-loop": replace(_LOOP, float8="rowwise"),
    "llama3-rowwise_with_gw_hp-loop": replace(_LOOP, float8="rowwise_with_gw_hp"),
}
ALL_CASES = CASES | FLOAT8_CASES


def golden_path(name: str) -> Path:
    return GOLDENS / f"{ALL_CASES[name].judge or name}.json"


def golden(name: str) -> dict:
    """{"losses": [20], "grad_norms": [20]} and, on one rank, {"gradient_norms": {name: L2 norm at step 1}}."""
    return json.loads(golden_path(name).read_text())


def largest_errors(ours: dict, theirs: dict) -> dict[str, tuple[float, int]]:
    """Largest relative difference of losses and of gradient norms, each with the step (1-based) where it is."""
    result = {}
    for key in ("losses", "grad_norms"):
        a, b = ours[key], theirs[key]
        if len(a) != len(b):
            raise ValueError(f"{key}: {len(a)} steps against {len(b)}")
        errors = [abs(x - y) / abs(y) for x, y in zip(a, b)]
        result[key] = max((e if e == e else float("inf"), step) for step, e in enumerate(errors, 1))  # NaN is infinitely wrong
    return result
