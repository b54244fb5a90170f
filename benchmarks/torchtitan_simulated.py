"""What torchtitan_gpu.py adds on a simulated GPU (docs/simulated_gpu.md), for simulated_peer.py.

HYPERION_SIMULATED_TRACE: the bytes of each kernel that Triton has compiled are written into the trace, as inductor counts them.
HYPERION_PEER_OF_2024=1: the operators with which the figures of torchtitan's benchmarks were measured (December 2024): RMSNorm of
separate operators and flash attention, because PyTorch had no fused RMSNorm and took flash attention first; and tensor parallel groups that gather in FP8.
HYPERION_PEER_OF_2024=fused-norms: the same with fused norms, which torchtitan's presets of April 2024 had as a kernel of its own.
"""
import os


def trace_triton_kernels():
    from torch._inductor.runtime import triton_heuristics

    trace = open(os.environ["HYPERION_SIMULATED_TRACE"], "a", buffering=1)
    launch = triton_heuristics.CachingAutotuner.run

    def size(tensor):  # of what it reaches: a broadcast dimension has a stride of 0
        elements = 1
        for extent, stride in zip(tensor.shape, tensor.stride()):
            elements *= extent if stride else 1
        return elements * tensor.element_size()

    def run(self, *args, **kwargs):
        result = launch(self, *args, **kwargs)
        read = written = 0
        largest = None
        for name, value in zip(self.fn.arg_names, args):
            if not hasattr(value, "element_size"):
                continue
            read += size(value) if name.startswith(("in_ptr", "in_out_ptr")) else 0
            written += size(value) if name.startswith(("out_ptr", "in_out_ptr")) else 0
            largest = value if largest is None or size(value) > size(largest) else largest
        if counted := self.inductor_meta.get("kernel_num_gb"):
            written = min(written, int(counted * 1e9))
            read = int(counted * 1e9) - written
        of = "" if largest is None else f"\tof={DTYPES.get(str(largest.dtype), str(largest.dtype))}{list(largest.shape)}".replace(" ", "")
        trace.write(f"cost\t{self.fn.__name__}\tkernels=1\tread={read}\twritten={written}{of}\n")
        return result

    triton_heuristics.CachingAutotuner.run = run


DTYPES = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16", "torch.float8_e4m3fn": "fp8", "torch.float8_e5m2": "fp8"}


def use_operators_of_2024():
    import torch
    import torchtitan.models.attention as attention
    import torchtitan.models.llama3.infra.parallelize as parallelize
    from torch.nn.attention import SDPBackend

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight

    if os.environ["HYPERION_PEER_OF_2024"] != "fused-norms":
        torch.nn.RMSNorm.forward = forward
    # v0.2.2 looks for the converter by the name of then, and so gathers in bf16.
    apply_tp = parallelize.apply_tp

    def with_float8(model, *args, **kwargs):
        kwargs["enable_float8_tensorwise_tp"] = any(type(module).__name__ == "Float8Linear" for module in model.modules())
        return apply_tp(model, *args, **kwargs)

    parallelize.apply_tp = with_float8
    attention.ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.FLASH_ATTENTION]


def add_llama2():
    """Llama 2 as flavors of llama3: the same block, without groups of heads in 13B."""
    from torchtitan.models.llama3 import TransformerModelArgs, llama3_args

    llama3_args["llama2_13B"] = TransformerModelArgs(dim=5120, n_layers=40, n_heads=40, vocab_size=32000, max_seq_len=4096)
    llama3_args["llama2_70B"] = TransformerModelArgs(dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, vocab_size=32000, ffn_dim_multiplier=1.3,
                                                     multiple_of=4096, max_seq_len=4096)


def add():
    trace_triton_kernels()
    add_llama2()
    if os.environ.get("HYPERION_PEER_OF_2024"):
        use_operators_of_2024()
