"""Attention maps of translations: figures of the first windows of every file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.data.tokenizer import EOS_ID
from reluformer.report.maps import MOST_TOKENS, AttentionMap, HeadChoice, attention_maps
from reluformer.translation.translator import Translator, Written

MOST_WINDOWS = 4  # drawn of a file: each takes a figure for every head


def draw_window(folder: Path, translator: Translator, written: Written, heads: Sequence[HeadChoice]) -> list[Path]:
    """Draw every head as the model reads a window and writes its translation; nothing if the window is too long.

    Args:
        folder: Folder for the figures, which are named after site, layer and head.
        translator: Translator that translated the window.
        written: The window and its translation.
        heads: Heads to draw; a choice that matches none is an error.

    Returns:
        The paths of the figures.
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
    """Return the weights of some heads as the model reads a window and writes its translation."""
    batch = window_batch(translator.model, written)
    sides = (batch[name][0].tolist() for name in ("input_ids", "decoder_input_ids"))
    source, target = ([_name(translator.tokenizer, token) for token in side] for side in sides)
    return attention_maps(translator.model, batch, heads, source_tokens=source, target_tokens=target)


def window_batch(model: Any, written: Written) -> dict[str, Tensor]:
    """Return a window as a training batch: the target is shifted right by one, so its ``</s>`` is not a query."""
    asked = written.target[:-1] if written.target[-1:] == [EOS_ID] else written.target
    return {
        "input_ids": torch.tensor([written.source], device=model.device),
        "attention_mask": torch.ones(1, len(written.source), dtype=torch.long, device=model.device),
        "decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id, *asked]], device=model.device),
    }


def _name(tokenizer: Any, token: int) -> str:
    """Return a token as text, or as spelled in the vocabulary if it is special or a part of a character."""
    text: str = tokenizer.decode([token])
    return text if text and "\ufffd" not in text else str(tokenizer.id_to_token(token))
