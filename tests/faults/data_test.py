"""`hyperion data`: what a job reads is what it says.

    python3 tests/faults/data_test.py build/hyperion
"""

import json
import re

import warm_start
from jobs import BINARY, JobTest, main


class Data(JobTest):
    def data(self, *options, code=0):
        done = warm_start.run([BINARY, "data", self.folder / "job.toml", *options], cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def texts(self, output):
        """{(file, line): the text shown of it}, without documents that began in an earlier sequence"""
        shown = {}
        for place, text in re.findall(r"^- (\S+), [\d,]+ tokens?\n((?:  .*\n)*)", output, re.M):
            file, line = place.rsplit(":", 1)
            shown[file, int(line)] = re.sub(r"<\|.*?\|>", "", "\n".join(row[2:] for row in text.splitlines()))
        return shown

    def test_each_document_is_the_one_at_its_place(self):
        folder = self.folder / "corpus"
        folder.mkdir()
        for name in ("a", "b", "c"):
            lines = [json.dumps({"text": f"{name}{i} begins\n\tand goes on \x1b[31m for {i * 7919} words"}) for i in range(40)]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        options = (f"--training.dataset_path={folder}", "--training.seq_len=64", "--debug.seed=3")
        output = self.data(*options, "--sequences=4")
        self.assertEqual(re.findall(r"^sequence (\d+)", output, re.M), ["0", "1", "2", "3"])
        self.assertNotIn("\x1b", output)  # a document does not steer the terminal
        shown = self.texts(output)
        self.assertGreater(len({file for file, _ in shown}), 1)
        for (file, line), text in shown.items():
            name = file.removesuffix(".jsonl")[-1]
            self.assertIn(text[:9], f"{name}{line - 1} begins\n", (file, line))
        self.assertIn("corpus: 3 files, ", output)
        one = self.data(*options, "--sequence=2")
        self.assertIn(one[one.index("sequence 2"):].rstrip(), output)
        job = self.run_job(*options, "--training.steps=1", code=0)
        self.assertIn("Training starts", job.text())

    def test_a_long_document_is_shortened_unless_all_of_it_is_asked_for(self):
        (self.folder / "data.jsonl").write_text(json.dumps({"text": "ä word " * 5000}) + "\n")
        self.assertRegex(self.data("--training.seq_len=4096", "--sequences=1"), r"\[\.\.\. [\d,]+ bytes \.\.\.\]")
        self.assertNotIn("[...", self.data("--training.seq_len=4096", "--sequences=1", "--full"))

    def test_data_that_cannot_be_read_end_as_the_job_does(self):
        (self.folder / "data.jsonl").write_text('{"body": "a"}\n')
        text = self.data(code=65)
        self.assertIn('data.jsonl:1: has no field "text"', text)
        self.assertIn("--sequence", self.data("--sequence=-1", code=2))


if __name__ == "__main__":
    main()
