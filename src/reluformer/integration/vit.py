"""``from_vit``: the weights of a stock vision transformer in a ReLUFormer, whose every sublayer may then be any memory.

``convert`` keeps the architecture of a stock model and changes its attention alone. Here the FFN is a memory too,
attention may have norms, slots and a gate, and positions are interpolated for images of other sizes.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, ViTForImageClassification

from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig

FFN_ACTIVATIONS = ("gelu", "relu")
# Modules of a stock layer, and their counterparts in a layer of ReLUFormer.
LAYER = {
    "layernorm_before": "self_attention.norm",
    "attention.q_proj": "self_attention.memory.query",
    "attention.k_proj": "self_attention.memory.key",
    "attention.v_proj": "self_attention.memory.value",
    "attention.o_proj": "self_attention.memory.output",
    "layernorm_after": "ffn.norm",
    "mlp.fc1": "ffn.memory.keys",
    "mlp.fc2": "ffn.memory.values",
}


def from_vit(
    model: PreTrainedModel, settings: MemorySettings | Mapping[str, Any] | None = None
) -> ReLUFormerForImageClassification:
    """A ReLUFormer for images with the weights of a stock ViT, which is left unchanged.

    Args:
        model: A ``ViTForImageClassification``.
        settings: Settings of the attention; None for softmax, which computes what the stock model does. With others,
            gamma starts by formula, unless :func:`reluformer.memory.calibrate` sets it; fine-tune the model then.

    Raises:
        ValueError: If the model is of another class, or has a feature that ReLUFormer lacks.
    """
    if type(model) is not ViTForImageClassification:
        raise ValueError(f"model must be a stock ViTForImageClassification, got {type(model).__name__}")
    attention = SOFTMAX_ATTENTION if settings is None else MemorySettings.of("settings", settings)
    twin = ReLUFormerForImageClassification(_config(model.config, attention))
    twin.to(device=model.device, dtype=model.dtype)  # type: ignore[call-arg]
    own = model.state_dict()
    state = {
        **_patches(own, twin.model.patches.positions),
        **_module(own, "vit.layernorm", "model.norm"),
        **_module(own, "classifier", "classifier"),
    }
    for layer in range(len(twin.model.layers)):
        for name, here in LAYER.items():
            state |= _module(own, f"vit.layers.{layer}.{name}", f"model.layers.{layer}.{here}")
    # The state lacks the parameters of the memories themselves, and biases, which start at zero.
    twin.load_state_dict(state, strict=False)
    return twin.train(model.training)


def _config(config: Any, attention: MemorySettings) -> ReLUFormerImageConfig:
    if config.hidden_act not in FFN_ACTIVATIONS:
        raise ValueError(f"hidden_act must be one of {', '.join(FFN_ACTIVATIONS)}, got {config.hidden_act!r}")
    patch = config.patch_size
    if isinstance(patch, list | tuple):
        if patch[0] != patch[1]:
            raise ValueError(f"patch_size must be square, got {patch!r}")
        patch = patch[0]
    return ReLUFormerImageConfig(
        d_model=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        image_size=config.image_size,
        patch_size=patch,
        channels=config.num_channels,
        norm_eps=config.layer_norm_eps,
        dropout=config.hidden_dropout_prob,
        encoder_self=attention.to_dict(),
        ffn={"activation": config.hidden_act, "slots": config.intermediate_size},
        id2label=config.id2label,
        label2id=config.label2id,
    )


def _patches(own: Mapping[str, Tensor], positions: Tensor) -> dict[str, Tensor]:
    """Weights of the patches: the convolution as a linear map, and the class token with its position added."""
    learned = own["vit.embeddings.position_embeddings"][0]  # (1 + patches, width)
    prefix = "vit.embeddings.patch_embeddings.projection"
    return {
        "model.patches.project.weight": own[f"{prefix}.weight"].flatten(1),  # (width, channels * p * p)
        "model.patches.project.bias": own[f"{prefix}.bias"],
        "model.patches.positions": learned[1:].view_as(positions),
        "model.patches.class_token": own["vit.embeddings.cls_token"][0, 0] + learned[0],
    }


def _module(own: Mapping[str, Tensor], name: str, here: str) -> dict[str, Tensor]:
    found = {key: own[f"{name}.{key}"] for key in ("weight", "bias") if f"{name}.{key}" in own}
    return {f"{here}.{key}": value for key, value in found.items()}
