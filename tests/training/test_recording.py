"""Recorded steps, with a recorder that repeats by calling again, as a CUDA graph repeats by launching again."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reluformer.training.recording import CudaRecorder, RecordedStep
from tests.training.runs import Repeats

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def steps(device="cpu"):
    """A model with a recorded step, and a copy of it whose gradients are computed as usual."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    model.bias.requires_grad_(False)
    other = copy.deepcopy(model)

    def step_of(model):
        def step(inputs):
            loss = (model(inputs["x"]) ** 2).mean() * inputs["factor"]
            loss.backward()
            return {"loss": loss.detach()}

        return step

    recorder = Repeats(model) if device == "cpu" else CudaRecorder()
    return model, RecordedStep(step_of(model), model.parameters(), recorder), other, step_of(other)


def batch(rows, device="cpu"):
    return {"x": torch.randn(rows, 3, device=device), "factor": torch.rand((), device=device)}


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_losses_and_gradients_are_those_of_plain_steps(device):
    model, recorded, other, plain = steps(device)
    losses, expected = [], []
    for rows in (4, 4, 5, 4, 5, 5, 4):
        inputs = batch(rows, device)
        losses.append(recorded(inputs)["loss"])
        expected.append(plain(inputs)["loss"])
        torch.testing.assert_close(model.weight.grad, other.weight.grad)
        model.zero_grad()
        other.zero_grad()
        with torch.no_grad():  # an update, which a recorded step must see
            model.weight.mul_(0.9)
            other.weight.mul_(0.9)
    torch.testing.assert_close(losses, expected)  # none was overwritten by a later step
    assert model.bias.grad is None


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gradients_of_several_batches_add_up(device):
    model, recorded, other, plain = steps(device)
    for _ in range(3):
        for rows in (4, 4, 5):
            inputs = batch(rows, device)
            recorded(inputs)
            plain(inputs)
        torch.testing.assert_close(model.weight.grad, other.weight.grad)
        model.zero_grad()
        other.zero_grad()


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gradients_from_elsewhere_are_added_to(device):
    model, recorded, other, plain = steps(device)
    for rows in (4, 4):
        recorded(batch(rows, device))
    for x in (model, other):
        x.zero_grad()
        x.weight.sum().backward()
    inputs = batch(4, device)
    recorded(inputs)
    plain(inputs)
    torch.testing.assert_close(model.weight.grad, other.weight.grad)
    assert model.weight.grad is recorded.gradients[0]  # where a graph adds to them


def test_what_is_forgotten_is_recorded_again():
    model, recorded, other, plain = steps()
    for _ in range(2):
        for rows in (4, 4):
            inputs = batch(rows)
            recorded(inputs)
            plain(inputs)
        recorded.forget()
        assert not recorded.known
        assert not recorded.gradients
    torch.testing.assert_close(model.weight.grad, other.weight.grad)
    assert recorded.recorder.recorded == 2


def test_shapes_and_kinds_are_recorded_once_each_at_their_second_step():
    _, recorded, _, _ = steps()
    counts = []
    for rows, kind in ((4, 0), (5, 0), (4, 0), (4, 0), (4, 1), (5, 0), (4, 1), (4, 1)):
        recorded(batch(rows), kind)
        counts.append((recorded.recorder.recorded, recorded.recorder.replayed))
    assert counts == [(0, 0), (0, 0), (1, 1), (1, 2), (1, 2), (2, 3), (3, 4), (3, 5)]


def test_inputs_are_copied_and_not_kept():
    _, recorded, _, plain = steps()
    first, second = batch(4), batch(4)
    recorded(first)
    recorded(first)
    kept = {name: x.clone() for name, x in first.items()}
    torch.testing.assert_close(recorded(second)["loss"], plain(second)["loss"])
    torch.testing.assert_close(first, kept)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_drops_others_every_time(compiled):
    drop = torch.compile(F.dropout) if compiled else F.dropout
    weight = nn.Parameter(torch.ones(1000, device="cuda"))

    def step(inputs):
        dropped = drop(weight * inputs["x"], 0.5, True)
        dropped.sum().backward()
        return {"dropped": dropped.detach()}

    recorded = RecordedStep(step, [weight], CudaRecorder())
    seen = [recorded({"x": torch.ones(1000, device="cuda")})["dropped"] for _ in range(5)]
    for i, one in enumerate(seen):
        assert 400 < (one == 0).sum() < 600
        assert all(300 < (one != other).sum() < 700 for other in seen[:i])


def test_memory_that_runs_out_while_recording_is_named(monkeypatch):
    class Graph:
        """A recording that fails to end after an error, as those of CUDA do."""

        def __init__(self, *_, **__):
            pass

        def __enter__(self):
            pass

        def __exit__(self, kind, error, traceback):
            if error is not None:
                raise RuntimeError("the recording was invalidated")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", Graph)

    def run(error):
        def fail():
            raise error

        return fail

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        CudaRecorder()(run(torch.OutOfMemoryError("full")))
    with pytest.raises(RuntimeError, match="invalidated"):
        CudaRecorder()(run(RuntimeError("another")))
