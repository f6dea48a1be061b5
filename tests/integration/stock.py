"""Small stock models with random weights, wide enough apart for attention to matter, and batches for them."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY, PAD, WIDTH, HEADS, LAYERS = 60, 1, 32, 4, 2
SEQ2SEQ = ("bart", "marian", "t5")
FAMILIES = ("bart", "bert", "llama", "marian", "t5", "vit")
GENERATORS = ("bart", "llama", "marian", "t5")

_ENCODER_DECODER = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 64, "pad_token_id": PAD, "decoder_start_token_id": 2, "eos_token_id": 3,
    "forced_eos_token_id": None, "bos_token_id": 2, "init_std": 0.3,
}  # fmt: skip
_PLAIN = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48,
    "initializer_range": 0.3,
}  # fmt: skip
_TEXT = _PLAIN | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": PAD}


def stock(family: str, **changes: Any) -> PreTrainedModel:
    """A stock model of the family, in evaluation mode."""
    torch.manual_seed(7)
    model: PreTrainedModel
    if family == "bart":
        model = BartForConditionalGeneration(BartConfig(**_ENCODER_DECODER | changes))
    elif family == "marian":
        model = MarianMTModel(MarianConfig(**_ENCODER_DECODER | changes))
    elif family == "t5":
        fields = {
            "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS,
            "pad_token_id": PAD, "decoder_start_token_id": 2, "eos_token_id": 3, "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
        }  # fmt: skip
        model = T5ForConditionalGeneration(T5Config(**fields | changes))
    elif family == "bert":
        model = BertForMaskedLM(BertConfig(**_TEXT | changes))
    elif family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**_TEXT | {"num_key_value_heads": 2, "eos_token_id": 3} | changes))
    else:
        model = ViTForImageClassification(ViTConfig(**_PLAIN | {"image_size": 16, "patch_size": 4} | changes))
    return model.eval()


def tokens(*lengths: int, left: bool = False) -> dict[str, Tensor]:
    """Sequences of these lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(3)
    longest = max(lengths)
    ids = torch.full((len(lengths), longest), PAD)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        place = slice(longest - length, None) if left else slice(length)
        ids[row, place] = torch.randint(4, VOCABULARY, (length,), generator=generator)
        mask[row, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


def batch_for(family: str, padded: bool = True) -> dict[str, Tensor]:
    """What a model of the family takes; with padding, if it has any, on the side where its models have it."""
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))}
    lengths = (9, 5) if padded else (9, 9)
    batch = tokens(*lengths, left=family == "llama")
    if family in SEQ2SEQ:
        batch["decoder_input_ids"] = tokens(7, 7)["input_ids"]
    return batch


def logits(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Logits where there is no padding, in float64 if the model is."""
    with torch.no_grad():
        out: Tensor = model(**batch).logits
    if "attention_mask" in batch and "decoder_input_ids" not in batch:
        out = out[batch["attention_mask"].bool()]
    return out
