"""Inputs that are made to hang, crash or exhaust the program: pipes, files that shrink, bombs, names that steer a terminal.

    python3 tests/faults/hostile_inputs_test.py build/hyperion

Standard library only. docs/limits.md has the limits that are held here.
"""

import base64
import errno
import gzip
import json
import os
import resource
import shutil
import struct
import subprocess
import time
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import warm_start
from checkpoints import CheckpointTest
from jobs import ALL, BINARY, PATIENCE, ROOT, main

TOKENIZER = ROOT / "tests" / "assets" / "tokenizer"
MIB = 1 << 20
SLACK = 96 * MIB  # threads, their stacks and arenas of the allocator


def text(content):
    return b"X" + struct.pack("<I", len(content)) + content.encode()


def class_name(module, name):
    return f"c{module}\n{name}\n".encode()


METADATA = "torch.distributed.checkpoint.metadata"
TENSOR_PROPERTIES = class_name(METADATA, "TensorProperties") + b")\x81(" + class_name("torch", "float32") + b"tb"


def dcp_index(tensors):
    """A .metadata of tensors of 4 elements, one chunk each, as compact as torch writes it: every name once."""
    names = {}

    def once(value):  # kept in the memo, taken off the stack
        names[value] = b"h" + bytes([len(names)])
        return value + b"q" + names[value][1:] + b"0"

    filesystem = "torch.distributed.checkpoint.filesystem"
    classes = [class_name(METADATA, name) for name in ("MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata")]
    classes.append(class_name(filesystem, "_StorageInfo"))
    fields = map(text, ("fqn", "offset", "index", "relative_path", "length", "properties", "size", "chunks", "offsets", "sizes",
                        "__0_0.distcp"))
    parts = [b"\x80\x02", *map(once, [*classes, *fields, TENSOR_PROPERTIES]), class_name(METADATA, "Metadata"), b")\x81}(",
             text("storage_data"), b"}("]
    key = [struct.pack("<I", 20 + i) for i in range(tensors)]  # of its name in the memo
    index, tensor, chunk, info = (names[name] for name in classes)
    name = lambda field: names[text(field)]
    for i in range(tensors):
        parts += [index, b")\x81}(", name("fqn"), text(f"layers.{i}.weight"), b"r", key[i], name("offset"), b"K\x00\x85",
                  name("index"), b"K\x00ub", info, b")\x81}(", name("relative_path"), name("__0_0.distcp"), name("offset"),
                  b"J" + struct.pack("<i", i * 100), name("length"), b"K\x64ub"]
    parts += [b"u", text("state_dict_metadata"), b"}("]
    for i in range(tensors):
        parts += [b"j", key[i], tensor, b")\x81}(", name("properties"), names[TENSOR_PROPERTIES], name("size"), b"K\x04\x85",
                  name("chunks"), b"]", chunk, b")\x81}(", name("offsets"), b"K\x00\x85", name("sizes"), b"K\x04\x85", b"uba", b"ub"]
    return b"".join([*parts, b"uub."])


def shared_tensor_index(keys):
    """A .metadata in which one tensor with very many fields stands under very many keys."""
    tensor = [class_name(METADATA, "TensorStorageMetadata"), b")\x81}(", b"NN" * keys, text("properties"), TENSOR_PROPERTIES,
              text("size"), b"K\x00\x85", text("chunks"), b"]ubq\x00"]
    rest = [text(f"key {i}") + b"h\x00" for i in range(keys)]
    return b"".join([b"\x80\x02", class_name(METADATA, "Metadata"), b")\x81}(", text("storage_data"), b"}",
                     text("state_dict_metadata"), b"}(", text("first"), *tensor, *rest, b"uub."])


def json_bombs(before, after, size=None):
    """Name and content of JSON that takes the most memory for its size, each up to the limit of 4 million values; `size`: what is
    kept of it between `before` and `after`. The costliest alone, unless all are asked for: one parser reads them all."""
    for name, bomb in (("numbers", "[" + "1," * 3_900_000 + "1]"), ("objects", "[" + "{}," * 3_900_000 + "{}]"),
                       ("lists", "[" + "[1]," * 1_900_000 + "[1]]"),
                       ("keys", "{" + ",".join(f'"{i:x}":1' for i in range(3_900_000)) + "}")):
        if ALL or name == "keys":
            yield name, f"{before}{bomb[:size]}{after}".encode()


def with_length(header):
    return struct.pack("<Q", len(header)) + header


