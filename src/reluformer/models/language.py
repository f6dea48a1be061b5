"""ReLUFormer for language: a decoder of memories that continues a text, as a Hugging Face model."""

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
    """What a Hugging Face language model returns, and ``regularisation``: what the memories cost, weighted.

    The loss contains it already. It is None outside training and where no regulariser is set.
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
    """Tokens through layers of memories, each of which sees those before it, without a head."""

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
        """States of the tokens ``(B, N)``; the mask ``(B, past + N)`` is 0 where there is padding, on either side.

        ``query_mask (B, N)`` tells the regulariser which tokens are no padding. Where padding is on the right no token
        sees it anyway, and this is cheaper than to mask it.
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
            limit = torch.arange(x.shape[1], device=x.device) + past  # its keys go on past the last one written
        layers = self.layers[: self.config.layers]  # fewer, while ``generate`` lets the first ones guess
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
        """Leave the mask ``(B, N)`` as it is: ``generate`` would spread it for attention functions that need that."""
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
        """Logits of the tokens that follow and, with labels ``(B, N)``, their mean loss (-100 is left out).

        Labels are the tokens themselves, as in all of Hugging Face: those that follow are found here. The options are
        those of :meth:`ReLUFormerLanguageModel.forward`. In training the loss includes the regularisation.

        Args:
            input_ids: Tokens ``(B, N)``.
            attention_mask: ``(B, past + N)``, 0 where there is padding.
            labels: ``(B, N)``.
            num_items_in_batch: What the sum of the losses is divided by, where a batch is one of several.
            logits_to_keep: Make those of so many last tokens alone, or of the tokens with these indices; 0 for all.
            options: See above.
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
    """Whether the keys it returns go on past the last one written."""
    return bool(cache.layers) and bool(cache.layers[0].is_compileable)
