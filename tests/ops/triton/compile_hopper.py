"""Compile the Hopper kernels for sm_90, GPU or not, and print what ptxas made of them as JSON."""

import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

import triton
from assembling import assemble
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from reluformer.ops.triton.common import LENGTHS
from reluformer.ops.triton.hopper import backward, forward


def tensor_map(dtype: str, block: Sequence[int], swizzle: int = 128) -> str:
    bits = {"bf16": 16, "fp32": 32}[dtype]
    layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=bits, rank=len(block))
    return f"tensordesc<{dtype}[{','.join(map(str, block))}],{layout!r}>"


def rows_map(rows: int, d: int) -> str:
    return tensor_map("bf16", (1, 1, rows, d))


def forward_source(d: int, causal: bool, stats: bool, power: int) -> tuple[Any, dict[str, str], dict[str, Any], int]:
    names = ("BLOCK_M", "BLOCK_N", "KEY_STAGES", "VALUE_STAGES")
    constants = {name: getattr(forward, name) for name in names}
    types = {
        **{name: rows_map(forward.BLOCK_M, d) for name in ("q_desc", "out_desc")},
        **{name: rows_map(forward.BLOCK_N, d) for name in ("k_desc", "v_desc")},
        **{name: "*fp32" for name in ("mass", "entropy", "active_keys", "gamma")},
        **{name: "fp32" for name in ("divisor", "alpha", "scale")},
    }
    constants["COUNT"] = stats
    return forward.hopper_forward_kernel, types, constants, forward.WARPS


def backward_source(d: int, causal: bool, stats: bool, power: int) -> tuple[Any, dict[str, str], dict[str, Any], int]:
    constants = {name: getattr(backward, name) for name in ("BLOCK_M", "BLOCK_N", "STAGES")}
    sides = backward.sides(d, causal, stats, power)
    constants |= {"SIDES": sides, "UNIFORM": not causal, "DGAMMA": True}
    types = {
        **{name: rows_map(backward.BLOCK_M, d) for name in ("q_desc", "dout_desc")},
        **{name: rows_map(backward.BLOCK_N // sides, d) for name in ("k_desc", "v_desc", "dk_desc", "dv_desc")},
        "lines_desc": tensor_map("fp32", (1, 2, backward.BLOCK_M), swizzle=0),
        **{name: "*fp32" for name in ("dq", "gamma", "dgamma_parts")},
        "uniform": "fp32",
    }
    return backward.hopper_key_kernel, types, constants, backward.WARPS.value // sides


SOURCES = {"forward": forward_source, "backward": backward_source}


def compile_kernel(which: str, d: int, causal: bool, stats: bool, power: int) -> dict[str, object]:
    kernel, types, constants, warps = SOURCES[which](d, causal, stats, power)
    constants |= {"groups": 1, "D": d, "RIGHT": causal, "STATS": stats, "GAMMA": True, "POWER": power}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    known = [i for i, name in enumerate(names) if signature[name] in ("*fp32", "i32") and name not in LENGTHS]
    aligned = {(i,): [["tt.divisibility", 16]] for i in known}
    source = GluonASTSource(kernel, signature, values, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return {"kernel": which, "d": d, "causal": causal, "stats": stats, "power": power} | assemble(made)


if __name__ == "__main__":
    which = sys.argv[1:] or list(SOURCES)
    kinds = [(False, 1), (True, 1), (False, 2), (False, 4), (False, 8)]  # statistics, power: not both of them here
    cases = [(*case, *kind) for *case, kind in itertools.product(which, (64, 128), (False, True), kinds)]
    print(json.dumps([compile_kernel(*case) for case in cases]))
