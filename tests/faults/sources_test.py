"""Jobs that read several sources by weight: the same curve on every mesh, losses of each source, and lists that change.

    python3 tests/faults/sources_test.py build/hyperion
"""

import json

import warm_start
from jobs import BINARY, ROOT, TOML, JobTest, main

SOURCES = """
[[training.sources]]
path = "{folder}/wiki.jsonl"
weight = 5
[[training.sources]]
path = "{folder}/code.jsonl"
weight = {code}
{more}
[[training.sources]]
path = "{folder}/web"
weight = 3
"""
JOB = ["--training.mixed_precision_param=float32", "--training.global_batch_size=8", "--training.steps=4"]
KEPT = ["--checkpoint.enable", "--checkpoint.interval=2", "--checkpoint.no_last_save_model_only"]


class Sources(JobTest):
    toml = TOML.replace('dataset_path = "{folder}/data.jsonl"\n', "")

    def prepare(self, folder):
        (folder / "web").mkdir()
        for name, count in (("wiki", 60), ("code", 9), ("web/a", 20), ("web/b", 20)):
            lines = [json.dumps({"text": f"The {name} number {i} says {i * 7919} " * (i % 5 + 1)}) for i in range(count)]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        self.write()

    def write(self, code=2, more="", validation="", edit=lambda text: text):
        text = (self.toml + SOURCES).format(root=ROOT, folder=self.folder, code=code, more=more)
        (self.folder / "job.toml").write_text(edit(text + validation))

    def test_the_curve_and_the_losses_of_sources_do_not_depend_on_the_mesh(self):
        one = self.metrics_of(*JOB)
        self.assertEqual(one[-1]["sources/code/tokens"] + one[-1]["sources/web/tokens"] + one[-1]["sources/wiki/tokens"], 4 * 8 * 32)
        self.assertEqual(one[-1]["sources/wiki/tokens"], 16 * 32)  # half of 32 sequences
        for line in one:  # a source's loss counts by its tokens, and a step of 8 sequences has all three
            before = one[line["step"] - 2] if line["step"] > 1 else {}
            tokens = {name: line[f"sources/{name}/tokens"] - before.get(f"sources/{name}/tokens", 0) for name in ("code", "web", "wiki")}
            mean = sum(line[f"sources/{name}/loss"] * count for name, count in tokens.items() if count) / sum(tokens.values())
            self.assertAlmostEqual(mean, line["loss_metrics/global_avg_loss"], delta=1e-5)
        for options in ((), ("--parallelism.tensor_parallel_degree=2",), ("--parallelism.context_parallel_degree=2",),
                        ("--parallelism.pipeline_parallel_degree=2",)):
            with self.subTest(options=options):
                two = self.metrics_of(*JOB, *options, ranks=2)
                self.assert_near_metrics(two, one, 2e-6)
                for line, wanted in zip(two, one):
                    self.assertEqual({key for key in line if key.startswith("sources/")}, {key for key in wanted if key.startswith("sources/")})
                    for key in wanted:
                        if key.startswith("sources/"):
                            self.assertAlmostEqual(line[key], wanted[key], delta=1e-5, msg=key)

    def test_a_resume_has_the_losses_of_the_undisturbed_run_on_another_mesh(self):
        whole = self.metrics_of(*JOB, *KEPT)
        (self.folder / "out" / "checkpoint" / "step-4").rename(self.folder / "away")
        rest = self.metrics_of(*JOB, *KEPT, ranks=2)
        self.assertEqual([line["step"] for line in rest], [3, 4])
        for line, wanted in zip(rest, whole[2:]):
            for key in ("loss_metrics/global_avg_loss", "sources/code/tokens", "sources/web/epoch"):
                self.assertAlmostEqual(line[key], wanted[key], delta=2e-6 * abs(wanted[key]), msg=key)

    def test_another_list_is_refused_with_both_and_taken_from_here_on_by_override(self):
        self.run_job(*JOB, *KEPT, code=0)
        longer = [*JOB[:-1], "--training.steps=6", "--lr_scheduler.total_steps=6", *KEPT]
        self.write(code=8)
        self.run_job(*longer, code=2, says=["training.sources: saved code=0.2,web=0.3,wiki=0.5, configured code=0.5,web=0.1875,wiki=0.3125",
                                            "--checkpoint.on_config_change=keep", "--checkpoint.on_config_change=override"])
        kept = self.metrics_of(*longer, "--checkpoint.on_config_change=keep")
        self.assertEqual(kept[-1]["sources/wiki/tokens"], 24 * 32)  # half of 48 sequences
        self.write(code=8, edit=lambda text: text.replace("wiki.jsonl", "data.jsonl"))
        (self.folder / "data.jsonl").write_text('{"text": "another source"}\n')
        said = ["training.sources: taking code=0.5,data=0.3125,web=0.1875", "wiki is left out", "data is new and begins"]
        self.run_job(*longer, "--training.steps=8", "--lr_scheduler.total_steps=8", "--checkpoint.on_config_change=override", code=0, says=said)

    def test_a_job_of_one_data_set_goes_on_as_one_of_several(self):
        one = self.folder / "one.toml"
        text = (self.folder / "job.toml").read_text()
        one.write_text(text[:text.index("[[training.sources]]")])
        self.run_job(*JOB, *KEPT, f"--training.dataset_path={self.folder}/wiki.jsonl", config=one, code=0)
        more = [*JOB[:-1], "--training.steps=6", "--lr_scheduler.total_steps=6", *KEPT]
        self.run_job(*more, code=2, says=["training.sources: saved dataset_path, configured code=0.2,web=0.3,wiki=0.5"])
        line = self.metrics_of(*more, "--checkpoint.on_config_change=override")[-1]
        self.assertEqual(line["sources/wiki/tokens"], (32 + 8) * 32)
        self.assertEqual(line["sources/code/tokens"] + line["sources/web/tokens"], 8 * 32)

    def test_the_end_of_a_source_is_said_at_the_start_and_ends_the_job_or_not(self):
        self.write(more="max_epochs = 1")
        job = self.run_job(*JOB[:-1], "--training.steps=40", code=65,
                           says=["Source code: its 1 epoch end at about step", "the job ends there", "code has been read 1 time after"])
        self.assertIn("Sources: code 20 %, web 30 %, wiki 50 % of the sequences", job.text())
        last = self.metrics_of(*JOB[:-1], "--training.steps=40", "--training.on_source_end=renormalize")[-1]
        self.assertEqual(last["step"], 40)
        self.assertEqual(last["sources/code/epoch"], 1)

    def test_each_source_of_a_validation_has_a_loss(self):
        self.write(validation='[validation]\nenable = true\nseq_len = 32\nsequences = 6\nlocal_batch_size = 2\n'
                              f'[[validation.sources]]\npath = "{self.folder}/wiki.jsonl"\n'
                              f'[[validation.sources]]\npath = "{self.folder}/web"\n')
        job = self.run_job(*JOB[:-1], "--training.steps=1", code=0)
        self.assertRegex(job.text(), r"validate step:  1  loss: .*  web: +\d+\.\d{4}  wiki: +\d+\.\d{4}")
        (line,) = [line for line in self.metrics() if "validation_metrics/loss" in line]
        mean = (line["validation_metrics/loss/web"] + line["validation_metrics/loss/wiki"]) / 2  # 6 full sequences each
        self.assertAlmostEqual(line["validation_metrics/loss"], mean, delta=1e-6)

    def test_check_prints_the_table_of_sources(self):
        self.write(more="max_epochs = 1")
        done = warm_start.run([BINARY, "check", self.folder / "job.toml", "--training.steps=4000", "--ranks=2"], cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"source code +.*code.jsonl: 1 file, .*, about 9 documents, about \d+ tokens \(from a sample\); "
                                      r"weight 2, 20 % of the sequences: about 1.00 epochs in 4,000 steps; its 1 epoch end at about step \d+")
        self.assertRegex(done.stdout, r"source web +.*: 2 files, .* about 40 documents")


if __name__ == "__main__":
    main()
