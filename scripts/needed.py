"""For scripts that need more than the standard library: help without it, and one sentence where it is missing. Imported only."""
import importlib
import pathlib
import signal
import sys

IN_THE_INTEROP_ENVIRONMENT = "run scripts/setup.sh --interop, then this script with .venv-interop/bin/python"


def answer_help(text):
    """Prints `text` and ends well when the command line asks for help."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
        print(text.strip())
        sys.exit(0)


def needed(module, remedy):
    """The module; without it one message and exit code 2 (docs/exit_codes.md: usage or environment)."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = pathlib.Path(sys.argv[0]).name
        print(f"[{name}] {sys.executable} cannot import {module} ({error})\n  remedy: {remedy}", file=sys.stderr)
        sys.exit(2)
