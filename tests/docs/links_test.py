"""Every relative link of README.md, CONTRIBUTING.md, docs/*.md and docs/notes/*.md leads to a file, and to a heading where it names one;
every page that the source names exists; no user page is longer than MOST_WORDS.

    python3 tests/docs/links_test.py SOURCE_FOLDER
"""

import re
import subprocess
import sys
from pathlib import Path

MOST_WORDS = 1500  # of a page that is read from beginning to end; notes may be longer
LONGER = {"configuration.md", "from_torchtitan.md", "architecture.md", "extending.md", "reliability.md"}  # reference, and for developers


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`|^ {4}[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it from a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def words(text: str) -> int:
    """The bars of tables and the marks of lists are none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def long_pages(root: Path):
    for page in sorted((root / "docs").glob("*.md")):
        count = words(page.read_text(encoding="utf-8"))
        if page.name not in LONGER and count > MOST_WORDS:
            yield f"docs/{page.name}: {count:,} words, the limit is {MOST_WORDS:,}: move measurements and reasons to docs/notes/"


def missing_pages(root: Path):
    """Pages and pictures that comments, messages and configurations name."""
    files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    for file in files:
        if file.startswith("docs/") or file.endswith(".md") or not (root / file).is_file():
            continue
        for name in sorted(set(re.findall(r"docs/[\w/]+\.(?:md|svg|png)", (root / file).read_text(encoding="utf-8", errors="replace")))):
            if not (root / name).is_file():
                yield f"{file}: there is no {name}"


def broken_links(root: Path):
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "docs/notes").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield f"{page.relative_to(root)}: there is no {target}"
            elif fragment and fragment not in anchors(file):
                yield f"{page.relative_to(root)}: {path or page.name} has no heading #{fragment}"
    readme = (root / "README.md").read_text(encoding="utf-8")
    for page in pages[2:]:
        link = "notes/README.md" if page.name == "README.md" else page.name
        if not any(link in other.read_text(encoding="utf-8") for other in pages if other != page):
            yield f"{page.relative_to(root)}: no page links it"
    for name in ("tutorial", "from_torchtitan", "performance", "debugging", "faq", "report", "metrics"):
        if f"docs/{name}.md" not in readme:
            yield f"README.md: does not link docs/{name}.md"


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    problems = [*broken_links(folder), *missing_pages(folder), *long_pages(folder)]
    print("\n".join(problems) or "every link leads somewhere, and no page is too long")
    sys.exit(bool(problems))
