"""Everything in which one memory differs from another, as plain values that a configuration can hold."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from reluformer.memory.activations import ACTIVATIONS, FUSED, NORMALISED

GAMMAS = ("none", "fixed", "learned", "shared")
NORMS = ("none", "mass", "layer", "rms", "gated")
SIGNED = ("gelu", "identity")  # activations whose weights may be negative, hence sum to anything


@dataclass(frozen=True)
class MemorySettings:
    """Settings of a memory with weights ``activation(score + bias) / (gamma * (n / 2) ** alpha)`` over its ``n`` slots.

    Attributes:
        activation: One of :data:`~reluformer.memory.activations.ACTIVATIONS`.
        alpha: Exponent of the number of slots that a query sees, at least 0.
        gamma: ``"none"`` for 1; ``"fixed"`` or ``"learned"`` for one positive number per head; ``"shared"`` for one
            learned number common to all heads. It starts where the mean row of weights sums to 1 (see
            :func:`~reluformer.memory.calibrate`).
        norm: Norm of the value sum: ``"none"``; ``"mass"`` for division by the sum of the weights, which makes every
            row a distribution (gamma and alpha cancel); ``"layer"`` for a layer norm; ``"rms"`` for an RMS norm of
            every head by itself; ``"gated"`` for ReLA's RMS norm with a gate.
        bias: Initial value of a learned bias of the score, per head (per slot in a :class:`KeyValueMemory`); None for
            no bias.
        temperature: Divisor of the scores of an activation that normalises: softmax, sparsemax, entmax15.
        query_key_norm: Whether queries and keys are brought to unit RMS per head, with a learned gain.
        centred: Whether the mean of a row is subtracted from its scores, see :mod:`~reluformer.memory.centring`; for
            activations that are not invariant to a constant in all scores.
        constant_channel: Whether the first channel of queries, keys and values is reserved for bias and mass, see
            :mod:`~reluformer.memory.constant`, which leaves a head ``D - 1`` channels. For powers of ReLU over their
            mass, which it makes faster to train; centred memories always have it.
        sentence_bias: Initial value of what the score of a key in another sentence than the query's loses, learned per
            head, see :mod:`~reluformer.memory.sentences`; None for no difference.
        slots: Number of learned slots: all that a :class:`KeyValueMemory` has; in :class:`Attention`, those beside the
            keys of the sequence.
        slot_activation: Activation of slots in :class:`Attention` that are a memory of their own, as in an FFN: their
            sum ``activation(scores) values``, without any divisor, is added to that of the sequence. None for slots
            that stand in one row with the keys, under the same activation and divisor.
        forget: Initial bias of a forget gate, see :mod:`~reluformer.memory.forgetting`; None for no gate.
        token_shift: Whether keys and values are mixed with those of the token before, see
            :mod:`~reluformer.memory.shift`.
        output_gate: Whether the output, after its norm, is multiplied by ``sigmoid(W x)``.
    """

    activation: str = "relu"
    alpha: float = 0.5
    gamma: str = "learned"
    norm: str = "none"
    bias: float | None = None
    temperature: float = 1.0
    query_key_norm: bool = False
    centred: bool = False
    constant_channel: bool = False
    sentence_bias: float | None = None
    slots: int = 0
    slot_activation: str | None = None
    forget: float | None = None
    token_shift: bool = False
    output_gate: bool = False

    def __post_init__(self) -> None:
        _one_of("activation", self.activation, ACTIVATIONS)
        _one_of("gamma", self.gamma, GAMMAS)
        _one_of("norm", self.norm, NORMS)
        if self.norm == "mass" and self.activation in SIGNED:
            raise ValueError(f"norm must not be 'mass' for {self.activation}, whose weights may be negative")
        _number("alpha", self.alpha, "a number >= 0", lambda x: 0 <= x < math.inf)
        _number("temperature", self.temperature, "a positive number", lambda x: 0 < x < math.inf)
        for name in ("bias", "sentence_bias", "forget"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), "None or a number", math.isfinite)
        for name in ("query_key_norm", "centred", "constant_channel", "token_shift", "output_gate"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 0:
            raise ValueError(f"slots must be an int >= 0, got {self.slots!r}")
        for name in ("alpha", "temperature", "bias", "sentence_bias", "forget"):
            value = getattr(self, name)
            if value is not None and type(value) not in (int, float):  # a NumPy scalar, say, which JSON cannot hold
                object.__setattr__(self, name, float(value))
        if self.slot_activation is not None:
            _one_of("slot_activation", self.slot_activation, (None, *ACTIVATIONS))
            if not self.slots:
                raise ValueError(f"slot_activation must be None without slots, got {self.slot_activation!r}")
        if self.slots_in_rows and self.forget is not None:
            raise ValueError(f"forget must be None beside slots, which are no tokens to fade, got {self.forget!r}")
        if self.centred and self.sentence_bias is not None:
            raise ValueError(f"centred must be False beside a sentence_bias, got one of {self.sentence_bias!r}")
        if self.centred and self.activation in NORMALISED:
            raise ValueError(f"centred must be False for {self.activation}, which no constant in all scores changes")
        if self.centred and self.norm == "mass" and not self.bias:
            raise ValueError(
                "bias must be a number other than 0 where scores are centred and norm is 'mass': the score of a single "
                f"key is 0 then, and rounding would decide whether its row is dead, got {self.bias!r}"
            )
        if self.constant_channel and (self.norm != "mass" or self.activation not in FUSED or self.bias is None):
            raise ValueError(
                f"constant_channel must be False unless norm is 'mass', with a bias and one of {', '.join(FUSED)}, "
                f"got norm {self.norm!r}, bias {self.bias!r}, activation {self.activation!r}"
            )
        if self.temperature != 1 and self.activation not in NORMALISED:
            takers = ", ".join(NORMALISED)
            raise ValueError(f"temperature must be 1 unless activation is one of {takers}, got {self.temperature!r}")

    @property
    def slots_in_rows(self) -> int:
        """Number of slots that stand in one row with the keys of a sequence."""
        return self.slots if self.slot_activation is None else 0

    @classmethod
    def of(cls, site: str, values: "Mapping[str, Any] | MemorySettings") -> "MemorySettings":
        """Settings from the entry of a configuration; errors name the field as ``site.field``."""
        if isinstance(values, MemorySettings):
            return values
        if not isinstance(values, Mapping):
            raise ValueError(f"{site} must be a mapping of memory settings, got {values!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"{site}.{name} is no memory setting; there are {', '.join(sorted(known))}")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{site}.{error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The settings as a plain dictionary, for a configuration."""
        return dataclasses.asdict(self)


def _one_of(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def _number(name: str, value: object, takes: str, holds: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not holds(value):
        raise ValueError(f"{name} must be {takes}, got {value!r}")


SOFTMAX_ATTENTION = MemorySettings(activation="softmax", alpha=0.0, gamma="none")  # that of a Transformer
# relu(8 + s) ** 8 over its sum: a drop-in for softmax, under which one key can stand out among any number of others.
EIGHTH_ATTENTION = MemorySettings("relu_eighth", alpha=0.0, gamma="none", norm="mass", bias=8.0, constant_channel=True)
# The attention without softmax that learns best so far: docs/study.md, "Found so far on Europarl".
POWER_ATTENTION = dataclasses.replace(EIGHTH_ATTENTION, query_key_norm=True)
