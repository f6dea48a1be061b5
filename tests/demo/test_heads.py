import math

import pytest
import torch

from reluformer.demo.heads import CROSS, Side, by_words, measured, strongest_looks
from reluformer.demo.run import Demonstration
from reluformer.demo.words import Word
from reluformer.report.maps import AttentionMap, attention_maps
from reluformer.translation.attention import window_batch
from reluformer.translation.translator import Translator

TWO = Side([0, 0, 1, 1], [Word("a", 0, 2), Word("b", 2, 4)])


def drawn(weights: torch.Tensor) -> AttentionMap:
    names = [str(i) for i in range(len(weights))]
    return AttentionMap("x.attention", 0, 0, weights, torch.ones_like(weights).bool(), names, names)


@pytest.mark.parametrize(
    ("weights", "information", "reach"),
    [
        (3 * torch.eye(4), math.log(4), 0.0),  # every row a key of its own, whatever its mass
        (torch.eye(4)[[2, 3, 0, 1]], math.log(4), 1.0),
        (torch.tensor([[1.0, 0, 0, 0]]).expand(4, 4), 0.0, 0.5),  # all the same one
        (torch.ones(4, 4), 0.0, 0.5),
        (torch.diag(torch.tensor([1.0, 0, 0, 1])), math.log(2), 0.0),  # rows without weight count for nothing
        (torch.zeros(4, 4), 0.0, 0.0),
    ],
)
def test_measures_of_plain_heads(weights: torch.Tensor, information: float, reach: float) -> None:
    head = measured(drawn(weights), TWO, TWO)
    assert head.information == pytest.approx(information, abs=1e-12)
    assert head.reach == pytest.approx(reach)


def test_shares_of_words_against_loops() -> None:
    weights = torch.rand(7, 6).double().relu() * (torch.rand(7, 6) < 0.6)
    weights[3] = 0
    queries, keys = [Word("p", 0, 3), Word("q", 3, 4), Word("r", 5, 7)], [Word("x", 1, 2), Word("y", 2, 6)]
    shares = by_words(weights, queries, keys)
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            rows = [weights[n] / max(float(weights[n].sum()), 1e-300) for n in range(query.start, query.end)]
            expected = sum(float(row[m]) for row in rows for m in range(key.start, key.end)) / len(rows)
            assert float(shares[i, j]) == pytest.approx(expected)


def test_looks_go_to_other_sentences_and_name_each_word_once() -> None:
    names = ["Anna,", "came", "She", "she", "!"]
    side = Side([0, 0, 1, 2, 2], [Word(name, i, i + 1) for i, name in enumerate(names)])
    weights = torch.tensor(
        [
            [0.0, 9, 0, 0, 0],  # inside its sentence
            [0.0, 0, 0, 0, 0],
            [3.0, 1, 0, 0, 0],
            [2.0, 2, 0, 0, 0],
            [8.0, 0, 0, 0, 0],  # no word
        ]
    )
    looks = strongest_looks(measured(drawn(weights), side, side))
    assert [(x.query, x.query_sentence, x.key, x.key_sentence) for x in looks] == [
        ("She", 1, "Anna", 0),
        ("she", 2, "came", 0),
    ]
    assert looks[0].share == pytest.approx(0.75)


def test_the_best_heads_are_shown(found: Demonstration, box) -> None:
    translator = Translator.load(box)
    batch = window_batch(translator.model, found.longest)
    scores: dict[str, list[tuple[float, int, int]]] = {}
    for head in attention_maps(translator.model, batch, ["*:*:*"]):
        rows = [row / row.sum() for row in head.weights.double() if row.sum() > 0]
        mean = sum(rows) / len(rows)
        entropy = lambda p: -sum(x * math.log(x) for x in p.tolist() if x > 0)  # noqa: E731
        information = entropy(mean) - sum(map(entropy, rows)) / len(rows)
        scores.setdefault(head.site, []).append((information, head.layer, head.head))
    shown = [(x.information, x.map.layer, x.map.head) for x in found.heads.cross]
    best = sorted(scores["decoder.cross_attention"], reverse=True)[:CROSS]
    assert [x[1:] for x in shown] == [x[1:] for x in best]
    assert [x[0] for x in shown] == pytest.approx([x[0] for x in best])
    assert [x.map.site for x in found.heads.context] == ["encoder.self_attention", "decoder.self_attention"]
