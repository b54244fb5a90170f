"""One rank of torchtitan 0.2.2 on a GPU with random tokens, for figures beside Hyperion's on the same device (scripts/gpu_check.py).

    NGPU=8 RANK=0 LOCAL_RANK=0 WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=29777 \
        python3 benchmarks/torchtitan_gpu.py --comm.mode fake_backend --model.name llama3 --model.flavor 8B [--section.key value ...]

Nothing that takes a step's time is changed: data and tokenizer are replaced, and what its data loaders and writers import but a run
without them never calls (datasets, torchdata, tensorboard) is stood in for where it is not installed.
HYPERION_PEER_SKIP_INIT=1 leaves the weights as they are, for GPUs that are simulated; torchtitan_simulated.py has what else they add.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import runpy
import sys
import types

WANTED = "0.2.2"
NEEDED = ("torch", "triton", "tokenizers", "safetensors", "tyro", "docstring_parser")
STOOD_IN = {  # module: names that are imported from it
    "datasets": ("Dataset", "IterableDataset", "load_dataset", "interleave_datasets"),
    "datasets.distributed": ("split_dataset_by_node",),
    "torchdata": (),
    "torchdata.stateful_dataloader": ("StatefulDataLoader",),
    "torch.utils.tensorboard": ("SummaryWriter",),
}


class NeverCalled:
    """Also a base class."""

    def __init__(self, *_, **__):
        raise RuntimeError("this package is not installed, and was not expected to be called")


def stand_in():
    for name, members in STOOD_IN.items():
        package = "tensorboard" if name == "torch.utils.tensorboard" else name.partition(".")[0]
        if package in STOOD_IN and getattr(sys.modules.get(package), "stood_in", False) or importlib.util.find_spec(package) is None:
            module = types.ModuleType(name)
            module.__path__, module.stood_in = [], True
            for member in members:
                setattr(module, member, type(member, (NeverCalled,), {}))
            sys.modules[name] = module


def version():
    """Of torchtitan; raises what keeps it from running. Imports nothing of it, which takes longer than a look at a machine may."""
    found = importlib.metadata.version("torchtitan")
    if found != WANTED:
        raise RuntimeError(f"torchtitan is {found}, and {WANTED} is wanted")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise RuntimeError(f"torchtitan needs {', '.join(missing)}")
    return found


class RandomTokens:
    def __init__(self, dp_world_size, dp_rank, job_config, **_):
        import torch

        self.rows, self.length = job_config.training.local_batch_size, job_config.training.seq_len
        self.generator = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        import torch

        while True:
            batch = torch.randint(0, 2000, (self.rows, self.length + 1), generator=self.generator)
            yield {"input": batch[:, :-1].contiguous()}, batch[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def keep_weights(model, buffer_device=None, **_):
    import torch

    with torch.device(buffer_device or "cuda"):
        for cache in {"freqs_cis", "rope_cache"} & set(dict(model.named_buffers())):
            setattr(model, cache, getattr(model, f"_precompute_{cache}")())


def main():
    stand_in()
    import torchtitan.protocols.train_spec as specs

    get_train_spec = specs.get_train_spec

    def with_random_tokens(name):
        spec = get_train_spec(name)
        if os.environ.get("HYPERION_PEER_SKIP_INIT"):  # a simulated GPU has no kernels that are compiled while running (erfinv)
            spec.model_cls.init_weights = keep_weights
        return dataclasses.replace(spec, build_dataloader_fn=RandomTokens, build_tokenizer_fn=None)

    specs.get_train_spec = with_random_tokens
    if os.environ.get("HYPERION_SIMULATED_TRACE"):
        import torchtitan_simulated

        torchtitan_simulated.add()
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
