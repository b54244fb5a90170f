#!/usr/bin/env python3
"""Makes the default corpus: six novels by Jane Austen, decoded from the Debian package r-cran-janeaustenr.

usage: scripts/prepare_corpus.py [--out FOLDER] [--package FILE.deb]

Writes FOLDER/austen.jsonl.gz (five novels, to train on) and FOLDER/austen_heldout.jsonl.gz (Persuasion, to validate
on): one JSON record {"title", "chapter", "text"} a chapter, the lines of a paragraph joined, a blank line between
paragraphs. FOLDER defaults to data/ of the repository. Needs apt and dpkg-deb, neither root nor R nor an install.
Files that are already right are left alone. The text is in the public domain; it is fetched, never committed.
"""
import argparse
import gzip
import hashlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

PACKAGE = "r-cran-janeaustenr"
DATABASE = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
HELD_OUT = "Persuasion"
# sha256 of the uncompressed files. The contents of the package are checked by these alone, whatever its version.
FILES = {
    "austen.jsonl.gz": "d801064350495525c7f511e1dbdb5b51a32f67a752d1a27485a7c1253ce2d505",
    "austen_heldout.jsonl.gz": "5e9d7aacd3c71d88401df54ca9aa07392c3909653151a2b8ca86777abda8f9ea",
}
HEADING = re.compile(r"chapter ([0-9]+|[IVXL]+)", re.IGNORECASE)
NOT_PROSE = re.compile(r"(VOLUME [IVX]+|FINIS|THE END)", re.IGNORECASE)


def fail(problem, remedy):
    sys.exit(f"prepare_corpus: {problem}\n  remedy: {remedy}")


def run(command, **options):
    """Runs a command; returns None when it worked, else the last line of what it said."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, **options)
    except OSError as error:
        return str(error)
    said = (result.stderr + result.stdout).strip().splitlines() or [f"exit status {result.returncode}"]
    return None if result.returncode == 0 else said[-1]


def download(folder):
    """Fetches the package with apt into `folder` and returns its path."""
    root = os.geteuid() == 0
    # as root, apt would drop to a user that may not write into the temporary folder, and warn about it
    command = ["apt-get", "download", *(["-o", "APT::Sandbox::User=root"] if root else []), PACKAGE]
    print(f"prepare_corpus: apt-get download {PACKAGE} (1.6 MB) ...", flush=True)
    problem = run(command, cwd=folder)
    if problem and root:
        print("prepare_corpus: that failed; apt-get update, then again ...", flush=True)
        problem = run(["apt-get", "update"]) or run(command, cwd=folder)
    packages = list(pathlib.Path(folder).glob("*.deb"))
    if problem or not packages:
        fail(f"could not download {PACKAGE}: {problem}",
             f"run 'apt-get update' as root, or fetch {PACKAGE}_1.0.0-1_all.deb on another machine and give it with "
             "--package FILE.deb")
    return packages[0]


def r_database(package):
    """The bytes of the package's R database: from the installed package, the given file, or apt."""
    installed = pathlib.Path("/") / DATABASE
    if package is None and installed.is_file():
        print(f"prepare_corpus: {PACKAGE} is installed, using {installed}")
        return installed.read_bytes()
    with tempfile.TemporaryDirectory(prefix="hyperion_corpus_") as folder:
        archive = package or download(folder)
        problem = run(["dpkg-deb", "-x", str(archive), folder])
        if problem:
            fail(f"could not unpack {archive}: {problem}", "check the file; dpkg-deb comes with the package dpkg")
        database = pathlib.Path(folder) / DATABASE
        if not database.is_file():
            fail(f"{archive} does not hold {DATABASE}", f"give the Debian package {PACKAGE}")
        return database.read_bytes()


def r_strings(xdr):
    """The lines of one serialised R character vector (XDR, version 3)."""
    (encoding_size,) = struct.unpack_from(">I", xdr, 14)
    position = 18 + encoding_size
    kind, count = struct.unpack_from(">II", xdr, position)
    if not xdr.startswith(b"X\n") or kind != 16:
        raise ValueError("not an R character vector")
    position += 8
    lines = []
    for _ in range(count):
        _, size = struct.unpack_from(">II", xdr, position)
        lines.append(xdr[position + 8:position + 8 + size].decode("utf-8"))
        position += 8 + size
    return lines


def novels(database):
    """The novels as lists of lines: the database is a row of [u32 big-endian raw length][zlib stream]."""
    position = 0
    while position < len(database):
        (size,) = struct.unpack_from(">I", database, position)
        stream = zlib.decompressobj()
        xdr = stream.decompress(database[position + 4:], size)
        stream.flush()
        if not stream.eof or len(xdr) != size:
            raise ValueError("a chunk is damaged")
        yield r_strings(xdr)
        position = len(database) - len(stream.unused_data)


def chapters(lines):
    """Records of one novel. What stands before the first chapter (title page, advertisement) is left out."""
    title = lines[0].title().replace(" And ", " and ")
    records, paragraph = [], []
    for line in [*lines, ""]:
        heading = HEADING.fullmatch(line)
        if heading:
            records.append([heading.group(1), [line]])
        elif line.strip() and not NOT_PROSE.fullmatch(line):
            paragraph.extend(line.split())
            continue
        if paragraph and records:
            records[-1][1].append(" ".join(paragraph))
        paragraph = []
    return title, [{"title": title, "chapter": number, "text": "\n\n".join(text)} for number, text in records]


def decode(database):
    """{file name: uncompressed JSON lines}"""
    content = {name: "" for name in FILES}
    for lines in novels(database):
        title, records = chapters(lines)
        name = "austen_heldout.jsonl.gz" if title == HELD_OUT else "austen.jsonl.gz"
        content[name] += "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        print(f"prepare_corpus: {title}: {len(records)} chapters -> {name}")
    return {name: text.encode("utf-8") for name, text in content.items()}


def is_right(path, digest):
    try:
        with gzip.open(path) as file:
            return hashlib.sha256(file.read()).hexdigest() == digest
    except (OSError, EOFError, zlib.error):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "data")
    parser.add_argument("--package", type=pathlib.Path, help="a package file fetched before, for a machine offline")
    options = parser.parse_args()
    if all(is_right(options.out / name, digest) for name, digest in FILES.items()):
        print(f"prepare_corpus: {options.out} already holds the corpus, checksums right")
        return
    try:
        content = decode(r_database(options.package))
    except (ValueError, struct.error, zlib.error) as error:
        fail(f"the R database of {PACKAGE} cannot be read: {error}", "fetch the package again")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        digest, documents = hashlib.sha256(data).hexdigest(), data.count(b"\n")
        if digest != FILES[name]:
            fail(f"{name} has sha256 {digest}, expected {FILES[name]}", f"use version 1.0.0-1 of {PACKAGE}")
        path = options.out / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_bytes(gzip.compress(data, 9, mtime=0))  # no time stamp: the same bytes on every run
        temporary.replace(path)
        print(f"prepare_corpus: wrote {path}: {documents} documents, {len(data):,} bytes of text, "
              f"{path.stat().st_size:,} compressed")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    main()
