"""Attention maps of what was translated: the first windows of every file, as figures."""

from collections.abc import Sequence
from pathlib import Path

import torch

from reluformer.data.tokenizer import EOS_ID
from reluformer.report.maps import MOST_TOKENS, HeadChoice, attention_maps
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

    model, tokenizer = translator.model, translator.tokenizer
    asked = written.target[:-1] if written.target[-1:] == [EOS_ID] else written.target
    target = [model.config.decoder_start_token_id, *asked]  # nothing follows the last token: it asks nothing
    if max(len(written.source), len(target)) > MOST_TOKENS:
        return []
    batch = {
        "input_ids": torch.tensor([written.source], device=model.device),
        "attention_mask": torch.ones(1, len(written.source), dtype=torch.long, device=model.device),
        "decoder_input_ids": torch.tensor([target], device=model.device),
    }
    names = [[_name(tokenizer, token) for token in side] for side in (written.source, target)]
    paths = []
    for drawn in attention_maps(model, batch, heads, source_tokens=names[0], target_tokens=names[1]):
        paths.append(folder / f"{drawn.site}-{drawn.layer}-{drawn.head}.png")
        draw_map(paths[-1], drawn)
    return paths


def _name(tokenizer: object, token: int) -> str:
    """A token as text; a special one, or a part of a character, as the vocabulary has it."""
    text: str = tokenizer.decode([token])  # type: ignore[attr-defined]
    return text if text and "\ufffd" not in text else tokenizer.id_to_token(token)  # type: ignore[attr-defined]
