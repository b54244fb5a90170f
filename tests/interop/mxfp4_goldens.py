"""The golden of MXFP4 files (tests/goldens/mxfp4): random codes and scales, and the numbers that transformers makes of them.

    .venv-interop/bin/python tests/interop/mxfp4_goldens.py            makes it again
    .venv-interop/bin/python tests/interop/mxfp4_goldens.py --check    compares the committed one with transformers; exits 1

Every code comes in both halves of a byte. Scales go from the least to the largest of which six is finite.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FILE = Path(__file__).resolve().parent.parent / "goldens" / "mxfp4" / "model.safetensors"


def make():
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randint(0, 256, (2, 12, 3, 16), dtype=torch.uint8, generator=generator)
    blocks[0, :6].view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    scales = torch.randint(0, 253, (2, 12, 3), dtype=torch.uint8, generator=generator)
    scales[0, :4] = 127
    scales[0, 4, 0], scales[0, 4, 1], scales[0, 5, 0] = 0, 1, 252
    values = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)  # [experts, in, out] there
    return {"blocks": blocks, "scales": scales, "values": values.float().contiguous()}


def main() -> int:
    made = make()
    if "--check" not in sys.argv:
        FILE.parent.mkdir(exist_ok=True)
        save_file(made, FILE, {"format": "pt"})
        return 0
    committed = load_file(FILE)
    equal = committed.keys() == made.keys() and all(torch.equal(committed[name], made[name]) for name in made)
    print(f"{FILE.name} of MXFP4 is {'' if equal else 'NOT '}what transformers makes")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
