"""The kernels for short rows against the reference: on a GPU where there is one, else through Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reluformer import relu_attention
from tests.ops.agreement import assert_agrees, random_case

pytestmark = [pytest.mark.usefixtures("poisoned_memory")]
pytest.importorskip("triton")


@pytest.fixture
def taken(monkeypatch):
    """How often the kernels for short rows were asked, and took the problem."""
    from reluformer.ops.triton import launch_short

    answers: list[bool] = []
    takes = launch_short.takes
    monkeypatch.setattr(launch_short, "takes", lambda p: answers.append(takes(p)) or answers[-1])
    return answers


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"n": 64, "causal": True}, id="as long as can be, causal"),
        pytest.param({"n": 1}, id="one query"),
        pytest.param({"n": 20, "m": 50, "causal": True}, id="fewer queries than keys"),
        pytest.param({"n": 50, "m": 20, "causal": True}, id="rows that see no key"),
        pytest.param({"window": (3, 9)}, id="window"),
        pytest.param({"hq": 4, "hk": 2, "causal": True}, id="grouped heads"),
        pytest.param({"hq": 4, "hk": 1, "bias": True, "power": 2}, id="one key head, bias, power 2"),
        pytest.param({"alpha": 0.0, "gamma": False, "stats": False}, id="bare"),
        pytest.param({"d": 20}, id="head dim 20"),
        pytest.param({"d": 128}, id="head dim 128"),
        pytest.param({"b": 3, "stats_batch": 2}, id="statistics of some"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_options(options, dtype, taken, device):
    assert_agrees(random_case(device=device, **{"n": 37, "d": 32} | options), "triton", dtype)
    assert taken
    assert all(taken)


@pytest.mark.parametrize("options", [{}, {"bias": True, "power": 8, "scale": 0.3}, {"bias": True, "causal": True}])
def test_padding(options, taken, device):
    padding = torch.rand(2, 50, device=device) > 0.3
    padding[0] = False  # a sequence of which nothing may be seen
    case = random_case(b=2, n=40, m=50, d=16, key_padding_mask=padding, device=device, **options)
    assert_agrees(case, "triton", torch.bfloat16)
    assert all(taken)


def test_rows_that_lie_apart(taken, device):
    """Neither inputs nor gradients need columns side by side."""
    torch.manual_seed(0)
    q, k, v, grad = torch.randn(4, 2, 2, 16, 30, device=device, dtype=torch.bfloat16).transpose(-2, -1)
    found = []
    for make in (torch.Tensor.detach, torch.Tensor.contiguous):
        inputs = [make(x).detach().requires_grad_() for x in (q, k, v)]
        out = relu_attention(*inputs, causal=True, backend="triton")
        out.backward(make(grad))
        found.append([out, *(x.grad for x in inputs)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert all(taken)


@pytest.mark.parametrize("options", [{"n": 65}, {"attn_mask": torch.ones(30, 30) > 0}, {"d": 130}], ids=str)
def test_others_go_elsewhere(options, taken, device):
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    random_case(device=device, **{"n": 30, "d": 16} | options).run(relu_attention, torch.bfloat16, "triton")
    assert not any(taken)


@pytest.mark.slow
def test_compiles_for_hopper():
    """Triton compiles for a GPU that is not there."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_short.py")
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    for report in json.loads(result.stdout):
        assert not report["complaints"], report
        assert report["stack"] <= (32 if report["d"] == 64 else 136), report  # a few words in the backward pass
