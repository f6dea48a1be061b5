"""Recipes: a training run as a YAML file that a person can read and copy, with strict keys.

A key that is not known is an error that names the nearest one, wherever it stands. ``key=value`` on the command line
changes a recipe: ``optimiser.lr=3e-4``, ``stages.0.steps=100``, ``model.preset=transformer-small``.
"""

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from reluformer.data.files import check_readable


@dataclass(frozen=True)
class Stage:
    """A stretch of training on one length of documents.

    Attributes:
        length: Tokens that consecutive sentences are packed to; 0 for single sentences.
        steps: How many updates.
    """

    length: int
    steps: int


@dataclass(frozen=True)
class Optimiser:
    """AdamW, with a warm-up and a decay.

    Attributes:
        lr: The highest learning rate.
        warmup: Updates until it is reached.
        schedule: What follows: ``inverse_sqrt``, ``linear``, ``cosine`` or ``constant``.
        betas: Of Adam.
        weight_decay: Of matrices.
        clip: Most norm of the gradient; 0 for no limit.
        gamma_lr: Times the learning rate of gamma and of the score biases.
        label_smoothing: Share of the target's probability that goes to all tokens.
    """

    lr: float = 5e-4
    warmup: int = 4000
    schedule: str = "inverse_sqrt"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    clip: float = 1.0
    gamma_lr: float = 10.0
    label_smoothing: float = 0.1


@dataclass(frozen=True)
class Batches:
    """How much goes into an update.

    Attributes:
        cost: Most cost of a batch on one device, in tokens of short sequences.
        quadratic: The length at which attention is half of the cost.
        accumulate: Batches per update.
    """

    cost: int = 16384
    quadratic: int = 2048
    accumulate: int = 1


