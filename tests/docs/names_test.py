"""What the pages name in code quotes exists: paths of the tree, keys of the configuration, HYPERION_ variables, and, in the pages that lead
through the code, identifiers.

    python3 tests/docs/names_test.py SOURCE_FOLDER
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from include_rules import RULES  # noqa: E402

CODE_PAGES = ("docs/extending.md", "docs/architecture.md", "docs/faults.md", "docs/notes/failpoints.md", "CONTRIBUTING.md")
EXAMPLES = {"events_per_file", "test_x"}  # names that a reader would make
ENDINGS = {"md", "jsonl", "json", "toml", "h", "cpp"}  # of files that are called as a table is
# Parts of checkpoints, which look like keys.
CONTENTS = {"optimizer.state", "optimizer.param_groups", "lr_scheduler.trajectory"}
# Keys that torchtitan's module for torchft adds to a table.
REFUSED = {"fault_tolerance.sync_steps", "fault_tolerance.num_fragments"}


def quotes(text: str) -> list[str]:
    """The code quotes and the lines of code of a page, without placeholders: <its name>, *_test."""
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = re.findall(r"(?m)^ {4,}(\S.*)$", text) + "\n".join(re.findall(r"(?s)```\w*\n(.*?)```", text)).splitlines()
    return [re.sub(r"<[^>]*>\w*|\*\w*", "", quote) for quote in inline + lines]


def paths_in(quote: str) -> list[str]:
    """What has a slash or an ending of ours; `a.{h,cpp}` is two."""
    found = []
    for word in re.findall(r"[\w./{},-]+", quote):
        braces = re.search(r"\{([^}]*)\}", word)
        found += [(word[:braces.start()] + part + word[braces.end():] if braces else word).rstrip("/.,")
                  for part in (braces[1].split(",") if braces else [""])]
    return found


def configuration_keys(root: Path) -> dict[str, set[str]]:
    """Table -> its keys, by docs/configuration.md, which the program prints."""
    tables = {}
    for part in re.split(r"(?m)^## \[", (root / "docs/configuration.md").read_text(encoding="utf-8"))[1:]:
        tables[part[:part.index("]")]] = set(re.findall(r"(?m)^\| `(\w+)` \|", part))
    return tables


def problems(root: Path):
    files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    folders = {str(parent) for file in files for parent in Path(file).parents}
    top = {file.split("/")[0] for file in files if "/" in file}
    source = [file for file in files if not file.startswith(("docs/", "tests/goldens/fuzz")) and not file.endswith((".md", ".png", ".lock"))]
    words = {word for file in source for word in re.findall(r"\w+", (root / file).read_text(encoding="utf-8", errors="replace"))}
    tables = configuration_keys(root)
    for page in ["README.md", "CONTRIBUTING.md", *(file for file in files if re.fullmatch(r"docs/(?:notes/)?\w+\.md", file))]:
        for quote in quotes((root / page).read_text(encoding="utf-8")):
            for path in paths_in(quote):
                if re.fullmatch(r"[\w-]+(/[\w-]+)*/[\w-]+\.\w+", path) and path.split("/")[0] in top and path not in files:
                    yield f"{page}: there is no file {path} (`{quote}`)"
                elif re.match(r"(trainer|models|parallel|tests|scripts|benchmarks|configs)/[^.]+$", path) and path not in folders.union(files, RULES):
                    yield f"{page}: there is no folder {path} (`{quote}`)"
            key = re.fullmatch(r"(?:--)?([a-z_0-9]+(?:\.[a-z_0-9]+)*)\.([a-z_0-9]+)(?:[= ].*)?", quote)
            if key and key[1] in tables and key[2].removeprefix("no_") not in tables[key[1]] | EXAMPLES | ENDINGS \
                    and f"{key[1]}.{key[2]}" not in {*tables, *CONTENTS, *REFUSED}:
                yield f"{page}: [{key[1]}] has no key {key[2]} (`{quote}`)"
            for name in re.findall(r"HYPERION_\w+", quote) + (re.findall(r"[A-Za-z_]\w*", quote) if page in CODE_PAGES else []):
                own = "_" in name or re.search(r"[a-z][A-Z]", name)
                if own and name not in words | EXAMPLES:
                    yield f"{page}: nothing in the tree is called {name} (`{quote}`)"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "every name in the pages exists")
    sys.exit(bool(found))
