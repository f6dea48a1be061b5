"""A model on running text, where windows of any length are full, whatever the length of the documents.

Few documents have thousands of tokens, so most windows of that length would hold a shorter document and say nothing
about the length. Here all sentences follow each other as if they were one document. The translation is then split into
documents again for scoring, so that BLEU means what it means elsewhere.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.data.packing import join_sentences, pack
from reluformer.study.corpus import Corpus
from reluformer.study.positions import losses_by_position, mean_loss, target_losses
from reluformer.study.scales import Scale
from reluformer.study.scoring import look_into, memory_numbers, most_cost, test_documents, translation_numbers
from reluformer.training.arguments import uses_bf16
from reluformer.translation.loading import load_model
from reluformer.translation.translator import Translator, Written

LOOKED_INTO = 4  # windows on which the memories are inspected
MEASURES = ("mass", "entropy", "dead")


def score_run_on(folder: Path, corpus: Corpus, scale: Scale, length: int, trained: int) -> dict[str, Any]:
    """Score the model in a folder on windows of a length; ``beyond`` is the loss past the trained length.

    Translation falls back to smaller windows where the number of sentences is not right; ``window`` is the number of
    source tokens in the window in which a sentence was finally translated, averaged over sentences.
    """
    model, tokenizer = load_model(folder, precision="fp32")
    bf16 = uses_bf16("auto", model.device)  # as in training
    examples = run_on_examples(PackedDataset(corpus.folder, "valid", 0), length)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        losses = target_losses(model, examples, scale.cost)
    past = [x[trained:] for x in losses if len(x) > trained]
    batch = {name: x.to(model.device) for name, x in Collator()(examples[:LOOKED_INTO]).items()}
    numbers = memory_numbers(look_into(model, batch))
    model = model.bfloat16() if bf16 else model
    result: dict[str, Any] = {
        "nll": mean_loss(losses),
        "beyond": mean_loss(past) if past else None,
        **losses_by_position(losses, [0] * len(losses)),
        **{name: numbers[name] for name in MEASURES},
    }
    translator = Translator(model, tokenizer, length=length, beam=scale.beam)
    translator.cost = most_cost(translator)
    return result | _translated(translator, corpus, scale)


def run_on_examples(sentences: PackedDataset, length: int) -> list[dict[str, list[int]]]:
    """Return all sentences of a data set, in order, packed to a length across documents."""
    source, target = (np.concatenate([[0], x]).cumsum() for x in (sentences.source_lengths, sentences.target_lengths))
    chunks, _ = pack(source, target, np.array([0, len(sentences)]), length, "drop")
    return [
        {
            side: join_sentences([sentences[i][side][:-1] for i in range(first, first + count)])
            for side in ("input_ids", "labels")
        }
        for first, count in zip(chunks["first"].tolist(), chunks["sentences"].tolist(), strict=True)
    ]


def _translated(translator: Translator, corpus: Corpus, scale: Scale) -> dict[str, Any]:
    documents = test_documents(corpus, scale)
    windows: list[Written] = []
    stream = [sentence for document in documents for sentence in document.source]
    (lines,) = translator.translate([stream], written=windows.append)
    rest = iter(lines)
    hypotheses = [list(islice(rest, len(document.source))) for document in documents]
    counted = [(x.window.end - x.window.first, len(x.source)) for x in windows]
    size = sum(count * tokens for count, tokens in counted) / max(1, sum(count for count, _ in counted))
    numbers = translation_numbers(hypotheses, [document.target for document in documents], scale.resamples)
    return numbers | {"window": size}
