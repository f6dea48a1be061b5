"""Scores of translations: BLEU of sentences and of documents, chrF, and whether one system is better than another.

Everything is computed by sacreBLEU. The name of a score says at which level it is taken: for ``s-BLEU`` a segment is a
sentence, for ``d-BLEU`` a whole document, its sentences joined by spaces.
"""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.data.files import DataError

# Upper limits of the buckets of documents, in words of the reference; a last bucket has no limit.
BUCKETS = (64, 128, 256, 512, 1024, 2048)

Documents = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Score:
    """A score, and everything needed to reproduce it.

    Attributes:
        name: ``s-BLEU``, ``d-BLEU`` or ``chrF``.
        level: What a segment is: ``sentence`` or ``document``.
        value: Score from 0 to 100.
        signature: Signature of sacreBLEU.
    """

    name: str
    level: str
    value: float
    signature: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Bucket:
    """Scores of documents whose references have ``fewest`` to ``most`` words; None for no limit."""

    fewest: int
    most: int | None
    documents: int
    sentences: int
    words: int
    s_bleu: float
    d_bleu: float
    chrf: float


@dataclass(frozen=True)
class Scores:
    """All scores of one system."""

    s_bleu: Score
    d_bleu: Score
    chrf: Score
    documents: int
    sentences: int
    words: int
    by_length: list[Bucket]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists and numbers, ready for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Estimate:
    """A score with its uncertainty.

    Attributes:
        value: Score on all the data.
        mean: Mean score over the resamples.
        interval: Half the width of the 95 % confidence interval around the mean.
    """

    value: float
    mean: float
    interval: float


@dataclass(frozen=True)
class Difference:
    """One score of two systems, compared.

    Attributes:
        name: ``s-BLEU``, ``d-BLEU`` or ``chrF``.
        level: What the bootstrap draws: ``sentence`` or ``document``.
        first: Score of the first system, the baseline.
        second: Score of the second system.
        p_value: Probability of so large a difference if the systems are equally good.
        signature: Signature of sacreBLEU, with the seed and the number of resamples.
    """

    name: str
    level: str
    first: Estimate
    second: Estimate
    p_value: float
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists and numbers, ready for JSON."""
        return dataclasses.asdict(self)


def score(hypotheses: Documents, references: Documents, *, tokenize: str | None = None) -> Scores:
    """Score the translations of documents, lists of sentences, against their references.

    Args:
        hypotheses: Translations by a system.
        references: Translations by people: as many documents, and as many sentences in each.
        tokenize: Tokenisation of BLEU, a name of sacreBLEU such as ``zh``; None for its default, 13a.
    """
    check_alignment(hypotheses, references)
    s_bleu, d_bleu, chrf = _numbers(hypotheses, references, tokenize)
    lengths = [_words(document) for document in references]
    buckets = []
    for fewest, most in zip((0, *(x + 1 for x in BUCKETS)), (*BUCKETS, None), strict=True):
        chosen = [i for i, n in enumerate(lengths) if fewest <= n and (most is None or n <= most)]
        if not chosen:
            continue
        ours, theirs = [hypotheses[i] for i in chosen], [references[i] for i in chosen]
        values = [x.value for x in _numbers(ours, theirs, tokenize)]
        counts = len(chosen), sum(map(len, theirs)), sum(lengths[i] for i in chosen)
        buckets.append(Bucket(fewest, most, *counts, *values))
    counts = len(references), sum(map(len, references)), sum(lengths)
    return Scores(s_bleu, d_bleu, chrf, *counts, buckets)


def compare(
    first: Documents, second: Documents, references: Documents, *, samples: int = 1000, tokenize: str | None = None
) -> list[Difference]:
    """Compare two systems with sacreBLEU's paired bootstrap, which draws sentences or documents by the score's level.

    The seed is sacreBLEU's own, 12345 unless ``SACREBLEU_SEED`` says otherwise; the signature names it.
    """
    from sacrebleu.significance import PairedTest

    for system in (first, second):
        check_alignment(system, references)
    found = []
    for name, level, metric in _metrics(tokenize):
        systems: Any = [(label, _segments(system, level)) for label, system in (("first", first), ("second", second))]
        test = PairedTest(systems, {name: metric}, [_segments(references, level)], test_type="bs", n_samples=samples)
        signatures, results = test()
        ((key, signature),) = signatures.items()  # the metric's own name for itself
        pair: Any = results[key]
        baseline, other = (Estimate(float(x.score), float(x.mean), float(x.ci)) for x in pair)
        # sacreBLEU gives a difference of exactly 0 the smallest p-value; to a reader it is no difference at all.
        p_value = 1.0 if baseline.value == other.value else float(pair[1].p_value)
        found.append(Difference(name, level, baseline, other, p_value, str(signature)))
    return found


def check_alignment(hypotheses: Documents, references: Documents) -> None:
    """Refuse translations that do not match their references sentence by sentence."""
    if not any(map(len, references)):
        raise DataError("there is nothing to score: no sentence in the references")
    if len(hypotheses) != len(references):
        raise DataError(f"there are {len(hypotheses)} translated documents and {len(references)} references")
    for i, (ours, theirs) in enumerate(zip(hypotheses, references, strict=True), 1):
        if len(ours) != len(theirs):
            raise DataError(f"document {i} has {len(ours)} translated sentences and {len(theirs)} in its reference")


def _numbers(hypotheses: Documents, references: Documents, tokenize: str | None) -> list[Score]:
    found = []
    for name, level, metric in _metrics(tokenize):
        result = metric.corpus_score(_segments(hypotheses, level), [_segments(references, level)])
        found.append(Score(name, level, float(result.score), str(metric.get_signature())))
    return found


def check_tokenizer(tokenize: str | None) -> None:
    """Refuse a tokenisation that sacreBLEU does not know, before there is anything to score."""
    _metrics(tokenize)


def _metrics(tokenize: str | None) -> list[tuple[str, str, Any]]:
    """Return names, levels and metrics, in the order of the fields of :class:`Scores`."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # sacreBLEU's warning about text that looks tokenised is meant for those who pipe text into it.
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise DataError(f"sacreBLEU cannot tokenise with {tokenize!r}: takes {', '.join(BLEU.TOKENIZERS)}")
    try:
        bleus = [BLEU(tokenize=tokenize) for _ in range(2)]
    except (KeyError, ValueError, RuntimeError, ImportError) as error:
        raise DataError(f"sacreBLEU cannot tokenise with {tokenize!r}: {error}") from None
    return [("s-BLEU", "sentence", bleus[0]), ("d-BLEU", "document", bleus[1]), ("chrF", "sentence", CHRF())]


def _segments(documents: Documents, level: str) -> list[str]:
    if level == "document":
        return [" ".join(filter(None, document)) for document in documents]
    return [sentence for document in documents for sentence in document]


def _words(document: Sequence[str]) -> int:
    return sum(len(sentence.split()) for sentence in document)
