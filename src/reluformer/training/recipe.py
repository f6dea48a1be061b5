"""Recipes: a training run as a YAML file that a person can read and copy, with strict keys.

An unknown key at any level is an error that suggests the nearest known one. ``key=value`` on the command line changes a
recipe: ``optimiser.lr=3e-4``, ``stages.0.steps=100``, ``model.preset=transformer-small``.
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
from reluformer.data.shapes import Shapes


@dataclass(frozen=True)
class Stage:
    """A stretch of training on documents of one length.

    Attributes:
        length: Number of tokens that consecutive sentences are packed to; 0 for single sentences.
        steps: Number of updates.
    """

    length: int
    steps: int


@dataclass(frozen=True)
class Optimiser:
    """AdamW, with a warm-up and a decay.

    Attributes:
        lr: Peak learning rate.
        warmup: Number of updates until the peak.
        schedule: Learning rate after the peak: ``inverse_sqrt``, ``linear``, ``cosine`` or ``constant``.
        betas: Betas of Adam.
        weight_decay: Weight decay of matrices; other parameters have none.
        clip: Maximum norm of the gradient; 0 for no limit.
        gamma_lr: Factor on the learning rate of gamma and of the score biases.
        label_smoothing: Share of the target's probability that is spread over all tokens.
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
        cost: Maximum cost of a batch on one device, in tokens of short sequences.
        quadratic: Length at which attention is half of the cost.
        accumulate: Number of batches per update on every device.
    """

    cost: int = 16384
    quadratic: int = 2048
    accumulate: int = 1


@dataclass(frozen=True)
class Checkpoints:
    """Which checkpoints are kept, and when training stops early.

    Attributes:
        every: Number of updates between two checkpoints, and between two evaluations.
        keep: Number of checkpoints kept, besides the best one.
        average: Number of the last checkpoints that the final model averages; 1 for the last alone.
        patience: Number of evaluations without a better ``metric`` after which training stops; 0 for never.
            For this and for the best checkpoint only evaluations in the last stage count, since losses at different
            lengths do not compare, and only those where no softmax is left in attention, see ``Recipe.anneal``.
        metric: Metric that decides which checkpoint is best: ``loss`` or ``d-bleu``.
        documents: Number of validation documents that are translated for ``d-bleu``.
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
        stages: Stages of the curriculum, from short to long.
        model: Name of a ``preset``, and settings of the configuration that differ from it.
        optimiser: See :class:`Optimiser`.
        batches: See :class:`Batches`.
        checkpoints: See :class:`Checkpoints`.
        calibrate: Whether to set gamma for unit mass on the first batch, instead of by the formula.
        regulariser_warmup: Number of updates over which the regulariser grows from nothing to its full weights.
        anneal: Number of updates over which attention turns from softmax into the model's own activation; 0 for none.
        seed: Seed of everything random.
        precision: ``bf16``, ``fp32``, or ``auto`` for bf16 on a GPU that supports it.
        compile: Whether ``torch.compile`` fuses the layers: minutes at the start, faster steps ever after. Needs a GPU.
        graphs: Whether updates are recorded as CUDA graphs, one for every shape of batch, of which there are then few:
            for batches so small that launching their kernels takes longer than the kernels. Needs a single GPU;
            elsewhere it only makes batches have these shapes.
        workers: Number of processes that prepare batches while a GPU is at work; on a CPU there are none.
        log_every: Number of updates between two points of the curve.
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
    graphs: bool = False
    workers: int = 4
    log_every: int = 50

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages must have at least one entry, got none")
        updates = sum(stage.steps for stage in self.stages)
        if self.anneal > updates:
            raise ValueError(f"anneal must be at most the {updates} updates of all stages, got {self.anneal}")

    @property
    def shapes(self) -> Shapes | None:
        """Shapes of the batches; None for any."""
        return Shapes(self.batches.cost, self.batches.quadratic) if self.graphs else None


CHOICES = {
    "optimiser.schedule": ("inverse_sqrt", "linear", "cosine", "constant"),
    "checkpoints.metric": ("loss", "d-bleu"),
    "precision": ("auto", "bf16", "fp32"),
}
LEAST = {  # minimum of the numbers for which it is not 0
    "steps": 1, "cost": 1, "quadratic": 1, "accumulate": 1, "every": 1, "keep": 1, "average": 1,
    "documents": 1, "log_every": 1,
}  # fmt: skip
BELOW = {"optimiser.betas.0": 1, "optimiser.betas.1": 1, "optimiser.label_smoothing": 1, "seed": 2**32}


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file and apply changes ``key=value``; a ValueError says what is wrong, and where."""
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
    """A loader that refuses repeated keys, of which PyYAML would silently take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in seen:
                problem = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def to_yaml(recipe: Recipe) -> str:
    """Return the whole recipe as YAML, defaults included."""
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
    """Build a dataclass from plain values; ``where`` is its place in the recipe, for messages."""
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
    if plain is float and isinstance(value, str):  # YAML reads 3e-4 as a string
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
