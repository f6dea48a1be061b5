"""What an experiment is: arms to run, numbers to show, sentences of the paper to test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.study.bench import Bench
    from reluformer.study.scales import Scale


class StudyError(Exception):
    """A study that cannot begin: the message says what is wrong, in one line."""


class Diverged(Exception):
    """A model whose loss is not a number, or no better than guessing; ``result`` is what could be measured."""

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


@dataclass(frozen=True)
class Arm:
    """One setting of an experiment.

    Attributes:
        name: As tables show it, unique in the experiment.
        settings: Whatever ``run`` needs, as JSON can hold it.
        x: Place on a plot's axis, if there is one.
        series: The curve it belongs to, if there are curves.
        seeds: Most seeds that it is worth; None for as many as the study has.
    """

    name: str
    settings: dict[str, Any]
    x: float | None = None
    series: str | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Column:
    """A number of the results.

    Attributes:
        title: Of the column.
        key: In the results.
        digits: Behind the point.
        better: ``higher``, ``lower``, or empty where neither is.
        seeds: What is shown of several: their ``mean`` and deviation, or the ``largest``, as of p-values.
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
        arm: Stands left of the relation.
        other: Stands right of it.
        relation: ``>``, ``<``, or ``=``, which means within ``margin``.
        margin: Least difference that counts, or with ``=`` the most. With ``>`` and ``<`` it may be negative: so much
            may be lost by what still matches.
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
    """A metric that every cell has at several places, as a mapping: a panel per ``Arm.x``, a curve per series in each.

    ``x`` and ``y`` name the axes, ``unit`` that of ``Arm.x`` in the titles of the panels.
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
        name: On the command line.
        title: In the report.
        question: What it asks, in a sentence.
        arms: The settings at a scale.
        run: From an arm, a seed and what it runs on to numbers; ``curve`` among them is a list of points, ``pictures``
            are PNG files below the study's folder, ``tables`` are shown as they are: ``title``, ``head``, ``rows``, and
            ``names``, how many columns at the left hold no numbers (1 if it is not there).
        alone: What is measured while no other cell runs, after all have, as speed must be: from an arm, a seed, what it
            runs on and the numbers so far, with the curve, to more of them. None for nothing.
        columns: What tables show.
        claims: What the paper says.
        plots: What to draw over ``Arm.x``.
        profiles: What to draw of single cells.
        paper: The paper's figures, as text, by arm and key.
    """

    name: str
    title: str
    question: str
    arms: "Callable[[Scale], list[Arm]]"
    run: "Callable[[Arm, int, Bench], dict[str, Any]]"
    columns: tuple[Column, ...]
    claims: tuple[Claim, ...] = ()
    plots: tuple[Plot, ...] = ()
    profiles: tuple[Profile, ...] = ()
    paper: dict[str, dict[str, str]] = field(default_factory=dict)
    alone: "Callable[[Arm, int, Bench, dict[str, Any]], dict[str, Any]] | None" = None
