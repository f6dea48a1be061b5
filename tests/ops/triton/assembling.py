"""What ptxas makes of a kernel that Triton compiled for sm_90, for the scripts beside this file."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


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
