"""Base class of all configurations: settings for every kind of site, and a regulariser."""

import dataclasses
import math
from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from reluformer.memory.feedforward import PARTS_OF_ATTENTION
from reluformer.memory.regulariser import Regulariser
from reluformer.memory.settings import MemorySettings

NORM_ORDERS = ("pre", "post")
CAUSAL_PARTS = ("forget", "token_shift")  # need ordered tokens, and a cache that holds more than keys and values


class MemoryConfig(PreTrainedConfig):
    """Configuration of a model whose every sublayer is a memory.

    Each kind of site is a field that takes a mapping of :class:`~reluformer.memory.MemorySettings`; settings that a
    mapping leaves out take the default of the model. ``ffn.slots = 0`` removes the FFN.

    Args:
        d_model: Width of the residual stream.
        heads: Number of query heads of every attention.
        key_heads: Number of key heads, a divisor of ``heads``; None for as many as ``heads``.
        norm_order: ``"pre"`` to norm the input of a sublayer, ``"post"`` to norm the sum with its residual.
        norm_eps: Added to the variance in the layer norms of the residual stream.
        dropout: Dropout of embeddings and of the output of every sublayer.
        memory_dropout: Dropout of the weights over the slots of the FFN.
        regulariser: ``mass``, ``entropy``, ``ceiling`` and ``share``, see :class:`~reluformer.memory.Regulariser`.
    """

    defaults: ClassVar[dict[str, MemorySettings]] = {}  # settings by kind of site
    families: ClassVar[dict[str, MemorySettings]] = {}  # attention of the presets, by family
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}  # fields of the presets, by size; ``slots`` is that of the FFN
    ordered: ClassVar[tuple[str, ...]] = ()  # kinds of sites that may have CAUSAL_PARTS,
    parted: ClassVar[tuple[str, ...]] = ()  # and a sentence_bias

    d_model: int = 512
    heads: int = 8
    key_heads: int | None = None
    norm_order: str = "pre"
    norm_eps: float = 1e-5
    dropout: float | int = 0.1
    memory_dropout: float | int = 0.0
    ffn: dict[str, Any] | None = None
    regulariser: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Check every field and fill in the settings of the memories."""
        for name, default in self.defaults.items():
            if name == "ffn":
                width = self.d_model if isinstance(self.d_model, int) else 1
                default = dataclasses.replace(default, slots=max(4 * width, 1))
            given = getattr(self, name)
            settings = MemorySettings.of(name, default.to_dict() | dict(given)) if _is_mapping(name, given) else default
            setattr(self, name, settings.to_dict())
        given = self.regulariser if _is_mapping("regulariser", self.regulariser) else {}
        self.regulariser = dataclasses.asdict(_regulariser(given or {}))
        self.key_heads = self.heads if self.key_heads is None else self.key_heads
        self._check()
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        for name in ("d_model", "heads", "key_heads"):
            at_least(name, getattr(self, name), 1)
        one_of("norm_order", self.norm_order, NORM_ORDERS)
        for name in ("tie_word_embeddings", "use_cache"):
            if not isinstance(getattr(self, name, True), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("dropout", "memory_dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{name} must be a number from 0 to below 1, got {value!r}")
        eps = self.norm_eps
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < math.inf:
            raise ValueError(f"norm_eps must be a positive number, got {eps!r}")
        if self.d_model % self.heads:
            raise ValueError(f"heads must divide d_model = {self.d_model}, got {self.heads}")
        if self.heads % (self.key_heads or 1):
            raise ValueError(f"key_heads must divide heads = {self.heads}, got {self.key_heads}")
        for name in PARTS_OF_ATTENTION:
            if self.ffn and (value := self.ffn[name]) != (usual := getattr(MemorySettings, name)):
                raise ValueError(f"ffn.{name} must be {usual}: it is a part of attention, got {value!r}")
        for site in self.defaults:
            for name in CAUSAL_PARTS if site not in self.ordered else ():
                value, none = getattr(self, site)[name], None if name == "forget" else False
                if value is not none:
                    raise ValueError(
                        f"{site}.{name} must be {none}: only attention in a language model can have it, got {value!r}"
                    )
            if site not in (*self.parted, "ffn") and (bias := getattr(self, site)["sentence_bias"]) is not None:
                raise ValueError(
                    f"{site}.sentence_bias must be None: only an encoder-decoder knows of sentences, got {bias!r}"
                )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A saved configuration with changes, checked like the rest; those of a site may be given in part."""
        own = {field.name for field in dataclasses.fields(cls)} - {x.name for x in dataclasses.fields(PreTrainedConfig)}
        changes = {name: kwargs.pop(name) for name in own & kwargs.keys()}
        for site in (*cls.defaults, "regulariser"):
            if site in changes and _is_mapping(site, changes[site]):
                changes[site] = (config_dict.get(site) or {}) | changes[site]
        return super().from_dict({**config_dict, **changes}, **kwargs)

    def memory(self, site: str) -> MemorySettings:
        """The settings of a kind of site."""
        return MemorySettings.of(site, getattr(self, site))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Configuration of a family and a size, as in ``"reluformer-tiny"``, whose twin is ``"transformer-tiny"``.

        Presets of one size differ only in the memories of their attention. Changes are fields of the configuration;
        those of a site may be given in part: ``preset("reluformer-tiny", ffn={"slots": 64})``.
        """
        family, _, size = str(name).rpartition("-")
        if family not in cls.families or size not in cls.sizes:
            known = ", ".join(f"{f}-{s}" for f in cls.families for s in cls.sizes)
            raise ValueError(f"preset must be one of {known}, got {name!r}")
        fields: dict[str, Any] = dict(cls.sizes[size])
        fields["ffn"] = {"slots": fields.pop("slots")}
        fields |= {site: cls.families[family].to_dict() for site in cls.defaults if site != "ffn"}
        for site in cls.defaults:
            if site in changes and _is_mapping(site, changes[site]):
                changes[site] = fields[site] | changes[site]
        return cls(**(fields | changes))


def at_least(name: str, value: object, least: int) -> None:
    """Raise ``ValueError`` unless the value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int >= {least}, got {value!r}")


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _is_mapping(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of settings, got {value!r}")
    return value is not None


def _regulariser(values: dict[str, Any]) -> Regulariser:
    known = [field.name for field in dataclasses.fields(Regulariser)]
    for name in values:
        if name not in known:
            raise ValueError(f"regulariser.{name} is no setting; there are {', '.join(known)}")
    try:
        return Regulariser(**values)
    except ValueError as error:
        raise ValueError(f"regulariser.{error}") from None
