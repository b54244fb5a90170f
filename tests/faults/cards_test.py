"""scripts/cards.json and scripts/cards.py: the constants of a card, and their replacement by what scripts/gpu_check.sh measured.

    python3 tests/faults/cards_test.py

Standard library only.
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import cards  # noqa: E402

CARDS = cards.read()


def names_of(card):
    """Of a card's constants, with those of the card that it is like."""
    entry = CARDS[card]
    return {*entry["constants"], *(names_of(entry["like"]) if "like" in entry else ())}


class CardsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def test_every_constant_of_a_card_is_a_range_with_its_source_and_the_peak_is_the_step_lines(self):
        for name, entry in CARDS.items():
            self.assertEqual(set(names_of(name)) - {"flops"}, {*cards.NAMES} - {"flops"})
            for constant in entry["constants"].values():
                self.assertLessEqual({"low", "high", "unit", "source", "date", "what"}, set(constant))
                self.assertRegex(constant["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual((ROOT / "scripts/cards.json").read_text(), cards.text_of(CARDS))
        peak = re.search(r'\{"h100", "", (\d+)e12\}', (ROOT / "trainer/metrics/flops.cpp").read_text())
        known = CARDS["h100-700w"]["constants"]["peak"]
        self.assertEqual((known["low"], known["high"]), (float(peak[1]),) * 2)

    def test_a_card_with_a_wrong_constant_is_refused_with_its_name(self):
        for key, value, expected in (("low", 800, "800 to 740 is no range"), ("source", "guessed", "source 'guessed'"), (None, "", "no such constant")):
            entry = json.loads((ROOT / "scripts/cards.json").read_text())
            constants = entry["h100-700w"]["constants"]
            if key:
                constants["bf16"][key] = value
            else:
                constants["bf15"] = constants["bf16"]
            (self.folder / "cards.json").write_text(json.dumps(entry))
            with self.assertRaisesRegex(SystemExit, f"h100-700w, bf1[56]: {expected}"):
                cards.read(self.folder / "cards.json")

    def test_reports_are_taken_for_the_one_card_that_all_of_them_name(self):
        file = self.folder / "cards.json"
        file.write_text((ROOT / "scripts/cards.json").read_text())
        h100, h200 = "NVIDIA H100 80GB HBM3, 580.0", "NVIDIA H200, 580.0"

        def update(*machines, options=()):
            paths = [self.folder / f"report{number}.json" for number in range(len(machines))]
            rows = [{"name": "copy on the device, bytes read and written", "gb_per_s": 3000.0}]
            for path, machine in zip(paths, machines):
                path.write_text(json.dumps({"small": False, "checks": [{"outcome": "passed", "figures": {"rows": rows}}],
                                            "machine": {"date": "2027-01-01", "clocks": ["1980 MHz, 700.00 W, 30"], **machine}}))
            return subprocess.run([sys.executable, ROOT / "scripts/cards.py", *paths, "--file", file, *options], capture_output=True, text=True)

        real = {"gpus": [h100], "simulated": False}
        for machines, said in (([real, {**real, "gpus": [h200]}], "several cards: h100-700w, h200"),
                               ([real, {**real, "clocks": []}], "report1.json: the report is of NVIDIA H100 80GB HBM3, of unknown power"),
                               ([real, {"gpus": [h100]}], "report1.json does not say whether its GPU is simulated"),
                               ([{**real, "gpus": ["NVIDIA B200, 580.0"]}], '"like": "h100-700w", "constants": {}')):
            done = update(*machines)
            self.assertEqual((done.returncode, file.read_text()), (2, (ROOT / "scripts/cards.json").read_text()), done.stderr)
            self.assertIn(said, done.stderr)
        self.assertEqual(update({**real, "clocks": []}, options=["--card", "h200"]).returncode, 0)
        self.assertEqual(update(real, real).returncode, 0)
        self.assertEqual([cards.read(file)[name]["constants"]["copy"]["source"] for name in ("h100-700w", "h200")], ["measured"] * 2)


if __name__ == "__main__":
    unittest.main()
