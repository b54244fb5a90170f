"""`hyperion plan`: meshes of a job without a GPU, a tokenizer or data, as docs/choosing_a_mesh.md shows them.

    python3 tests/faults/plan_test.py build/hyperion
"""

import json
import os
import re
from xml.etree import ElementTree

import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, ROOT, main

EXAMPLES = (("configs/llama3_8b.toml", "--gpus=8"), ("configs/llama3_70b.toml", "--gpus=256", "--global-batch-size=512", "--tokens=15T"),
            ("configs/qwen3_30b_a3b.toml", "--gpus=64", "--global-batch-size=1024"))


def bars(svg):
    """The names of a picture's bars, and the lengths of their segments in the order of the bars."""
    lengths = {}
    for rect in svg.iter("rect"):
        lengths.setdefault(float(rect.get("y")), []).append(float(rect.get("width")))
    names = [text.text for text in svg.findall("text") if text.get("class") is None]
    return names, [lengths[y] for y in sorted(lengths)]


class Plan(CheckpointTest):
    def plan(self, *words, code=0):
        environment = {name: value for name, value in os.environ.items() if name != "HYPERION_DEVICE"}
        done = warm_start.run([BINARY, "plan", *words], cwd=ROOT, env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_the_examples_of_the_page(self):
        page = (ROOT / "docs/choosing_a_mesh.md").read_text()
        for words in EXAMPLES:
            command = " ".join(word.replace("=", " ") for word in words)
            self.assertIn(f"hyperion plan {command}", page)
            text = self.plan(*words)
            self.assertRegex(text, r"(?m)^ 1  ")
            self.assertRegex(text, r"(?m)^10  ")
            self.assertIn("Nothing here is measured", text)

    def test_json_and_one_plan_in_full(self):
        words = EXAMPLES[1]
        plans = json.loads(self.plan(*words, "--json"))["plans"]
        speeds = [plan["tokens_per_second_per_gpu"][1] for plan in plans]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        for plan in plans:
            self.assertAlmostEqual(sum(plan["seconds"].values()), plan["step_seconds"][1], delta=1e-6 * plan["step_seconds"][1])
            self.assertLess(plan["reserved_gib"], 76.6)
        text = self.plan(*words, "--explain=2")
        self.assertIn(f"Plan 2: {plans[1]['mesh']}", text)
        self.assertIn("GPU hours", text)
        self.assertRegex(text, r"(?m)^[\d,]+ kernels, one every \d+ us$")
        self.assertRegex(text, r"(?m)^  exposed FSDP exchange ")
        self.assertRegex(text, r"FP8 \(model.converters\) +1\.\d\d times as fast")

    def test_a_written_plan_is_accepted_by_check(self):
        out = self.folder / "planned.toml"
        self.assertIn("Written: ", self.plan("configs/debug_model.toml", "--gpus=4", f"--write={out}"))
        done = warm_start.run([BINARY, "check", out, "--ranks=4"], cwd=ROOT, env={**os.environ, "HYPERION_DEVICE": "cpu"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        again = json.loads(self.plan(out, "--gpus=4", "--configured", "--json"))["plans"][0]
        self.assertEqual(again["parallelism"], json.loads(self.plan("configs/debug_model.toml", "--gpus=4", "--json"))["plans"][0]["parallelism"])

    def test_a_page_with_pictures(self):
        page = self.folder / "plan.html"
        for words, gpus in ((EXAMPLES[0], [2, 4, 8, 16]), ((*EXAMPLES[1], "--keep-mesh"), [32, 64, 128, 256, 512]),
                                                ((EXAMPLES[0][0], "--gpus=8", "--configured"), [])):
            with self.subTest(words):
                table = self.plan(*words, f"--html={page}")
                self.assertIn(f"Written: {page}", table)
                text = page.read_text()
                svgs = [ElementTree.fromstring(svg) for svg in re.findall(r"(?s)<svg viewBox.*?</svg>(?=</figure>|<table>)", text)]
                self.assertEqual([svg.get("aria-label") for svg in svgs], ["Memory of the fullest rank", "Time of a step", "Speed"][:3 if gpus else 2])
                plans = json.loads(self.plan(*words, "--json"))["plans"]
                for svg, unit, of in ((svgs[0], "GiB", lambda plan: plan["reserved_gib"]), (svgs[1], "s", lambda plan: plan["step_seconds"][1])):
                    names, values = bars(svg)
                    self.assertEqual(len(names), len(plans))
                    for name, value, plan in zip(names, values, plans):
                        self.assertIn(f"{plan['mesh']} ({plan['settings']})", name)
                    # The lengths of the stacked bars are to each other as the values, and never negative.
                    self.assertTrue(all(min(bar) >= 0 for bar in values))
                    scale = sum(values[0]) / of(plans[0])
                    for bar, plan in zip(values, plans):
                        self.assertAlmostEqual(sum(bar), scale * of(plan), delta=1)
                rows = re.findall(r'<tr><td class="number">([\d,]+)</td>', text)
                self.assertEqual([int(row.replace(",", "")) for row in rows], gpus)
                self.assertIn("Nothing here is measured", text)
                # Nothing is loaded, and nothing runs.
                self.assertIn("default-src 'none'", text)
                self.assertNotRegex(text, r"<script|https?:|url\(|<link|<img|@import")
                json.loads(self.plan(*words, "--json", f"--html={page}"))

    def test_what_is_wrong_is_said_with_what_would_be_right(self):
        for words, says in (
                (("configs/llama3_405b.toml", "--gpus=8"), r"fits on no mesh of 8 x H100.*needs [\d.]+ GiB of each GPU, of 76.6.*it fits on \d+ GPUs"),
                (("configs/llama3_8b.toml", "--gpus=8", "--gpu=v100"), 'no card "v100".*there are a100, b200, h100-500w'),
                (("configs/llama3_8b.toml", "--gpus=8", "--explain=99"), "--explain 99: there are 10 plans"),
                (("configs/llama3_8b.toml", "--gpus=7", "--global-batch-size=5"), "no mesh of 7 GPUs can run this job with 5 sequences"),
                (("configs/llama3_8b.toml", "--gpus=8", "--tokens=3Q"), "expected a number of tokens, such as 15T"),
                (("configs/llama3_8b.toml",), "--gpus is required")):
            with self.subTest(words):
                text = self.plan(*words, code=2)
                self.assertEqual(len(text.strip().splitlines()), 1, text)
                self.assertTrue(re.search(says, text), text)

    def test_a_card_of_ones_own(self):
        cards = json.loads((ROOT / "scripts/cards.json").read_text())
        cards["mine"] = {"name": "My card", "like": "h100-700w", "constants": {"flops": {"low": 0.5, "high": 0.5}}}
        file = self.folder / "mine.json"
        file.write_text(json.dumps(cards))
        of = [json.loads(self.plan("configs/llama3_8b.toml", "--gpus=8", f"--gpu={card}", "--json"))["plans"][0]["step_seconds"][1]
              for card in ("h100", f"{file}:mine")]
        self.assertGreater(of[1], 1.5 * of[0])
        cards["mine"]["constants"]["flops"] = {"low": 2, "high": 1}
        file.write_text(json.dumps(cards))
        self.assertIn('card "mine", "flops": 2 to 1 is no range', self.plan("configs/llama3_8b.toml", "--gpus=8", f"--gpu={file}:mine", code=2))
        cards["mine"]["constants"]["flops"] = {"low": 1, "high": 1}
        cards["other"] = {"name": "Like mine", "like": "mine", "constants": {}}
        file.write_text(json.dumps(cards))
        self.plan("configs/llama3_8b.toml", "--gpus=8", f"--gpu={file}:other")  # the memory is two cards away

    def test_the_files_own_settings_and_what_a_plan_keeps_of_them(self):
        one = ("configs/llama3_8b.toml", "--gpus=16", "--configured")
        tokens = [json.loads(self.plan(*one, "--json", *more))["plans"][0]["step_seconds"][1] for more in ((), ("--global-batch-size=64",))]
        self.assertGreater(tokens[1], 2 * tokens[0])
        written = self.folder / "written.toml"
        self.plan(*one, "--parallelism.on_mesh_mismatch=fit", f"--write={written}")
        self.assertIn('on_mesh_mismatch = "fit"', written.read_text())
        self.assertIn("must be the 12 ranks of the job", self.plan("configs/llama3_8b.toml", "--gpus=12", "--configured",
                                                                   "--parallelism.tensor_parallel_degree=8", code=2))
        self.assertIn("no multiple of parallelism.pipeline_parallel_microbatch_size = 3", self.plan(
            "configs/llama3_8b.toml", "--gpus=2", "--configured", "--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4",
            "--parallelism.pipeline_parallel_microbatch_size=3", code=2))
        gib = [float(re.search(r"checkpoint with optimizer state: ([\d.]+) GiB", self.plan("configs/llama3_8b.toml", "--gpus=8", *more))[1])
               for more in ((), ("--optimizer.state_dtype=bfloat16",))]
        self.assertAlmostEqual(gib[1] / gib[0], 8 / 12, places=2)


if __name__ == "__main__":
    main()
