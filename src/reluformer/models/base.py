"""Base class of all models, as Hugging Face models: initialisation, compilation and checkpointing."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from reluformer.memory.attention import Attention
from reluformer.memory.norms import GatedRMSNorm
from reluformer.memory.persistent import PersistentMemory
from reluformer.memory.regulariser import Regulariser
from reluformer.memory.scale import Gamma
from reluformer.models.base_configuration import MemoryConfig
from reluformer.models.encoding import CostOf, cost_of
from reluformer.models.loss import token_losses

# Functions of the class that an instance may have compiled. They are not pickled: compile again after loading.
COMPILED = ("cost_of", "token_losses")


def refuse_weights(config: MemoryConfig, options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the caller asks for attention weights, which no model of memories holds as a whole."""
    if options.get("output_attentions", getattr(config, "output_attentions", False)):
        raise ValueError(
            "output_attentions must be False: the whole weights are never there; reluformer.report.attention_maps, "
            "or `reluformer inspect`, shows those of a head"
        )


class MemoryModel(PreTrainedModel):
    """A model whose every sublayer is a memory."""

    config: MemoryConfig
    cost_of: CostOf = staticmethod(cost_of)
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # each memory picks its own implementation, whatever attn_implementation says
    _can_compile_fullgraph = True
    _keep_in_fp32_modules_strict = ["gamma"]  # noqa: RUF012, as the base class has it; see Gamma

    def __getstate__(self) -> dict[str, Any]:
        """State to copy or pickle: everything but the functions that ``compile_layers`` compiled."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in COMPILED}

    def compile_layers(self, **options: Any) -> None:
        """Compile the model in place, in parts: every layer, the regulariser and the loss.

        ``torch.compile`` then fuses what surrounds the memories. All layers of a kind share one graph, so this takes
        seconds where compiling the whole model takes minutes, and new lengths cost no more than one further
        compilation. The options are those of ``torch.compile``.
        """
        for stack in self.modules():
            if isinstance(stack, MemoryModel) and hasattr(stack, "layers"):
                for layer in stack.get_submodule("layers").children():
                    layer.compile(**options)
                stack.cost_of = torch.compile(cost_of, **options)
        if hasattr(self, "token_losses"):
            self.token_losses = torch.compile(token_losses, **options)

    @property
    def _regulariser(self) -> Regulariser | None:
        """The regulariser if it applies: in training, with gradients, and with a term that has weight."""
        regulariser = Regulariser(**(self.config.regulariser or {}))
        return regulariser if self.training and torch.is_grad_enabled() and regulariser.costs else None

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, *args: Any, **more: Any) -> None:
        """As in the base class, but refuse reentrant checkpoints beside a regulariser: they drop its gradient."""
        reentrant = (gradient_checkpointing_kwargs or {}).get("use_reentrant")
        if reentrant and Regulariser(**(getattr(self.config, "regulariser", None) or {})).costs:
            raise ValueError("use_reentrant must be False beside a regulariser, whose gradient it would drop, got True")
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *args, **more)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Preserve unit variance in every map: scores then start standard normal, and gamma at unit mass."""
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.constant_(module.bias, float(getattr(module, "start_bias", 0.0)))
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                init.zeros_(module.bias)
        elif isinstance(module, GatedRMSNorm):
            init.ones_(module.gate)
        elif isinstance(module, PersistentMemory):
            init.normal_(module.keys)
            init.normal_(module.values, std=module.spread)
        elif isinstance(module, Attention):
            for name in ("bias", "sentence_bias"):
                if getattr(module, name) is not None:
                    init.constant_(getattr(module, name), float(getattr(module.settings, name) or 0.0))
        elif isinstance(module, Gamma) and module.log_gamma is not None:
            init.constant_(module.log_gamma, math.log(module.start))
