"""A plain training loop with torchao's FP8 linears, emulated, on one rank: the judge where torchtitan cannot be one.

torchtitan 0.2.2 honours `emulate` only when no recipe is named, and on one rank it computes bf16 by autocast. Here the model
is torchtitan's and the linears are torchao's, but the loop is written out: fp32 masters; weights in the model cast from them
before every step as FSDP's mixed precision does (with enable_fsdp_float8_all_gather: converted weights straight from the
fp32 master to FP8); gradients in bf16, added up in fp32 over the microbatches; clipping and AdamW on the masters.
A batch split into R microbatches is, to a bit, FSDP with R ranks (against_float8.py compares the two).

FP8 magnifies every earlier rounding: with attention in bf16 on one side and in fp32 on the other, gradients differ half as much
as FP8 differs from bf16. So attention and the products in bf16 are computed as Hyperion does it on this CPU
(models/kernels/{attention,matmul}.cpp): in fp32, rounded to bf16, where bf16 has no hardware. PEER_BF16=plain leaves them to
torch.

Usage: the options of torchtitan (--job.config_file FILE.toml ...); [quantize.linear.float8] names the recipe. Environment:
PEER_TOKENS, PEER_WEIGHTS_SEED, PEER_METRICS, PEER_GRADIENTS and PEER_THREADS as in peer/torchtitan_cpu.py.
"""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import torch
from reference_weights import parameter
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.quantization.utils import module_filter_fn
from torchtitan.config import ConfigManager
from torchtitan.protocols.train_spec import get_train_spec


class WideAttention(torch.autograd.Function):
    """Causal attention in fp32 for bf16 tensors; the output that backward reads is rounded."""

    @staticmethod
    def forward(context, q, k, v):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, log_sums = kernel(q.float(), k.float(), v.float(), 0.0, True)
        out = out.to(q.dtype)
        context.save_for_backward(q, k, v, out, log_sums)
        return out

    @staticmethod
    def backward(context, grad):
        q, k, v, out, log_sums = context.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(grad.float(), q.float(), k.float(), v.float(), out.float(), log_sums, 0.0, True)
        return tuple(part.to(q.dtype) for part in grads)


class WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return torch.matmul(x.float(), weight.float().t()).to(x.dtype)

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        wide = grad.flatten(0, -2).float()
        return (wide @ weight.float()).to(x.dtype).view(x.shape), (wide.t() @ x.flatten(0, -2).float()).to(weight.dtype)


def widen_bf16() -> None:
    torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, **_: WideAttention.apply(q, k, v)
    torch.nn.functional.linear = lambda x, weight, bias=None: WideLinear.apply(x, weight)


def build_model(config) -> torch.nn.Module:
    spec = get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    arguments.update_from_config(config)
    model = spec.model_cls(arguments)
    with torch.no_grad():
        model.init_weights()
    options = config.quantize.linear.float8
    if config.model.converters:
        recipe = Float8LinearConfig.from_recipe_name(options.recipe_name or "tensorwise")
        convert_to_float8_training(model, config=dataclasses.replace(recipe, emulate=True),
                                   module_filter_fn=lambda module, name: module_filter_fn(module, name, options.filter_fqns))
    return model


def cast_as_gathered(linear: Float8Linear, master: torch.Tensor) -> torch.nn.Parameter:
    """The weight as FSDP's FP8 all-gather hands it over: bits cast from the fp32 master, standing for a bf16 tensor."""
    cast = hp_tensor_to_float8_dynamic(master, torch.float8_e4m3fn, linear.linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT)
    as_bf16 = Float8TrainingTensor(cast._data, cast._scale, torch.bfloat16, linear.linear_mm_config, GemmInputRole.WEIGHT)
    return torch.nn.Parameter(as_bf16)


class Loop:
    def __init__(self, config):
        self.config, self.model = config, build_model(config)
        seed = int(os.environ["PEER_WEIGHTS_SEED"])
        names = {name: weight.shape for name, weight in self.model.named_parameters()}
        self.masters = {name: torch.from_numpy(parameter(name, tuple(shape), seed)) for name, shape in names.items()}
        for weight in self.model.parameters():
            weight.data = weight.data.bfloat16()
        o = config.optimizer
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps,
                                           weight_decay=o.weight_decay, fused=True)
        self.scheduler = build_lr_schedulers([self.optimizer], config.lr_scheduler, config.training.steps)
        self.tokens = np.fromfile(os.environ["PEER_TOKENS"], "<u2").astype(np.int64)

    @torch.no_grad()
    def cast_weights(self) -> None:
        for path, module in self.model.named_modules():
            for name, weight in module.named_parameters(recurse=False):
                master = self.masters[f"{path}.{name}"]
                if isinstance(module, Float8Linear) and self.config.quantize.linear.float8.enable_fsdp_float8_all_gather:
                    module.weight = cast_as_gathered(module, master)
                else:
                    weight.copy_(master)
                    weight.grad = None

    def microbatches(self, step: int) -> list[torch.Tensor]:
        """[rows, seq_len + 1] each; neighbouring sequences share a token (peer/torchtitan_cpu.py states the order)."""
        t = self.config.training
        sequences = range(step * t.global_batch_size, (step + 1) * t.global_batch_size)
        batch = torch.stack([torch.from_numpy(self.tokens[i * t.seq_len : (i + 1) * t.seq_len + 1]) for i in sequences])
        return list(batch.split(t.local_batch_size))

    def step(self, step: int) -> tuple[float, float]:
        """Loss and gradient norm of 0-based `step`."""
        self.cast_weights()
        loss = torch.zeros(())
        for master in self.masters.values():
            master.grad = torch.zeros_like(master)
        batches = self.microbatches(step)
        valid = torch.tensor(float(sum(batch[:, 1:].numel() for batch in batches)))
        for batch in batches:
            part = cross_entropy_loss(self.model(batch[:, :-1].contiguous()), batch[:, 1:].contiguous()) / valid
            part.backward()
            loss += part.detach()
            for name, weight in self.model.named_parameters():
                self.masters[name].grad += weight.grad.float()
                weight.grad = None
        if step == 0 and "PEER_GRADIENTS" in os.environ:
            self.write_gradients(Path(os.environ["PEER_GRADIENTS"]))
        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.config.training.max_norm, foreach=True)
        self.optimizer.step()
        self.scheduler.step()
        return float(loss), float(norm)

    def write_gradients(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, master in self.masters.items():
            master.grad.numpy().astype("<f4").tofile(folder / f"{name}.f32")


def main() -> None:
    torch.set_num_threads(int(os.environ.get("PEER_THREADS", "1")))
    config = ConfigManager().parse_args()
    if config.training.mixed_precision_param != "bfloat16":
        raise SystemExit("float8_loop.py needs training.mixed_precision_param=bfloat16")
    if os.environ.get("PEER_BF16") != "plain" and not torch.cpu._is_avx512_bf16_supported():
        widen_bf16()
    loop = Loop(config)
    numbers = [loop.step(step) for step in range(config.training.steps)]
    losses, norms = zip(*numbers)
    Path(os.environ["PEER_METRICS"]).write_text(json.dumps({"losses": losses, "grad_norms": norms}))


if __name__ == "__main__":
    main()
