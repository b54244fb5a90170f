#!/usr/bin/env python3
"""Joins the gradients that the ranks of a job have written with HYPERION_DUMP_GRADIENTS=FOLDER (docs/debugging.md).

usage: join_gradients.py FOLDER [--out OUT]
       join_gradients.py FOLDER --compare OTHER [--tolerance T]

FOLDER holds rank_0.gradients, rank_1.gradients, ...; OUT (default: FOLDER) gets what a job of one rank would have written:
<name>.f32 for each parameter, its whole gradient as little-endian fp32 numbers. Exits 1 where a rank's file is missing or cut
off, an element is on no rank, or ranks that hold the same element have different numbers for it.

With --compare nothing is written: the gradients of FOLDER and OTHER, of any number of ranks each, are compared in the order in which a
backward makes them, the head's first. Printed are the parameters whose difference, over OTHER's gradient (of both the L2 norm), is above T
(1e-5), and which of them is the first; exits 1 where there is one, or the folders have other names or sizes.

Standard library only.
"""
import argparse
import array
import itertools
import json
import math
import os
import re
import signal
import stat
import sys
from pathlib import Path


class Refused(Exception):
    pass


def shown(text):
    """Without what steers a terminal: it may be a file's name, or come from a file."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def read(path):
    """All of a regular file. A pipe or device, which would be waited for, is refused."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Refused(f"{path}: is no regular file")
        return file.read()


def whole_numbers(entry, key):
    """The list of extents or offsets that an entry of a head has."""
    numbers = entry[key]
    if not isinstance(numbers, list) or not numbers or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise Refused(f"{entry['name']}: its {key} is {str(numbers)[:60]}, expected a list of whole numbers")
    return numbers


class Whole:
    """A parameter's gradient while its boxes come in. `most`: bytes that all boxes together can have."""

    def __init__(self, name, shape, most):
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
            raise Refused(f"{str(name)[:60]!r} is no name of a parameter")
        if 4 * math.prod(shape) > most:
            raise Refused(f"{name}: its shape {shape} is larger than the files of all ranks")
        self.name, self.shape = name, shape
        self.values = bytearray(4 * math.prod(shape))
        self.filled = bytearray(math.prod(shape))  # 1 where a rank has written

    def add(self, rank, offset, extent, values):
        """`values`: the numbers of the box, row-major."""
        if len({len(offset), len(extent), len(self.shape)}) > 1 or any(o < 0 or o + e > s for o, e, s in zip(offset, extent, self.shape)):
            raise Refused(f"rank {rank} has a box of {self.name} at {offset} of extent {extent}, outside its shape {self.shape}")
        if 0 in extent:
            return
        width = extent[-1]
        strides = [math.prod(self.shape[i + 1:]) for i in range(len(self.shape))]
        at = 0
        for index in itertools.product(*(range(o, o + e) for o, e in zip(offset[:-1], extent[:-1]))):
            first = sum(i * s for i, s in zip(index, strides)) + offset[-1]
            run = values[at:at + 4 * width]
            self.add_run(rank, first, width, run)
            at += 4 * width

    def add_run(self, rank, first, count, run):
        end = first + count
        if 1 in self.filled[first:end]:
            for i in range(count):
                place = slice(4 * (first + i), 4 * (first + i) + 4)
                if self.filled[first + i] and self.values[place] != run[4 * i:4 * i + 4]:
                    raise Refused(f"{self.name}: rank {rank} has another number for element {first + i} than a rank before it")
        self.values[4 * first:4 * end] = run
        self.filled[first:end] = b"\1" * count


def read_rank(path):
    """The head and the numbers of one file."""
    line, _, values = read(path).partition(b"\n")
    try:
        head = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: its first line is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise Refused(f"{path}: its first line is no JSON object")
    return head, values


