"""One rank of torchtitan 0.2.2 on CPU (Gloo), with recorded tokens and weights by formula: the outside judge.

torchtitan assumes an accelerator. This program gives it a CPU stand-in for the device module, lets FSDP2 reduce with a
plain SUM (Gloo has no PREMUL_SUM), and hands over to torchtitan's own training entry point. Model, loss, optimizer,
schedule, clipping, FSDP2 and logging are torchtitan's, untouched. Data and initial weights are replaced, so that
another trainer can start from the same numbers; no tokenizer and no dataset are needed.

Usage, one process a rank, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them:
    python torchtitan_cpu.py --job.config_file FILE.toml [--section.key value ...]

Environment:
    PEER_TOKENS        recorded tokens: a flat file of little-endian integers and nothing else (required)
    PEER_TOKENS_DTYPE  their type: uint16 (default), uint32 or int32
    PEER_WEIGHTS_SEED  load the initial weights of reference_weights.py with this seed (unset: torchtitan's own)
    PEER_METRICS       here go {"losses": [...], "grad_norms": [...]}, one entry a step, every digit kept, written by rank 0, and with a
                       pipeline by the first rank of the last stage, where the losses are
    PEER_GRADIENTS     rank 0 writes here, as FQN.f32 (raw little-endian fp32), the full gradient of every parameter at
                       step PEER_GRADIENTS_STEP (default 1), before clipping; not with a pipeline
    PEER_FLAVOR        a flavour for --model.flavor that torchtitan lacks, as JSON: {"name": ..., "base": a flavour that it has,
                       "args": {...}}, where args are fields of its model arguments that differ from the base's (unset: none), those of
                       "moe_args" again fields; with "load_balance_coeff" among these the optimizer moves the experts' biases, which
                       that of torchtitan's qwen3 does not
    PEER_BALANCE       rank 0 writes here {FQN: values} of every expert_bias after the last step logged
    PEER_FLOAT64       1: compute in fp64 wherever the configuration says float32, and where torchtitan itself says float()
    PEER_FIRST_STEP    steps of data to skip: for a run that resumes from another trainer's checkpoint (default 0)
    PEER_THREADS       intra-op threads of this rank (default 1)

The order of the data: sequence i is tokens[i*S : i*S+S+1] (inputs without the last, labels without the first token;
neighbours share one token); global batch n is the sequences [n*G, (n+1)*G); inside it, microbatch a of data-parallel
rank d has in row l the sequence a*(D*L) + d*L + l, for D ranks with L rows each. The file wraps around at its end.

Known differences of the peer, so that nobody compares the wrong things: replicate-only data parallelism averages
gradients that are already divided by the global token count (torchtitan #2323); one bf16 rank runs under autocast with
an fp32 residual stream, where FSDP is bf16 throughout (compare bf16 FSDP with bf16 FSDP only).

With context parallelism attention is PyTorch's own ring (torch.distributed.tensor.experimental) around the kernel of CPUs, for which
PyTorch has no sharding rule: this program adds one. Keys and values travel as parallelism.context_parallel_rotate_method says, which
torchtitan itself ignores (its ring always gathers them).

With a pipeline torchtitan starts the backward of each microbatch at the undivided sum of its losses (torchtitan #2972), so that norm and
clipping are wrong by the number of tokens: here the gradient of the loss is divided by the tokens of a global batch, all of which count.
Before its first step a stage runs once on zeros, for the shapes that it sends; torchtitan's experts count these as tokens, so that their
biases differ from those without a pipeline: here they do not count.

gpt_oss's attention is flex_attention, which PyTorch compiles for GPUs alone where gradients are wanted: here it is not compiled. Its blocks are
bf16 whatever the configuration says: here they have the configuration's type.

With tensor parallelism, and weights of tokens that apply after their experts, each rank has a part of these weights' gradient, which torchtitan
does not add up: the gate's gradient of deepseek_v3 is 0.70 and 0.74 of that of one rank (its norm, of two ranks), and what goes back through the
gate is short of as much. Here it is added up.
"""

import dataclasses
import functools
import json
import os
import pickle
import resource
import runpy
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch._utils
import torch.cpu

torch.set_num_threads(int(os.environ.get("PEER_THREADS", "1")))


