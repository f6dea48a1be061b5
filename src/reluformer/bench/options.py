"""What the commands of ``reluformer bench`` share: options, their meaning, and the report."""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from reluformer.bench import files, machine, tables

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Dtype = Annotated[str | None, typer.Option(help="float16, bfloat16 or float32; bfloat16 on a GPU, float32 on a CPU")]
Out = Annotated[Path | None, typer.Option(help="folder for the CSV and PNG files; without it, only the table")]
Quick = Annotated[bool, typer.Option("--quick", help="a few repeats of a small problem: does it run?")]

_DTYPES = ("float16", "bfloat16", "float32")


class Report:
    """Where results go: the console, and the folder if there is one."""

    def __init__(self, name: str, device: torch.device, out: Path | None, variant: str = "") -> None:
        self.name, self.out = name, out
        self.place = machine.describe(device)
        self.console = tables.console()
        self.stem = f"{name}{variant}-{self.place['gpu'].removeprefix('NVIDIA ') or 'cpu'}".lower().replace(" ", "-")
        if out is not None:
            import matplotlib  # noqa: F401  # missing? Better said before the measuring than after

            if out.exists() and not out.is_dir():
                raise typer.BadParameter(f"takes a folder, {out} is a file", param_hint="--out")

    def lines(self, lines: list[str]) -> None:
        """Say what has no numbers, and why."""
        for line in lines:
            self.console.print(f"  n/a  {line}", style="dim", highlight=False, markup=False)

    def keep(self, rows: list[Any]) -> None:
        """Write the rows there are."""
        if self.out is not None:
            files.write_csv(self.out / f"{self.stem}.csv", [r.record() for r in rows], self.place)

    def finish(self, rows: list[Any], figure: bool = True) -> None:
        """Say where this was; write and draw all rows."""
        caption = machine.one_line(self.place)
        self.console.print(caption, style="dim", highlight=False)
        if self.out is None:
            self.console.print(f"Not kept; --out DIR writes CSV{' and PNG' * figure} files.", style="dim")
            return
        self.keep(rows)
        if figure:
            from reluformer.bench import figures

            getattr(figures, f"plot_{self.name}")(self.out / f"{self.stem}.png", rows, caption)
        self.console.print(f"Kept: {self.out / self.stem}.csv{', .png' * figure}", highlight=False)


def device_of(name: str) -> torch.device:
    """The device of ``--device``."""
    if name not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"takes auto, cpu or cuda, got {name!r}", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("cuda asked for, and PyTorch sees no GPU here", param_hint="--device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def dtype_of(name: str | None, device: torch.device) -> str:
    """The name of ``--dtype``, or what suits the device."""
    if name is None:
        return "bfloat16" if device.type == "cuda" else "float32"
    if name not in _DTYPES:
        raise typer.BadParameter(f"takes {', '.join(_DTYPES)}, got {name!r}", param_hint="--dtype")
    return name


def positives_of(option: str, text: str) -> list[float]:
    """Positive numbers of an option, between commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < math.inf for x in found):
        raise typer.BadParameter(f"takes positive numbers and commas, got {text!r}", param_hint=option)
    return found


def numbers_of(option: str, text: str | None, default: list[int], least: int = 1) -> list[int]:
    """Integers of an option, between commas."""
    if text is None:
        return default
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= least for part in parts):
        raise typer.BadParameter(f"takes integers from {least} on and commas, got {text!r}", param_hint=option)
    return [int(part) for part in parts]
