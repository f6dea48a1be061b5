"""Cells sorted into what may be compared: one experiment, one scale, one corpus."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.study.experiment import Experiment
from reluformer.study.scales import SCALES

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class ArmCells:
    """The cells of one arm, one per seed; none where the arm has not run."""

    name: str
    cells: tuple[Cell, ...] = ()

    def having(self, status: str) -> tuple[Cell, ...]:
        """The cells that ended so."""
        return tuple(cell for cell in self.cells if cell.get("status") == status)

    def values(self, key: str) -> list[float]:
        """A figure of every finished cell that has it as a finite number."""
        found = (number(_mapping(cell, "result").get(key)) for cell in self.having("done"))
        return [value for value in found if value is not None]

    @property
    def x(self) -> float | None:
        """Where the arm stands in a sweep."""
        return number(self.cells[0].get("x")) if self.cells else None

    @property
    def series(self) -> str | None:
        """The line of a plot that it belongs to."""
        return self.cells[0].get("series") if self.cells else None


@dataclass(frozen=True)
class Section:
    """One experiment at one scale on one corpus.

    Attributes:
        experiment: What was asked.
        arms: In the order of the experiment, those without cells too.
        label: The scale and corpus, where the report holds more than one; else empty.
        doubles: Cells left out because a later one has the same arm and seed.
    """

    experiment: Experiment
    arms: tuple[ArmCells, ...]
    label: str = ""
    doubles: int = 0

    @property
    def title(self) -> str:
        """The experiment's, told from the same at another scale."""
        return f"{self.experiment.title} ({self.label})" if self.label else self.experiment.title

    @property
    def name(self) -> str:
        """The experiment's name as one word for anchors and files, told apart in the same way."""
        text = f"{self.experiment.name} {self.label}".strip()
        return "-".join("".join(c if c.isalnum() else " " for c in text).split()).lower()

    @property
    def cells(self) -> list[Cell]:
        """All of them."""
        return [cell for arm in self.arms for cell in arm.cells]

    def arm(self, name: str) -> ArmCells:
        """The arm of this name; one without cells if there is none."""
        return next((arm for arm in self.arms if arm.name == name), ArmCells(name))

    def better(self, key: str) -> str:
        """Whether a figure is better "higher" or "lower", as its column says; "" if none does."""
        return next((column.better for column in self.experiment.columns if column.key == key), "")


def sections(experiments: Sequence[Experiment], cells: Sequence[Cell]) -> list[Section]:
    """Every experiment, those without cells too; figures of two scales or two corpora are never pooled."""
    kinds = list(dict.fromkeys(_kind(cell) for cell in cells))
    found = []
    for experiment in experiments:
        own = [cell for cell in cells if cell.get("study") == experiment.name]
        for kind in list(dict.fromkeys(_kind(cell) for cell in own)) or [("", "")]:
            label = ", ".join(filter(None, kind)) if len(kinds) > 1 else ""
            found.append(_section(experiment, [cell for cell in own if _kind(cell) == kind], label))
    return found


def number(value: Any) -> float | None:
    """A finite number, or None: JSON may hold null, text or NaN where a measurement failed."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def short(value: Any) -> str:
    """The name of a scale, corpus or machine, which a cell may hold as text or with all its details."""
    if isinstance(value, Mapping):
        return str(value.get("name") or ", ".join(f"{key} {part}" for key, part in value.items() if part))
    return "" if value is None else str(value)


def _section(experiment: Experiment, cells: Sequence[Cell], label: str) -> Section:
    by_arm: dict[str, dict[Any, Cell]] = {name: {} for name in _planned(experiment, cells)}
    for cell in cells:
        by_arm.setdefault(str(cell.get("arm")), {})[cell.get("seed")] = cell
    for name in (*experiment.paper, *(name for claim in experiment.claims for name in (claim.arm, claim.other))):
        by_arm.setdefault(name, {})
    arms = tuple(ArmCells(name, tuple(seeds.values())) for name, seeds in by_arm.items())
    return Section(experiment, arms, label, doubles=len(cells) - sum(len(arm.cells) for arm in arms))


def _planned(experiment: Experiment, cells: Sequence[Cell]) -> list[str]:
    """The arms that the experiment has at the scale of these cells, in its order."""
    scale = SCALES.get(short(cells[0].get("scale"))) if cells else None
    try:
        return [arm.name for arm in experiment.arms(scale)] if scale else []
    except Exception:  # old cells must be shown even where a user's experiment has changed or broken since
        return []


def _kind(cell: Cell) -> tuple[str, str]:
    return short(cell.get("scale")), short(cell.get("corpus"))


def _mapping(cell: Cell, key: str) -> Mapping[str, Any]:
    """A part of a cell that a failed run may have left out."""
    part = cell.get(key)
    return part if isinstance(part, Mapping) else {}