# ---- the CPU stand-in; before torchtitan is imported, because it looks the device up at import time


class _Properties:
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _CpuDeviceModule(types.SimpleNamespace):
    def __getattr__(self, name):
        return getattr(torch.cpu, name)


def _memory_stats(device=None):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


_device_module = _CpuDeviceModule(
    set_device=lambda device: None,
    get_device_name=lambda device=None: "cpu",
    get_device_properties=lambda device=None: _Properties,
    empty_cache=lambda: None,
    reset_peak_memory_stats=lambda *args: None,
    memory_stats=_memory_stats,
    max_memory_allocated=lambda *args: 0,
    current_device=lambda: 0,
)
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda device_type: _device_module

import torchtitan.components.metrics as titan_metrics  # noqa: E402
import torchtitan.components.optimizer as titan_optimizer  # noqa: E402
import torchtitan.config as titan_config  # noqa: E402
import torchtitan.distributed.utils as titan_distributed  # noqa: E402
import torchtitan.models.attention as titan_attention  # noqa: E402
import torchtitan.models.moe.kernels as titan_kernels  # noqa: E402
import torchtitan.protocols.train_spec as titan_spec  # noqa: E402
import torchtitan.tools.utils as titan_utils  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.pipelining import PipelineStage  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: E402
from torch.distributed.tensor._utils import compute_global_tensor_info  # noqa: E402
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring  # noqa: E402
import torch.nn.attention.flex_attention as torch_flex  # noqa: E402

titan_utils.device_type, titan_utils.device_module = "cpu", _device_module

_set_gradient_divide_factor = FSDPModule.set_gradient_divide_factor


def _set_divide_factor_and_sum(self, factor):
    _set_gradient_divide_factor(self, factor)
    self.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = _set_divide_factor_and_sum

if os.environ.get("PEER_FLOAT64") == "1":
    titan_config.TORCH_DTYPE_MAP["float32"] = torch.float64
    torch.Tensor.float = torch.Tensor.double  # inside RoPE and the loss


# ---- what experts need on a CPU: histc does not count integers there, the grouped product is one of GPUs, and so is Triton's kernel for
# the order of the rows that expert parallel ranks receive, of which torchtitan has a reference for a CPU

_histc = torch.histc
torch.histc = lambda x, bins, min, max: _histc(x, bins, min, max) if x.is_floating_point() else torch.bincount(x, minlength=bins)
titan_kernels.fill_indices_wrapper = titan_kernels.fill_indices_cpu

_shape_inference = PipelineStage._shape_inference


def _shape_inference_without_counting(self, *args, **kwargs):
    shapes = _shape_inference(self, *args, **kwargs)
    for name, buffer in self.submod.named_buffers():
        if name.endswith("tokens_per_expert"):
            buffer.zero_()
    return shapes


PipelineStage._shape_inference = _shape_inference_without_counting


# ---- PyTorch's ring attention around the kernel of CPUs


def _sharded(mesh, *tensors):
    """Each rank's part of tensors [batch, heads, sequence, ...] as DTensors."""
    result = []
    for local in tensors:
        shape, stride = compute_global_tensor_info(local, mesh, (Shard(2),))
        result.append(DTensor(local, DTensorSpec(mesh, (Shard(2),), TensorMeta(torch.Size(shape), tuple(stride), local.dtype)),
                              requires_grad=False))
    return tuple(result)


def _with_names(op, args, kwargs):
    """Arguments by name, local parts in place of DTensors, and the mesh of these."""
    names = [argument.name for argument in op._schema.arguments]
    named = dict(zip(names, args)) | kwargs
    mesh = named["query"].device_mesh
    return mesh, {name: value.to_local() if isinstance(value, DTensor) else value for name, value in named.items()}


def _ring_forward(op, args, kwargs):
    mesh, named = _with_names(op, args, kwargs)
    return _sharded(mesh, *torch_ring._templated_ring_attention(mesh.get_group(), 2, op, **named))


def _ring_backward(op, args, kwargs):
    mesh, named = _with_names(op, args, kwargs)
    return _sharded(mesh, *torch_ring._templated_ring_attention_backward(mesh.get_group(), 2, op, grad_out_name="grad_out", **named))


