"""Passes on what ctest prints, and says before the names of the tests that failed why they did: many look at the end of a log alone.

    ctest --test-dir build --output-on-failure | python3 tests/explain_failures.py build

Of each test that failed: the lines that name a failed check, and the last ones. Whole: build/Testing/Temporary/LastTest.log. Standard
library only.
"""

import re
import signal
import sys
from pathlib import Path

HEADING = "The following tests FAILED:"  # ctest's
TESTS, LINES, COLUMNS = 5, 14, 150  # at most, of all failed tests, of one, and of a line
# Catch2's and unittest's headings of a failure, an exception, and a test that had to be ended.
TELLING = re.compile(r"FAILED:$|^(FAIL|ERROR): |^[\w.]*(Error|Exception|Failed)\b|due to (a fatal error|unexpected exception)|Timeout")
FRAME = re.compile(r"^<end of output>$|^Test Failed\.$|^\".*\" (end time|time elapsed): |^End testing: ")  # ctest's
NEXT = 3  # lines after a telling one: the check and its values


def outputs(log: str) -> dict[str, str]:
    """The output of each test of a LastTest.log."""
    parts = re.split(r"^\d+/\d+ Testing: (.*)$", log, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def telling_lines(output: str) -> list[str]:
    lines = [line.rstrip() for line in output.partition("\nOutput:\n")[2].splitlines()]
    lines = [line for line in lines if line.strip(" -=~.\t") and not FRAME.search(line)]
    wanted = [i for i, line in enumerate(lines) if TELLING.search(line)]
    chosen = sorted({i for at in wanted for i in range(at, min(at + NEXT + 1, len(lines)))})[: LINES - 4]
    chosen += [i for i in range(max(0, len(lines) - 4), len(lines)) if i not in chosen]
    return [lines[i][:COLUMNS] for i in chosen]


def explain(build: Path, summary: list[str]) -> None:
    names = [found[1] for line in summary if (found := re.match(r"\s*\d+ - (.*) \(", line))]
    try:
        found = outputs((build / "Testing" / "Temporary" / "LastTest.log").read_text(errors="replace"))
    except OSError as error:
        print(f"Why is not known: {error}")
        return
    for name in names[:TESTS]:
        print(f"{name}:")
        for line in telling_lines(found.get(name, "")):
            print(f"  {line}")
    if len(names) > TESTS:
        print(f"and {len(names) - TESTS} more")
    print()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctest gets it too, and ends
    held = []
    for line in sys.stdin:
        if held or line.startswith(HEADING):
            held.append(line)
        else:
            sys.stdout.write(line)
            sys.stdout.flush()
    if held:
        explain(Path(sys.argv[1]), held)
    sys.stdout.writelines(held)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
