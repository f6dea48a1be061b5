"""Descriptions of where and when something was measured."""

import datetime
import importlib.util
import os
import platform
import subprocess
from pathlib import Path

import torch

import reluformer


def describe(device: torch.device) -> dict[str, str]:
    """Return what a reader needs to interpret a number: date, commit, processor, GPU and versions."""
    cuda = device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "reluformer": reluformer.__version__,
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "gpu": torch.cuda.get_device_name(device) if cuda else "",
        "torch": torch.__version__,
        "triton": _triton_version() if cuda else "",
        "python": platform.python_version(),
        "threads": "" if cuda else str(torch.get_num_threads()),
    }


def at_work(device: torch.device, fewest: int | None = None) -> str:
    """Return what does the work: a GPU, or a processor with PyTorch's number of threads, which may be below its cores.

    Args:
        device: Device that does the work.
        fewest: Smallest number of threads that was used at any time, if it varied.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    several = f"{fewest} to {threads}" if fewest and fewest < threads else str(threads)
    return f"{_processor()}, {several} thread{'' if threads == 1 else 's'}"


def one_line(place: dict[str, str]) -> str:
    """Return the description as one line, for below a table."""
    versions = [f"{name} {place[name]}" for name in ("reluformer", "torch", "triton", "python") if place[name]]
    commit = [f"commit {place['commit']}"] if place["commit"] else []
    return ", ".join([place["gpu"] or place["machine"], *versions, *commit, place["date"]])


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("RELUFORMER_COMMIT", "")  # installed, copied without its history, or no git


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _triton_version() -> str:
    if importlib.util.find_spec("triton") is None:
        return ""
    import triton

    return str(triton.__version__)
