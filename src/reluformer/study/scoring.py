"""Numbers of a trained model: loss, BLEU with its confidence, and what its memories do."""

import time
from pathlib import Path
from typing import Any

import torch

from reluformer.data.dataset import PackedDataset, load_tokenizer
from reluformer.data.documents import Document
from reluformer.models.loss import IGNORED
from reluformer.report import MemoryReport, SiteReport, memory_report
from reluformer.report.records import pooled
from reluformer.study.corpus import Corpus
from reluformer.study.scales import Scale
from reluformer.training.arguments import uses_bf16
from reluformer.training.batching import CostBatches
from reluformer.training.collate import Collator
from reluformer.training.loading import longer_sides
from reluformer.training.validation import valid_documents
from reluformer.translation.evaluation import keep, read_references
from reluformer.translation.loading import load_model
from reluformer.translation.scores import score
from reluformer.translation.translator import Translator

MEASURES = {
    "mass": "mass", "entropy": "entropy", "effective": "effective_keys", "zeros": "zeros", "top": "top_0_2_percent",
    "dead": "dead",
}  # fmt: skip


def score_model(folder: Path, corpus: Corpus, scale: Scale, length: int) -> dict[str, Any]:
    """Everything about the model in a folder; translations are kept beside it."""
    model, tokenizer = load_model(folder, precision="fp32")
    bf16 = uses_bf16("auto", model.device)  # as in training
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        result: dict[str, Any] = {"nll": validation_loss(model, corpus, scale, length)}
    result |= memory_numbers(report_on(model, corpus, scale, length))
    model = model.bfloat16() if bf16 else model
    documents = test_documents(corpus, scale)
    translator = Translator(model, tokenizer, length=length, beam=scale.beam)
    began = time.monotonic()
    hypotheses = list(translator.translate([document.source for document in documents]))
    seconds = time.monotonic() - began
    references = [document.target for document in documents]
    found = score(hypotheses, references)
    keep(folder.parent / "translations.jsonl", documents, corpus.languages, [hypotheses])
    return result | {
        "bleu": found.s_bleu.value,
        "d_bleu": found.d_bleu.value,
        "chrf": found.chrf.value,
        "bleu_ci": _interval([x for d in hypotheses for x in d], [x for d in references for x in d], scale.resamples),
        "d_bleu_ci": _interval([" ".join(d) for d in hypotheses], [" ".join(d) for d in references], scale.resamples),
        "test_sentences": found.sentences,
        "translate_seconds": seconds,
        "sentences_per_second": found.sentences / seconds if seconds else None,
    }


def test_documents(corpus: Corpus, scale: Scale) -> list[Document]:
    """What is translated: the test set, or the validation data where there is none, cut to the scale."""
    if corpus.test:
        found = read_references([corpus.test], corpus.languages, scale.documents)
    else:
        sides = valid_documents(corpus.folder, load_tokenizer(corpus.folder), scale.documents or 10**9)
        found = [Document(str(i), *pair) for i, pair in enumerate(zip(*sides, strict=True))]
    cut = scale.sentences
    return [Document(document.id, document.source[:cut], document.target[:cut]) for document in found]


@torch.no_grad()
def validation_loss(model: Any, corpus: Corpus, scale: Scale, length: int) -> float:
    """Mean negative log-likelihood of a validation token, in nats."""
    examples = PackedDataset(corpus.folder, "valid", length)
    total, tokens = 0.0, 0
    for numbers in CostBatches(longer_sides(examples), scale.cost, shuffle=False):
        batch = Collator()([examples[i] for i in numbers])
        batch = {name: x.to(model.device) for name, x in batch.items()}
        labels = batch.pop("labels")
        total += float(model.token_losses(model(**batch, use_cache=False).logits, labels, 1)[1])
        tokens += int((labels != IGNORED).sum())
    return total / tokens


def validation_batch(corpus: Corpus, length: int, count: int, device: torch.device) -> dict[str, Any]:
    """Validation examples from all over the split, as a batch."""
    examples = PackedDataset(corpus.folder, "valid", length)
    chosen = range(0, len(examples), max(1, len(examples) // count))[:count]
    return {name: x.to(device) for name, x in Collator()([examples[i] for i in chosen]).items()}


def report_on(model: Any, corpus: Corpus, scale: Scale, length: int) -> MemoryReport:
    """What the memories of a model do on validation examples."""
    batch = validation_batch(corpus, length, scale.examples, model.device)
    return memory_report(model, batch)


def memory_numbers(report: MemoryReport) -> dict[str, float | None]:
    """A report as a few numbers: those of attention by their names, those of the FFN behind ``ffn_``."""
    result: dict[str, float | None] = {}
    for kind, prefix in (("attention", ""), ("key-value", "ffn_")):
        sites = [site for site in report.sites if site.kind == kind]
        if not sites:
            continue
        heads = pooled([head for site in sites for head in site.heads])
        result |= {f"{prefix}{name}": getattr(heads, measure) for name, measure in MEASURES.items()}
        result |= {f"{prefix}{name}": _mean(sites, name) for name in ("variance_ratio", "anisotropy")}
    return result


def _mean(sites: list[SiteReport], name: str) -> float | None:
    values = [value for site in sites if (value := getattr(site, name)) is not None]
    return sum(values) / len(values) if values else None


def _interval(hypotheses: list[str], references: list[str], resamples: int) -> float | None:
    """Half the width of the 95 % confidence interval of BLEU, by sacreBLEU's bootstrap; None for a single segment."""
    from sacrebleu.metrics.bleu import BLEU

    if len(references) < 2:
        return None
    metric: Any = BLEU()
    found: Any = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
    return float(found._ci)
