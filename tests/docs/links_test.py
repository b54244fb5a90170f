"""Every relative link of README.md and docs/*.md leads to a file that git has, and to a heading where it names one.

    python3 tests/docs/links_test.py SOURCE_FOLDER
"""

import re
import sys
from pathlib import Path


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`|^ {4}[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it from a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def broken_links(root: Path):
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
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
    for page in pages[1:]:
        others = [other for other in pages if other != page]
        if not any(f"{page.name}" in other.read_text(encoding="utf-8") for other in others):
            yield f"docs/{page.name}: no page links it"
    for name in ("tutorial", "from_torchtitan", "performance", "debugging", "faq", "report", "metrics"):
        if f"docs/{name}.md" not in readme:
            yield f"README.md: does not link docs/{name}.md"


if __name__ == "__main__":
    problems = list(broken_links(Path(sys.argv[1]).resolve()))
    print("\n".join(problems) or "every link leads somewhere")
    sys.exit(bool(problems))
