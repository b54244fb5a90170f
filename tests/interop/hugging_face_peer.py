"""Our model and transformers' on the same Hugging Face folders: equal logits, in and out.

    run.sh hugging_face_peer.py HF_LOGITS_TOOL HYPERION
"""

import dataclasses
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from ranks import run_hyperion, warm_start
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, DeepseekV3Config, GenerationConfig,
                          GptOssConfig, Llama4TextConfig, LlamaConfig, LogitsProcessor, LogitsProcessorList, MistralConfig, Qwen2Config, Qwen3Config,
                          Qwen3MoeConfig, masking_utils, modeling_rope_utils)
from transformers.utils.logging import disable_progress_bar

KEYS = Path(__file__).resolve().parents[2] / "trainer" / "hugging_face" / "config_keys.def"
TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "tokenizer"
TOLERANCE = 1e-5  # of the largest logit
TOKENS = torch.arange(40).mul(7919).remainder(1009)
SCALING = {"rope_type": "llama3", "factor": 5.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 24}
SMALL = dict(hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             vocab_size=1009, max_position_embeddings=128)
LATENT = dict(SMALL, num_key_value_heads=6, num_experts_per_tok=3, n_routed_experts=8, moe_intermediate_size=20,
              first_k_dense_replace=1, kv_lora_rank=24, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=8,
              num_mtp_layers=0)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 16.0, "beta_slow": 1.0, "mscale": 0.7,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 32}
PLAIN_YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
              "original_max_position_embeddings": 32}
LLAMA4 = dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, intermediate_size_mlp=60, use_qk_norm=False,
              attn_temperature_tuning=False, no_rope_layers=[1] * 4, layer_types=["full_attention"] * 4)