torch_ring.custom_ops[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default] = _ring_forward
torch_ring.custom_ops[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _ring_backward


# ---- recorded tokens instead of a dataset


class RecordedTokens:
    """Yields ({"input": [L, S]}, labels [L, S]) of one data-parallel rank, in the order stated above."""

    def __init__(self, dp_world_size, dp_rank, job_config, **_):
        training = job_config.training
        dtype = np.dtype(os.environ.get("PEER_TOKENS_DTYPE", "uint16")).newbyteorder("<")
        self.tokens = np.memmap(os.environ["PEER_TOKENS"], dtype, "r")
        self.seq_len, self.rows = training.seq_len, training.local_batch_size
        self.first, self.stride = dp_rank * self.rows, dp_world_size * self.rows
        self.sequences = (len(self.tokens) - 1) // self.seq_len
        microbatches = max(1, training.global_batch_size // self.stride)
        self.microbatch = int(os.environ.get("PEER_FIRST_STEP", "0")) * microbatches
        self.dp_rank, self.dp_world_size = dp_rank, dp_world_size
        if self.sequences < self.stride:
            raise ValueError(f"{os.environ['PEER_TOKENS']}: {len(self.tokens)} tokens are less than one microbatch")

    def __iter__(self):
        while True:  # G is a multiple of D*L, so counting microbatches through all steps gives the stated order
            start = self.microbatch * self.stride + self.first
            rows = [self._sequence((start + row) % self.sequences) for row in range(self.rows)]
            batch = torch.from_numpy(np.stack(rows).astype(np.int64))
            self.microbatch += 1
            yield {"input": batch[:, :-1].contiguous()}, batch[:, 1:].contiguous()

    def state_dict(self):
        """In the form of torchtitan's own loader: a pickle for each data-parallel rank."""
        return {f"dp_rank_{self.dp_rank}": pickle.dumps({"microbatch": self.microbatch}), "world_size": self.dp_world_size}

    def load_state_dict(self, state):
        if state:
            self.microbatch = pickle.loads(state[f"dp_rank_{self.dp_rank}"])["microbatch"]

    def _sequence(self, index):
        return self.tokens[index * self.seq_len : (index + 1) * self.seq_len + 1]


class _ChangedInBackward(torch.autograd.Function):
    """The value itself, and change(its gradient)."""

    @staticmethod
    def forward(ctx, value, change):
        ctx.change = change
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def _sum_over(group):
    def change(gradient):
        gradient = gradient.clone()
        torch.distributed.all_reduce(gradient, group=group)
        return gradient
    return change


def _sum_gradient_of_scores(router, _, output):
    """A hook: `output` is the weights of tokens, and what has no gradient."""
    weight = router.gate.weight
    if not isinstance(weight, DTensor) or "tp" not in weight.device_mesh.mesh_dim_names:
        return output
    return _ChangedInBackward.apply(output[0], _sum_over(weight.device_mesh.get_group("tp"))), *output[1:]


def _no_tokenizer(job_config):
    return types.SimpleNamespace(eos_id=None)  # flex_attention's masks of documents, which no case has, would ask for it


def _run_gpt_oss_on_a_cpu(module):
    torch_flex._validate_device = lambda *tensors: None
    titan_attention.FlexAttentionWrapper._compiled_flex_attn = staticmethod(torch_flex.flex_attention)
    titan_attention._compiled_create_block_mask = functools.partial(torch_flex.create_block_mask, device="cpu")
    module.TransformerBlock.to = lambda block, dtype: block


_get_train_spec = titan_spec.get_train_spec
_model = None  # the sharded model, known once its weights are initialised
_recorder = 0  # the rank that writes the metrics


def _spec_of_the_judge(name):
    spec = _get_train_spec(name)
    init_weights = spec.model_cls.init_weights

    def init_weights_by_formula(self, *args, **kwargs):
        global _model
        init_weights(self, *args, **kwargs)
        if self.norm is not None and self.norm.eps is None:  # deepseek_v3's last norm: PyTorch's epsilon depends on dtype and device
            self.norm.eps = self.model_args.norm_eps
        for module in self.modules():
            if getattr(module, "score_before_experts", None) is False:
                module.router.register_forward_hook(_sum_gradient_of_scores)
        _model = self
        if "PEER_WEIGHTS_SEED" in os.environ:
            _load_formula_weights(self, int(os.environ["PEER_WEIGHTS_SEED"]))

    def build_loss_fn(job_config, **kwargs):
        global _recorder
        torch_ring.set_rotate_method(job_config.parallelism.context_parallel_rotate_method)
        loss_fn = spec.build_loss_fn(job_config, **kwargs)
        stages = job_config.parallelism.pipeline_parallel_degree
        if stages == 1:
            return loss_fn
        _recorder = int(os.environ["WORLD_SIZE"]) // stages * (stages - 1)
        tokens = job_config.training.global_batch_size * job_config.training.seq_len
        return lambda *args: _ChangedInBackward.apply(loss_fn(*args), lambda gradient: gradient / tokens)

    if name == "gpt_oss":
        _run_gpt_oss_on_a_cpu(sys.modules[spec.model_cls.__module__])
    spec.model_cls.init_weights = init_weights_by_formula
    flavors = dict(spec.model_args)
    if "PEER_FLAVOR" in os.environ:
        added = json.loads(os.environ["PEER_FLAVOR"])
        base, args = flavors[added["base"]], dict(added["args"])
        if "load_balance_coeff" in args.get("moe_args", {}):
            spec = dataclasses.replace(spec, build_optimizers_fn=titan_optimizer.build_optimizers_with_moe_load_balancing)
        if "moe_args" in args:
            args["moe_args"] = dataclasses.replace(base.moe_args, **args["moe_args"])
        flavors[added["name"]] = dataclasses.replace(base, **args)
    for arguments in flavors.values():
        if hasattr(arguments, "moe_args"):
            arguments.moe_args.use_grouped_mm = False
    return dataclasses.replace(spec, model_args=flavors, build_dataloader_fn=RecordedTokens,
                               build_tokenizer_fn=_no_tokenizer if name == "gpt_oss" else None,
                               build_loss_fn=build_loss_fn)


titan_spec.get_train_spec = _spec_of_the_judge


# ---- weights by formula, into whatever sharding the model has


@torch.no_grad()
def _load_formula_weights(model, seed):
    from reference_weights import parameter

    tied = getattr(model.model_args, "enable_weight_tying", False)
    alike = type(model).__name__ == "GptOssModel"
    for name, weight in model.named_parameters():
        full = torch.from_numpy(parameter(_fqn(name), tuple(weight.shape), seed, tied, alike))
        if isinstance(weight, DTensor):
            full = distribute_tensor(full, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.copy_(full)


def _fqn(name):
    return name.replace("_checkpoint_wrapped_module.", "")


# ---- what the judge writes down

_metrics = {"losses": [], "grad_norms": []}
_log = titan_metrics.MetricsProcessor.log
_clip_grad_norm = titan_distributed.clip_grad_norm_


def _log_every_digit(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
    _log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
    _metrics["losses"].append(float(global_avg_loss))
    _metrics["grad_norms"].append(float(grad_norm))
    if "PEER_METRICS" in os.environ and int(os.environ["RANK"]) == _recorder:
        Path(os.environ["PEER_METRICS"]).write_text(json.dumps(_metrics))
    if "PEER_BALANCE" in os.environ and os.environ["RANK"] == "0":
        biases = {_fqn(name): bias.tolist() for name, bias in _model.named_buffers() if name.endswith("expert_bias")}
        Path(os.environ["PEER_BALANCE"]).write_text(json.dumps(biases))


def _write_gradients_then_clip(*args, **kwargs):
    folder, step = os.environ.get("PEER_GRADIENTS"), int(os.environ.get("PEER_GRADIENTS_STEP", "1"))
    if folder and step == len(_metrics["losses"]) + 1:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, weight in _model.named_parameters():
            gradient = weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
            if os.environ["RANK"] == "0":
                gradient.detach().float().numpy().astype("<f4").tofile(Path(folder) / f"{_fqn(name)}.f32")
    return _clip_grad_norm(*args, **kwargs)


titan_metrics.MetricsProcessor.log = _log_every_digit
titan_distributed.clip_grad_norm_ = _write_gradients_then_clip

sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_module("torchtitan.train", run_name="__main__")
