import time

import torch

from reluformer.bench.peak import peak_extra_bytes
from reluformer.bench.timing import medians, reason

CPU = torch.device("cpu")


def test_medians_take_turns_and_survive_failure() -> None:
    order = []

    def fails() -> None:
        raise ValueError("no\nway")

    calls = {
        "slow": lambda: (order.append("slow"), time.sleep(0.02)),
        "fast": lambda: order.append("fast"),
        "fails": fails,
    }
    found = medians(calls, CPU, seconds=0, fewest=3)
    assert 20 <= found["slow"] < 200
    assert found["fast"] < 5
    assert found["fails"] == "no"
    assert order[-6:] == ["slow", "fast"] * 3


def test_reason_is_one_short_line() -> None:
    assert reason(ValueError("\n\n  what happened \nwhere")) == "what happened"
    assert reason(KeyError()) == "KeyError"
    assert len(reason(ValueError("x" * 500))) == 120
    wrapped = "Observed exception\n context: raised exception NotImplementedError('no backward here')"
    assert reason(RuntimeError(wrapped)) == "no backward here"


def test_peak_leaves_out_what_is_returned(device: torch.device) -> None:
    x = torch.randn(256, 1024, device=device)  # 1 MiB

    def chain() -> torch.Tensor:
        y = x * 2
        z = y.exp()
        return z + y  # x, y, z and the sum: two of them neither given nor returned

    chain()
    small = 4096  # scalars, rounding
    assert 0 <= peak_extra_bytes(chain, device) - 2 * 2**20 < small
    assert peak_extra_bytes(lambda: (x * 2)[:3], device) < small