MODELS = {
    "llama, tied, head_dim apart": LlamaConfig(**SMALL, head_dim=20, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "llama, untied, scaled rotation": LlamaConfig(**SMALL, rope_parameters={**SCALING, "rope_theta": 70000.0}),
    "llama, all heads alike": LlamaConfig(**{**SMALL, "num_key_value_heads": 6, "intermediate_size": 64}),
    "llama, gated by GELU": LlamaConfig(**SMALL, hidden_act="gelu_pytorch_tanh"),
    "llama, biases of attention": LlamaConfig(**SMALL, head_dim=20, attention_bias=True),
    "qwen2, tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2, untied, heads that do not divide": Qwen2Config(**{**SMALL, "hidden_size": 42, "num_attention_heads": 7,
                                                             "num_key_value_heads": 1, "intermediate_size": 77},
                                                           rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3, biases of attention": Qwen3Config(**SMALL, head_dim=16, attention_bias=True),
    "qwen3, tied": Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
    "qwen3, untied, heads that do not divide": Qwen3Config(**{**SMALL, "hidden_size": 50, "num_attention_heads": 9,
                                                             "num_key_value_heads": 3}, head_dim=12,
                                                           rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2, windows in the last layers": Qwen2Config(**{**SMALL, "num_hidden_layers": 3}, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3, windows": Qwen3Config(**SMALL, head_dim=16, use_sliding_window=True, sliding_window=5, max_window_layers=0),
    "qwen3_moe": Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                                norm_topk_prob=True),
    "qwen3_moe, some layers dense": Qwen3MoeConfig(**{**SMALL, "num_hidden_layers": 4}, head_dim=16, num_experts=5,
                                                   num_experts_per_tok=3, moe_intermediate_size=20, decoder_sparse_step=2,
                                                   mlp_only_layers=[0, 1]),
    "deepseek_v3, YaRN": DeepseekV3Config(**LATENT, q_lora_rank=28, n_group=4, topk_group=2, n_shared_experts=2,
                                          rope_parameters=YARN),
    "deepseek_v3, no latent of queries, no groups": DeepseekV3Config(**LATENT, q_lora_rank=None, n_group=1, topk_group=1,
                                                                     routed_scaling_factor=1.5, norm_topk_prob=False),
    "mistral, windows": MistralConfig(**SMALL, head_dim=20, sliding_window=9),
    "mistral, no windows, YaRN": MistralConfig(**SMALL, head_dim=16, sliding_window=None, rope_parameters=PLAIN_YARN),
    "llama, YaRN": LlamaConfig(**SMALL, rope_parameters={**PLAIN_YARN, "truncate": True, "beta_fast": 8.0}),
    "gpt_oss": GptOssConfig(**SMALL, head_dim=20, num_local_experts=6, num_experts_per_tok=3, sliding_window=9, rope_parameters=PLAIN_YARN),
    "gpt_oss, odd sizes, scaled rotation": GptOssConfig(
        **{**SMALL, "hidden_size": 44, "num_attention_heads": 7, "num_key_value_heads": 1, "intermediate_size": 76, "num_hidden_layers": 3},
        head_dim=12, num_local_experts=5, num_experts_per_tok=2, sliding_window=7, rope_parameters={**SCALING, "rope_theta": 7e4}),
    "llama4_text": Llama4TextConfig(**{**SMALL, "num_hidden_layers": 4}, **LLAMA4, interleave_moe_layer_step=2,
                                    rope_parameters={**SCALING, "rope_theta": 70000.0}),
}


def biases_of(model):
    return [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


def make_model(config):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in [*model.parameters(), *biases_of(model)]:  # norms too: each weight must count
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def their_logits(model):
    with torch.no_grad():
        return model(TOKENS.unsqueeze(0)).logits[0].numpy()


def our_logits(tool, *commands):
    """Those of each command, by one process: to load libtorch takes longer than they do."""
    words = [word for command in commands for word in ("then", *map(str, command))][1:]
    out = subprocess.run([tool, *words], input=TOKENS.numpy().astype("<i8").tobytes(), check=True, stdout=subprocess.PIPE).stdout
    return numpy.frombuffer(out, "<f4").reshape(len(commands), len(TOKENS), -1)


def close(ours, theirs, what):
    error = numpy.abs(ours - theirs).max() / numpy.abs(theirs).max()
    print(f"  {what}: {error:.1e}")
    assert error < TOLERANCE, f"{what}: logits differ by {error}"


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def tensors_of(folder):
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    return tensors


def old_style(folder):
    """config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


def check_model(tool, config, folder):
    model = make_model(config)
    theirs = their_logits(model)
    model.save_pretrained(folder / "single")
    model.save_pretrained(folder / "sharded", max_shard_size="60KB")
    assert (folder / "single/model.safetensors").exists() and len(list(folder.glob("sharded/*.safetensors"))) > 2
    old_style(folder / "sharded")
    dtypes = ("float32", "bfloat16")
    single, sharded, _, *drawn = our_logits(
        tool, ("logits", folder / "single"), ("logits", folder / "sharded"), ("export", folder / "sharded", folder / "back", "float32"),
        *(("export", folder / "single", folder / dtype, dtype, 11) for dtype in dtypes))
    close(single, theirs, "one file, read here")
    close(sharded, theirs, "several files and an old config.json, read here")

    back = folder / "back" / "step-1"  # in and out again: every tensor and setting as it was
    original, returned = tensors_of(folder / "single"), tensors_of(back)
    assert original.keys() == returned.keys(), original.keys() ^ returned.keys()
    for name, tensor in original.items():
        assert torch.equal(tensor, returned[name]), name
    before, after = (AutoConfig.from_pretrained(place).to_dict() for place in (folder / "single", back))
    for key in before.keys() - {"_name_or_path", "transformers_version", "bos_token_id", "eos_token_id"}:
        assert after.get(key) == before[key], (key, before[key], after.get(key))

    for dtype, ours in zip(dtypes, drawn):  # our own weights
        out = folder / dtype / "step-1"
        assert AutoConfig.from_pretrained(out).dtype == getattr(torch, dtype)
        close(ours, their_logits(load(out)), f"drawn here, {dtype}, read by transformers")


def check_generation(hyperion, folder):
    """The default last save becomes a folder whose tokenizer and generate() begin and stop as it was trained."""
    folder.mkdir()
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {i} " * 40}) + "\n" for i in range(50)))
    job = folder / "job.toml"
    job.write_text(f"""
[job]
dump_folder = "{folder}/out"
[model]
hf_assets_path = "{TOKENIZER}"
[model.args]
dim = 32
n_layers = 2
n_heads = 4
max_seq_len = 48
[training]
dataset = "jsonl"
dataset_path = "{folder}/text.jsonl"
steps = 2
local_batch_size = 1
seq_len = 48
[checkpoint]
enable = true
""")
    last = folder / "out/checkpoint/step-2"
    warm_start.run([hyperion, "train", job], check=True)
    warm_start.run([hyperion, "ckpt", "convert", last, folder / "converted", "--to=safetensors"], check=True)
    warm_start.run([hyperion, "train", job, "--checkpoint.last_save_in_hf", "--checkpoint.folder=hf"], check=True)
    check_stop(folder / "converted")
    check_stop(folder / "out/hf/step-2")
    dcp_to_torch_save(last, folder / "last.pt")
    state = torch.load(folder / "last.pt")
    assert "tok_embeddings.weight" in state and all(torch.is_tensor(value) for value in state.values()), state.keys()
    print("  the last save of weights alone is weights alone for torch too")


class EndsAfter(LogitsProcessor):
    """A model that has nothing to say after the third token."""

    def __init__(self, length, eos):
        self.length, self.eos = length, eos

    def __call__(self, tokens, scores):
        ended = torch.full_like(scores, -torch.inf)
        ended[:, self.eos] = 0
        return ended if tokens.shape[1] >= self.length else scores.index_fill(1, torch.tensor([self.eos]), -torch.inf)


def check_stop(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = load(folder)
    for config in (model.config, model.generation_config):
        assert config.bos_token_id == tokenizer.bos_token_id is not None, config
        assert config.eos_token_id == tokenizer.eos_token_id is not None, config
    assert model.config.max_position_embeddings == 48
    prompt = tokenizer("word 1", return_tensors="pt", return_token_type_ids=False)
    length = prompt["input_ids"].shape[1] + 3
    made = model.generate(**prompt, max_new_tokens=20, do_sample=False, pad_token_id=0,
                          logits_processor=LogitsProcessorList([EndsAfter(length, tokenizer.eos_token_id)]))
    assert made.shape[1] == length + 1 and made[0, -1] == tokenizer.eos_token_id, made
    print(f"  {folder.name}: transformers' generate() stops at EOS")


def check_settings(hyperion, folder):
    """All that transformers reads of an imported model's settings is as it was, after a conversion and after training."""
    settings = {"eos_token_id": [1, 7, 9], "bos_token_id": 5, "pad_token_id": 3}
    for name, config in {"llama3": LlamaConfig(**SMALL, **settings, initializer_range=0.01),
                         "qwen3": Qwen3Config(**SMALL, **settings, head_dim=16, max_window_layers=1),
                         "qwen2": Qwen2Config(**SMALL, **settings, sliding_window=64, max_window_layers=1)}.items():
        config.vocab_size, config.custom = 2048, {"deep": [1.5, None]}
        original, place = folder / f"original-{name}", folder / name
        model = make_model(config)
        model.generation_config = GenerationConfig(**settings, do_sample=True, temperature=0.6, top_p=0.9)
        model.save_pretrained(original)
        shutil.copytree(TOKENIZER, original, dirs_exist_ok=True)
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {i} " * 40}) + "\n" for i in range(50)))
        job = folder / "job.toml"
        job.write_text(f"""
[job]
dump_folder = "{place}"
[model]
name = "{name}"
flavor = "from_hf"
hf_assets_path = "{original}"
[training]
dataset_path = "{folder}/text.jsonl"
steps = 1
local_batch_size = 1
seq_len = 48
[debug]
seed = 1
[checkpoint]
enable = true
initial_load_in_hf = true
last_save_in_hf = true
""")
        for command in (["ckpt", "convert", original, place / "dcp", "--to=dcp"],
                        ["ckpt", "convert", place / "dcp", place / "converted", "--to=safetensors"], ["train", job]):
            warm_start.run([hyperion, *command], check=True)
        for back in (place / "converted", place / "checkpoint/step-1"):
            for kind in (AutoConfig, GenerationConfig):
                before, after = (kind.from_pretrained(there).to_dict() for there in (original, back))
                for key in before.keys() - {"_name_or_path"}:
                    assert after.get(key) == before[key], (back, key, before[key], after.get(key))
            assert load(back).generation_config.eos_token_id == [1, 7, 9]
    print("  settings come back")


JOB = """
[job]
dump_folder = "{place}"
[model]
name = "{name}"
flavor = "from_hf"
hf_assets_path = "{original}"
[optimizer]
lr = 1e-30
[training]
dataset_path = "{folder}/text.jsonl"
steps = 1
local_batch_size = {rows}
global_batch_size = 2
seq_len = 48
[checkpoint]
enable = true
initial_load_in_hf = true
last_save_in_hf = true
[debug]
seed = 1
"""


def check_jobs(hyperion, folder):
    """Experts and biases go in and out by a job on 1 and 2 ranks and by conversions, bit for bit; generate and eval open the folder."""
    folder.mkdir()
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {i} " * 40}) + "\n" for i in range(50)))
    latent = dict(LATENT, vocab_size=2048, q_lora_rank=28, n_group=2, topk_group=1, rope_parameters=YARN)
    configs = {"qwen3": Qwen3MoeConfig(**{**SMALL, "vocab_size": 2048}, head_dim=16, num_experts=5, num_experts_per_tok=2,
                                       moe_intermediate_size=20), "deepseek_v3": DeepseekV3Config(**latent),
               "qwen2": Qwen2Config(**{**SMALL, "vocab_size": 2048}, tie_word_embeddings=True, max_window_layers=1),
               "llama3": LlamaConfig(**{**SMALL, "vocab_size": 2048}, attention_bias=True),
               "gpt_oss": GptOssConfig(**{**SMALL, "vocab_size": 2048}, head_dim=20, num_local_experts=6, num_experts_per_tok=3,
                                       sliding_window=9, rope_parameters=PLAIN_YARN)}
    for name, config in configs.items():
        original = folder / f"original-{name}"
        model = make_model(config)
        model.save_pretrained(original, max_shard_size="60KB")
        shutil.copytree(TOKENIZER, original, dirs_exist_ok=True)
        exports = []
        for ranks in (1, 2):
            place = folder / f"{name}-{ranks}"
            job = folder / "job.toml"
            job.write_text(JOB.format(place=place, name=name, original=original, folder=folder, rows=2 // ranks))
            run_hyperion(Path(hyperion), [str(job)], ranks)
            exports.append(place / "checkpoint/step-1")
        for command in ([original, folder / f"{name}-dcp", "--to=dcp"],
                        [folder / f"{name}-dcp", folder / f"{name}-converted", "--to=safetensors"]):
            warm_start.run([hyperion, "ckpt", "convert", *command], check=True)
        before = tensors_of(original)
        for back in (*exports, folder / f"{name}-converted"):
            after = tensors_of(back)
            assert before.keys() == after.keys(), before.keys() ^ after.keys()
            for key, tensor in before.items():
                moved = back in exports and key.endswith("correction_bias")  # once, by the balance of experts
                assert moved or torch.equal(tensor, after[key]), (back, key)
        assert [file.read_bytes() for file in sorted(exports[0].iterdir())] == [
            file.read_bytes() for file in sorted(exports[1].iterdir())], f"{name}: exports of 1 and 2 ranks differ"
        check_text(hyperion, model, original)
        warm_start.run([hyperion, "eval", original, "--data", folder / "text.jsonl", "--seq-len", "32", "--max-batches", "1"],
                       check=True)
    print("  experts and biases go in and out, on 1 and 2 ranks")


def check_text(hyperion, model, folder):
    """The likeliest tokens make the same text where the prompt begins with BOS, which this tokenizer's class in transformers does not put."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = torch.tensor([[tokenizer.bos_token_id, *tokenizer("word 1")["input_ids"]]])
    theirs = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    ours = warm_start.run([hyperion, "generate", folder, "--prompt", "word 1", "--max-tokens", "8"], check=True).stdout
    assert ours.rstrip("\n") == tokenizer.decode(theirs[0, 1:]), (ours, theirs)
    print(f"  {folder.name}: the same text")


def check_router_loss(tool, folder):
    """The balance loss of a model with one layer of experts, which transformers adds, and the router's gradient with it."""
    config = Qwen3MoeConfig(**{**SMALL, "num_hidden_layers": 1}, head_dim=16, num_experts=6, num_experts_per_tok=2,
                            moe_intermediate_size=20, norm_topk_prob=True, router_aux_loss_coef=0.05, output_router_logits=True)
    model = make_model(config)
    model.save_pretrained(folder)
    out = model(TOKENS.unsqueeze(0), labels=TOKENS.unsqueeze(0))
    out.loss.backward()
    balance = config.router_aux_loss_coef * out.aux_loss
    gate = model.model.layers[0].mlp.gate.weight.grad
    ours = subprocess.run([tool, "losses", folder], input=TOKENS.numpy().astype("<i8").tobytes(), check=True, stdout=subprocess.PIPE).stdout
    ours = torch.frombuffer(bytearray(ours), dtype=torch.float32)
    for what, found, wanted in (("cross-entropy", ours[0], out.loss - balance), ("balance loss", ours[1], balance),
                                ("gradient of the router", ours[2:].view_as(gate), gate)):
        error = ((found - wanted).norm() / wanted.norm()).item()
        print(f"  {what}: {error:.1e}")
        assert error < 1e-6, f"{what}: {error} apart"
    our_logits(tool, ("export", folder, folder / "back", "float32"))
    back = AutoConfig.from_pretrained(folder / "back" / "step-1")
    assert (back.router_aux_loss_coef, back.output_router_logits) == (0.05, True), back


def check_training(hyperion, folder):
    """from_hf: odd shapes train without a flavour of their own."""
    config = LlamaConfig(**{**SMALL, "vocab_size": 2053}, head_dim=20,
                         rope_parameters={**SCALING, "rope_theta": 70000.0})
    folder.mkdir()
    config.save_pretrained(folder)
    job = folder / "job.toml"
    job.write_text(f"""
[job]
dump_folder = "{folder}/out"
[model]
flavor = "from_hf"
hf_assets_path = "{folder}"
[training]
steps = 2
local_batch_size = 1
seq_len = 64
dataset_path = "{folder}/text.jsonl"
[metrics]
log_freq = 1
""")
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {i} " * 40}) + "\n" for i in range(50)))
    shown = warm_start.run([hyperion, "config", job], check=True).stdout
    assert "vocab_size = 2053" in shown and "rope_factor = 5" in shown and f"{folder}/config.json" in shown, shown
    run = warm_start.run([hyperion, "train", job])
    assert run.returncode == 0, run.stdout + run.stderr
    log = run.stdout + run.stderr
    expected = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    assert f"{expected:,} total parameters" in log or f"{expected} total parameters" in log, log
    assert "takes the model's shape alone" in log, log  # no weights are there, and none were asked for
    (folder / "config.json").unlink()
    refused = warm_start.run([hyperion, "config", job, "--model.hf_assets_path", "/nowhere"])
    assert refused.returncode == 2 and "no config.json in" in refused.stderr, refused
    print("  odd shapes train, and a missing config.json is refused")


# Read by transformers where a model is made, trained or generates, not where it computes logits, or after keys that
# are refused here.
READ_WITHOUT_EFFECT = {"initializer_range", "output_router_logits", "router_aux_loss_coef", "use_cache", "pad_token_id",
                       "attn_scale", "floor_scale", "return_dict", "output_attentions", "output_hidden_states",
                       "attention_chunk_size"}


def check_keys():
    """Every key of transformers' classes is honoured or refused here, or is one that its models' code does not read."""
    rows = re.findall(r'^(FIELD|READ|ONLY|NO_EFFECT)\((?:"([^"]*)", )?(\w+)', KEYS.read_text(), re.MULTILINE)
    known = [("READ" if what == "FIELD" else what, types, key) for what, types, key in rows]
    shared = inspect.getsource(masking_utils) + inspect.getsource(modeling_rope_utils)
    for kind in (LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig, DeepseekV3Config, Llama4TextConfig, MistralConfig,
                 GptOssConfig):
        of = {how: {key for what, types, key in known if what == how and (types in ("", "*") or kind.model_type in types.split())}
              for how in ("READ", "ONLY", "NO_EFFECT")}
        fields = {*kind().to_dict(), *(field.name for field in dataclasses.fields(kind)), *kind.attribute_map}
        fields = {key for key in fields if not key.startswith("_") and not key.endswith("_token_id")}
        assert fields <= of["READ"] | of["ONLY"] | of["NO_EFFECT"], (kind, fields - of["READ"] - of["ONLY"] - of["NO_EFFECT"])
        module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
        code = inspect.getsource(module) + shared
        read = set(re.findall(r"\bconfig\.([a-z]\w*)", code)) | set(re.findall(r'getattr\((?:self\.)?config, "([a-z]\w*)"', code))
        computed = of["NO_EFFECT"] & read - READ_WITHOUT_EFFECT
        assert not computed, f"{kind}: said to be without effect, but read: {computed}"
        asked = set(re.findall(r'getattr\((?:self\.)?config, "([a-z]\w*)"', code))  # also where the class has no such field
        assert asked <= of["READ"] | of["ONLY"] | READ_WITHOUT_EFFECT, (kind, asked - of["READ"] - of["ONLY"])
    print("  every key of the configurations is known")


def main():
    tool, hyperion = sys.argv[1:3]
    check_keys()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, config) in enumerate(MODELS.items()):
            print(name)
            check_model(tool, config, Path(temporary) / str(number))
        print("exported")
        check_generation(hyperion, Path(temporary) / "exported")
        check_settings(hyperion, Path(temporary) / "exported")
        check_jobs(hyperion, Path(temporary) / "experts")
        print("losses of routers")
        check_router_loss(tool, Path(temporary) / "router_loss")
        print("from_hf")
        check_training(hyperion, Path(temporary) / "from_hf")


if __name__ == "__main__":
    main()
