"""Quantized files of Hugging Face, read here: DeepSeek-V3's fp8 with block scales, and gpt_oss's experts in MXFP4.

    run.sh hugging_face_quantized.py HF_LOGITS_TOOL HYPERION
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from hugging_face_peer import (JOB, LATENT, PLAIN_YARN, SMALL, TOKENIZER, YARN, close, load, make_model, our_logits, tensors_of,
                               their_logits)
from ranks import run_hyperion, warm_start
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, GptOssConfig
from transformers.integrations import mxfp4
from transformers.utils.logging import disable_progress_bar


def check_block_scales(tool, folder):
    """fp8 with a scale for each block, as DeepSeek-V3's files have it, stands for the numbers that PyTorch makes of it."""
    wide = {**LATENT, "hidden_size": 160, "intermediate_size": 300, "moe_intermediate_size": 132}  # transformers multiplies rows of 16 bytes
    model = make_model(DeepseekV3Config(**wide, q_lora_rank=28, n_group=4, topk_group=2, rope_parameters=YARN))
    for place in ("plain", "quantized"):
        model.save_pretrained(folder / place)
    stored = load_file(folder / "plain/model.safetensors")
    plain = dict(stored)
    for name, tensor in plain.items():
        if tensor.dim() != 2 or ".layers." not in name or ".mlp.gate." in name:
            continue
        scales = torch.rand([-(-extent // 128) for extent in tensor.shape]) * 0.01 + 0.001
        of_elements = scales.repeat_interleave(128, 0)[:tensor.shape[0]].repeat_interleave(128, 1)[:, :tensor.shape[1]]
        stored[name] = (tensor / of_elements).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        plain[name] = stored[name].float() * of_elements
    save_file(plain, folder / "plain/model.safetensors", {"format": "pt"})
    save_file(stored, folder / "quantized/model.safetensors", {"format": "pt"})
    path = folder / "quantized/config.json"
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    close(our_logits(tool, ("logits", folder / "quantized"))[0], their_logits(load(folder / "plain")), "fp8 with block scales")


def check_float4(tool, hyperion, folder):
    """gpt_oss's experts in MXFP4 stand for the numbers that transformers makes of them, in logits, conversions and a job on 2 ranks."""
    config = GptOssConfig(**{**SMALL, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 2048}, head_dim=20, num_local_experts=6,
                          num_experts_per_tok=3, sliding_window=9, rope_parameters=PLAIN_YARN)
    model = make_model(config)
    plain_folder, coded = folder / "mxfp4-plain", folder / "mxfp4"
    for place in (plain_folder, coded):
        model.save_pretrained(place)
        shutil.copytree(TOKENIZER, place, dirs_exist_ok=True)
    stored, generator = load_file(plain_folder / "model.safetensors"), torch.Generator().manual_seed(8)
    plain = dict(stored)
    for name in [name for name in plain if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 126, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
        stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
        plain[name] = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(plain, plain_folder / "model.safetensors", {"format": "pt"})
    save_file(stored, coded / "model.safetensors", {"format": "pt"})
    path = coded / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    close(our_logits(tool, ("logits", coded))[0], their_logits(load(plain_folder)), "MXFP4")
    job = folder / "mxfp4.toml"
    job.write_text(JOB.format(place=folder / "mxfp4-job", name="gpt_oss", original=coded, folder=folder, rows=1))
    refused = warm_start.run([hyperion, "train", job])
    assert refused.returncode == 2 and "checkpoint.initial_load_in_hf_quantized" in refused.stderr, refused
    run_hyperion(Path(hyperion), [str(job), "--checkpoint.initial_load_in_hf_quantized"], 2)
    for command in ([coded, folder / "mxfp4-dcp", "--to=dcp"], [folder / "mxfp4-dcp", folder / "mxfp4-converted", "--to=safetensors"]):
        warm_start.run([hyperion, "ckpt", "convert", *command], check=True)
    for back in (folder / "mxfp4-job/checkpoint/step-1", folder / "mxfp4-converted"):
        after = tensors_of(back)
        assert after.keys() == plain.keys(), after.keys() ^ plain.keys()
        for name, tensor in plain.items():
            assert torch.allclose(after[name], tensor, rtol=0, atol=1e-29), (back, name)  # a job moves zeros by its lr of 1e-30
        assert "quantization_config" not in json.loads((back / "config.json").read_text())
    short = dict(stored)
    name = next(name for name in short if name.endswith("_scales"))
    for change, says in ((short.pop(name)[:, :-1].contiguous(), "its scales are"), (None, "is missing, its scales")):
        save_file(short | ({} if change is None else {name: change}), coded / "model.safetensors", {"format": "pt"})
        refused = warm_start.run([hyperion, "ckpt", "convert", coded, folder / "refused", "--to=dcp"])
        assert refused.returncode != 0 and says in refused.stderr, refused
    print("  MXFP4 goes in, and out as the same numbers")


def main():
    tool, hyperion = sys.argv[1:3]
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {i} " * 40}) + "\n" for i in range(50)))
        check_block_scales(tool, folder)
        check_float4(tool, hyperion, folder)


main()
