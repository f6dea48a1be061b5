"""The model families that can be converted, and the classes of the converted models.

Every model class of a family has a converted class, such as ``ReLUMarianMTModel`` for ``MarianMTModel``, with a
configuration whose model type is ``relu-marian``. The Auto classes find it once this package is imported; without it,
transformers reports an unknown type instead of silently computing softmax.
"""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from reluformer.integration.attention import NAME
from reluformer.integration.memory import AttentionMemory, check_settings
from reluformer.memory.settings import MemorySettings

FAMILIES: dict[str, tuple[str, ...]] = {  # model type: its attention modules
    "bart": ("BartAttention",),
    "bert": ("BertSelfAttention", "BertCrossAttention"),
    "llama": ("LlamaAttention",),
    "marian": ("MarianAttention",),
    "t5": ("T5Attention",),
    "vit": ("ViTAttention",),
}
AUTO_CLASSES: list[Any] = [
    x for x in vars(modeling_auto).values() if isinstance(x, type) and getattr(x, "_model_mapping", None) is not None
]
TWINS: dict[type[PreTrainedModel], type[PreTrainedModel]] = {}  # stock class: converted class
_SITES = {name for names in FAMILIES.values() for name in names}
_HEADS = ("num_heads", "n_heads", "num_attention_heads")  # names of the number of heads in the families


class ReLUModel:
    """Mixin that adds memories to a stock class, as its configuration says."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        if not hasattr(config, "relu_memory"):
            raise ValueError(
                f"config must be a {self.config_class.__name__}, got {type(config).__name__}; "  # type: ignore[attr-defined]
                "reluformer.convert makes a converted model of a stock one"
            )
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        attach_memories(self)  # type: ignore[arg-type]

    def initialize_weights(self) -> None:
        """Also initialise the memories that the checkpoint lacks: a stock one has none."""
        super().initialize_weights()  # type: ignore[misc]
        start_memories(self)  # type: ignore[arg-type]


def attention_modules(model: PreTrainedModel) -> dict[str, Any]:
    """The attention modules by their names in the base model, which are the same with any head."""
    return {name: x for name, x in model.base_model.named_modules() if type(x).__name__ in _SITES}


def attach_memories(model: PreTrainedModel) -> None:
    """Give a memory to every attention module that the configuration names, None to the others."""
    config: Any = model.config
    settings = MemorySettings.of("relu_memory", config.relu_memory)
    for name, module in attention_modules(model).items():
        memory = None
        if config.relu_sites is None or name in config.relu_sites:
            weight = next(x for x in module.parameters() if x.is_floating_point())
            memory = AttentionMemory(settings, _heads(module)).to(device=weight.device, dtype=weight.dtype)
        module.relu_memory = memory
    start_memories(model)


def start_memories(model: PreTrainedModel) -> None:
    """Set by formula the parameters of memories that no checkpoint has set."""
    for module in attention_modules(model).values():
        memory = getattr(module, "relu_memory", None)
        # While a model is being loaded its parameters have no values yet: transformers calls again when they have.
        if memory is not None and not any(x.is_meta for x in memory.state_dict().values()):
            memory.start(model.config.relu_length, causal=module.is_causal)


def _heads(module: Any) -> int:
    return next(int(getattr(x, name)) for x in (module, module.config) for name in _HEADS if hasattr(x, name))


def register_families() -> None:
    """Create the converted classes of all families and register them with the Auto classes, once."""
    if TWINS:
        return
    for family in FAMILIES:
        stock_config = CONFIG_MAPPING[family]
        config = _config_twin(stock_config)
        AutoConfig.register(config.model_type, config)
        for auto in AUTO_CLASSES:
            stock = auto._model_mapping.get(stock_config, None)
            if stock is not None:
                auto.register(config, TWINS.get(stock) or _model_twin(stock, config))
        # By these names Trainer, when it smooths labels, recognises a model whose labels it has to shift by one.
        if (name := modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)) is not None:
            modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = f"ReLU{name}"


def _config_twin(stock: Any) -> Any:
    class ReLUConfig(stock):  # type: ignore[misc]
        """The stock configuration with the settings of the memories.

        Attributes:
            relu_memory: The :class:`~reluformer.memory.MemorySettings`, as a mapping.
            relu_length: Sequence length for which gamma is set by formula, unless a batch or a checkpoint sets it.
            relu_sites: Names in the base model of the attention modules with a memory; None for all.
        """

        model_type = f"relu-{stock.model_type}"
        relu_memory: dict[str, Any] | None = None
        relu_length: int = 128
        relu_sites: list[str] | None = None

        def __post_init__(self, **kwargs: Any) -> None:
            self.relu_memory = check_settings(MemorySettings.of("relu_memory", self.relu_memory or {})).to_dict()
            super().__post_init__(**kwargs)

        @property
        def _attn_implementation_internal(self) -> str:
            # Where transformers keeps the choice, which it does not save and anybody may change: not so here.
            return NAME

        @_attn_implementation_internal.setter
        def _attn_implementation_internal(self, value: str | None) -> None:
            if value not in (None, NAME):
                raise ValueError(f"attn_implementation must be {NAME!r} in a converted model, got {value!r}")

        def to_dict(self) -> dict[str, Any]:
            # A stock class that is made to load this configuration fails on an implementation it does not know.
            return {**super().to_dict(), "attn_implementation": NAME}

    return _publish(ReLUConfig, stock)


def _model_twin(stock: type[PreTrainedModel], config: Any) -> Any:
    class Twin(ReLUModel, stock):  # type: ignore[valid-type, misc]
        __doc__ = f"{stock.__name__} with ReLU memories in place of softmax attention."
        config_class = config
        _keep_in_fp32_modules_strict = {*(stock._keep_in_fp32_modules_strict or ()), "relu_memory.gamma"}  # noqa: RUF012

    twin = TWINS[stock] = _publish(Twin, stock)
    _CAN_RECORD_REGISTRY[str(twin)] = twin._can_record_outputs  # otherwise filled when an instance is created
    renamings = get_checkpoint_conversion_mapping(stock.__name__)  # type: ignore[no-untyped-call]
    if renamings is not None:  # a converted model is saved under the names that the stock one was loaded from
        register_checkpoint_conversion_mapping(twin.__name__, renamings, overwrite=True)
    return twin


def _publish(twin: Any, stock: type) -> Any:
    """Name the class after the stock class and make it a member of this module, so that it can be pickled."""
    twin.__name__ = twin.__qualname__ = f"ReLU{stock.__name__}"
    globals()[twin.__name__] = twin
    return twin
