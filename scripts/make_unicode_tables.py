#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_ranges.h: the code points that Hugging Face `tokenizers` counts as \\p{L}, \\p{N}, \\s,
and what its NFC knows, which is an older Unicode.

usage: scripts/make_unicode_tables.py

The tables are probed from `tokenizers` itself (its regex library carries Unicode 16), code point by code point, since
they, not the Unicode version of this machine's libraries, decide where words are split. 0.23.3 made the committed file.
"""
import pathlib
import signal
import unicodedata

from needed import IN_THE_INTEROP_ENVIRONMENT, answer_help, needed

answer_help(__doc__)
tokenizers = needed("tokenizers", IN_THE_INTEROP_ENVIRONMENT)
from tokenizers import Regex, normalizers, pre_tokenizers  # noqa: E402

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "data/tokenizer/unicode_ranges.h"
CLASSES = {"kLetterRanges": r"\p{L}", "kNumberRanges": r"\p{N}", "kSpaceRanges": r"\s"}
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(pattern):
    """[first, last] of each run of code points that match; surrogates are no text and end a run."""
    text = "".join(map(chr, CODE_POINTS))
    splitter = pre_tokenizers.Split(Regex(f"{pattern}+"), behavior="removed", invert=True)
    result = []
    for _, (start, stop) in splitter.pre_tokenize_str(text):
        first, last = CODE_POINTS[start], CODE_POINTS[stop - 1]
        if first < 0xD800 <= last:
            raise SystemExit(f"{pattern}: a run spans the surrogates")
        result.append((first, last))
    return result


def runs(code_points):
    """[first, last] of each run of neighbours in ascending code points."""
    result = []
    for c in code_points:
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def nfc_marks():
    """The combining marks: those that change places with a mark of another class, or are composed of marks."""
    nfc = normalizers.NFC().normalize_str

    def moves(text):
        return nfc(text) == text[::-1]

    tilde_overlay, acute = "\u0334", "\u0301"  # classes 1, the lowest, and 230
    def is_mark(c):
        composed = unicodedata.combining(c) != 0 and nfc(c) != c
        return composed or moves(c + tilde_overlay) or moves(acute + c)

    return [c for c in CODE_POINTS if c >= 0x300 and is_mark(chr(c))]


def nfc_unknown():
    """Characters, and their second parts, that are composed by Unicode but not by `tokenizers`."""
    nfc, unknown = normalizers.NFC().normalize_str, set()
    for c in CODE_POINTS:
        parts = unicodedata.normalize("NFD", chr(c))
        if len(parts) == 2 and unicodedata.normalize("NFC", parts) == chr(c) != nfc(parts):
            unknown |= {c, ord(parts[1])}
    return sorted(unknown)


def main():
    lines = [f"// Made by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}: ascending, inclusive ranges.",
             "#pragma once", "", '#include "data/tokenizer/unicode_classes.h"', "", "namespace hyperion::data {"]
    tables = {name: ranges(pattern) for name, pattern in CLASSES.items()}
    tables |= {"kNfcMarkRanges": runs(nfc_marks()), "kNfcUnknownRanges": runs(nfc_unknown())}
    for name, table in tables.items():
        lines += ["", f"inline constexpr CodePointRange {name}[] = {{"]
        line = "   "
        for first, last in table:
            item = f" {{0x{first:X}, 0x{last:X}}},"
            if len(line) + len(item) > 118:
                lines.append(line)
                line = "   "
            line += item
        lines += [line, "};"]
    lines += ["", "}  // namespace hyperion::data"]
    OUTPUT.write_text("\n".join(lines) + "\n")
    print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
