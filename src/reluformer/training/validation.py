"""Metrics of a model on the validation data: loss per token, and d-BLEU of documents that it translates."""

from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch

from reluformer.data.batching import CostBatches
from reluformer.data.dataset import PackedDataset, read_manifest
from reluformer.data.packing import split_sentences
from reluformer.models.loss import IGNORED
from reluformer.training.loading import batches_of, longer_sides
from reluformer.training.recipe import Recipe, Stage

Documents = list[list[str]]


class Validation:
    """Computes the metrics of a trainer's model.

    Args:
        recipe: Recipe that names the data, the batches and the metric.
        tokenizer: Tokeniser of the data.
    """

    def __init__(self, recipe: Recipe, tokenizer: Any) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer

    @torch.no_grad()
    def __call__(self, trainer: Any, stage: Stage) -> dict[str, float]:
        """Return the metrics at the length of a stage."""
        trainer.model.eval()
        with torch.compiler.set_stance("force_eager"):  # compiling for evaluation takes longer than it saves
            metrics = {"eval_loss": self._loss(trainer, stage.length)}
            if self.recipe.checkpoints.metric == "d-bleu":
                metrics["eval_d_bleu"] = self._d_bleu(trainer.model, stage.length)
        return metrics

    def _loss(self, trainer: Any, length: int) -> float:
        """Return the mean negative log-likelihood per token."""
        examples = PackedDataset(self.recipe.data, "valid", length)
        cost, quadratic = self.recipe.batches.cost, self.recipe.batches.quadratic
        batches = CostBatches(longer_sides(examples), cost, quadratic, shuffle=False)
        total, tokens = 0.0, 0
        for batch in batches_of(examples, batches, trainer.data_collator, 0, False):
            labels = batch.pop("labels").to(trainer.args.device)
            with trainer.compute_loss_context_manager():
                out = trainer.model(**trainer._prepare_inputs(batch), use_cache=False)
                total = total + trainer.model.token_losses(out.logits, labels, 1)[1]
            tokens = tokens + (labels != IGNORED).sum()
        return float(total / tokens)

    def _d_bleu(self, model: Any, length: int) -> float:
        from reluformer.translation.scores import score
        from reluformer.translation.translator import Translator

        sources, references = valid_documents(self.recipe.data, self.tokenizer, self.recipe.checkpoints.documents)
        translator = Translator(model, self.tokenizer, length=length, beam=1)
        return float(score(list(translator.translate(sources)), references).d_bleu)


def valid_documents(folder: Path | str, tokenizer: Any, count: int) -> tuple[Documents, Documents]:
    """Return the first ``count`` validation documents as text: sources and references."""
    examples = PackedDataset(folder, "valid", min(read_manifest(folder)["lengths"]))
    chosen = groupby(range(len(examples)), key=lambda i: examples.origin(i)[0])
    sides: tuple[Documents, Documents] = ([], [])
    for _, numbers in islice(chosen, count):
        document = [examples[i] for i in numbers]
        for side, name in zip(sides, ("input_ids", "labels"), strict=True):
            side.append([tokenizer.decode(s) for example in document for s in split_sentences(example[name])])
    return sides
