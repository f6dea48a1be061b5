import pytest

from reluformer.training.history import Evaluations

NAN = float("nan")
LOG = [
    {"step": 1, "loss": 9.0}, {"step": 10, "eval_loss": 1.0}, {"step": 20, "eval_loss": 3.0, "eval_d_bleu": 5.0},
    {"step": 30, "eval_loss": 2.0, "eval_d_bleu": 7.0}, {"step": 40, "eval_loss": 2.0, "eval_d_bleu": 6.0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "higher", "best", "without_gain"),
    [
        ([], False, None, 0),
        ([3.0, 2.0, 1.0], False, 3, 0),
        ([1.0, 2.0, 1.0], False, 1, 2),
        ([1.0, 2.0, 1.0], True, 2, 1),
        ([NAN, 2.0, NAN], False, 2, 1),
        ([NAN, NAN], False, None, 2),
    ],
)
def test_the_best_and_what_came_after(values, higher, best, without_gain):
    found = Evaluations(range(1, len(values) + 1), values, higher)
    assert (found.best_step, found.without_gain) == (best, without_gain)


def test_of_a_log():
    found = Evaluations.of(LOG, "eval_loss", higher=False, after=10)
    assert (list(found.steps), found.best_step, found.without_gain) == ([20, 30, 40], 30, 1)
    assert Evaluations.of(LOG, "eval_loss", higher=False).best_step == 10
    assert Evaluations.of(LOG, "eval_d_bleu", higher=True).best_step == 30
