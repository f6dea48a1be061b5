import pytest
import torch

from reluformer.training.measuring import Measures


def test_sums_since_the_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    measures = Measures()
    measures.add("tokens", torch.tensor(1000))
    measures.begin(7)
    first = torch.tensor(30.0, requires_grad=True)
    measures.add("tokens", first)
    measures.add("tokens", torch.tensor(10.0))
    assert (measures.step, measures.per_second("tokens")) == (7, 10.0)
    assert not measures.sums["tokens"].requires_grad
    assert first.item() == 30.0