@dataclass(frozen=True)
class Checkpoints:
    """What is kept, and when training stops early.

    Attributes:
        every: Updates between two checkpoints, each followed by an evaluation.
        keep: How many are kept, the best one besides.
        average: How many of the last ones the final model averages; 1 for the last alone.
        patience: Evaluations without a better ``metric`` until training stops; 0 to go on.
            They count in the last stage, as does what is best: losses at other lengths are other losses; and not
            while attention is still in part softmax.
        metric: ``loss`` or ``d-bleu``.
        documents: How many validation documents are translated for ``d-bleu``.
    """

    every: int = 1000
    keep: int = 5
    average: int = 5
    patience: int = 0
    metric: str = "loss"
    documents: int = 50

    def __post_init__(self) -> None:
        if self.average > self.keep:
            raise ValueError(f"checkpoints.average must be at most checkpoints.keep = {self.keep}, got {self.average}")


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        data: Folder that ``reluformer data prepare`` wrote.
        out: Folder for checkpoints and the final model.
        stages: The curriculum, from short to long.
        model: ``preset`` and whatever of the configuration differs from it.
        optimiser: See :class:`Optimiser`.
        batches: See :class:`Batches`.
        checkpoints: See :class:`Checkpoints`.
        calibrate: Set gamma to unit mass on the first batch, instead of by the formula.
        regulariser_warmup: Updates over which the regulariser grows from nothing to its weights.
        anneal: Updates over which attention turns from softmax into what the model says it is; 0 for never softmax.
        seed: Decides everything that is random.
        precision: ``bf16``, ``fp32``, or ``auto`` for bf16 on a GPU that has it.
        compile: Let ``torch.compile`` fuse the layers: minutes at the start, faster steps ever after. Needs a GPU.
        workers: Processes that make batches while a GPU is at work; none on a CPU.
        log_every: Updates between two points of the curve.
    """

    data: str
    out: str
    stages: tuple[Stage, ...]
    model: dict[str, Any] = field(default_factory=lambda: {"preset": "reluformer-small"})
    optimiser: Optimiser = field(default_factory=Optimiser)
    batches: Batches = field(default_factory=Batches)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    calibrate: bool = True
    regulariser_warmup: int = 4000
    anneal: int = 0
    seed: int = 0
    precision: str = "auto"
    compile: bool = False
    workers: int = 4
    log_every: int = 50

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages must have at least one entry, got none")
        updates = sum(stage.steps for stage in self.stages)
        if self.anneal > updates:
            raise ValueError(f"anneal must be at most the {updates} updates of all stages, got {self.anneal}")


CHOICES = {
    "optimiser.schedule": ("inverse_sqrt", "linear", "cosine", "constant"),
    "checkpoints.metric": ("loss", "d-bleu"),
    "precision": ("auto", "bf16", "fp32"),
}
LEAST = {  # of numbers, where it is not 0
    "steps": 1, "cost": 1, "quadratic": 1, "accumulate": 1, "every": 1, "keep": 1, "average": 1,
    "documents": 1, "log_every": 1,
}  # fmt: skip
BELOW = {"optimiser.betas.0": 1, "optimiser.betas.1": 1, "optimiser.label_smoothing": 1, "seed": 2**32}


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file, with changes ``key=value`` applied; a ValueError says what is wrong and where."""
    check_readable(path)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Strict)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ValueError(f"{where} is not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a mapping of settings, got {type(values).__name__}")
    for change in changes:
        _change(values, change)
    try:
        recipe: Recipe = _build(Recipe, values, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return recipe


class _Strict(yaml.SafeLoader):
    """To which a key that stands twice is an error, where YAML takes the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in seen:
                problem = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def to_yaml(recipe: Recipe) -> str:
    """The whole recipe, defaults included."""
    plain = yaml.safe_dump(_plain(dataclasses.asdict(recipe)), sort_keys=False, allow_unicode=True)
    return str(plain)


def _change(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ValueError(f"a change must read key=value, got {change!r}")
    *parents, last = key.split(".")
    place: Any = values
    for part in parents:
        if isinstance(place, list):
            place = place[_index(place, part, key)]
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            raise ValueError(f"{key} cannot be set: {part!r} is inside a plain value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{key}: {text!r} is not YAML: {problem}") from None
    if isinstance(place, list):
        place[_index(place, last, key)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ValueError(f"{key} cannot be set: {last!r} is inside a plain value")


def _index(place: list[Any], part: str, key: str) -> int:
    if not part.isdecimal() or int(part) >= len(place):
        raise ValueError(f"{key}: takes a number from 0 to {len(place) - 1} in the place of {part!r}")
    return int(part)


def _build(kind: Any, values: Any, where: str) -> Any:
    """A dataclass from plain values; ``where`` is its place in the recipe, for messages."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a mapping of settings, got {values!r}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, 1, 0.5)
            hint = f"did you mean {_join(where, near[0])}?" if near else f"there are {', '.join(fields)}"
            raise ValueError(f"{_join(where, name)} is not known; {hint}")
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{_join(where, name)} is missing")
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _value(hints[name], value, _join(where, name)) for name, value in values.items()})
    except TypeError as error:
        raise ValueError(f"{where or 'recipe'}: {error}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, where)
    plain = get_origin(kind) or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if plain is float and isinstance(value, str):  # YAML takes 3e-4 for a text
        with contextlib.suppress(ValueError):
            value = float(value)
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        names = {int: "an int", float: "a number", str: "a text", dict: "a mapping", bool: "true or false"}
        raise ValueError(f"{where} must be {names.get(plain, plain.__name__)}, got {value!r}")
    if where in CHOICES and value not in CHOICES[where]:
        raise ValueError(f"{where} must be one of {', '.join(CHOICES[where])}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} must be finite, got {value!r}")
    least = LEAST.get(where.rpartition(".")[2], 0)
    if isinstance(value, int | float) and value < least:
        raise ValueError(f"{where} must be at least {least}, got {value!r}")
    if where in BELOW and value >= BELOW[where]:
        raise ValueError(f"{where} must be below {BELOW[where]}, got {value!r}")
    return value


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} must be a list, got {value!r}")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where} must have {len(kinds)} entries, got {value!r}")
    return tuple(_value(k, x, f"{where}.{i}") for i, (k, x) in enumerate(zip(kinds, value, strict=True)))


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    return [_plain(value) for value in x] if isinstance(x, list | tuple) else x
