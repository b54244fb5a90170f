"""Attention with sinks against transformers' gpt_oss, and the losses of jobs from a folder of Hugging Face.

    run.sh hugging_face_losses_peer.py HF_LOGITS_TOOL HYPERION
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from ranks import warm_start
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.utils.logging import disable_progress_bar

TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "tokenizer"
SMALL = dict(hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             vocab_size=2048, max_position_embeddings=128)
MODELS = {"mistral": MistralConfig(**SMALL, sliding_window=9)}
LOSSES = """
[job]
dump_folder = "{place}"
[model]
name = "{name}"
flavor = "from_hf"
hf_assets_path = "{original}"
[optimizer]
lr = 1e-3
[lr_scheduler]
warmup_steps = 0
decay_ratio = 0.0
[training]
dataset_path = "{folder}/text.jsonl"
steps = {steps}
local_batch_size = 1
seq_len = {length}
mixed_precision_param = "float32"
[checkpoint]
enable = true
initial_load_in_hf = true
[metrics]
log_freq = 1
enable_jsonl = true
[debug]
seed = 1
"""


def check_sinks(tool):
    """Output and gradients of one attention with sinks are gpt_oss's of transformers, with a window and without."""
    def wave(shape, frequency):
        numbers = 2 * torch.sin(frequency * torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64))
        return numbers.float().view(shape)

    for window in (0, 5):
        query, key, value, sinks = (wave(shape, frequency).requires_grad_() for shape, frequency in (
            ((2, 8, 37, 16), 0.7), ((2, 2, 37, 16), 1.1), ((2, 2, 37, 16), 1.7), ((8,), 2.3)))
        layer = torch.nn.Module()
        layer.sinks, layer.num_key_value_groups, layer.training = sinks, 4, False
        seen = torch.ones(37, 37, dtype=torch.bool).tril()
        seen = seen.triu(1 - window) if window else seen
        mask = torch.zeros(1, 1, 37, 37).masked_fill(~seen, -torch.inf)
        output, _ = modeling_gpt_oss.eager_attention_forward(layer, query, key, value, mask, scaling=16 ** -0.5)
        output.backward(wave((2, 8, 37, 16), 0.3).transpose(1, 2))
        wanted = [output.detach().transpose(1, 2), query.grad, key.grad, value.grad, sinks.grad]
        out = subprocess.run([tool, "attention", str(window)], input=b"", check=True, stdout=subprocess.PIPE).stdout
        found = torch.from_numpy(numpy.frombuffer(out, "<f4").copy()).split([tensor.numel() for tensor in wanted])
        for name, ours, theirs in zip(("output", "q", "k", "v", "sinks"), found, wanted):
            error = ((ours.view(theirs.shape) - theirs).abs().max() / theirs.abs().max()).item()
            print(f"  sinks, window {window}, {name}: {error:.1e}")
            assert error < 1e-5, (window, name, error)


def check_losses(hyperion, name, config, folder):
    """A job from a folder of Hugging Face has the losses of transformers' model and torch's AdamW.

    One document of as many tokens as a row has, again and again: every row of every order holds the same.
    """
    steps, length = 6, 48
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # norms too: each weight must count
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = [f"word{number}" for number in range(200)]
    text = next(text for text in (" ".join(words[:count]) + end for count in range(200) for end in ("", ".", " a", " a."))
                if len(tokenizer(text, add_special_tokens=False)["input_ids"]) == length - 2)
    row = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    (folder / "text.jsonl").write_text((json.dumps({"text": text}) + "\n") * 50)
    job = folder / "job.toml"
    job.write_text(LOSSES.format(place=folder / "out", name=name, original=folder, folder=folder, steps=steps, length=length))
    warm_start.run([hyperion, "train", job], check=True)
    lines = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    ours = [line["loss_metrics/global_avg_loss"] for line in lines if "loss_metrics/global_avg_loss" in line]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    theirs, tokens = [], torch.tensor([row])
    for _ in range(steps):
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits[0], tokens[0].roll(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        theirs.append(loss.item())
    error = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    print(f"  {name}: losses {theirs[0]:.4f} to {theirs[-1]:.4f}, {error:.1e} apart")
    assert error < 1e-6 and theirs[-1] < theirs[0], (ours, theirs)


def main():
    tool, hyperion = sys.argv[1:3]
    disable_progress_bar()
    check_sinks(tool)
    with tempfile.TemporaryDirectory() as temporary:
        for name, config in MODELS.items():
            check_losses(hyperion, name, config, Path(temporary) / name)


main()
