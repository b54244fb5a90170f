"""`hyperion report` on what a real training wrote, and on metrics that want to be markup, script or endless.

    python3 tests/faults/report_test.py build/hyperion

Standard library only. The plots' arithmetic is tested in tests/unit/app/report.
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import unittest.mock
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import browser
import warm_start
from checkpoints import CheckpointTest
from jobs import BINARY, PATIENCE, main

ATTACK = "</script><script>alert('x')</script><img src=http://evil.example/ onerror=alert(1)>"


class Page(HTMLParser):
    """A page as a browser would see it: its plots, their titles, scripts, and every attribute that could load something."""

    def __init__(self, text):
        super().__init__()
        self.plots, self.titles, self.scripts, self.loads, self.lines, self.open, self.text = 0, [], [], [], 0, [], ""
        self.policy = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.open.append(tag)
        self.plots += tag == "svg" and "plot" in attributes.get("class", "").split()
        self.lines += tag == "path" and attributes.get("class") == "mean" and bool(attributes.get("d"))
        if tag == "script":
            self.scripts.append((attributes.get("type"), ""))
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        self.loads += [(tag, name) for name in attributes
                       if name in ("src", "href", "xlink:href", "srcset", "data", "action") or name.startswith("on")]
        self.loads += [(tag, "element") for _ in [0] if tag in ("link", "img", "iframe", "object", "embed", "base", "form")]

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self.open[-1:] == ["figcaption"] and data.strip():
            self.titles.append(data.strip())
        elif self.open[-1:] != ["style"]:
            self.text += data


class Report(CheckpointTest):
    def report(self, *arguments, code=0, says=()):
        done = warm_start.run([BINARY, "report", *map(str, arguments)], stderr=subprocess.STDOUT, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout)
        for text in says:
            self.assertIn(text, done.stdout)
        return done.stdout

    def page(self, path="report.html"):
        text = (self.folder / path).read_text()
        page = Page(text)
        self.assertEqual(page.loads, [])
        self.assertNotIn("url(", text)
        self.assertEqual([kind for kind, _ in page.scripts], ["application/json", None])
        data = json.loads(page.scripts[0][1])
        digest = base64.b64encode(hashlib.sha256(page.scripts[1][1].encode()).digest()).decode()
        self.assertIn(f"script-src 'sha256-{digest}'", page.policy)
        self.assertIn("default-src 'none'", page.policy)
        return page, data

    def folder_with(self, name, *lines):
        (self.folder / name).mkdir()
        (self.folder / name / "metrics.jsonl").write_text("".join(lines))
        return name

    @staticmethod
    def losses(losses, first=1, **more):
        return "".join(json.dumps({"step": step, "time": step, "loss_metrics/global_avg_loss": loss, **more}) + "\n"
                       for step, loss in enumerate(losses, first))

    def with_settings(self, name, settings):
        (self.folder / name / "runs" / "start").mkdir(parents=True)
        (self.folder / name / "runs" / "start" / "config.toml").write_text(settings)
        (self.folder / name / "runs" / "start" / "run.txt").write_text("host: a\n")

    def watch(self, *arguments):
        out = tempfile.TemporaryFile()
        process = warm_start.start([BINARY, "report", *arguments, "--watch=0.5"], os.environ, self.folder, out, out)
        self.addCleanup(out.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, out

    def said(self, process, out, code):
        self.assertEqual(process.wait(PATIENCE), code)
        out.seek(0)
        return out.read().decode()

    def wait_for_page(self, process, holds):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.assertIsNone(process.poll(), "it ended")
            if (self.folder / "report.html").exists() and holds(data := self.page()[1]):
                return data
            time.sleep(0.05)
        self.fail("the page did not follow")

    def append(self, name, text):
        with open(self.folder / name / "metrics.jsonl", "a") as file:
            file.write(text)

    def test_a_watched_page_follows_the_runs_until_they_are_over_and_says_so(self):
        self.folder_with("a", self.losses([5, 4]))
        process, out = self.watch("a", "later", "--name=later=second")
        data = self.wait_for_page(process, lambda data: True)
        self.assertEqual((data["refresh"], [line["mean"] for line in data["lines"] if len(line["mean"]) == 2][0]), (0.5, [5, 4]))
        self.folder_with("later", self.losses([9]))
        self.append("a", self.losses([3], first=3))
        self.wait_for_page(process, lambda data: [5, 4, 3] in [line["mean"] for line in data["lines"]])
        # stopped with its state saved: it may go on
        self.append("a", json.dumps({"step": 3, "time": time.time(), "event": "end", "reason": "stopped", "exit_code": 75}) + "\n")
        self.append("later", json.dumps({"step": 1, "time": 1, "event": "end", "reason": "completed", "exit_code": 0}) + "\n")
        self.wait_for_page(process, lambda _: "ended: stopped" in self.page()[0].text)
        self.append("a", json.dumps({"step": 3, "time": time.time(), "event": "start"}) + "\n" + self.losses([2], first=4))
        self.wait_for_page(process, lambda data: [5, 4, 3, 2] in [line["mean"] for line in data["lines"]])
        self.append("a", json.dumps({"step": 4, "time": time.time(), "event": "end", "reason": "completed", "exit_code": 0}) + "\n")
        said = self.said(process, out, 0)
        for text in ("a: 2 lines, newest step 2", "second: no metrics yet", "report.html: refreshed every 0.5 s",
                     "all runs have ended: report.html is complete"):
            self.assertIn(text, said)
        page, data = self.page()
        self.assertEqual(data["refresh"], 0)
        self.assertIn("second", page.text)
        self.assertEqual(list(self.folder.glob("*.tmp*")), [])

    def test_a_signal_ends_a_watched_page_with_all_that_was_written(self):
        self.folder_with("a", self.losses([5, 4]))
        for number in (signal.SIGINT, signal.SIGTERM):
            process, out = self.watch("a")
            self.wait_for_page(process, lambda data: data["refresh"] == 0.5)
            process.send_signal(number)
            self.assertIn("report.html is no longer refreshed", self.said(process, out, -number))
            self.assertEqual(self.page()[1]["refresh"], 0)

    def test_a_watch_of_runs_that_are_over_writes_the_page_once(self):
        self.folder_with("a", self.losses([5]), json.dumps({"step": 1, "time": 9, "event": "end", "reason": "stopped", "exit_code": 75}) + "\n")
        self.report("a", "--watch", says=["all runs have ended"])
        self.assertEqual(self.page()[1]["refresh"], 0)

    def test_runs_are_named_and_compared_with_a_baseline_and_what_cannot_be_is_refused(self):
        self.folder_with("a=b", self.losses([5, 4, 3]))
        self.folder_with("a", self.losses([6, 6]))
        said = self.report("a=b", "a/", "--name=a=b=first = best", "--name", "a=x", "--baseline", "x")
        self.assertIn("first = best: 3 lines, newest step 3, loss -2 against x at step 2\nx: 2 lines, newest step 2\n", said)
        page, data = self.page()
        self.assertEqual((data["baseline"], data["ratio"]), (1, False))
        for text in ("first = best", "a=b", "x"):
            self.assertIn(text, page.text)
        self.assertIn("loss 0.6667 times that of", self.report("a=b", "a", "--baseline=a", "--ratio"))
        self.assertEqual(self.page()[1]["ratio"], True)
        for arguments, says in ((["a", "--baseline=a"], "at least two DIRs"), (["a", "a=b", "--baseline=c"], "--baseline c: no run has that name: a, a=b"),
                                (["a", "a=b", "--ratio"], "--ratio needs --baseline"), (["a", "--name=b=c"], "--name b=c: expected DIR=NAME"),
                                (["a", "--name=a="], "NAME is empty"), (["a", "a=b", "--name=a=a=b"], "two runs are called a=b"),
                                (["a", "--watch=0"], "at least 0.5"), (["a", "--watch=nan"], "at least 0.5"), (["a", "--watch", "5"], "--watch=5")):
            self.report(*arguments, code=2, says=[says])
        (self.folder / "a" / "checkpoint").mkdir()
        process, out = self.watch("a/checkpoint")
        self.wait_for_page(process, lambda data: data["refresh"] == 0.5 and data["lines"] == [])
        process.send_signal(signal.SIGTERM)
        self.assertIn("a/checkpoint: holds no metrics.jsonl yet; did you mean a?", self.said(process, out, -signal.SIGTERM))
        self.report(self.folder_with("junk", "x\n"), "--watch", code=65, says=["no row of metrics"])

    def test_settings_that_differ_come_first_and_equal_ones_last(self):
        for name, rate in (("a", 1), ("b", 2)):
            self.folder_with(name, self.losses([5]))
            self.with_settings(name, f'[job]\ndump_folder = "{name}"\n[optimizer]\nlr = {rate}\n[training]\nsteps = 7\n')
        self.report("a", "b")
        text = (self.folder / "report.html").read_text()
        places = [text.index(part) for part in ("2 keys with different values", "optimizer.lr</code>", "job.dump_folder</code>", "newest line",
                                                "<svg ", "Same in all runs", "training.steps</code>")]
        self.assertEqual(places, sorted(places))

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_a_page_that_is_refreshed_keeps_what_the_reader_chose(self):
        self.folder_with("a", self.losses([step % 7 + 1 for step in range(100)], made=1))
        self.folder_with("b", self.losses([step % 5 + 1 for step in range(90)]))
        process, _ = self.watch("a", "b")
        self.wait_for_page(process, lambda data: True)
        chosen = ("JSON.stringify([ranges[0], names, baseline, ratio, smoothing, axis, document.querySelector('.tools input').value, scrollY,"
                  "document.querySelector('details').open, all('.bar .run').map(button => button.ariaPressed), data.lines[0].mean.length,"
                  "document.querySelector('svg.plot').classList.contains('log'), all('svg.plot')[1].classList.contains('log')])")
        with browser.Browser(self.folder / "report.html", width=1400) as page:
            page.value("control('refresh').click()")  # not while the test chooses
            page.value("zoom(0, 20, 60)")
            page.value("document.querySelectorAll('.rename')[1].click(); document.querySelector('.renaming').value = '<b>'")
            page.value("document.querySelector('.renaming').blur()")
            page.value("control('smoothing').value = 0.5, control('smoothing').dispatchEvent(new Event('input'))")
            page.value("all('.log')[0].click(), document.querySelector('figcaption button[aria-expanded]').click()")
            page.value("all('.tools input')[0].value = 2, all('.tools input')[0].dispatchEvent(new Event('change'))")
            page.value("document.querySelector('details').open = true, all('.bar .run')[0].click(), scrollTo(0, 60)")
            before = json.loads(page.value(chosen))
            self.assertEqual(before, [[20, 60], ["a", "<b>"], None, False, 0.5, 0, "2", 60, True, ["false", "true"], 100, True, False])
            page.value("control('refresh').click()")
            self.append("a", self.losses([3], first=101))
            end = time.monotonic() + PATIENCE
            while not page.value("typeof data == 'object' && data.lines[0].mean.length == 101") and time.monotonic() < end:
                time.sleep(0.05)
            before[10] = 101
            self.assertEqual(json.loads(page.value(chosen)), before)
            self.assertEqual(page.value("document.querySelector('svg.plot .y').firstElementChild.nextElementSibling.textContent"), "2")
            page.value("compare(1, true), control('refresh').click()")
            self.assertEqual(page.value("document.querySelector('figcaption small').textContent"), "ratio to <b>")
            self.assertEqual(page.problems, [])

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_runs_are_compared_and_a_plot_is_saved_as_csv_svg_and_png(self):
        self.folder_with("=a", self.losses([5, 4, 3, 2]))
        self.folder_with("b", self.losses([6, 6, 6]))
        self.report("=a", "b", "--baseline=b")
        folder = self.folder / "saved"
        folder.mkdir()
        with browser.Browser(self.folder / "report.html", width=1400) as page:
            page.save_to(folder)
            self.assertEqual(page.value("all('.delta').map(note => note.textContent).join()"), "\u0394\u00a0\u22123 at step 3,baseline")
            self.assertEqual(page.value("JSON.stringify(shownLines(plots[0]).map(line => line.mean))"), "[[-1,-2,-3,null],[0,0,0]]")
            page.value("compare(1, true)")
            self.assertEqual(page.value("JSON.stringify(shownLines(plots[0])[0].mean)"), json.dumps([5 / 6, 4 / 6, 0.5, None]).replace(" ", ""))
            page.value("compare(1, false), zoom(0, 2, 4)")
            for name in ("CSV", "SVG", "PNG"):
                page.value(f"all('.tools')[0].querySelectorAll('button').forEach(button => button.textContent === '{name}' && button.click())")
            files = [folder / f"Loss.{kind}" for kind in ("csv", "svg", "png")]
            end = time.monotonic() + PATIENCE
            while not all(file.exists() for file in files) and time.monotonic() < end:
                time.sleep(0.05)
            rows = files[0].read_text().splitlines()
            self.assertEqual(rows[0], '"run","repeated after a restart","step","tokens seen","seconds since the run\'s first line","Loss","smallest","largest",'
                                      '"difference to b"')
            self.assertEqual(rows[1:], ['"\'=a",0,2,,1,4,4,4,-2', '"\'=a",0,3,,2,3,3,3,-3', '"\'=a",0,4,,3,2,2,2,', '"b",0,2,,1,6,6,6,0', '"b",0,3,,2,6,6,6,0'])
            drawing = ElementTree.fromstring(files[1].read_text())
            texts = [node.text for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
            self.assertTrue({"Loss  difference to b", "=a", "b (baseline)", "step"} <= set(texts), texts)
            self.assertTrue(all(node.get("class") is None for node in drawing.iter()))
            picture = files[2].read_bytes()
            self.assertEqual((picture[:8], int.from_bytes(picture[16:20])), (b"\x89PNG\r\n\x1a\n", 1280))
            self.assertEqual(page.problems, [])

    def test_a_training_with_a_resume_becomes_a_page_of_plots_that_loads_nothing(self):
        validation = ["--validation.enable", "--validation.dataset=jsonl", "--validation.steps=1", "--validation.freq=4",
                      f"--validation.dataset_path={self.folder}/data.jsonl", "--validation.seq_len=32",
                      f"--job.description={ATTACK}"]
        curve = ["--lr_scheduler.total_steps=8"]
        self.run_job(*validation, *curve, "--training.steps=5", "--checkpoint.last_save_model_only", code=0)
        # from step 3: 4 and 5 are made again, and clipped
        self.run_job(*validation, *curve, "--training.steps=8", "--training.max_norm=1e-3",
                     "--checkpoint.on_config_change=override", code=0)
        self.assertGreater([line["step"] for line in self.metrics()].count(5), 1)
        self.run_job("--job.dump_folder=" + str(self.folder / "other"), "--optimizer.lr=0.002", code=0)

        self.report("out", "other", "-o", "report.html", says=["out: ", "newest step 8", "other: ", "report.html"])
        page, data = self.page()
        for title in ("Loss", "Validation loss", "Gradient norm", "Learning rate", "Throughput", "Model FLOPs utilisation",
                      "Step time", "Waiting for data", "Peak memory", "Progress"):
            self.assertIn(title, page.titles)
        self.assertEqual(page.plots, len([title for title in page.titles if title not in ("log", "linear")]))
        self.assertGreaterEqual(page.plots, 10)
        self.assertEqual(len(data["lines"]), page.lines)
        self.assertIn(ATTACK, page.text)  # job.description, as text
        self.assertIn("optimizer.lr", page.text)  # the runs differ in it
        loss = [line for line in data["lines"] if len(line["mean"]) == 8]
        self.assertTrue(loss, "no line has the eight steps")
        newest = {line["step"]: line["loss_metrics/global_avg_loss"] for line in self.metrics()
                  if "loss_metrics/global_avg_loss" in line}
        for step in range(8):
            self.assertTrue(any(abs(line["mean"][step] - newest[step + 1]) < 1e-5 for line in loss))
        starts = {path.name: tomllib.loads((path / "config.toml").read_text()) for path in (self.folder / "out" / "runs").iterdir()}
        norms = {line["step"]: (line["grad_norm"], starts[line["run_id"]]["training"]["max_norm"]) for line in self.metrics()
                 if "grad_norm" in line}
        clipped = [step - 1 for step, (norm, max_norm) in sorted(norms.items()) if norm > max_norm]
        self.assertTrue(set(range(3, 8)) <= set(clipped))
        self.assertIn(f"{100 * len(clipped) / 8:.3g}\u00a0% of steps clipped", page.text)
        self.assertIn("dashed: training.max_norm 1, 0.001", page.text)
        self.assertIn(clipped, [line["marked"] for line in data["lines"]])

    def test_the_page_says_in_words_how_a_run_ended_and_holds_its_record(self):
        git = ["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=b", "-c", "commit.gpgsign=false"]
        outside_hooks = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        states = ["unknown to git"]  # where it takes too long, too
        if shutil.which("git"):
            for command in (["init", "-q"], ["add", "job.toml"], ["commit", "-qm", "run"]):
                subprocess.run([*git, *command], check=True, env=outside_hooks)
            commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True, env=outside_hooks)
            states.append("as in git commit " + commit.strip())
        self.run_job("--training.steps=1", code=0)
        self.report("out")
        page, _ = self.page()
        record, = (self.folder / "out" / "runs").iterdir()
        self.assertIn("ended: completed, exit code 0", page.text)
        self.assertIn((record / "run.txt").read_text() + "\n" + (record / "config.toml").read_text(), page.text)
        self.assertIn("devices: 1 x CPU", page.text)
        self.assertTrue(any(f"/job.toml, {state}\n" in page.text for state in states), page.text)

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_the_table_fits_and_dragging_over_a_plot_zooms_all_of_them(self):
        tags = {"grad_norm": 0.5, "lr": 3e-4, "throughput(tps)": 6150.25, "mfu(%)": 36.1, "time_metrics/end_to_end(s)": 3.3251,
                "time_metrics/data_loading(%)": 0.31, "memory/max_reserved(GiB)": 70.25, "memory/max_reserved(%)": 88.71}
        self.folder_with("run", *(json.dumps({"step": step, "time": step, "loss_metrics/global_avg_loss": 5 - step / 100,
                                              "n_tokens_seen": step * 10**9, **tags}) + "\n" for step in range(1, 201)),
                         json.dumps({"step": 200, "time": 201, "validation_metrics/loss": 3.1234}) + "\n")
        self.report("run")
        with browser.Browser(self.folder / "report.html", width=1400) as page:
            for width in (1400, 2560):
                page.resize(width)
                self.assertEqual(page.value("document.querySelector('.scroll').scrollWidth - document.querySelector('.scroll').clientWidth"), 0)
            labels = "[...document.querySelectorAll('svg.plot')].map(svg => svg.querySelector('.x text').textContent).join()"
            steps = "document.getElementById('from').value + '-' + document.getElementById('to').value"
            whole = page.value(labels)
            self.assertEqual(page.value(steps), "0-200")
            page.value("document.querySelector('svg.plot').scrollIntoView({block: 'center'})")
            x, y, width = page.value("{const at = document.querySelector('svg.plot').getBoundingClientRect();"
                                     "[at.x, at.y + at.height / 2, at.width]}")
            left, right = (x + width * edge / 640 for edge in (62, 626))
            page.drag(left + (right - left) / 4, left + (right - left) / 2, y)
            self.assertEqual(page.value(steps), "50-100")
            self.assertFalse(set(page.value(labels).split(",")) & set(whole.split(",")), "a plot did not follow")
            self.assertEqual(page.value("document.querySelector('svg.plot .y').lastChild.textContent"), "4.4")
            page.double_click(left + 50, y)
            self.assertEqual((page.value(steps), page.value(labels)), ("0-200", whole))
            self.assertEqual(page.problems, [])

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_a_part_without_steps_is_not_shown_and_the_fields_say_what_is(self):
        self.folder_with("run", *(json.dumps({"step": step, "time": step, "loss_metrics/global_avg_loss": 5}) + "\n"
                                  for step in (1, 2, 40, 80, 100)))
        self.report("run")
        with browser.Browser(self.folder / "report.html", width=1400) as page:
            labels = "[...document.querySelectorAll('svg.plot')].map(svg => svg.querySelector('.x').textContent).join()"
            fields = "const fields = [document.getElementById('from'), document.getElementById('to')];"
            whole = page.value(labels)
            for start, end in ((70, 30), (50, 70), (30, 50)):  # no part, one without a step, one with a single step
                self.assertEqual(page.value(f"{{{fields} [fields[0].value, fields[1].value] = [{start}, {end}];"
                                            "fields[1].dispatchEvent(new Event('change')); fields.map(field => field.value)}"), ["0", "100"])
                self.assertEqual(page.value(labels), whole)
            self.assertEqual(page.problems, [])

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_the_y_axes_are_for_the_steps_that_are_shown(self):
        rows = [(step, 1000) for step in (1, 2, 3, 4)] + [(step, 5) for step in (2, 3, 4)]
        rows[0] = (1, 5)
        self.folder_with("run", *(json.dumps({"step": step, "time": 9, "loss_metrics/global_avg_loss": loss}) + "\n" for step, loss in rows))
        self.report("run")
        with browser.Browser(self.folder / "report.html", width=1400) as page:
            axis = "document.querySelector('svg.plot .y').textContent"
            page.value("redraw()")
            everything = page.value(axis)
            page.value("document.getElementById('superseded').click()")
            self.assertNotEqual(page.value(axis), everything)
            page.value("document.getElementById('superseded').click()")
            self.assertEqual(page.value(axis), everything)
            self.assertEqual(page.problems, [])

    @unittest.skipUnless(browser.PROGRAM, "no Chromium on the PATH")
    def test_in_a_browser_plots_of_the_smallest_and_largest_numbers_are_drawn_on_both_scales(self):
        for low, high in ((1, 1.7e308), (1e-160, 1e160), (5e-324, 1)):
            with self.subTest(low=low, high=high):
                name = self.folder_with(str(low), *(json.dumps({"step": step, "time": step, "loss_metrics/global_avg_loss": loss}) + "\n"
                                                    for step, loss in ((1, low), (2, high), (3, low))))
                self.report(name)
                with browser.Browser(self.folder / "report.html", width=1400) as page:
                    for _ in range(2):
                        page.value("document.querySelector('figcaption button').click()")
                        self.assertGreater(page.value("document.querySelectorAll('svg.plot .y text').length"), 1)
                        self.assertNotRegex(page.value("document.querySelector('svg.plot').outerHTML"), "NaN|Infinity")
                    self.assertEqual(page.problems, [])

    def test_a_browser_that_does_not_start_is_passed_over_and_one_that_ends_leaves_nothing(self):
        stub = self.folder / "chromium"
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
        found = subprocess.run([sys.executable, "-c", "import browser; print(browser.PROGRAM)"], cwd=Path(__file__).parent,
                               capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PATH": str(self.folder)})
        self.assertEqual(found.stdout, "None\n", found.stderr)
        before = sorted(self.folder.iterdir())
        with unittest.mock.patch.object(browser, "PROGRAM", str(stub)), unittest.mock.patch.object(tempfile, "tempdir", str(self.folder)):
            self.assertRaises((AssertionError, OSError), browser.Browser, "/none.html", width=1400)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_hostile_metrics_stay_text_and_lines_that_are_no_rows_are_counted(self):
        good = {"step": 1, "time": 1.5, "loss_metrics/global_avg_loss": 2.5, ATTACK: 3, "run_id": ATTACK}
        event = {"step": 1, "time": 2, "event": ATTACK, ATTACK: ATTACK}
        name = "<b onclick=alert(1)>"
        self.folder_with(name, json.dumps(good) + "\n", json.dumps(event) + "\n", "[" * 100000 + "\n", "not json\n",
                         "\0\xff\n", '{"step": 2, "time": 3, "loss_metrics/glob')
        runs = self.folder / name / "runs" / ATTACK.replace("/", "_")
        runs.mkdir(parents=True)
        (runs / "config.toml").write_text(f"[job]\ndescription = {json.dumps(ATTACK)}\n{ATTACK} = 1\n")
        (runs / "run.txt").write_text(f"command: {ATTACK}\nhost: {ATTACK}\n")
        self.report(name, says=["6 lines", "4 that could not be read"])
        page, _ = self.page()
        self.assertIn(ATTACK, page.text)
        self.assertIn(name, page.text)
        self.assertIn("4 of 6 lines", page.text)
        self.assertIn("torn", page.text)

    def test_metrics_of_versions_without_run_ids_and_events_are_read(self):
        rows = [{"step": step, "time": step, "loss_metrics/global_avg_loss": 9 - step} for step in (1, 2, 3, 2, 3, 4)]
        self.folder_with("old", *(json.dumps(row) + "\n" for row in rows))
        self.report("old")
        page, data = self.page()
        self.assertEqual(page.titles[0], "Loss")
        self.assertIn([8, 7, 6, 5], [line["mean"] for line in data["lines"]])

    def test_memory_and_page_do_not_grow_with_the_file(self):
        """100,000 lines, 90 MB, beside 2,000."""
        names = [f"time_metrics/made up {i}" for i in range(20)]
        peaks = []
        for name, steps in (("short", 2000), ("long", 100000)):
            tail = "".join(f', "{tag}": 1.23456789012' for tag in names) + "}\n"
            self.folder_with(name)
            with open(self.folder / name / "metrics.jsonl", "w") as file:  # by line: a child's peak has its parent's memory in it
                file.writelines(f'{{"step": {step}, "time": {step}.5, "loss_metrics/global_avg_loss": {step % 7}.25{tail}'
                                for step in range(1, steps + 1))
            process = subprocess.Popen([BINARY, "report", name, "-o", f"{name}.html"], cwd=self.folder, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            peaks.append(usage.ru_maxrss)
            self.assertLess((self.folder / f"{name}.html").stat().st_size, 4_000_000)
        self.assertLess(peaks[1] - peaks[0], 20_000, f"KiB: {peaks}")

    def test_what_cannot_be_reported_is_refused_by_its_documented_code(self):
        (self.folder / "empty").mkdir()
        good = self.folder_with("good", '{"step": 1, "time": 1, "loss_metrics/global_avg_loss": 1}\n')
        self.report(code=2)
        self.report("nowhere", code=2, says=["nowhere", "metrics.jsonl"])
        self.report(good, "empty", code=2, says=["empty: holds no metrics.jsonl"])
        self.report(self.folder_with("blank", "\n"), code=2, says=["holds no line yet"])
        self.report(*[self.folder_with(f"run{i}") for i in range(15)], code=2, says=["at most 14"])
        self.report(good, "--training.steps=3", code=2)
        self.report(self.folder_with("junk", "x\n"), code=65, says=["holds 1 line and no row"])
        (self.folder / "folder" / "metrics.jsonl").mkdir(parents=True)
        self.report("folder", code=65, says=["not a regular file"])
        (self.folder / "pipe").mkdir()
        os.mkfifo(self.folder / "pipe" / "metrics.jsonl")
        self.report("pipe", code=65, says=["not a regular file"])
        said = self.report(good, "-o", "no/such/folder/x.html", code=74, says=["no/such/folder/x.html: "])
        self.assertNotIn(".tmp", said)
        self.assertEqual(list(Path(self.folder).glob("*.html")), [])

    def test_a_folder_that_is_named_twice_is_shown_once_with_a_notice(self):
        good = self.folder_with("good", '{"step": 1, "time": 1, "loss_metrics/global_avg_loss": 1}\n')
        (self.folder / "link").symlink_to("good")
        for other in (good, "good/", "./good", "link", self.folder / "good"):
            said = self.report(good, other, says=[f"good and {other} are the same folder: it is shown once"])
            self.assertEqual(said.count("good: 1 line,"), 1, said)

    def test_a_folder_without_metrics_names_the_nearest_one_that_has_some(self):
        for name in ("out", "all", "all/a", "all/deep", "all/deep/b"):
            self.folder_with(name) if name not in ("all", "all/deep") else (self.folder / name).mkdir()
        (self.folder / "out" / "checkpoint" / "step-5").mkdir(parents=True)
        for folder in ("out/checkpoint", "out/checkpoint/", "out/checkpoint/step-5", "out/no/such"):
            self.report(folder, code=2, says=[f"{folder}: holds no metrics.jsonl", "did you mean out?"])
        self.report("all", code=2, says=["did you mean all/a or all/deep/b?"])
        self.assertNotIn("did you mean", self.report("nowhere", code=2))


if __name__ == "__main__":
    main()
