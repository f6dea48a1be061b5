"""ReLUFormer for language: a decoder-only model of memories that continues a text, as a Hugging Face model."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from reluformer.memory.calibration import start_gammas
from reluformer.models.base import MemoryModel, refuse_weights
from reluformer.models.encoding import encode
from reluformer.models.language_configuration import ReLUFormerLanguageConfig
from reluformer.models.layers import CausalLayer
from reluformer.models.loss import IGNORED, TokenLosses, token_losses, with_cost
from reluformer.models.tokens import TokenStack


@dataclass
class ReLUFormerLanguageOutput(CausalLMOutputWithPast):
    """Output of a Hugging Face language model, and ``regularisation``: the weighted cost of the memories.

    The loss includes it already. It is None outside training and without a regulariser.
    """

    regularisation: Tensor | None = None


@dataclass
class _ModelOutput(BaseModelOutputWithPast):
    regularisation: Tensor | None = None


class _LanguageModel(MemoryModel):
    config: ReLUFormerLanguageConfig
    config_class = ReLUFormerLanguageConfig
    _no_split_modules = ["CausalLayer"]  # noqa: RUF012, as the base class has it


class ReLUFormerLanguageModel(TokenStack, _LanguageModel):
    """ReLUFormer for language without a head: tokens through layers of causal memories."""

    config: ReLUFormerLanguageConfig

    def __init__(self, config: ReLUFormerLanguageConfig) -> None:
        embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        super().__init__(config, embed_tokens, [CausalLayer(config, i) for i in range(config.layers)])
        start_gammas(self, config.calibration_length)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        query_mask: Tensor | None = None,
        **more: Any,
    ) -> _ModelOutput:
        """States of the tokens ``(B, N)``; the mask ``(B, past + N)`` is 0 for padding, on either side.

        ``query_mask (B, N)`` tells the regulariser which tokens are not padding. It is cheaper than ``attention_mask``,
        which padding on the right does not need: no token sees it anyway.
        """
        refuse_weights(self.config, more)
        if more.get("position_ids") is not None:
            raise ValueError("position_ids must be None: positions count the tokens that attention_mask shows")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if past_key_values is not None and not isinstance(past_key_values, Cache):
            raise ValueError(f"past_key_values must be a Cache of transformers, got {type(past_key_values).__name__}")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if past_key_values is None and use_cache and not self.training:
            past_key_values = DynamicCache(config=self.config)
        past: int | Tensor = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask = self._needed(attention_mask, input_ids, inputs_embeds, past)
        x, rotate = self._enter(input_ids, inputs_embeds, mask, past)
        limit = None
        if past_key_values is not None and not (isinstance(past, int) and past == 0) and _is_static(past_key_values):
            limit = torch.arange(x.shape[1], device=x.device) + past  # it returns more keys than have been written
        layers = self.layers[: self.config.layers]  # fewer while ``generate`` drafts tokens with the first layers
        x, seen, cost = encode(
            layers, x, self._regulariser, self.cost_of, mask, rotate, query_mask,
            limit=limit, past_key_values=past_key_values,
        )  # fmt: skip
        x = self.norm(x)
        return _ModelOutput(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=(*seen, x) if output_hidden_states else None,  # type: ignore[arg-type]
            regularisation=None if cost is None else cost / len(self.layers),
        )


class ReLUFormerForCausalLM(_LanguageModel, GenerationMixin):
    """ReLUFormer with a head over the vocabulary: trains with ``labels``, continues with ``generate``."""

    token_losses: TokenLosses = staticmethod(token_losses)
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012, as the base class has it

    def __init__(self, config: ReLUFormerLanguageConfig) -> None:
        super().__init__(config)
        self.model = ReLUFormerLanguageModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Leave the mask ``(B, N)`` as it is: ``generate`` would expand it for attention functions that need that."""
        return attention_mask

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> ReLUFormerLanguageOutput:
        """Logits of the next tokens and, with labels ``(B, N)``, their mean loss (-100 is left out).

        Labels are the input tokens themselves, as everywhere in Hugging Face: they are shifted here. In training the
        loss includes the regularisation.

        Args:
            input_ids: Tokens ``(B, N)``.
            attention_mask: ``(B, past + N)``, 0 for padding.
            labels: ``(B, N)``.
            num_items_in_batch: Divisor of the sum of the losses, if the batch is one of several that make an update.
            logits_to_keep: Number of last tokens to compute logits for, or the indices of tokens; 0 for all.
            options: Options of :meth:`ReLUFormerLanguageModel.forward`.
        """
        if labels is not None:
            options["use_cache"] = False
            if self._regulariser is not None and attention_mask is None:
                options.setdefault("query_mask", labels != IGNORED)
        out = self.model(input_ids, attention_mask, return_dict=True, **options)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)
        logits = self.lm_head(out.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            loss = self.token_losses(logits, following, num_items_in_batch)[0]
            loss = with_cost(loss, out.regularisation, following, num_items_in_batch)
        return ReLUFormerLanguageOutput(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            regularisation=out.regularisation,
        )


def _is_static(cache: Cache) -> bool:
    """Whether the cache returns all its room, keys that have not been written included."""
    return bool(cache.layers) and bool(cache.layers[0].is_compileable)
