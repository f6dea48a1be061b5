"""Compile the kernels for short rows for sm_90, GPU or not, and print what ptxas made of them as JSON."""

import itertools
import json
from typing import Any

import assembling

from reluformer.ops.triton.short import short_backward_kernel, short_forward_kernel

KERNELS = {"forward": short_forward_kernel, "backward": short_backward_kernel}
FLOATS = ("divisor", "alpha", "scale")
IN_BF16 = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
SIZES = ("heads", "n", "m", "d", "left", "right")


def argument_type(name: str) -> str:
    """The type of an argument as Triton writes it."""
    if name in FLOATS:
        return "fp32"
    if name in IN_BF16:
        return "*bf16"
    if name == "key_mask":
        return "*u8"
    return "i32" if name in SIZES or "stride" in name else "*fp32"


def compile_kernel(which: str, block: int, d: int, stats: bool, masked: bool) -> dict[str, Any]:
    constants: dict[str, Any] = {
        "BLOCK": block, "BLOCK_D": d, "LEFT": False, "RIGHT": True, "KEY_MASK": masked, "GAMMA": not masked,
        "BIAS": masked, "POWER": 8 if masked else 1, "STATS": stats, "FACTOR": False, "DMASS": stats,
        "DENTROPY": stats, "DGAMMA": not masked, "DBIAS": masked, "PRECISION": "tf32", "groups": 1,
        **dict.fromkeys(("gamma",) if masked else ("bias", "key_mask", "count")),
    }  # fmt: skip
    made = assembling.compile_kernel(KERNELS[which], constants, argument_type, 4, 1)
    return {"kernel": which, "block": block, "d": d, "stats": stats, "masked": masked} | made


if __name__ == "__main__":
    cases = itertools.product(KERNELS, (32, 64), (64, 128), (False, True), (False, True))
    print(json.dumps([compile_kernel(*case) for case in cases]))
