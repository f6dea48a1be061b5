"""``convert``: ReLU memories in place of the softmax attention of a stock Hugging Face model."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from reluformer.integration.families import FAMILIES, TWINS, ReLUModel, attach_memories, attention_modules
from reluformer.integration.memory import AttentionMemory, check_settings
from reluformer.memory.settings import MemorySettings

Model = TypeVar("Model", bound=PreTrainedModel)
Sites = Callable[[str], bool] | Collection[str]


def convert(
    model: Model,
    *,
    settings: MemorySettings | Mapping[str, Any] | None = None,
    batch: Mapping[str, Any] | None = None,
    length: int = 128,
    sites: Sites | None = None,
) -> Model:
    """Replace the softmax attention of a Hugging Face model by calibrated ReLU memories, ready to fine-tune.

    The model is changed in place and returned: it keeps its parameters, and takes the class ``ReLU...`` and a
    configuration of its own. ``save_pretrained`` saves all of it, and after ``import reluformer.integration`` the Auto
    classes load it. If anything fails, the model is left as it was.

    Args:
        model: A stock model of a supported family: BART, BERT, Llama, Marian, T5 or ViT, with any head.
        settings: Settings of the memories, None for the defaults; gamma starts where the mean row of weights sums to 1.
        batch: Inputs of the model by name; one pass over them sets every gamma. Padding is not counted.
        length: Sequence length for which a formula sets gamma if there is no batch.
        sites: Attention modules to convert, by their names in :func:`attention_sites` or by a predicate on these; None
            for all. The others keep softmax.

    Returns:
        The model itself.

    Raises:
        ValueError: If the class of the model is not supported, or the model is converted already.

    Example:
        >>> model = convert(MarianMTModel.from_pretrained("Helsinki-NLP/opus-mt-de-en"), batch=tokenizer(...))
    """
    if isinstance(model, ReLUModel):
        raise ValueError(f"model is converted already: {type(model).__name__}")
    twin = TWINS.get(type(model))
    if twin is None:
        raise ValueError(f"model must be a stock model of {', '.join(FAMILIES)}, got {type(model).__name__}")
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"length must be an int >= 1, got {length!r}")
    if batch is not None and not isinstance(batch, Mapping):
        raise ValueError(f"batch must be a mapping of the model's arguments, got {type(batch).__name__}")
    fields = {
        "relu_memory": check_settings(MemorySettings.of("settings", settings or {})).to_dict(),
        "relu_length": length,
        "relu_sites": None if sites is None else _choose(model, sites),
    }
    with _in_the_class_of(model, twin, fields):
        attach_memories(model)
        if batch is not None:
            calibrate(model, batch)
    return model


def attention_sites(model: PreTrainedModel) -> list[str]:
    """Names of the attention modules in a model of a supported family, as in ``model.named_modules()``."""
    return [_prefix(model) + name for name in attention_modules(model)]


@torch.no_grad()
def calibrate(model: PreTrainedModel, batch: Mapping[str, Any]) -> None:
    """Set the gammas of a converted model so that on this batch the mean row of weights of each head sums to 1.

    It takes one forward pass: every memory is set before it computes its output, so that the next one is calibrated on
    the inputs that it will get from then on.
    """
    if not isinstance(model, ReLUModel):
        raise ValueError(f"model must be one that convert has made, got {type(model).__name__}")
    training, handles = model.training, []
    for name, module in attention_modules(model).items():
        memory = module.relu_memory
        if isinstance(memory, AttentionMemory):
            hook = _Calibration(_counted(name, model, batch))
            handles.append(memory.register_forward_pre_hook(hook, with_kwargs=True))
    model.eval()
    try:
        model(**batch)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()


class _Calibration:
    """Hook that calibrates a memory before it computes its output."""

    def __init__(self, query_mask: Tensor | None) -> None:
        self.query_mask = query_mask

    def __call__(self, memory: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        assert isinstance(memory, AttentionMemory)
        q = args[0]
        fits = self.query_mask is not None and self.query_mask.shape == (q.shape[0], q.shape[2])
        memory.calibrate_on(*args, query_mask=self.query_mask if fits else None, **options)


def _counted(name: str, model: PreTrainedModel, batch: Mapping[str, Any]) -> Tensor | None:
    """Mask ``(B, N)`` of the queries of an attention module that are not padding; None for all."""
    if model.config.is_encoder_decoder and name.startswith("decoder."):
        mask, labels = batch.get("decoder_attention_mask"), batch.get("labels")
        if mask is None and labels is not None and batch.get("decoder_input_ids") is None:
            mask = labels != -100
    else:
        mask = batch.get("attention_mask")
    return None if mask is None else mask.bool()


def _choose(model: PreTrainedModel, sites: Sites) -> list[str]:
    """The chosen names, as in the base model."""
    names = attention_sites(model)
    if callable(sites):
        chosen = [name for name in names if sites(name)]
    else:
        if not isinstance(sites, Iterable):
            raise ValueError(f"sites must be names of attention modules or a function of a name, got {sites!r}")
        chosen = [sites] if isinstance(sites, str) else list(sites)
        for name in chosen:
            if name not in names:
                raise ValueError(f"sites must name attention modules, got {name!r}; there are {', '.join(names)}")
    if not chosen:
        raise ValueError(f"sites must choose at least one attention module; there are {', '.join(names)}")
    return [name.removeprefix(_prefix(model)) for name in chosen]


def _prefix(model: PreTrainedModel) -> str:
    return "" if model.base_model is model else f"{model.base_model_prefix}."


@contextmanager
def _in_the_class_of(model: PreTrainedModel, twin: Any, fields: Mapping[str, Any]) -> Iterator[None]:
    """Give the model the converted class and configurations; undo that, and drop its memories, if the block fails.

    The configurations are copies: another model that shares one with this model must not change with it.
    """
    stock = type(model)
    owners: list[tuple[Any, Any]] = [
        (x, x.config) for x in model.modules() if isinstance(getattr(x, "config", None), PreTrainedConfig)
    ]
    twins = {id(config): _relu_config(config, twin.config_class, fields) for _, config in owners}
    for owner, config in owners:
        owner.config = twins[id(config)]
    model.__class__ = twin
    try:
        yield
    except BaseException:
        for module in attention_modules(model).values():
            if hasattr(module, "relu_memory"):
                del module.relu_memory
        for owner, config in owners:
            owner.config = config
        model.__class__ = stock
        raise


def _relu_config(config: PreTrainedConfig, twin: type[PreTrainedConfig], fields: Mapping[str, Any]) -> PreTrainedConfig:
    config = copy.deepcopy(config)
    config.__class__ = twin
    for name, value in fields.items():
        setattr(config, name, copy.deepcopy(value))
    return config
