import random

import pytest
import sacrebleu

from reluformer.data.bible import bible_documents
from reluformer.data.files import DataError
from reluformer.translation.scores import BUCKETS, compare, score

REFERENCES = [chapter["es"] for chapter in bible_documents("dev")]


def damaged(documents: list[list[str]], rate: float, seed: int = 0) -> list[list[str]]:
    """Each word gone with this probability."""
    draw = random.Random(seed)
    return [[" ".join(w for w in x.split() if draw.random() >= rate) for x in document] for document in documents]


def test_numbers_are_those_of_sacrebleu_at_their_level() -> None:
    found = score(damaged(REFERENCES, 0.2), REFERENCES)
    hypotheses = damaged(REFERENCES, 0.2)
    sentences = [[x for document in side for x in document] for side in (hypotheses, REFERENCES)]
    joined = [[" ".join(document) for document in side] for side in (hypotheses, REFERENCES)]
    assert found.s_bleu.value == pytest.approx(sacrebleu.corpus_bleu(sentences[0], [sentences[1]]).score)
    assert (
        found.d_bleu.value == float(found.d_bleu) == pytest.approx(sacrebleu.corpus_bleu(joined[0], [joined[1]]).score)
    )
    assert found.chrf.value == pytest.approx(sacrebleu.corpus_chrf(sentences[0], [sentences[1]]).score)
    assert [x.level for x in (found.s_bleu, found.d_bleu, found.chrf)] == ["sentence", "document", "sentence"]
    assert f"tok:13a|smooth:exp|version:{sacrebleu.__version__}" in found.d_bleu.signature


def test_only_documents_forgive_a_border_between_sentences() -> None:
    moved = score([["In the beginning God created", "the heaven and the earth."]],
                  [["In the beginning", "God created the heaven and the earth."]])  # fmt: skip
    assert moved.d_bleu.value == pytest.approx(100)
    assert moved.s_bleu.value < 90


def test_by_length() -> None:
    found = score(damaged(REFERENCES, 0.3), REFERENCES)
    assert len(found.by_length) > 2
    for name in ("documents", "sentences", "words"):
        assert sum(getattr(bucket, name) for bucket in found.by_length) == getattr(found, name)
    bucket = found.by_length[1]
    lengths = [sum(len(x.split()) for x in document) for document in REFERENCES]
    chosen = [i for i, n in enumerate(lengths) if bucket.fewest <= n <= bucket.most]
    assert len(chosen) == bucket.documents
    alone = score([damaged(REFERENCES, 0.3)[i] for i in chosen], [REFERENCES[i] for i in chosen])
    assert (alone.s_bleu.value, alone.d_bleu.value, alone.chrf.value) == (bucket.s_bleu, bucket.d_bleu, bucket.chrf)
    longest = score([["a b c d e"] * 1000], [["a b c d e"] * 1000]).by_length
    assert [(x.fewest, x.most, x.words) for x in longest] == [(BUCKETS[-1] + 1, None, 5000)]


def test_paired_bootstrap() -> None:
    bad, good = damaged(REFERENCES, 0.3), damaged(REFERENCES, 0.25)
    found = compare(bad, good, REFERENCES, samples=200)
    assert [x.name for x in found] == ["s-BLEU", "d-BLEU", "chrF"]
    scores = score(bad, REFERENCES), score(good, REFERENCES)
    for x, field in zip(found, ("s_bleu", "d_bleu", "chrf"), strict=True):
        assert [x.first.value, x.second.value] == pytest.approx([getattr(s, field).value for s in scores])
        assert x.p_value < 0.05
        assert abs(x.first.mean - x.first.value) < x.first.interval < 10
        assert "bs:200|seed:12345" in x.signature
    assert compare(bad, good, REFERENCES, samples=200) == found
    alike = compare(damaged(REFERENCES, 0.3, seed=1), bad, REFERENCES, samples=200)
    assert all(x.p_value > 0.05 for x in alike)
    assert [x.p_value for x in compare(bad, bad, REFERENCES, samples=50)] == [1.0] * 3


def test_what_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="1 translated documents and 2 references"):
        score([["a"]], [["a"], ["b"]])
    with pytest.raises(DataError, match="document 2 has 1 translated sentences and 2"):
        compare([["a"], ["b"]], [["a"], ["b"]], [["a"], ["b", "c"]])
    with pytest.raises(DataError, match="nothing to score"):
        score([[]], [[]])
    with pytest.raises(DataError, match="cannot tokenise with 'klingon'"):
        score([["a"]], [["a"]], tokenize="klingon")
    assert score([["", "a"]], [["x", "a"]]).sentences == 2
