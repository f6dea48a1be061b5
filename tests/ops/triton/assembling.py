"""What ptxas makes of a kernel that Triton compiled for sm_90, for the scripts beside this file."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reluformer.ops.triton.common import LENGTHS

TARGET = GPUTarget("cuda", 90, 32)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile_kernel(
    kernel: Any, constants: dict[str, Any], type_of: Callable[[str], str], warps: int, stages: int
) -> dict[str, object]:
    """Compile a kernel as its launch would, with what the constants say of its arguments and types for the others."""
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else type_of(name) for name in names}
    known = [i for i, name in enumerate(names) if signature[name][:1] in "*i" and name not in LENGTHS]
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i in known},
    )
    return assemble(triton.compile(source, target=TARGET, options={"num_warps": warps, "num_stages": stages}))


def assemble(made: Any) -> dict[str, object]:
    """Shared memory, registers, bytes that spill, and complaints: serialised products, register counts ignored."""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(made.asm["ptx"])
        said = subprocess.run(
            [TOOLS / "ptxas", "-v", "--gpu-name=sm_90a", ptx, "-o", cubin], capture_output=True, text=True, check=True
        )
    words = said.stdout + said.stderr
    found = {"registers": r"Used (\d+) registers", "stack": r"(\d+) bytes stack frame"}
    numbers = {name: int(match[1]) if (match := re.search(pattern, words)) else 0 for name, pattern in found.items()}
    return {"shared": made.metadata.shared, **numbers, "complaints": re.findall(r"\((C75\d\d)\)", words)}
