"""Attention maps of what was translated: the first windows of every file, as figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.data.tokenizer import EOS_ID
from reluformer.report.maps import MOST_TOKENS, AttentionMap, HeadChoice, attention_maps
from reluformer.translation.translator import Translator, Written

MOST_WINDOWS = 4  # of a file: each takes a figure for every head


def draw_window(folder: Path, translator: Translator, written: Written, heads: Sequence[HeadChoice]) -> list[Path]:
    """One figure for every head, of the model reading a window and writing what it wrote; none if it is too long.

    Args:
        folder: For the figures, called after site, layer and head.
        translator: Wrote it.
        written: The window.
        heads: Which heads; a choice that means none is an error.
    """
    from reluformer.report.figures import draw_map

    if max(side.shape[1] for side in window_batch(translator.model, written).values()) > MOST_TOKENS:
        return []
    paths = []
    for drawn in window_maps(translator, written, heads):
        paths.append(folder / f"{drawn.site}-{drawn.layer}-{drawn.head}.png")
        draw_map(paths[-1], drawn)
    return paths


def window_maps(translator: Translator, written: Written, heads: Sequence[HeadChoice | str]) -> list[AttentionMap]:
    """The weights of some heads while the model read a window and wrote what it wrote."""
    batch = window_batch(translator.model, written)
    sides = (batch[name][0].tolist() for name in ("input_ids", "decoder_input_ids"))
    source, target = ([_name(translator.tokenizer, token) for token in side] for side in sides)
    return attention_maps(translator.model, batch, heads, source_tokens=source, target_tokens=target)


def window_batch(model: Any, written: Written) -> dict[str, Tensor]:
    """A window as the model takes it in training: the target moved right by one, for its last token asks nothing."""
    asked = written.target[:-1] if written.target[-1:] == [EOS_ID] else written.target
    return {
        "input_ids": torch.tensor([written.source], device=model.device),
        "attention_mask": torch.ones(1, len(written.source), dtype=torch.long, device=model.device),
        "decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id, *asked]], device=model.device),
    }


def _name(tokenizer: Any, token: int) -> str:
    """A token as text; a special one, or a part of a character, as the vocabulary has it."""
    text: str = tokenizer.decode([token])
    return text if text and "\ufffd" not in text else str(tokenizer.id_to_token(token))
