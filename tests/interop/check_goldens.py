"""The committed goldens of FP8 and MXFP4 are what torchao and transformers compute: all four makers with --check, in one interpreter that imports torch once."""

import sys

import float8_goldens
import grouped_goldens
import mx_goldens
import mxfp4_goldens
import torch


def main() -> int:
    torch.set_num_threads(1)
    sys.argv = [sys.argv[0], "--check"]  # which the makers read
    wrong = [float8_goldens.check(), mx_goldens.main(), grouped_goldens.main(), mxfp4_goldens.main()]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
