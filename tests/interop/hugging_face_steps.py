"""Our training and transformers' with torch's AdamW, from the same Hugging Face folders on the same tokens: equal losses.

    run.sh hugging_face_steps.py HYPERION
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from hugging_face_peer import SMALL, TOKENIZER, make_model
from ranks import warm_start
from transformers import AutoTokenizer, GptOssConfig, LlamaConfig, MistralConfig, Qwen2Config
from transformers.utils.logging import disable_progress_bar

STEPS, ROWS, LENGTH = 20, 2, 48
WIDE = {**SMALL, "vocab_size": 2048}
MODELS = {  # by model.name
    "qwen2": Qwen2Config(**{**WIDE, "hidden_size": 42, "num_attention_heads": 7, "num_key_value_heads": 1}, tie_word_embeddings=True),
    "llama3": LlamaConfig(**WIDE, head_dim=20, attention_bias=True),
    "mistral": MistralConfig(**WIDE, head_dim=20, sliding_window=9),
    "gpt_oss": GptOssConfig(**WIDE, head_dim=20, num_local_experts=6, num_experts_per_tok=2, sliding_window=9),
}
OPTIONS = {"gpt_oss": ["--model.args.load_balance_coeff=0"]}
JOB = """
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
min_lr_factor = 1.0
[training]
dataset_path = "{text}"
steps = {steps}
mixed_precision_param = "float32"
local_batch_size = {rows}
seq_len = {length}
[metrics]
log_freq = 1
[checkpoint]
enable = true
interval = 10
initial_load_in_hf = true
"""


def check_steps(hyperion, folder):
    """Models train as transformers' with torch's AdamW do, and go on from a checkpoint in the middle."""
    folder.mkdir()
    text = " ".join(f"word {i} and {i * i}, then {i % 7}" for i in range(1200))  # one document, which no shuffle moves
    (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for name, config in MODELS.items():
        original, place = folder / f"original-{name}", folder / name
        model = make_model(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        model.save_pretrained(original)
        shutil.copytree(TOKENIZER, original, dirs_exist_ok=True)
        job = folder / f"{name}.toml"
        job.write_text(JOB.format(place=place, name=name, original=original, text=folder / "text.jsonl",
                                  steps=STEPS, rows=ROWS, length=LENGTH))
        theirs = their_losses(model, AutoTokenizer.from_pretrained(original), text)
        options = OPTIONS.get(name, [])
        ours = our_losses(hyperion, job, place, options)
        error = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
        print(f"  {name}: losses of {STEPS} steps, {theirs[0]:.3f} to {theirs[-1]:.3f}: {error:.1e}")
        assert error < 1e-6 and theirs[-1] < theirs[0] - 0.1, (ours, theirs)
        shutil.rmtree(place / f"checkpoint/step-{STEPS}")
        assert our_losses(hyperion, job, place, options)[-10:] == ours[10:], f"{name}: another course after a resume"


def our_losses(hyperion, job, place, options):
    warm_start.run([hyperion, "train", job, *options], check=True)
    (file,) = place.rglob("metrics.jsonl")  # a resume goes on in it
    lines = map(json.loads, file.read_text().splitlines())
    return [float(line["loss_metrics/global_avg_loss"]) for line in lines if "loss_metrics/global_avg_loss" in line]


def their_losses(model, tokenizer, text):
    tokens = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    rows = torch.tensor(tokens).unfold(0, LENGTH + 1, LENGTH)  # the last label is the next sequence's first token
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        batch = rows[step * ROWS:(step + 1) * ROWS]
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        check_steps(sys.argv[1], Path(temporary) / "steps")


main()
