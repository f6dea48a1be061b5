"""Compile the kernels with forget gates for sm_90, GPU or not, and print what ptxas made of them as JSON."""

import itertools
import json
from typing import Any

import assembling
import torch

from reluformer.ops.triton import tiles
from reluformer.ops.triton.backward import key_kernel
from reluformer.ops.triton.forward import forward_kernel

LENGTH = 16384
FLOATS = ("divisor", "alpha", "scale", "uniform")
TYPES = {"c": "*fp64", "dk": "*bf16", "dv": "*bf16", "out": "*bf16"}
MEANING = {
    "VARLEN": False, "LEFT": False, "RIGHT": True, "KEY_MASK": False, "ATTN_MASK": 0, "GAMMA": True, "BIAS": False,
    "POWER": 1, "FACTOR": False, "PRECISION": "tf32", "EVEN": True, "UNIFORM": False,
    "DBIAS": False, "DGAMMA": False, "IN_LOOP": False, "DQ": True, "groups": 1,
}  # fmt: skip
UNUSED = ("bias", "key_mask", "attn_mask", "count", "cu_q", "cu_k")


def argument_type(name: str, tile: tiles.Tile, d: int) -> str:
    """The type of an argument as Triton writes it; tensor maps load blocks of queries or of keys."""
    if name.endswith("_desc"):
        rows = tile.n if name in ("k_desc", "v_desc", "faded_v_desc") else tile.m
        return f"tensordesc<{'fp32' if name == 'dq_desc' else 'bf16'}[1,1,{rows},{d}]>"
    if name in FLOATS:
        return "fp32"
    if name in TYPES:
        return TYPES[name]
    sizes = ("blocks", "heads", "groups", "n", "m", "d", "left", "right", "dq_width")
    return "i32" if name in sizes or "stride" in name else "*fp32"


def compile_kernel(which: str, d: int, forget: bool, stats: bool) -> dict[str, Any]:
    if which == "forward":
        kernel, tile = forward_kernel, tiles.forward_tile(torch.bfloat16, d, LENGTH, forget)
    else:
        kernel, tile = key_kernel, tiles.backward_tile(torch.bfloat16, d)
    constants = MEANING | {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_D": d, "STATS": stats}
    constants |= {"FORGET": forget, "DFADED": forget, **dict.fromkeys(UNUSED)}
    if not forget:
        constants["c"] = None
    if stats or not forget:  # every weight fades by itself, or none does
        constants |= {"faded_v_desc": None, "faded_dout_desc": None}
    made = assembling.compile_kernel(
        kernel, constants, lambda name: argument_type(name, tile, d), tile.warps, tile.stages
    )
    return {"kernel": which, "d": d, "forget": forget, "stats": stats} | made


if __name__ == "__main__":
    cases = itertools.product(("forward", "backward"), (64, 128), (False, True), (False, True))
    print(json.dumps([compile_kernel(*case) for case in cases]))
