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
import re
import sys
from pathlib import Path


class Refused(Exception):
    pass


class Whole:
    """A parameter's gradient while its boxes come in."""

    def __init__(self, name, shape):
        if "/" in name or "\0" in name:
            raise Refused(f"{name!r} is no name of a parameter")
        self.name, self.shape = name, shape
        self.values = bytearray(4 * math.prod(shape))
        self.filled = bytearray(math.prod(shape))  # 1 where a rank has written

    def add(self, rank, offset, extent, values):
        """`values`: the numbers of the box, row-major."""
        if len(offset) != len(self.shape) or any(o < 0 or o + e > s for o, e, s in zip(offset, extent, self.shape)):
            raise Refused(f"rank {rank} has a box of {self.name} at {offset} of extent {extent}, outside its shape {self.shape}")
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
    with path.open("rb") as file:
        line = file.readline()
        try:
            head = json.loads(line)
        except ValueError as error:
            raise Refused(f"{path}: its first line is no JSON: {error}") from None
        return head, file.read()


def join(folder):
    files = {path.name for path in folder.glob("rank_*.gradients")}
    if not files:
        raise Refused(f"{folder}: there is no rank_0.gradients: set HYPERION_DUMP_GRADIENTS to this folder in a job of several ranks")
    whole, ranks = {}, None
    for rank in itertools.count():
        if rank == ranks:
            break
        path = folder / f"rank_{rank}.gradients"
        if path.name not in files:
            raise Refused(f"{path} is missing" + (f", of a job of {ranks} ranks" if ranks else ""))
        head, values = read_rank(path)
        ranks = ranks or head["ranks"]
        if (head["rank"], head["ranks"]) != (rank, ranks):
            raise Refused(f"{path}: it is of rank {head['rank']} of {head['ranks']}, expected rank {rank} of {ranks}")
        at = 0
        for entry in head["parameters"]:
            parameter = whole.setdefault(entry["name"], Whole(entry["name"], entry["shape"]))
            if parameter.shape != entry["shape"]:
                raise Refused(f"{path}: {entry['name']} has shape {entry['shape']}, {parameter.shape} on a rank before it")
            size = 4 * math.prod(entry["extent"])
            if at + size > len(values):
                raise Refused(f"{path}: it is cut off in {entry['name']}")
            parameter.add(rank, entry["offset"], entry["extent"], values[at:at + size])
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
        numbers = {path.name.removesuffix(".f32"): path.read_bytes() for path in folder.glob("*.f32")}
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
            print(f"{name}: {difference / size if size else math.inf:.3g}")
    if differing:
        print(f"{len(differing)} of {len(ours)} gradients differ by more than {tolerance:g}; the first one that a backward makes: {differing[0]}")
    else:
        print(f"{len(ours)} gradients are equal to {tolerance:g}")
    return not differing


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
    except (Refused, OSError) as error:
        print(f"join_gradients.py: {error}", file=sys.stderr)
        return 1
    except (KeyError, IndexError, TypeError, ValueError) as error:
        folders = " or ".join(str(folder) for folder in (options.folder, options.compare) if folder)
        print(f"join_gradients.py: a file under {folders} is damaged: {error!r}", file=sys.stderr)
        return 1
    out = options.out or options.folder
    out.mkdir(parents=True, exist_ok=True)
    for parameter in whole.values():
        (out / f"{parameter.name}.f32").write_bytes(parameter.values)
    print(f"{len(whole)} gradients joined in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
