"""ReLUFormer: an encoder-decoder Transformer of memories, as a Hugging Face model."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from reluformer.memory.calibration import start_gammas
from reluformer.models.base import MemoryModel, refuse_weights
from reluformer.models.compressing import CompressedMixin
from reluformer.models.configuration import ReLUFormerConfig
from reluformer.models.encoding import asked, encode
from reluformer.models.layers import DecoderLayer, EncoderLayer
from reluformer.models.loss import IGNORED, TokenLosses, token_losses, with_cost
from reluformer.models.masks import needed
from reluformer.models.sentences import given, of_source, of_target
from reluformer.models.stepping import StepCache, SteppingMixin, StoredLayer
from reluformer.models.tokens import TokenStack


@dataclass
class ReLUFormerOutput(Seq2SeqLMOutput):
    """Output of a Hugging Face encoder-decoder, and ``regularisation``: the weighted cost of the memories.

    The loss includes it already. It is None outside training and without a regulariser.
    """

    regularisation: Tensor | None = None


@dataclass
class _EncoderOutput(BaseModelOutput):
    regularisation: Tensor | None = None
    sentences: Tensor | None = None


@dataclass
class _ModelOutput(Seq2SeqModelOutput):
    regularisation: Tensor | None = None


class ReLUFormerPreTrainedModel(CompressedMixin, MemoryModel):
    """Base class of the encoder, the decoder and the whole model."""

    config: ReLUFormerConfig
    config_class = ReLUFormerConfig
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012, as the base class has it


class _Side(TokenStack, ReLUFormerPreTrainedModel):
    """Base class of the encoder and the decoder."""

    config: ReLUFormerConfig


class Encoder(_Side):
    """Reads the source."""

    def __init__(self, config: ReLUFormerConfig, embed_tokens: nn.Embedding) -> None:
        super().__init__(config, embed_tokens, [EncoderLayer(config) for _ in range(config.encoder_layers)])

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        shift: Tensor | None = None,
        **_: Any,
    ) -> _EncoderOutput:
        """States of the tokens ``(B, N)``; the mask is 0 for padding."""
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        mask = self._needed(attention_mask, input_ids, inputs_embeds)
        x, rotate = self._enter(input_ids, inputs_embeds, mask, shift=shift)
        separator = self.config.separator("encoder_self", "cross")
        sentences = None if separator is None else of_source(given("input_ids", input_ids), separator)
        x, seen, cost = encode(self.layers, x, self._regulariser, self.cost_of, mask, rotate, sentences=sentences)
        x = self.norm(x)
        hidden = (*seen, x) if output_hidden_states else None
        return _EncoderOutput(last_hidden_state=x, hidden_states=hidden, regularisation=cost, sentences=sentences)


class Decoder(_Side):
    """Writes the target, attending to the source."""

    entries: ClassVar[tuple[str, str]] = ("decoder_input_ids", "decoder_inputs_embeds")
    mask_name: ClassVar[str] = "decoder_attention_mask"

    def __init__(self, config: ReLUFormerConfig, embed_tokens: nn.Embedding) -> None:
        super().__init__(config, embed_tokens, [DecoderLayer(config, i) for i in range(config.decoder_layers)])

    def forward(
        self,
        input_ids: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        output_hidden_states: bool | None = None,
        query_mask: Tensor | None = None,
        shift: Tensor | None = None,
        source_sentences: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Tensor | None]:
        """Last states ``(B, N, width)`` of the tokens, those of all layers if asked, and the regularisation.

        ``source_sentences`` are those of the encoder's output, not needed once the cache has the keys of the source.
        """
        past: int | Tensor = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask = self._needed(attention_mask, input_ids, inputs_embeds, past)
        x, rotate = self._enter(input_ids, inputs_embeds, mask, past, shift)
        n = x.shape[1]
        if query_mask is None and mask is not None:
            query_mask = mask[:, -n:]
        limit = None
        if past_key_values is not None and _is_static(past_key_values):  # it returns more keys than have been written
            limit = torch.arange(n, device=x.device) + past
        source_mask = needed(source_mask, source.shape[:2])
        regulariser = self._regulariser
        separator, sentences = self.config.separator("decoder_self"), None
        if separator is not None:
            sentences = of_target(given("decoder_input_ids", input_ids), separator, past_key_values)
        shared = {"query_mask": query_mask, "sentences": sentences, **asked(regulariser, x.shape[0])}
        self_options = shared | {"key_mask": mask, "rotate": rotate, "limit": limit}
        cross_options = shared | {"key_mask": source_mask, "context_sentences": source_sentences}
        seen, self_sites, cross_sites = [x], [], []
        for layer in self.layers:
            x, self_stats, cross_stats = layer(
                x, source, self_options=self_options, cross_options=cross_options, past_key_values=past_key_values
            )
            self_sites.append(self_stats)
            cross_sites.append(cross_stats)
            seen.append(x)
        cost = None
        if regulariser is not None and self_sites:
            first: Any = self.layers[0]
            own, other = first.self_attention.memory, first.cross_attention.memory
            keys = other.count(n, source.shape[1], source_mask, x.device)
            cost = self.cost_of(regulariser, self_sites, own.count(n, n, mask, x.device), query_mask)
            cost = cost + self.cost_of(regulariser, cross_sites, keys, query_mask)
        x = self.norm(x)
        return x, (*seen[:-1], x) if output_hidden_states else None, cost


class ReLUFormerModel(ReLUFormerPreTrainedModel):
    """ReLUFormer without a head: encoder and decoder."""

    _tied_weights_keys = {  # noqa: RUF012, as the base class has it
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder = Encoder(config, self.shared)
        self.decoder = Decoder(config, self.shared)
        start_gammas(self, config.calibration_length)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings that source and target share."""
        return self.shared

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the model, its encoder and its decoder."""
        self.shared = self.encoder.embed_tokens = self.decoder.embed_tokens = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        decoder_query_mask: Tensor | None = None,
        **more: Any,
    ) -> _ModelOutput:
        """States of the target's tokens; arguments as in the encoder-decoders of Hugging Face.

        ``decoder_query_mask (B, N)`` tells the regulariser which tokens of the target are not padding. It is cheaper
        than ``decoder_attention_mask``, which padding on the right does not need: no token sees it anyway.
        """
        refuse_weights(self.config, more)
        output_hidden_states = (
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        shift, fresh = None, encoder_outputs is None and past_key_values is None
        # One shift for source and target, which keeps them aligned; so none where the source has been read already.
        if self.training and self.config.position_shift and fresh:
            shift = torch.randint(self.config.position_shift + 1, (), device=self.device)
        read_before = encoder_outputs
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask,
                inputs_embeds,
                output_hidden_states=output_hidden_states,
                shift=shift,
                return_dict=True,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs[0])
        sentences = getattr(encoder_outputs, "sentences", None)
        separator = self.config.separator("cross")
        if sentences is None and separator is not None and input_ids is not None:
            sentences = of_source(input_ids, separator)
        read = past_key_values is not None and any(getattr(past_key_values, "is_updated", {}).values())
        if sentences is None and separator is not None and not read:
            raise ValueError(
                "encoder_outputs must be the output of this model's encoder, which has the sentences, or input_ids be "
                f"given, to a cross.sentence_bias, got {type(read_before).__name__} without"
            )
        target = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
        sources = encoder_outputs.last_hidden_state.shape[0]
        if target is not None and past_key_values is None and target.shape[0] != sources:
            raise ValueError(f"the target must have as many sequences as the source, {sources}, got {target.shape[0]}")
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            raise ValueError(f"past_key_values must be an EncoderDecoderCache, got {type(past_key_values).__name__}")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if past_key_values is None and use_cache and not self.training:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        x, hidden, penalty = self.decoder(
            decoder_input_ids,
            encoder_outputs.last_hidden_state,
            attention_mask,
            decoder_attention_mask,
            decoder_inputs_embeds,
            past_key_values,
            output_hidden_states,
            decoder_query_mask,
            shift,
            sentences,
        )
        penalty = _add(getattr(encoder_outputs, "regularisation", None), penalty)
        sites = self.config.encoder_layers + 2 * self.config.decoder_layers
        return _ModelOutput(
            last_hidden_state=x,
            past_key_values=past_key_values,
            decoder_hidden_states=hidden,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            regularisation=None if penalty is None else penalty / sites,
        )


class ReLUFormerForConditionalGeneration(ReLUFormerPreTrainedModel, SteppingMixin, GenerationMixin):
    """ReLUFormer with a head over the vocabulary: trains with ``labels``, writes with ``generate``."""

    token_losses: TokenLosses = staticmethod(token_losses)
    _tied_weights_keys = {  # noqa: RUF012, as the base class has it
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    }

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__(config)
        self.model = ReLUFormerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Leave the mask ``(B, N)`` as it is: ``generate`` would expand it for attention functions that need that."""
        return attention_mask

    def get_encoder(self, *_: Any, **__: Any) -> Encoder:
        """The encoder, for ``generate``."""
        return self.model.encoder

    def get_decoder(self) -> Decoder:
        """The decoder."""
        return self.model.decoder

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the head."""
        self.lm_head = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        encoder_outputs: Any = None,  # these two are named since ``generate`` refuses arguments not listed here,
        decoder_attention_mask: Tensor | None = None,  # and ``Trainer`` drops their columns
        **options: Any,
    ) -> ReLUFormerOutput:
        """Logits of the target's tokens and, with labels ``(B, N)``, their mean loss (-100 is left out).

        The options are those of :meth:`ReLUFormerModel.forward`. In training the loss includes the regularisation.
        """
        options |= {"encoder_outputs": encoder_outputs, "decoder_attention_mask": decoder_attention_mask}
        if labels is not None:
            options["use_cache"] = False
            if decoder_input_ids is None and options.get("decoder_inputs_embeds") is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if decoder_attention_mask is None:  # regulariser, calibration and reports leave padding out
                options.setdefault("decoder_query_mask", labels != IGNORED)
        cache = options.get("past_key_values")
        if isinstance(cache, StepCache) and labels is None and cache.can_step(decoder_input_ids, options):
            source, mask = options["encoder_outputs"][0], attention_mask if cache.padded else None
            step: Any = cache.step
            logits = step(
                decoder_input_ids,
                lambda ids: self.lm_head(self.model.decoder(ids, source, mask, past_key_values=cache)[0]),
            )
            return ReLUFormerOutput(logits=logits, past_key_values=cache)
        out = self.model(input_ids, attention_mask, decoder_input_ids, return_dict=True, **options)
        logits = self.lm_head(out.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.token_losses(logits, labels, num_items_in_batch)[0]
            loss = with_cost(loss, out.regularisation, labels, num_items_in_batch)
        return ReLUFormerOutput(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.decoder_hidden_states,
            encoder_last_hidden_state=out.encoder_last_hidden_state,
            encoder_hidden_states=out.encoder_hidden_states,
            regularisation=out.regularisation,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right by one, after the start token; labels of -100 become padding."""
        first, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if first is None or pad is None:
            raise ValueError(f"decoder_start_token_id and pad_token_id must be set, got {first} and {pad}")
        return F.pad(labels[:, :-1], (1, 0), value=first).masked_fill(F.pad(labels[:, :-1] == IGNORED, (1, 0)), pad)


def _is_static(cache: EncoderDecoderCache) -> bool:
    """Whether the cache returns all its room, keys that have not been written included."""
    layers = cache.self_attention_cache.layers
    return bool(layers) and (
        bool(layers[0].is_compileable) or (isinstance(layers[0], StoredLayer) and layers[0].store.recorded)
    )


def _add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
