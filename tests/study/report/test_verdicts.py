import pytest

from reluformer.study.experiment import Claim
from reluformer.study.report.sections import sections
from reluformer.study.report.verdicts import FAILS, HOLDS, OPEN, verdict
from tests.study.report.samples import cell, cells, experiment


def judged(found, relation=">", margin=0.0, metric="bleu"):
    claim = Claim("text", metric, "ReLU", "softmax", relation, margin)
    return verdict(claim, sections([experiment(claim)], found)[0])


HIGH, LOW = (34.1, 34.2, 34.3), (33.0, 33.1, 33.2)


@pytest.mark.parametrize(
    ("relation", "margin", "first", "second", "word"),
    [
        (">", 0, HIGH, LOW, HOLDS),
        (">", 0, LOW, HIGH, FAILS),
        ("<", 0, LOW, HIGH, HOLDS),
        ("<", 0, HIGH, LOW, FAILS),
        (">", 0, (30, 34, 38), LOW, OPEN),
        (">", 0.5, HIGH, LOW, HOLDS),
        (">", 2, HIGH, LOW, FAILS),
        ("<", 2, LOW, HIGH, FAILS),
        (">", -0.5, (34.0, 34.1, 34.2), HIGH, HOLDS),  # may lose that much
        (">", -0.5, LOW, HIGH, FAILS),
        ("=", 0.5, HIGH, (34.15, 34.2, 34.25), HOLDS),
        ("=", 0.5, HIGH, LOW, FAILS),
        ("=", 0.1, HIGH, (34.15, 34.2, 34.25), OPEN),
        ("=", 0, HIGH, HIGH, OPEN),
    ],
)
def test_words(relation, margin, first, second, word):
    assert judged(cells("ReLU", *first) + cells("softmax", *second), relation, margin).word == word


def test_the_reason_has_its_numbers():
    found = cells("ReLU", 1, 2, 3) + cells("softmax", 4, 6, 8)
    assert judged(found).reason == "difference -4, Welch p = 0.055, n = 3 and 3"
    assert judged(found, "=", 1).reason.startswith("difference -4, TOST within ±1 p = 0.9")
    found = cells("ReLU", 1, 2, 3) + cells("softmax", 7.3, 8.3, 9.3)
    assert judged(found).reason == "difference -6.3, Welch p = 0.002, n = 3 and 3"
    found = cells("ReLU", 1, 1) + cells("softmax", 5, 5)
    assert judged(found).reason == "difference -4, Welch p < 0.001, n = 2 and 2, no spread between seeds"


@pytest.mark.parametrize(("relation", "margin"), [("=", 0.5), (">", -0.3)])
def test_a_margin_as_large_as_the_figures_decides_nothing(relation, margin):
    found = judged(cells("ReLU", 0.31, 0.32, 0.33) + cells("softmax", 0.26, 0.27, 0.28), relation, margin)
    assert found.word == OPEN
    assert found.reason == "the margin is as large as the figures; difference +0.05, n = 3 and 3"
    assert judged(cells("ReLU", 0.31, 0.32, 0.33) + cells("softmax", 0.26, 0.27, 0.28)).word == HOLDS


def test_one_seed_decides_nothing():
    found = judged(cells("ReLU", 35) + cells("softmax", *LOW))
    assert found.word == OPEN
    assert found.reason == "one seed; difference +1.9, n = 1 and 3"


def test_missing_cells_and_figures():
    assert judged(cells("ReLU", *HIGH)).reason == "no cells: softmax"
    assert judged(cells("ReLU", *HIGH) + cells("softmax", *LOW), metric="nll").reason == "no nll in its cells: ReLU"
    assert judged(cells("ReLU", *HIGH) + [cell("softmax", status="failed")]).reason == "every run failed: softmax"
    assert judged(cells("ReLU", *HIGH) + cells("softmax", float("nan"), 1.0)).word == OPEN


def test_a_diverged_arm_is_worse_than_any_that_finished():
    lost = [cell("softmax", status="diverged", bleu=99.0)]
    found = judged(cells("ReLU", 30) + lost)
    assert (found.word, found.reason) == (HOLDS, "softmax diverged (1 of 1 seeds): worse than any run that finished")
    assert judged(cells("ReLU", 30) + lost, "<").word == FAILS
    assert judged(cells("ReLU", 30) + lost, "=", 1).word == FAILS
    # A lower NLL is better, so what diverged has the higher one.
    assert judged([cell("ReLU", nll=2.0), *lost], "<", metric="nll").word == HOLDS
    # Nobody says which way this figure is better.
    assert judged([cell("ReLU", plain=2.0), *lost], metric="plain").word == OPEN
    assert judged([cell("ReLU", status="diverged"), *lost]).word == OPEN
    assert judged([cell("ReLU"), *lost]).word == OPEN


def test_a_partly_diverged_arm_is_not_flattered():
    winner = [*cells("ReLU", *HIGH), cell("ReLU", 3, "diverged")]
    loser = [*cells("softmax", *LOW), cell("softmax", 3, "diverged")]
    assert judged(winner + cells("softmax", *LOW)).word == OPEN
    assert "diverged in part (1 of 4 seeds)" in judged(winner + cells("softmax", *LOW)).reason
    assert judged(cells("ReLU", *HIGH) + loser).word == HOLDS
    assert judged(winner + cells("softmax", *LOW), ">", 2).word == FAILS
    assert judged(winner + loser).word == OPEN
    assert judged(winner + cells("softmax", *HIGH), "=", 1).word == OPEN


def test_an_unknown_relation_decides_nothing():
    assert judged(cells("ReLU", *HIGH) + cells("softmax", *LOW), "~").word == OPEN
