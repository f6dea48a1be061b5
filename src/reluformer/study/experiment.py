"""Experiments: arms to run, numbers to show, sentences of the paper to test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.study.bench import Bench
    from reluformer.study.scales import Scale


class StudyError(Exception):
    """A study cannot begin; the message says what is wrong, in one line."""


class Diverged(Exception):
    """The loss of a model is not a number, or no better than guessing; ``result`` holds what could be measured."""

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


@dataclass(frozen=True)
class Arm:
    """One setting of an experiment.

    Attributes:
        name: Name that tables show, unique in the experiment.
        settings: Whatever ``run`` needs, serialisable as JSON.
        x: Position on the horizontal axis of a plot, if there is one.
        series: Curve that the arm belongs to, if there are curves.
        seeds: Largest number of seeds to spend on the arm; None for as many as the study has.
    """

    name: str
    settings: dict[str, Any]
    x: float | None = None
    series: str | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Column:
    """A column of the results table.

    Attributes:
        title: Heading of the column.
        key: Key of the number in the results.
        digits: Digits after the decimal point.
        better: ``higher``, ``lower``, or empty where neither is better.
        seeds: What to show of several seeds: their ``mean`` and deviation, or the ``largest``, as for p-values.
    """

    title: str
    key: str
    digits: int = 2
    better: str = ""
    seeds: str = "mean"


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper as a comparison of two arms.

    Attributes:
        text: The sentence.
        metric: Key of the number that is compared.
        arm: Name of the arm on the left of the relation.
        other: Name of the arm on its right.
        relation: ``>``, ``<``, or ``=``, which means within ``margin``.
        margin: Smallest difference that counts; with ``=``, the largest allowed. With ``>`` and ``<`` it may be
            negative: ``arm`` may then fall behind by that much and still match the claim.
        paper: The paper's figures as text, empty if unknown.
    """

    text: str
    metric: str
    arm: str
    other: str
    relation: str = ">"
    margin: float = 0.0
    paper: str = ""


@dataclass(frozen=True)
class Plot:
    """A metric over ``Arm.x``, a curve per series; ``reference`` maps names of further curves to formulas in ``x``."""

    title: str
    metric: str
    x: str
    y: str
    log_x: bool = False
    reference: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A metric that is a mapping from positions to values in every cell: one panel per ``Arm.x``, one curve per series.

    ``x`` and ``y`` label the axes; ``unit`` is the unit of ``Arm.x`` in the titles of the panels.
    """

    title: str
    metric: str
    x: str
    y: str
    unit: str


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: Name on the command line.
        title: Title in the report.
        question: Question that it asks, in one sentence.
        arms: Function from a scale to the arms.
        run: Function from an arm, a seed and a bench to the results of a cell. Of these, ``curve`` is a list of points,
            ``pictures`` are PNG files below the study's folder, and ``tables`` are shown as they are: ``title``,
            ``head``, ``rows``, and ``names``, the number of leftmost columns that hold no numbers (1 by default).
        alone: Function that measures what must be measured while no other cell runs, such as speed. It is called after
            all cells have run, with an arm, a seed, a bench and the results so far, including the curve, and returns
            further results. None if there is nothing to measure alone.
        columns: Columns of the table.
        claims: Claims of the paper, or a function from a scale to them, if they name arms that depend on it.
        plots: Plots over ``Arm.x``.
        profiles: Plots of single cells.
        paper: The paper's figures, as text, by arm and key.
    """

    name: str
    title: str
    question: str
    arms: "Callable[[Scale], list[Arm]]"
    run: "Callable[[Arm, int, Bench], dict[str, Any]]"
    columns: tuple[Column, ...]
    claims: "tuple[Claim, ...] | Callable[[Scale], tuple[Claim, ...]]" = ()
    plots: tuple[Plot, ...] = ()
    profiles: tuple[Profile, ...] = ()
    paper: dict[str, dict[str, str]] = field(default_factory=dict)
    alone: "Callable[[Arm, int, Bench, dict[str, Any]], dict[str, Any]] | None" = None

    def claims_at(self, scale: "Scale | None") -> tuple[Claim, ...]:
        """Return the claims at a scale; None is a scale that is not known any more."""
        if callable(self.claims):
            return self.claims(scale) if scale is not None else ()
        return self.claims
