"""``reluformer bench data``: time and memory of preparing a corpus."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile

from reluformer.data.dataset import read_manifest
from reluformer.data.files import DataError

SAMPLE_SECONDS = 0.05  # between two samples of the memory


@dataclass
class Row:
    """One run of ``reluformer data prepare``."""

    inputs: str
    pairs: int
    seconds: float
    pairs_per_s: float
    peak_mib: float | None

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        return asdict(self)


def measure(inputs: Sequence[str], languages: str, options: Sequence[str], out: Path) -> Row:
    """Prepare the inputs from scratch in a process of its own, and measure it together with its children."""
    command = [sys.executable, "-m", "reluformer", "data", "prepare", *inputs, "--languages", languages]
    began = time.perf_counter()
    with TemporaryFile("w+") as said:  # a pipe that nobody reads would fill up, and stop the process
        process = subprocess.Popen([*command, *options, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=said)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _memory_of(process.pid))
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - began
        said.seek(0)
        if process.returncode:
            raise DataError(said.read().strip() or f"data prepare ended with status {process.returncode}")
    shards = [shard for split in read_manifest(out)["splits"].values() for shard in split["shards"]]
    pairs = sum(shard["cleaning"]["pairs"] for shard in shards)
    names = " ".join(Path(name).name for name in inputs)
    return Row(names, pairs, seconds, pairs / seconds, peak / 2**20 or None)


def _memory_of(process: int) -> float:
    """Return the bytes of a process and its descendants, counting shared pages once; 0 where they are not known."""
    proc = Path("/proc")
    try:
        lines = (proc / str(process) / "smaps_rollup").read_text().splitlines()
        own = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        children = [
            int(child)
            for task in (proc / str(process) / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (OSError, StopIteration):  # it has ended meanwhile, or this is not Linux
        return 0.0
    return own + sum(map(_memory_of, children))