def tokenizer_of_many_ids():
    content = json.loads((TOKENIZER / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary.update({f"token{i}": len(vocabulary) + i for i in range(600_000)})
    for i, token in enumerate(content["added_tokens"]):
        token["id"] = len(vocabulary) + i
    return json.dumps(content).encode()


def tiktoken_ranks():
    tokens = dict.fromkeys(bytes([i]) for i in range(256))
    for a in tokens.copy():  # pairs and triples, as merges make them
        tokens |= dict.fromkeys(a + bytes([b]) for b in range(256))
    for a in list(tokens)[256:]:
        tokens |= dict.fromkeys(a + bytes([b]) for b in range(2))
    return b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(list(tokens)[:128_000]))


class Input(NamedTuple):
    """A file that is large, or made to become large, and what docs/limits.md lets the program take for it."""

    name: str
    path: str  # in the folder of the test
    content: bytes
    command: str
    multiple: float  # of the size of `content`: bytes of address space beyond what the program maps anyway
    code: int  # where it is not 0 the message names the file
    says: str = ""
    zeros: int = 0  # bytes after the content, which cost nothing
    size: int | None = None  # what the multiple is of, where that is not `content`
    other: tuple[str, bytes] | None = None  # another file that the command needs


def hostile_inputs():
    index = ("step-1/.metadata", "ckpt ls step-1")
    tensors, data = dcp_index(100_000), bytes(100_000 * 100)
    yield Input("tensors", index[0], tensors, index[1], 16, 0, other=("step-1/__0_0.distcp", data))
    batch, size = b"(" + b"N" * 1000 + b"e", 64 * MIB
    for name, values in (("values on the stack", b"N" * size), ("values in lists", b"]" + batch * (size // len(batch)))):
        yield Input(name, index[0], b"\x80\x02" + values + b".", index[1], 6, 65, "too many values")
    yield Input("one value, very often", index[0], shared_tensor_index(100_000), index[1], 1, 65, "many times larger than the file", size=size)
    large = 255 * MIB  # the allocator rounds what is larger than a power of two
    yield Input("one large value", index[0], b"\x80\x02X" + struct.pack("<I", large) + bytes(large) + b".", index[1], 4, 65,
                "no torch Metadata object")
    yield Input("too large", index[0], b"", index[1], 0, 65, "the index has more than 1073741824 bytes", zeros=(1 << 30) + 1)

    manifest = ("step-1/hyperion.json", "ckpt digest step-1")
    for name, bomb in json_bombs('{"format_version": 1, "facts": ', "}"):
        yield Input(name, manifest[0], bomb, manifest[1], 16, 65)
    yield Input("too large", manifest[0], b"", manifest[1], 0, 65, "at most 536870912 are accepted", zeros=(512 << 20) + 1)

    model = ("model/model.safetensors", "ckpt ls model")
    tensors = ",".join(f'"t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{4 * i},{4 * i + 4}]}}' for i in range(500_000))
    yield Input("tensors", model[0], with_length(("{" + tensors + "}").encode()), model[1], 16, 0, zeros=4 * 500_000)
    for name, bomb in json_bombs('{"a": ', "}"):
        yield Input(name, model[0], with_length(bomb), model[1], 16, 65)
    false_length = struct.pack("<Q", 100_000_001) + bytes(8)
    yield Input("too large", model[0], false_length, model[1], 0, 65, "says that its header has 100000001 bytes")
    for name, bomb in json_bombs('{"weight_map": ', "}"):
        yield Input(name, "model/model.safetensors.index.json", bomb, "ckpt digest model", 16, 65,
                    other=("model/a.safetensors", false_length))

    config = ("model/config.json", "generate model --prompt=It")
    weights = ("model/model.safetensors", with_length(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}') + bytes(4))
    for name, bomb in json_bombs('{"architectures": ', "}", MIB - 32):
        yield Input(name, config[0], bomb, config[1], 32, 2, other=weights)
    yield Input("too large", config[0], b"", config[1], 0, 2, "at most 1048576 are accepted", zeros=MIB + 1, other=weights)

    tokenize = "tokenize --out=shard --tokenizer=tokenizer data.jsonl"
    yield Input("ids", "tokenizer/tokenizer.json", tokenizer_of_many_ids(), tokenize, 32, 0)
    yield Input("ranks", "tokenizer/tokenizer.model", tiktoken_ranks(), tokenize, 32, 0)
    ranks = b"".join(base64.b64encode(i.to_bytes(3, "big")) + b" %d\n" % i for i in range(1_900_000))
    yield Input("too many ranks", "tokenizer/tokenizer.model", ranks, tokenize, 32, 65, "holds 1900000 ranks")
    for path in ("tokenizer/tokenizer.json", "tokenizer/tokenizer.model"):
        yield Input("too large", path, b"", tokenize, 0, 65, "at most 67108864", zeros=64 * MIB + 1)

    document = ("text/book.jsonl", f"tokenize --out=shard --tokenizer={TOKENIZER} text/book.jsonl")
    words = json.dumps({"text": "some words of a book " * (MIB // 2)}).encode()
    yield Input("words", document[0], words, document[1], 40, 0)
    yield Input("one word", document[0], json.dumps({"text": "x" * (8 * MIB + 1)}).encode(), document[1], 40, 65,
                "jsonl:1: tokenizer: 8388609 bytes of text without a place to split them")
    yield Input("one line", document[0], b'{"text": "' + b"x" * (64 * MIB) + b'"}\n', document[1], 40, 65,
                "jsonl:1: the line is too long, at most 67108864 bytes")
    zeros = gzip.compress(b'{"text": "a first line as it should be"}\n' + b"\n" * (300 * MIB), compresslevel=1)
    yield Input("zeros", "text/book.jsonl.gz", zeros, document[1] + ".gz", 1.5, 65, "decompresses to more than 268435456 bytes",
                size=256 * MIB)


class HostileInputs(CheckpointTest):
    def run_program(self, *arguments, code, says=(), seconds=PATIENCE, memory=None, **options):
        """Output of `hyperion ...`. `memory`: bytes of address space beyond what it takes before it reads anything. What is freed is
        given back then: what the allocator keeps for later, in pieces that grow, would count too."""
        command = [BINARY, *map(str, arguments)]
        environment = {**os.environ, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **options.pop("environment", {})}
        if memory or options:
            limit = self.address_space + memory if memory else resource.RLIM_INFINITY
            environment |= {"MALLOC_CONF": "retain:false"} if memory else {}
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, env=environment, timeout=seconds,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), **options)
        else:
            done = warm_start.run(command, stderr=subprocess.STDOUT, cwd=self.folder, env=environment, timeout=seconds, text=False)
        output = done.stdout
        self.assertEqual(done.returncode, code, output[-3000:])
        for words in says:
            self.assertIn(words.encode() if isinstance(words, str) else words, output)
        return output

    @cached_property
    def address_space(self):
        """What the program maps before it reads anything: libtorch alone takes gigabytes."""
        config = self.replace_by_pipe(self.folder / "config-pipe.toml")
        process = subprocess.Popen([BINARY, "train", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    writer = os.open(config, os.O_WRONLY | os.O_NONBLOCK)
                except OSError as error:
                    self.assertEqual((error.errno, process.poll()), (errno.ENXIO, None))  # the program has not opened it yet
                    time.sleep(0.02)
                    continue
                status = Path(f"/proc/{process.pid}/status").read_text()
                os.close(writer)
                return int(status.partition("VmPeak:")[2].split()[0]) * 1024
        finally:
            process.kill()
            process.wait()

    def saved_job(self):
        """Steps 3, 6 and 8."""
        self.run_job(code=0)

    def replace_by_pipe(self, path):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        return path

    # --- pipes ---

    def test_a_pipe_in_the_place_of_any_input_is_named_and_never_waited_for(self):
        self.saved_job()
        step, model = self.step(8), self.folder / "model"
        self.tool("convert", step, model, "--to=safetensors")
        self.run_program("tokenize", "--out=shard", "data.jsonl", f"--tokenizer={TOKENIZER}", code=0)
        shutil.copytree(TOKENIZER, self.folder / "tokenizer")
        cases = [(step / "hyperion.json", ("ckpt", "verify", step)), (self.step(3) / ".metadata", ("ckpt", "digest", self.step(3))),
                 (model / "config.json", ("eval", model, "--data=data.jsonl")), (model / "model.safetensors", ("ckpt", "digest", model)),
                 (self.folder / "shard" / "tokens.bin", ("eval", self.step(6), "--data=shard")),
                 (self.folder / "tokenizer" / "tokenizer.json", ("tokenize", "--out=new", "--tokenizer=tokenizer", "data.jsonl")),
                 (self.folder / "data.jsonl", ("tokenize", "--out=new", "data.jsonl"))]
        for path, command in cases:
            with self.subTest(path=path.name):
                self.replace_by_pipe(path)
                code = 2 if path.name == "config.json" else 65
                self.run_program(*command, code=code, says=[f"{path.name}: is a named pipe, not a regular file"])

    def test_a_resume_passes_over_a_manifest_that_is_a_pipe_or_a_link(self):
        for kind in ("pipe", "link"):
            with self.subTest(kind=kind):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                self.saved_job()
                manifest = self.step(8) / "hyperion.json"
                if kind == "pipe":
                    self.replace_by_pipe(manifest)
                else:
                    manifest.rename(self.folder / "elsewhere")
                    manifest.symlink_to(self.folder / "elsewhere")
                self.run_job("--training.steps=9", "--lr_scheduler.total_steps=9", code=0, says=["hyperion.json", "step-6", "Training completed"])

    def test_the_configuration_may_come_from_a_pipe(self):
        with subprocess.Popen(["cat", self.folder / "job.toml"], stdout=subprocess.PIPE) as source:
            self.run_program("train", "/dev/stdin", "--training.steps=1", code=0, says=["Training completed"],
                             stdin=source.stdout)
        train = 'exec "$0" "$1" train <(cat job.toml) --training.steps=1 --checkpoint.no_enable'
        for ranks, code, says in ((1, 0, "Training completed"), (2, 2, "each of the 2 ranks")):
            done = subprocess.run(["bash", "-c", train, ROOT / "scripts" / "launch.py", BINARY], cwd=self.folder, timeout=PATIENCE,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "NPROC": str(ranks), "HYPERION_DEVICE": "cpu"})
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn(says, done.stdout)

    def test_every_command_gives_up_a_configuration_that_nobody_writes(self):
        pipe = self.replace_by_pipe(self.folder / "never.toml")
        environment = {**os.environ, "HYPERION_DEVICE": "cpu"}
        running = [subprocess.Popen([BINARY, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
                   for command in (["train", pipe], ["check", pipe], ["config", pipe])]
        for process in running:
            try:
                output, _ = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
            self.assertEqual(process.returncode, 2, output)
            self.assertIn("never.toml: is a named pipe, and nothing came from it for 30 s", output)

    # --- files that shrink ---

    def test_data_that_become_shorter_end_the_job_with_65_and_name_file_and_document(self):
        self.run_program("tokenize", "--out=shard", "data.jsonl", f"--tokenizer={TOKENIZER}", code=0)
        for data, file, says in (("data.jsonl", "data.jsonl", r"data-parallel rank \d: .*data\.jsonl:\d+: .*became shorter"),
                                 ("shard", "shard/tokens.bin", r"data-parallel rank \d: .*shard: document \d+ .*tokens\.bin: .*became shorter")):
            with self.subTest(data=data):
                job = self.start("--training.steps=100000", f"--training.dataset_path={self.folder}/{data}", "--checkpoint.no_enable",
                                 ranks=2)
                job.wait_for("step:  2")
                os.truncate(self.folder / file, 2000)
                self.assertLessEqual(set(job.codes()), {65, 71}, job.text())
                self.assertRegex(job.text(0) + job.text(1), says)

    # --- terminals ---

    def test_control_bytes_of_names_and_variables_never_reach_the_terminal(self):
        escape = "\x1b]0;title\x07\x1b[31m\u009b31m"
        (self.folder / f"{escape}.jsonl").write_text("no JSON\n")
        (self.folder / f"{escape}.toml").write_text("[training]\nsteps = '\x1b[31m'\n")
        for command, code in ((("train", "job.toml", f"--training.dataset_path={escape}.jsonl"), 65), (("train", f"{escape}.toml"), 2),
                              (("train", "job.toml", f"--training.dataset_path={escape}"), 2),
                              (("train", "job.toml", f"--job.description={escape}", "--training.steps=1", "--checkpoint.no_enable"), 0),
                              (("ckpt", "verify", escape), 2), (("tokenize", "--out=x", escape), 65)):
            with self.subTest(command=command):
                output = self.run_program(*command, code=code)
                self.assertNotIn(b"\x1b", output)
                self.assertNotIn(b"\x07", output)
                self.assertNotIn("\u009b".encode(), output)
        for variable in ("HYPERION_LOG_LEVEL", "LOG_RANK", "RANK", "MASTER_PORT"):
            with self.subTest(variable=variable):
                output = self.run_program("train", "job.toml", code=2, environment={variable: escape, "WORLD_SIZE": "1"})
                self.assertNotIn(b"\x1b", output)

    # --- what an input may cost ---

    def test_every_input_costs_at_most_the_documented_multiple_of_its_size(self):
        for row in hostile_inputs():
            with self.subTest(row.path, name=row.name):
                path = self.folder / row.path
                path.parent.mkdir()
                for file, content in filter(None, [(row.path, row.content), row.other]):
                    (self.folder / file).write_bytes(content)
                os.truncate(path, len(row.content) + row.zeros)
                size = len(row.content) if row.size is None else row.size
                self.run_program(*row.command.split(), code=row.code, says=[row.says, path.name] if row.code else [],
                                 memory=int(row.multiple * size) + SLACK)
            for folder in (path.parent, self.folder / "shard"):
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
