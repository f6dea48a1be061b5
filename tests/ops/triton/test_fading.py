"""Forget gates in the kernels: on a GPU where there is one, else through Triton's interpreter; right, and lazy."""

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


def gates(b, h, m, strength, device):
    return -strength * torch.rand(b, h, m, device=device)


@pytest.mark.parametrize("stats", [False, True], ids=["output", "statistics"])
@pytest.mark.parametrize(
    ("options", "strength", "dtype"),
    [
        pytest.param({"n": 1}, 0.3, torch.float32, id="one query"),
        pytest.param({"n": 63}, 0.3, torch.float32, id="length 63"),
        pytest.param({"n": 100}, 0.01, torch.float16, id="length 100, weak"),
        pytest.param({"n": 257}, 0.1, torch.bfloat16, id="length 257"),
        pytest.param({"n": 257}, 3.0, torch.bfloat16, id="length 257, strong"),
        pytest.param({"n": 63, "m": 200}, 0.1, torch.bfloat16, id="fewer queries than keys"),
        pytest.param({"n": 100, "m": 63}, 0.3, torch.float32, id="rows that see no key"),
        pytest.param({"n": 150, "hq": 2, "hk": 1}, 0.1, torch.bfloat16, id="grouped heads"),
        pytest.param({"n": 150, "bias": True, "hq": 2, "hk": 1}, 0.1, torch.bfloat16, id="bias and grouped heads"),
        pytest.param(
            {"n": 150, "window": 100, "power": 2, "bias": True}, 0.1, torch.float16, id="window, power 2, bias"
        ),
        pytest.param({"n": 0}, 0.3, torch.bfloat16, id="no queries"),
        pytest.param({"m": 0}, 0.3, torch.bfloat16, id="no keys"),
    ],
)
def test_agrees_with_the_reference(options, strength, dtype, stats, device):
    options = {"n": 100, "hq": 1, "d": 16} | options
    log_forget = gates(1, options["hq"], options.get("m", options["n"]), strength, device)
    case = random_case(causal=True, log_forget=log_forget, stats=stats, device=device, **options)
    assert_agrees(case, "triton", dtype)


@pytest.mark.parametrize("stats", [False, True], ids=["output", "statistics"])
def test_masks(stats, device):
    flips = torch.rand(2, 80, device=device) > 0.3
    added = torch.randn(2, 1, 40, 80, device=device)
    for options in (
        {"key_padding_mask": flips},  # zero keys instead of a mask
        {"key_padding_mask": flips, "bias": True},
        {"attn_mask": added},
    ):
        log_forget = gates(2, 1, 80, 0.1, device)
        case = random_case(
            b=2, hq=1, n=40, m=80, d=16, causal=True, log_forget=log_forget, stats=stats, device=device, **options
        )
        assert_agrees(case, "triton", torch.bfloat16)


@pytest.mark.parametrize("options", [{"n": 1, "hq": 2, "hk": 1}, {"n": 3, "power": 2}], ids=str)
@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_decoding(strength, options, device):
    """A few queries against many keys: the keys are split, and the parts that are forgotten stay empty."""
    options = {"hq": 1} | options
    log_forget = gates(1, options["hq"], 700, strength, device)
    case = random_case(m=700, d=16, gamma=False, causal=True, log_forget=log_forget, device=device, **options)
    assert_agrees(case, "triton", torch.bfloat16)


@pytest.mark.parametrize(("stats", "bias"), [(False, False), (True, True)], ids=["plain", "statistics and bias"])
def test_deterministic_backward(stats, bias, device):
    log_forget = gates(1, 1, 140, 0.1, device)
    case = random_case(hq=1, n=140, d=16, causal=True, log_forget=log_forget, stats=stats, bias=bias, device=device)
    torch.use_deterministic_algorithms(True)
    try:
        assert_agrees(case, "triton", torch.bfloat16)
        first, second = (case.run(relu_attention, torch.bfloat16, "triton") for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("n", [1, 64])
def test_what_is_forgotten_is_not_read(n, device):
    """Keys that are forgotten by all queries may hold anything: with NaN in them, any use would show."""
    m = 1200
    q, k, v = (torch.randn(1, 1, x, 16, device=device, dtype=torch.bfloat16) for x in (n, m, m))
    log_forget = torch.full((1, 1, m), -1.0, device=device)  # after 22 keys, nothing is left
    found = []
    for poison in (0.0, float("nan")):
        k[:, :, :512] = v[:, :, :512] = poison
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        out = relu_attention(*leaves, causal=True, log_forget=log_forget, backend="triton")
        found.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for clean, poisoned in zip(*found, strict=True):
        assert torch.equal(clean, poisoned)


@pytest.mark.parametrize("stats", [False, True], ids=["output", "statistics"])
def test_very_strong_forgetting(stats, device):
    """Gates of e^-20: nothing overflows, and what is left is the newest key."""
    log_forget = torch.full((1, 1, 140), -20.0, device=device)
    case = random_case(hq=1, n=140, d=16, causal=True, log_forget=log_forget, alpha=0.0, stats=stats, device=device)
    found = case.run(relu_attention, torch.bfloat16, "triton")
    assert all(x.isfinite().all() for x in found.values())
    q, k, v = (case.tensors[name].bfloat16() for name in "qkv")
    alone = relu_attention(q, k, v, gamma=case.tensors["gamma"], causal=True, window=1, alpha=0.0, backend="reference")
    torch.testing.assert_close(found["out"], alone)


@pytest.mark.slow
def test_compiles_for_hopper_without_spills():
    """Triton compiles for a GPU that is not there."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_forgetting.py")
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    assert len(reports) == 16
    for report in reports:
        assert report["shared"] <= 232448, report
        assert not report["complaints"], report
        assert report["stack"] <= 16, report  # a few words with statistics at head dim 128
