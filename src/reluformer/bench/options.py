"""Shared by the commands of ``reluformer bench``: options, their parsing, and the report."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from reluformer import machine
from reluformer.bench import files
from reluformer.console import console
from reluformer.data.files import DataError, check_writable

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Dtype = Annotated[str | None, typer.Option(help="float16, bfloat16 or float32; bfloat16 on a GPU, float32 on a CPU")]
Out = Annotated[Path | None, typer.Option(help="folder for the CSV and PNG files; without it, only the table")]
Quick = Annotated[bool, typer.Option("--quick", help="a few repeats of a small problem: does it run?")]

_DTYPES = ("float16", "bfloat16", "float32")


class Report:
    """Reports results: on the console, and in a folder if there is one."""

    def __init__(self, name: str, device: torch.device, out: Path | None, variant: str = "") -> None:
        self.name, self.out = name, out
        self.place = machine.describe(device)
        self.console = console()
        self.stem = f"{name}{variant}-{self.place['gpu'].removeprefix('NVIDIA ') or 'cpu'}".lower().replace(" ", "-")
        if out is not None:
            import matplotlib  # noqa: F401  # missing? Better said before the measuring than after

            if out.exists() and not out.is_dir():
                raise typer.BadParameter(f"takes a folder, {out} is a file", param_hint="--out")
            try:
                check_writable(out)
            except DataError as error:
                raise typer.BadParameter(str(error), param_hint="--out") from None

    def show(self, table: Table, notes: Sequence[str] = ()) -> None:
        """Print a table, and notes on why some of its numbers are missing."""
        self.console.print(table)
        for line in notes:
            self.console.print(f"  n/a  {line}", style="dim", highlight=False, markup=False)

    def keep(self, rows: list[Any]) -> None:
        """Write the rows so far to the CSV file."""
        if self.out is not None:
            files.write_csv(self.out / f"{self.stem}.csv", [r.record() for r in rows], self.place)

    def finish(self, rows: list[Any], table: Table, notes: Sequence[str] = (), figure: bool = True) -> None:
        """Write and draw all rows, then print the last table and a description of the machine.

        Files come first, since a reader may close the output early; but the table is printed even if the disk is full.
        """
        caption = machine.one_line(self.place)
        try:
            self.keep(rows)
            if figure and self.out is not None:
                from reluformer.bench import figures

                getattr(figures, f"plot_{self.name}")(self.out / f"{self.stem}.png", rows, caption)
        finally:
            self.show(table, notes)
            self.console.print(caption, style="dim", highlight=False)
        if self.out is None:
            self.console.print(f"Not kept; --out DIR writes CSV{' and PNG' * figure} files.", style="dim")
        else:
            self.console.print(f"Kept: {self.out / self.stem}.csv{', .png' * figure}", highlight=False)


def device_of(name: str) -> torch.device:
    """Return the device that ``--device`` names."""
    if name not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"takes auto, cpu or cuda, got {name!r}", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("cuda asked for, and PyTorch sees no GPU here", param_hint="--device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def dtype_of(name: str | None, device: torch.device) -> str:
    """Return the name given by ``--dtype``, or the default of the device."""
    if name is None:
        return "bfloat16" if device.type == "cuda" else "float32"
    if name not in _DTYPES:
        raise typer.BadParameter(f"takes {', '.join(_DTYPES)}, got {name!r}", param_hint="--dtype")
    return name


def positives_of(option: str, text: str) -> list[float]:
    """Parse the positive numbers of an option, separated by commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < math.inf for x in found):
        raise typer.BadParameter(f"takes positive numbers and commas, got {text!r}", param_hint=option)
    return found


def numbers_of(option: str, text: str | None, default: list[int], least: int = 1) -> list[int]:
    """Parse the integers of an option, separated by commas."""
    if text is None:
        return default
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= least for part in parts):
        raise typer.BadParameter(f"takes integers from {least} on and commas, got {text!r}", param_hint=option)
    return [int(part) for part in parts]


def words_of(text: str, names: Sequence[str]) -> list[str]:
    """Parse the words of ``--without`` to lower case; each must leave out some of these names, and together not all."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = [name.lower() for name in names]
    for word in words:
        if not any(word in name for name in known):
            raise typer.BadParameter(
                f"takes words in the names {'; '.join(names)}, got {word!r}", param_hint="--without"
            )
    if all(any(word in name for word in words) for name in known):
        raise typer.BadParameter(f"leaves nobody to measure, got {text!r}", param_hint="--without")
    return words


def check_width(width: int | None, head_dims: Sequence[int]) -> None:
    """Refuse a ``--width`` that is not a multiple of every head dimension."""
    for head_dim in head_dims:
        if width is not None and width % head_dim:
            raise typer.BadParameter(f"takes a multiple of the head dim {head_dim}, got {width}", param_hint="--width")


def size_of(size: str | None, quick: bool) -> str:
    """Return the preset that ``--size`` names, or a default: tiny if quick, else small."""
    from reluformer.models.configuration import SIZES

    if size is None:
        return "tiny" if quick else "small"
    if size not in SIZES:
        raise typer.BadParameter(f"takes {', '.join(SIZES)}, got {size!r}", param_hint="--size")
    return size
