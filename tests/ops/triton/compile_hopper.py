"""Compile the Hopper kernel for sm_90, GPU or not, and print what ptxas made of it as JSON."""

import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from reluformer.ops.triton import hopper

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def tensor_map(dtype: str, block: list[int], swizzle: int = 128) -> str:
    bits = {"bf16": 16, "fp32": 32}[dtype]
    layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=bits, rank=len(block))
    return f"tensordesc<{dtype}[{','.join(map(str, block))}],{layout!r}>"


def compile_kernel(d: int, causal: bool, stats: bool) -> dict[str, object]:
    queries, keys = ([1, 1, rows, d] for rows in (hopper.BLOCK_M, hopper.BLOCK_N))
    constants = {
        "groups": 1,
        "BLOCK_M": hopper.BLOCK_M,
        "BLOCK_N": hopper.BLOCK_N,
        "D": d,
        "STAGES": hopper.STAGES,
        "RIGHT": causal,
        "STATS": stats,
        "GAMMA": True,
        "UNIFORM": not causal,
    }
    types = {
        **{name: tensor_map("bf16", queries) for name in ("q_desc", "dout_desc")},
        **{name: tensor_map("bf16", keys) for name in ("k_desc", "v_desc", "dk_desc", "dv_desc")},
        "lines_desc": tensor_map("fp32", [1, 2, hopper.BLOCK_M], swizzle=0),
        "dq": "*fp32",
        "gamma": "*fp32",
        "uniform": "fp32",
    }
    kernel = hopper.hopper_key_kernel
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name] in ("*fp32", "i32")}
    source = GluonASTSource(kernel, signature, values, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": hopper.WARPS})
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(made.asm["ptx"])
        said = subprocess.run(
            [TOOLS / "ptxas", "-v", "--gpu-name=sm_90a", ptx, "-o", cubin], capture_output=True, text=True, check=True
        )
    words = said.stdout + said.stderr
    stack = re.search(r"(\d+) bytes stack frame", words)
    return {
        "d": d,
        "causal": causal,
        "stats": stats,
        "shared": made.metadata.shared,
        "stack": int(stack[1]) if stack else 0,
        "serialised": "serialized" in words,
    }


if __name__ == "__main__":
    print(json.dumps([compile_kernel(*case) for case in itertools.product((64, 128), (False, True), (False, True))]))
