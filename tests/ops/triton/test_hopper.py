"""The kernel for Hopper: right where there is such a GPU; elsewhere, what its compiler says of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ops.agreement import assert_agrees, random_case

pytest.importorskip("triton", minversion="3.6")
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)


@hopper
@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"n": 1},
        {"n": 257},
        {"n": 2000, "causal": True},
        {"n": 63, "m": 200, "causal": True},
        {"n": 300, "m": 100, "causal": True},
        {"n": 500, "hq": 4, "hk": 2},
        {"n": 500, "hq": 4, "hk": 1, "causal": True},
        {"n": 1024, "b": 2, "hq": 3, "gamma": False},
    ],
    ids=str,
)
def test_agrees_with_the_reference(options, stats, d):
    assert_agrees(random_case(d=d, stats=stats, device="cuda", **options), "triton", torch.bfloat16)


@pytest.mark.slow
def test_compiles_for_hopper_without_spills_or_serialised_products():
    """Triton compiles for a GPU that is not there; a schedule that ptxas undoes would cost half the speed."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_hopper.py")
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    assert len(reports) == 8
    for report in reports:
        assert report["shared"] <= 232448, report
        assert not report["serialised"], report
        # With statistics and head dim 128 a few registers spill; see docs/kernels.md.
        assert report["stack"] == 0 or (report["stats"] and report["d"] == 128 and report["stack"] < 200), report
