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
from pathlib import Path

from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, ROOT, main

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


class HostileInputs(CheckpointTest):
    def run_program(self, *arguments, code, says=(), seconds=PATIENCE, memory=None, **options):
        """Output of `hyperion ...`. `memory`: bytes of address space beyond what it takes before it reads anything. What is freed is
        given back then: what the allocator keeps for later, in pieces that grow, would count too."""
        limit = self.address_space() + memory if memory else resource.RLIM_INFINITY
        of_memory = {"MALLOC_CONF": "retain:false"} if memory else {}
        process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   cwd=self.folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
                                   env={**os.environ, "HYPERION_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **of_memory,
                                        **options.pop("environment", {})}, **options)
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
        self.assertEqual(process.returncode, code, output[-3000:])
        for words in says:
            self.assertIn(words.encode() if isinstance(words, str) else words, output)
        return output

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

    def test_an_index_costs_at_most_the_documented_multiple_of_its_size(self):
        folder = self.folder / "step-1"
        folder.mkdir()
        index = dcp_index(100_000)
        (folder / ".metadata").write_bytes(index)
        (folder / "__0_0.distcp").write_bytes(bytes(100_000 * 100))
        self.run_program("ckpt", "ls", folder, code=0, memory=16 * len(index) + SLACK)

    def test_an_index_of_more_values_than_a_checkpoint_has_costs_a_few_times_its_size(self):
        folder = self.folder / "step-1"
        folder.mkdir()
        size = 64 * MIB
        batch = b"(" + b"N" * 1000 + b"e"
        for name, values in (("waiting", b"N" * size), ("in lists", b"]" + batch * (size // len(batch)))):
            with self.subTest(name):
                (folder / ".metadata").write_bytes(b"\x80\x02" + values + b".")
                self.run_program("ckpt", "ls", folder, code=65, says=["step-1/.metadata", "too many values"], memory=6 * size + SLACK)
        with (folder / ".metadata").open("wb") as file:
            file.truncate((1 << 30) + 1)
        self.run_program("ckpt", "ls", folder, code=65, says=["step-1/.metadata: the index has more than 1073741824 bytes"], memory=SLACK)

    def test_a_large_index_of_few_values_takes_addresses_for_four_times_its_size(self):
        folder = self.folder / "step-1"
        folder.mkdir()
        size = 255 * MIB  # the allocator rounds what is larger than a power of two
        (folder / ".metadata").write_bytes(b"\x80\x02X" + struct.pack("<I", size) + bytes(size) + b".")
        self.run_program("ckpt", "ls", folder, code=65, says=["no torch Metadata object"], memory=4 * size + SLACK)

    def test_an_index_that_refers_to_one_value_very_often_is_refused_at_once(self):
        folder = self.folder / "step-1"
        folder.mkdir()
        (folder / ".metadata").write_bytes(shared_tensor_index(100_000))
        begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.run_program("ckpt", "ls", folder, code=65, says=["many times larger than the file"], memory=64 * MIB + SLACK)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin, 20)

    def test_a_tokenizer_costs_at_most_the_documented_multiple_of_its_size(self):
        file = self.folder / "tokenizer" / "tokenizer.json"
        file.parent.mkdir()
        content = json.loads((TOKENIZER / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary.update({f"token{i}": len(vocabulary) + i for i in range(600_000)})
        for i, token in enumerate(content["added_tokens"]):
            token["id"] = len(vocabulary) + i
        file.write_text(json.dumps(content))
        self.run_program("tokenize", "--out=shard", "--tokenizer=tokenizer", "data.jsonl", code=0,
                         memory=32 * file.stat().st_size + SLACK)
        file.write_bytes(b" " * (64 * MIB + 1))
        self.run_program("tokenize", "--out=other", "--tokenizer=tokenizer", "data.jsonl", code=65, says=["at most 67108864"])

    def json_bombs(self):
        """Name and text of JSON that takes the most memory for its size, each up to the limit of 4 million values."""
        return [("numbers", "[" + "1," * 3_900_000 + "1]"), ("objects", "[" + "{}," * 3_900_000 + "{}]"),
                ("lists", "[" + "[1]," * 1_900_000 + "[1]]"),
                ("keys", "{" + ",".join(f'"{i:x}":1' for i in range(3_900_000)) + "}")]

    def test_a_manifest_costs_at_most_the_documented_multiple_of_its_size(self):
        self.run_job("--training.steps=1", code=0)
        manifest = self.step(1) / "hyperion.json"
        for name, bomb in self.json_bombs():
            with self.subTest(name=name):
                manifest.write_text('{"format_version": 1, "facts": ' + bomb + "}")
                self.run_program("ckpt", "digest", self.step(1), code=65, says=["hyperion.json: "],
                                 memory=16 * manifest.stat().st_size + SLACK)
        with manifest.open("wb") as file:
            file.truncate((512 << 20) + 1)
        self.run_program("ckpt", "digest", self.step(1), code=65, says=["at most 536870912 are accepted"], memory=SLACK)

    def safetensors(self, header):
        (self.folder / "model").mkdir(exist_ok=True)
        path = self.folder / "model" / "model.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        return path

    def test_a_safetensors_header_costs_at_most_the_documented_multiple_of_its_size(self):
        tensors = ",".join(f'"t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{4 * i},{4 * i + 4}]}}' for i in range(500_000))
        header = ("{" + tensors + "}").encode()
        path = self.safetensors(header)
        with path.open("ab") as file:
            file.truncate(8 + len(header) + 4 * 500_000)
        self.run_program("ckpt", "ls", "model", code=0, memory=16 * len(header) + SLACK)
        for name, bomb in self.json_bombs():
            with self.subTest(name=name):
                header = ('{"a": ' + bomb + "}").encode()
                self.safetensors(header)
                self.run_program("ckpt", "ls", "model", code=65, says=["model.safetensors: "], memory=16 * len(header) + SLACK)
        path.write_bytes(struct.pack("<Q", 100_000_001) + bytes(8))
        self.run_program("ckpt", "ls", "model", code=65, says=["says that its header has 100000001 bytes"], memory=SLACK)
        index = self.folder / "model" / "model.safetensors.index.json"
        path.rename(path.with_name("a.safetensors"))
        for name, bomb in self.json_bombs():
            with self.subTest(index=name):
                index.write_text('{"weight_map": ' + bomb + "}")
                self.run_program("ckpt", "digest", "model", code=65, says=["model.safetensors.index.json"],
                                 memory=16 * index.stat().st_size + SLACK)

    def test_a_model_description_costs_at_most_the_documented_multiple_of_its_size(self):
        self.safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
        with (self.folder / "model" / "model.safetensors").open("ab") as file:
            file.write(bytes(4))
        config = self.folder / "model" / "config.json"
        for name, bomb in self.json_bombs():
            with self.subTest(name=name):
                config.write_text('{"architectures": ' + bomb[:MIB - 32] + "}")
                self.run_program("generate", "model", "--prompt=It", code=2, says=["config.json: "],
                                 memory=32 * config.stat().st_size + SLACK)
        config.write_bytes(b" " * (MIB + 1))
        self.run_program("generate", "model", "--prompt=It", code=2, says=["at most 1048576 are accepted"], memory=SLACK)

    def test_tiktoken_ranks_cost_at_most_the_documented_multiple_of_their_size(self):
        file = self.folder / "tokenizer" / "tokenizer.model"
        file.parent.mkdir()
        tokens = [bytes([i]) for i in range(256)]
        seen = set(tokens)
        while len(tokens) < 128_000:  # pairs of what is there, as merges make them
            for a in list(tokens):
                for b in tokens[:256]:
                    if len(tokens) < 128_000 and a + b not in seen:
                        seen.add(a + b)
                        tokens.append(a + b)
                if len(tokens) == 128_000:
                    break
        file.write_text("".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(tokens)))
        self.run_program("tokenize", "--out=shard", "--tokenizer=tokenizer", "data.jsonl", code=0,
                         memory=32 * file.stat().st_size + SLACK)
        lines = b"".join(base64.b64encode(i.to_bytes(3, "big")) + b" %d\n" % i for i in range(1_900_000))
        file.write_bytes(lines)
        self.run_program("tokenize", "--out=other", "--tokenizer=tokenizer", "data.jsonl", code=65, says=["holds 1900000 ranks"],
                         memory=32 * len(lines) + SLACK)
        file.write_bytes(b" " * (64 * MIB + 1))
        self.run_program("tokenize", "--out=other", "--tokenizer=tokenizer", "data.jsonl", code=65, says=["at most 67108864"], memory=SLACK)

    def test_a_document_costs_at_most_the_documented_multiple_of_its_size(self):
        words = "some words of a book " * (MIB // 2)
        (self.folder / "book.jsonl").write_text(json.dumps({"text": words}) + "\n")
        self.run_program("tokenize", "--out=book", f"--tokenizer={TOKENIZER}", "book.jsonl", code=0,
                         memory=40 * len(words) + SLACK)
        (self.folder / "word.jsonl").write_text(json.dumps({"text": "x" * (8 * MIB + 1)}) + "\n")
        self.run_program("tokenize", "--out=word", f"--tokenizer={TOKENIZER}", "word.jsonl", code=65,
                         says=["word.jsonl:1: tokenizer: 8388609 bytes of text without a place to split them"])
        (self.folder / "line.jsonl").write_text('{"text": "' + "x" * (64 * MIB) + '"}\n')
        self.run_program("tokenize", "--out=line", f"--tokenizer={TOKENIZER}", "line.jsonl", code=65,
                         says=["line.jsonl:1: the line is too long, at most 67108864 bytes"])

    def test_a_compressed_file_inflates_to_at_most_the_documented_multiple_of_its_size(self):
        with gzip.open(self.folder / "bomb.jsonl.gz", "wb", compresslevel=1) as bomb:
            bomb.write(b'{"text": "a first line as it should be"}\n')
            for _ in range(300):
                bomb.write(bytes(MIB))
        self.run_program("tokenize", "--out=bomb", f"--tokenizer={TOKENIZER}", "bomb.jsonl.gz", code=65,
                         says=["decompresses to more than 268435456 bytes"], memory=384 * MIB + SLACK)


if __name__ == "__main__":
    main()
