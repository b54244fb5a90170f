"""Prints docs/reliability.md, which is made of tests/faults/matrix.toml; with --check it says instead what is not current: the page, or a
test that is named and does not exist.

    python3 tests/docs/reliability.py SOURCE_FOLDER [--check]

Standard library only.
"""

import re
import sys
import tomllib
from pathlib import Path

from acceptance_test import test_names

INVARIANTS = {
    "I1": "each folder that is named step-N verifies: index, manifest, sizes, checksums",
    "I2": "the newest checkpoint before the fault can still be loaded",
    "I3": "the same command, started again, ends with the losses and the last checkpoint of the undisturbed run, bit for bit on the same mesh",
    "I4": "nothing unfinished is left after the next save",
    "I5": "every rank ends by itself, with a documented code",
    "I6": "a message names the rank, and what it did, or the file and what is wrong with it",
    "I7": "no process, port, shared memory or lock is left",
}
TEXT = """\
# Reliability

This page lists the guarantees under each fault and the test that shows each; where none does it says so. [Faults](faults.md) says in words what happens, [acceptance](notes/acceptance.md) names the tests of every
requirement, [failpoints](notes/failpoints.md) how faults are injected, [runs](notes/reliability_runs.md) the last long ones. `python3 tests/docs/reliability.py . > docs/reliability.md` makes this page of
`tests/faults/matrix.toml`, where the case of each test is named.

Invariants after a fault:

{invariants}

A test runs by its name: `ctest --test-dir build -R '^faults.kills$'`. `faults.matrix` runs most faults on one mesh each and a part of the rest, `faults.matrix_whole`
(slow) every fault on every mesh. A number is that of the cases, where there are several. "Peer" is what torchtitan or PyTorch's distributed
checkpoint (DCP) was measured or read to do ([its faults](notes/faults_of_dcp.md)); torchtitan itself was not put through the matrix.

| cell | fault | holds | meshes | shown by | peer |
|---|---|---|---|---|---|
{rows}
"""


def ctests(root: Path) -> dict[str, list[tuple[str, bool]]]:
    """File below tests/ -> the ctests that run it, and whether they are slow."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for cmake in sorted((root / "tests").rglob("CMakeLists.txt")):
        text, folder = cmake.read_text(), cmake.parent.relative_to(root / "tests")
        for name, labels, words in re.findall(r'hyperion_fault_test\((\S+) \d+ (\S+) ([^)]*?)\$<', text):
            found.setdefault(str(folder / Path(words.strip()).name), []).append((f"faults.{name}", "slow" in labels))
        for name, words in re.findall(r"hyperion_tests\((\w+)([^)]*)\)", text):
            for file in re.findall(r"[\w/]+\.cpp", words):
                found.setdefault(str(folder / file), []).append((name, False))
        text = text.replace("${soak}", "soak.py")
        slow = {name for name, labels in re.findall(r'set_tests_properties\((\S+) PROPERTIES LABELS "?([^" ]*)', text) if "slow" in labels}
        for name, words in re.findall(r"add_test\(NAME (\S+)\s+COMMAND ([^)]*)\)", text):
            for file in re.findall(r"[\w/]+\.(?:py|sh)", words):
                found.setdefault(str(folder / Path(file).name), []).append((name, name in slow))
    return found


def cases(file: Path) -> set[str]:
    """The tests in a file; of matrix_test.py the names of its tables."""
    if file.name == "matrix_test.py":
        return set(re.findall(r'^    "([^"\n]+)": ', file.read_text(), re.MULTILINE))
    return test_names(file)


def read(root: Path) -> tuple[list[dict], list[str]]:
    """The cells, with a `shown_by` each, and what is wrong with them."""
    table = tomllib.loads((root / "tests/faults/matrix.toml").read_text())
    found, problems = ctests(root), []
    named = set()
    for cell in table["cell"]:
        unknown = set(cell["holds"].split()) - set(INVARIANTS)
        problems += [f"{cell['id']}: there is no {name}" for name in unknown]
        if not cell.get("shown") and not cell.get("none"):
            problems.append(f"{cell['id']}: neither a test nor a reason")
        links = []
        for entry in cell.get("shown", []):
            name, _, words = entry.partition(": ")
            file = root / "tests" / name
            if not file.is_file() or name not in found:
                problems.append(f"{cell['id']}: no ctest runs tests/{name}")
                continue
            wanted = [word.strip() for word in words.split("; ") if word.strip()]
            problems += [f"{cell['id']}: tests/{name} has no case {word!r}" for word in wanted if word not in cases(file)]
            named |= {word for word in wanted if file.name == "matrix_test.py"}
            quick = [test for test, slow in found[name] if not slow]
            test, mark = (quick[0], "") if quick else (found[name][0][0], ", slow")
            count = f" ({len(wanted)})" if len(wanted) > 1 else ""
            links.append(f"[{test}](../tests/{name}){count}{mark}")
        cell["shown_by"] = "<br>".join(links) or cell.get("none", "")
    problems += [f"tests/faults/matrix_test.py: no cell names {word!r}" for word in sorted(cases(root / "tests/faults/matrix_test.py") - named)]
    return table, problems


def page(table: dict) -> str:
    rows = "\n".join(f"| {cell['id']} | {cell['fault']} | {cell['holds']} | {cell['meshes']} | {cell['shown_by']} | {cell.get('peer', '-')} |"
                     for cell in table["cell"])
    invariants = "\n".join(f"- **{name}** {text}" for name, text in INVARIANTS.items())
    return TEXT.format(rows=rows, invariants=invariants)


def main() -> int:
    root = Path(sys.argv[1]).resolve()
    table, problems = read(root)
    text = page(table)
    if "--check" not in sys.argv:
        print(text, end="")
    elif (root / "docs/reliability.md").read_text() != text:
        problems.append("docs/reliability.md is not current: python3 tests/docs/reliability.py . > docs/reliability.md")
    print("\n".join(problems) or "docs/reliability.md is current, and each test that it names exists", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