def join(folder):
    files = {path.name for path in folder.glob("rank_*.gradients")}
    if not files:
        raise Refused(f"{folder}: there is no rank_0.gradients: set HYPERION_DUMP_GRADIENTS to this folder in a job of several ranks")
    whole, ranks = {}, None
    most = sum((folder / name).stat().st_size for name in files)
    for rank in itertools.count():
        if rank == ranks:
            break
        path = folder / f"rank_{rank}.gradients"
        if path.name not in files:
            raise Refused(f"{path} is missing" + (f", of a job of {ranks} ranks" if ranks else ""))
        head, values = read_rank(path)
        if ranks is None:
            ranks = head["ranks"]
            if type(ranks) is not int or ranks < 1:
                raise Refused(f"{path}: its job had {str(ranks)[:60]} ranks, expected a whole number above 0")
            if ranks > len(files):
                missing = next(other for other in range(ranks) if f"rank_{other}.gradients" not in files)
                raise Refused(f"{folder / f'rank_{missing}.gradients'} is missing, of a job of {ranks} ranks")
        if (head["rank"], head["ranks"]) != (rank, ranks):
            raise Refused(f"{path}: it is of rank {head['rank']} of {head['ranks']}, expected rank {rank} of {ranks}")
        at = 0
        for entry in head["parameters"]:
            name, shape, extent = entry["name"], whole_numbers(entry, "shape"), whole_numbers(entry, "extent")
            if name not in whole:
                whole[name] = Whole(name, shape, most)
            parameter = whole[name]
            if parameter.shape != shape:
                raise Refused(f"{path}: {name} has shape {shape}, {parameter.shape} on a rank before it")
            size = 4 * math.prod(extent)
            if at + size > len(values):
                raise Refused(f"{path}: it is cut off in {name}")
            parameter.add(rank, whole_numbers(entry, "offset"), extent, values[at:at + size])
            at += size
        if at != len(values):
            raise Refused(f"{path}: {len(values) - at} bytes follow the last parameter")
    if len(files) > ranks:
        raise Refused(f"{folder}: {len(files)} files of ranks, but the job had {ranks}: some are of another job")
    for parameter in whole.values():
        hole = parameter.filled.find(0)
        if hole >= 0:
            raise Refused(f"{parameter.name}: no rank has element {hole} of {len(parameter.filled)}")
    return whole


def gradients_in(folder):
    """{name: its numbers}, of a job of any number of ranks."""
    if any(folder.glob("rank_*.gradients")):
        numbers = {name: parameter.values for name, parameter in join(folder).items()}
    else:
        numbers = {path.name.removesuffix(".f32"): read(path) for path in folder.glob("*.f32")}
    if not numbers:
        raise Refused(f"{folder}: there are no gradients: set HYPERION_DUMP_GRADIENTS to this folder in a job")
    return {name: little_endian(values) for name, values in numbers.items()}


def little_endian(values):
    numbers = array.array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


UNITS = ("output.", "norm.", "layers.", "tok_embeddings.")
PARTS = ("feed_forward.w2", "moe.experts.w2", "feed_forward.", "moe.", "ffn_norm.", "attention.wo", "attention.", "attention_norm.")


def backward_order(name):
    """The head, the blocks from the last one, each from its last product, the embedding."""
    def place(text, beginnings):
        return next((i for i, beginning in enumerate(beginnings) if text.startswith(beginning)), len(beginnings))
    block, part = re.match(r"(?:layers\.(\d+)\.)?(.*)", name).groups()
    return place(name, UNITS), -int(block or 0), place(part, PARTS), name


def compare(folder, other, tolerance):
    """Prints what differs; whether nothing does."""
    ours, theirs = gradients_in(folder), gradients_in(other)
    if unknown := sorted(ours.keys() ^ theirs.keys()):
        raise Refused(f"{', '.join(unknown[:3])}: in one of the two folders alone; the jobs had other models")
    differing = []
    for name in sorted(ours, key=backward_order):
        a, b = ours[name], theirs[name]
        if len(a) != len(b):
            raise Refused(f"{name} has {len(a)} numbers in {folder}, {len(b)} in {other}; the jobs had other models")
        difference, size = math.dist(a, b), math.hypot(*b)
        if not difference <= tolerance * size:  # NaN differs
            differing.append(name)
            print(f"{shown(name)}: {difference / size if size else math.inf:.3g}")
    if differing:
        print(f"{len(differing)} of {len(ours)} gradients differ by more than {tolerance:g}; the first one that a backward makes: {shown(differing[0])}")
    else:
        print(f"{len(ours)} gradients are equal to {tolerance:g}")
    return not differing


def refuse(problem):
    print(f"join_gradients.py: {shown(problem)}", file=sys.stderr)
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, metavar="OTHER")
    parser.add_argument("--tolerance", type=float, default=1e-5, metavar="T")
    options = parser.parse_args()
    if options.compare and options.out:
        parser.error("--out is of no use with --compare, which writes nothing")
    try:
        if options.compare:
            return 0 if compare(options.folder, options.compare, options.tolerance) else 1
        whole = join(options.folder)
        out = options.out or options.folder
        out.mkdir(parents=True, exist_ok=True)
        for parameter in whole.values():
            path = out / f"{parameter.name}.f32"
            if path.exists() and not path.is_file():
                raise Refused(f"{path}: is in the way and no regular file")
            path.write_bytes(parameter.values)
        print(f"{len(whole)} gradients joined in {shown(out)}")
        return 0
    except (Refused, OSError) as error:
        return refuse(error)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, MemoryError) as error:
        folders = " or ".join(str(folder) for folder in (options.folder, options.compare) if folder)
        return refuse(f"a file under {folders} is damaged: {error!r}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    sys.exit(main())
