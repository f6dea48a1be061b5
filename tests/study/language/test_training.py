from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from reluformer.models import ReLUFormerForCausalLM, ReLUFormerLanguageConfig
from reluformer.study.experiment import Diverged
from reluformer.study.language import training
from reluformer.study.language.training import Course, mean_gate, score_language, train_language

COURSE = Course(steps=30, length=8, batch=8, lr=1e-2, points=3)


def make(family: str = "reluformer-lm-forget") -> ReLUFormerForCausalLM:
    torch.manual_seed(0)
    fields = {"vocab_size": 12, "d_model": 16, "heads": 2, "layers": 1, "ffn": {"slots": 16}}
    return ReLUFormerForCausalLM(ReLUFormerLanguageConfig.preset(f"{family}-tiny", **fields))


def text() -> Tensor:
    """A cycle, which the last token alone tells how to go on with."""
    return torch.arange(3, 11).repeat(20)


def test_learns_a_text_and_says_how() -> None:
    model = make()
    curve = train_language(model, text(), text()[:50], COURSE, seed=0)
    assert [point["step"] for point in curve] == [10, 20, 30]
    assert curve[-1]["nll"] < 0.5 * curve[0]["nll"]
    assert curve[-1]["seconds"] > curve[0]["seconds"] > 0
    again = train_language(make(), text(), text()[:50], COURSE, seed=0)
    assert [point["nll"] for point in again] == [point["nll"] for point in curve]


def test_the_time_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is behind the host: to read the loss is to wait for it."""
    now = 0.0

    def wait(_: float) -> bool:
        nonlocal now
        now += 5.0
        return True

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(training, "math", SimpleNamespace(isfinite=wait))
    curve = train_language(make(), text(), text()[:50], COURSE, seed=0)
    assert [point["seconds"] for point in curve] == [5.0, 10.0, 15.0]


def test_a_loss_that_is_no_number_is_told() -> None:
    model = make()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    with pytest.raises(Diverged, match="the loss is not a number"):
        train_language(model, text(), text()[:50], COURSE, seed=0)


def test_the_score_is_that_of_every_window_by_itself() -> None:
    model, tokens = make(), text()[:47]
    expected = []
    for start in range(0, 40, 10):  # of the fifth window, the token behind is missing
        logits = model.eval()(tokens[None, start : start + 10]).logits[0]
        expected.append(torch.nn.functional.cross_entropy(logits, tokens[start + 1 : start + 11], reduction="none"))
    found = score_language(model.train(), tokens, 10, COURSE)
    torch.testing.assert_close(found, torch.stack(expected).mean(0))
    assert model.training


def test_the_mean_gate_is_that_of_all_heads_and_tokens() -> None:
    model, ids = make(), text()[None, :20]
    gate = model.model.layers[0].self_attention.memory.forget  # type: ignore[union-attr]
    torch.nn.init.zeros_(gate.project.weight)
    torch.nn.init.constant_(gate.project.bias, 1.0)
    assert mean_gate(model, ids) == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item())
    assert mean_gate(make("reluformer-lm"), ids) is None


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 8 tokens has no window of 8"):
        train_language(make(), text()[:8], text(), COURSE, seed=0)
    with pytest.raises(ValueError, match="a text of 8 tokens has no window of 8"):
        score_language(make(), text()[:8], 8, COURSE)
