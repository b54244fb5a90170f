"""The committed FP8 goldens are what torchao computes: all three makers with --check, in one interpreter that imports torch once."""

import sys

import float8_goldens
import grouped_goldens
import mx_goldens
import torch


def main() -> int:
    torch.set_num_threads(1)
    sys.argv = [sys.argv[0], "--check"]  # which the makers read
    wrong = [float8_goldens.check(), mx_goldens.main(), grouped_goldens.main()]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
