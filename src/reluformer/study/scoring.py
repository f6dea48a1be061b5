"""Scores of a trained model: loss, BLEU with its confidence interval, and what its memories do."""

import math
import time
from pathlib import Path
from typing import Any

import torch

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset, load_tokenizer
from reluformer.data.documents import Document
from reluformer.models.loss import IGNORED
from reluformer.report import MemoryReport, SiteReport, memory_report
from reluformer.report.records import pooled
from reluformer.study.corpus import Corpus
from reluformer.study.positions import document_starts, losses_by_position, mean_loss, target_losses
from reluformer.study.scales import Scale
from reluformer.training.arguments import uses_bf16
from reluformer.training.validation import valid_documents
from reluformer.translation.evaluation import keep, read_hypotheses, read_references
from reluformer.translation.loading import load_model
from reluformer.translation.scores import Documents, compare, score
from reluformer.translation.translator import Translator

TRANSLATIONS = "translations.jsonl"  # beside the model
# Long windows translated at a time: TIMES as many as usual, and at least WINDOWS of the full length.
TIMES, WINDOWS = 4, 16
MOST_TOKENS = 16384  # in the validation examples on which the memories are inspected
ROWS = 1024  # of weights, to hold at a time there
MEASURES = {
    "mass": "mass", "entropy": "entropy", "effective": "effective_keys", "zeros": "zeros", "top": "top_0_2_percent",
    "dead": "dead",
}  # fmt: skip


def score_model(folder: Path, corpus: Corpus, scale: Scale, length: int) -> dict[str, Any]:
    """Return everything that is measured of the model in a folder; translations are kept beside it."""
    model, tokenizer = load_model(folder, precision="fp32")
    bf16 = uses_bf16("auto", model.device)  # as in training
    examples = PackedDataset(corpus.folder, "valid", length)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        losses = target_losses(model, examples, scale.cost)
    result: dict[str, Any] = {"nll": mean_loss(losses)}
    if length:
        result |= losses_by_position(losses, document_starts(examples))
    result |= memory_numbers(report_on(model, corpus, scale, length))
    model = model.bfloat16() if bf16 else model
    documents = test_documents(corpus, scale)
    translator = Translator(model, tokenizer, length=length, beam=scale.beam)
    translator.cost = most_cost(translator)
    began = time.monotonic()
    hypotheses = list(translator.translate([document.source for document in documents]))
    seconds = time.monotonic() - began
    keep(folder.parent / TRANSLATIONS, documents, corpus.languages, [hypotheses])
    result |= translation_numbers(hypotheses, [document.target for document in documents], scale.resamples)
    return result | {
        "translate_seconds": seconds,
        "sentences_per_second": result["test_sentences"] / seconds if seconds else None,
    }


def most_cost(translator: Translator) -> int:
    """Return the cost budget of a batch.

    A GPU has room for many long windows, and a step of all of them takes hardly longer than a step of one.
    """
    if translator.model.device.type != "cuda" or not translator.room:  # batches of sentences are large enough
        return translator.cost
    full = translator.beam * math.ceil(CostBatches((), 1).cost(WINDOWS, translator.room))
    return max(TIMES * translator.cost, full)


def translation_numbers(hypotheses: Documents, references: Documents, resamples: int) -> dict[str, Any]:
    """Return BLEU of sentences and of documents with their confidence intervals, and chrF."""
    found = score(hypotheses, references)
    return {
        "bleu": found.s_bleu.value,
        "d_bleu": found.d_bleu.value,
        "chrf": found.chrf.value,
        "bleu_ci": _interval([x for d in hypotheses for x in d], [x for d in references for x in d], resamples),
        "d_bleu_ci": _interval([" ".join(d) for d in hypotheses], [" ".join(d) for d in references], resamples),
        "test_sentences": found.sentences,
    }


def compare_translations(first: Path, second: Path, corpus: Corpus, scale: Scale) -> dict[str, float]:
    """Return the lead of the second of two models scored by :func:`score_model`, and its p by paired bootstrap."""
    documents, target = test_documents(corpus, scale), corpus.languages.target
    ours, theirs = (read_hypotheses(folder.parent / TRANSLATIONS, documents, target) for folder in (second, first))
    references = [document.target for document in documents]
    found = {x.name: x for x in compare(theirs, ours, references, samples=scale.resamples)}
    result = {}
    for key, name in (("bleu", "s-BLEU"), ("d_bleu", "d-BLEU")):
        result[f"{key}_lead"] = found[name].second.value - found[name].first.value
        result[f"{key}_p"] = found[name].p_value
    return result


def test_documents(corpus: Corpus, scale: Scale) -> list[Document]:
    """Return the documents to translate: the test set, or the validation data where there is none, cut to the scale."""
    if corpus.test:
        found = read_references([corpus.test], corpus.languages, scale.documents)
    else:
        sides = valid_documents(corpus.folder, load_tokenizer(corpus.folder), scale.documents or 10**9)
        found = [Document(str(i), *pair) for i, pair in enumerate(zip(*sides, strict=True))]
    cut = scale.sentences
    return [Document(document.id, document.source[:cut], document.target[:cut]) for document in found]


def validation_batch(corpus: Corpus, length: int, count: int, device: torch.device) -> dict[str, Any]:
    """Return ``count`` examples spread over the validation split as a batch; fewer where they are long."""
    examples = PackedDataset(corpus.folder, "valid", length)
    count = max(1, min(count, MOST_TOKENS // max(1, length)))
    chosen = range(0, len(examples), max(1, len(examples) // count))[:count]
    return {name: x.to(device) for name, x in Collator()([examples[i] for i in chosen]).items()}


def report_on(model: Any, corpus: Corpus, scale: Scale, length: int) -> MemoryReport:
    """Report what the memories of a model do on validation examples."""
    return look_into(model, validation_batch(corpus, length, scale.examples, model.device))


def look_into(model: Any, batch: dict[str, Any]) -> MemoryReport:
    """Report what the memories do on a batch; the head is left out, as logits would take more room than all else."""
    read = {name: x for name, x in batch.items() if name != "labels"}
    read |= {"decoder_query_mask": batch["labels"] != IGNORED, "use_cache": False}
    return memory_report(model.model, read, block=ROWS)


def memory_numbers(report: MemoryReport) -> dict[str, float | None]:
    """Reduce a report to a few numbers: of attention without a prefix, self-attention ``self_``, and the rest ``ffn_``.

    That is the FFN, and slots of attention that are a memory of their own.
    """
    result: dict[str, float | None] = {}
    attention = [site for site in report.sites if site.kind == "attention"]
    parts = {
        "": attention,
        "self_": [site for site in attention if site.site.endswith("self_attention")],
        "ffn_": [site for site in report.sites if site.kind == "key-value"],
    }
    for prefix, sites in parts.items():
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
    """Return half the width of BLEU's 95 % confidence interval, by sacreBLEU's bootstrap; None for a single segment."""
    from sacrebleu.metrics.bleu import BLEU

    if len(references) < 2:
        return None
    metric: Any = BLEU()
    found: Any = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
    return float(found._ci)
