"""Cells grouped into sections within which they may be compared: one experiment, one scale, one corpus."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.study.experiment import Claim, Experiment
from reluformer.study.scales import SCALES, Scale

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class ArmCells:
    """The cells of one arm, one per seed; none if the arm has not run."""

    name: str
    cells: tuple[Cell, ...] = ()

    def having(self, status: str) -> tuple[Cell, ...]:
        """Return the cells of a status."""
        return tuple(cell for cell in self.cells if cell.get("status") == status)

    def values(self, key: str) -> list[float]:
        """Return a figure of every finished cell in which it is a finite number."""
        found = (number(_mapping(cell, "result").get(key)) for cell in self.having("done"))
        return [value for value in found if value is not None]

    @property
    def x(self) -> float | None:
        """Position of the arm in a sweep."""
        return number(self.cells[0].get("x")) if self.cells else None

    @property
    def series(self) -> str | None:
        """Curve of a plot that the arm belongs to."""
        return self.cells[0].get("series") if self.cells else None


@dataclass(frozen=True)
class Section:
    """One experiment at one scale on one corpus.

    Attributes:
        experiment: Experiment that the cells belong to.
        arms: Arms in the order of the experiment, including those without cells.
        claims: Claims of the experiment at this scale.
        label: Scale and corpus, if the report holds more than one combination; else empty.
        doubles: Number of cells left out because a later one has the same arm and seed.
    """

    experiment: Experiment
    arms: tuple[ArmCells, ...]
    claims: tuple[Claim, ...] = ()
    label: str = ""
    doubles: int = 0

    @property
    def title(self) -> str:
        """Title of the experiment, with the label that tells it from the same one at another scale."""
        return f"{self.experiment.title} ({self.label})" if self.label else self.experiment.title

    @property
    def name(self) -> str:
        """Name of the experiment, with the label, as one word for anchors and files."""
        text = f"{self.experiment.name} {self.label}".strip()
        return "-".join("".join(c if c.isalnum() else " " for c in text).split()).lower()

    @property
    def cells(self) -> list[Cell]:
        """Cells of all arms."""
        return [cell for arm in self.arms for cell in arm.cells]

    def arm(self, name: str) -> ArmCells:
        """Return the arm of this name, or one without cells if there is none."""
        return next((arm for arm in self.arms if arm.name == name), ArmCells(name))

    def better(self, key: str) -> str:
        """Return whether a figure is better "higher" or "lower", as its column says; "" if no column does."""
        return next((column.better for column in self.experiment.columns if column.key == key), "")


def sections(experiments: Sequence[Experiment], cells: Sequence[Cell]) -> list[Section]:
    """Return the sections of all experiments, even without cells; figures of two scales or corpora are never pooled."""
    kinds = list(dict.fromkeys(_kind(cell) for cell in cells))
    found = []
    for experiment in experiments:
        own = [cell for cell in cells if cell.get("study") == experiment.name]
        for kind in list(dict.fromkeys(_kind(cell) for cell in own)) or [("", "")]:
            label = ", ".join(filter(None, kind)) if len(kinds) > 1 else ""
            found.append(_section(experiment, [cell for cell in own if _kind(cell) == kind], label))
    return found


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else: JSON may hold null, text or NaN if a measurement failed."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def short(value: Any) -> str:
    """Return the name of a scale, corpus or machine, which a cell may hold as text or with all its details."""
    if isinstance(value, Mapping):
        return str(value.get("name") or ", ".join(f"{key} {part}" for key, part in value.items() if part))
    return "" if value is None else str(value)


def _section(experiment: Experiment, cells: Sequence[Cell], label: str) -> Section:
    scale = SCALES.get(short(cells[0].get("scale"))) if cells else None
    claims = experiment.claims_at(scale)
    by_arm: dict[str, dict[Any, Cell]] = {name: {} for name in _planned(experiment, scale)}
    for cell in cells:
        by_arm.setdefault(str(cell.get("arm")), {})[cell.get("seed")] = cell
    for name in (*experiment.paper, *(name for claim in claims for name in (claim.arm, claim.other))):
        by_arm.setdefault(name, {})
    arms = tuple(ArmCells(name, tuple(seeds.values())) for name, seeds in by_arm.items())
    return Section(experiment, arms, claims, label, doubles=len(cells) - sum(len(arm.cells) for arm in arms))


def _planned(experiment: Experiment, scale: Scale | None) -> list[str]:
    """Return the names of the experiment's arms at a scale, in its order."""
    try:
        return [arm.name for arm in experiment.arms(scale)] if scale else []
    except Exception:  # old cells are shown even if a user's experiment has changed or broken since
        return []


def _kind(cell: Cell) -> tuple[str, str]:
    return short(cell.get("scale")), short(cell.get("corpus"))


def _mapping(cell: Cell, key: str) -> Mapping[str, Any]:
    """Return a mapping inside a cell, or an empty one if a failed run left it out."""
    part = cell.get(key)
    return part if isinstance(part, Mapping) else {}
