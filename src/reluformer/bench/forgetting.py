"""``reluformer bench forgetting``: causal attention with forget gates, including their gradients, against softmax.

Weak gates forget nothing within the sequence, so every block of keys is visited; strong ones let the operator skip
blocks. The difference is what skipping gains.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch import Tensor
from torch._functorch import config as functorch_config

from reluformer import relu_attention
from reluformer.bench import contestants
from reluformer.bench.timing import Call, medians, reason, release

PASSES = ("forward", "both")
OURS, FLEX = "ReLU, this operator", "softmax, FlexAttention"
FIXED = "softmax, FlexAttention, gates fixed"  # without the atomic sums of the gates' gradients
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """One shape of the problem; ``strength`` is how strongly the gates forget, the mean of ``-log f``."""

    head_dim: int
    length: int
    batch: int
    heads: int
    dtype: str
    strength: float


@dataclass
class Row:
    """Results of one contestant in one setting; a pass that did not run is missing, and the note says why."""

    setting: Setting
    name: str
    ms: dict[str, float] = field(default_factory=dict)
    vs_flex: dict[str, float] = field(default_factory=dict)  # speed relative to FlexAttention
    vs_weakest: dict[str, float] = field(default_factory=dict)  # and to itself with the weakest gates
    note: str = ""

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        found: dict[str, object] = asdict(self.setting) | {"contestant": self.name}
        for kind in PASSES:
            for column in ("ms", "vs_flex", "vs_weakest"):
                found[f"{kind}_{column}"] = getattr(self, column).get(kind)
        return found | {"note": self.note}


def settings(
    head_dims: list[int], lengths: list[int], strengths: list[float], tokens: int, width: int, dtype: str
) -> Iterator[Setting]:
    """Yield every combination, with ``tokens`` per call (at least one sequence) and ``width`` = heads x head dim."""
    for d in head_dims:
        for n in lengths:
            for strength in strengths:
                yield Setting(d, n, max(1, tokens // n), max(1, width // d), dtype, strength)


@dataclass(frozen=True)
class Contestant:
    """A way to compute attention with gates; ``attend(q, k, v, log_forget)`` returns the output."""

    name: str
    attend: Attend
    score_matrices: int = 0  # how many score matrices it holds at its peak, in the inputs' dtype
    compiled: bool = False
    gated: bool = True
    softmax: bool = False


def _operator(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    return relu_attention(q, k, v, causal=True, log_forget=log_forget)


def _ungated(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    return relu_attention(q, k, v, causal=True)


def softmax_formula(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    """Apply softmax to the scores plus the log of what the gates leave of each key, literally by the formula."""
    n, d = q.shape[-2:]
    c = log_forget.cumsum(-1)  # (B, H, N)
    score = (q * d**-0.5) @ k.mT + (c[..., None] - c[:, :, None])  # (B, H, N, N)
    later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    weights: Tensor = score.masked_fill(later, -torch.inf).softmax(-1)
    return weights.to(v.dtype) @ v


def flex_softmax(q: Tensor, k: Tensor, v: Tensor, c: Tensor, blocks: object) -> Tensor:
    """Compute the same with FlexAttention, which modifies scores one by one; ``c (B, H, N)`` sums the log gates."""
    left, right = c, c.clone()  # it refuses gradients of a tensor that a score_mod reads in two places

    def fade(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + (left[b, h, i] - right[b, h, j])

    flex: Any = torch.nn.attention.flex_attention
    out: Tensor = flex.flex_attention(q, k, v, fade, blocks)
    return out


@lru_cache(maxsize=4)
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False, fullgraph=True)


def _flex(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    return _compiled(flex_softmax)(q, k, v, log_forget.cumsum(-1), contestants.causal_blocks(q.shape[2], q.device))


def _flex_fixed(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    return _flex(q, k, v, log_forget.detach())


def _formula(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor) -> Tensor:
    return _compiled(softmax_formula)(q, k, v, log_forget)


FIELD = (
    Contestant(OURS, _operator),
    Contestant("ReLU, this operator, no gates", _ungated, gated=False),
    Contestant(FLEX, _flex, compiled=True, softmax=True),
    Contestant(FIXED, _flex_fixed, compiled=True, gated=False, softmax=True),
    Contestant("softmax, formula compiled", _formula, score_matrices=4, compiled=True, softmax=True),
)


def measure(setting: Setting, device: torch.device, seconds: float, fewest: int, quick: bool = False) -> list[Row]:
    """Time all contestants on the same fresh random inputs; gradients reach queries, keys, values and gates."""
    shape = (setting.batch, setting.heads, setting.length, setting.head_dim)
    dtype = getattr(torch, setting.dtype)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    log_forget = (-2 * setting.strength * torch.rand(shape[:3], device=device)).requires_grad_()
    slope = torch.randn(shape, device=device, dtype=dtype)
    rows = {c.name: Row(setting, c.name) for c in FIELD}
    calls: dict[str, dict[str, Call]] = {kind: {} for kind in PASSES}
    truth: list[Tensor] = []  # output and gradients of the first contestant that computes softmax
    with functorch_config.patch(donated_buffer=False):
        for contestant in FIELD:
            row = rows[contestant.name]
            row.note = contestants.obstacle(contestant.score_matrices, q) or ""
            if quick and contestant.compiled:
                row.note = "skipped: it compiles for long"
            if row.note:
                continue
            leaves = [q, k, v, log_forget] if contestant.gated else [q, k, v]

            def forward(attend: Attend = contestant.attend) -> Tensor:
                return attend(q, k, v, log_forget)

            def both(attend: Attend = contestant.attend, leaves: list[Tensor] = leaves) -> Sequence[Tensor]:
                out = attend(q, k, v, log_forget)
                return out, *torch.autograd.grad(out, leaves, slope)

            try:
                found = [x.detach() for x in both()[:4]]  # the gates' gradients are left out, as they round differently
                if contestant.softmax:
                    truth = truth or found
                    _check(found, truth)
            except Exception as error:  # a rival that cannot run here loses its row, not the table
                row.note = reason(error)
                release(device)
                continue
            calls["forward"][row.name], calls["both"][row.name] = forward, both
        for kind in PASSES:
            for name, median in medians(calls[kind], device, seconds, fewest).items():
                if isinstance(median, float):
                    rows[name].ms[kind] = median
                else:
                    rows[name].note = f"{kind}: {median}"
    torch.compiler.reset()  # each setting compiles afresh, below the limit on recompilations
    release(device)
    return list(rows.values())


def _check(found: list[Tensor], truth: list[Tensor]) -> None:
    """Check that all implementations of softmax agree; otherwise their times could not be compared."""
    for x, y in zip(found, truth, strict=True):
        error = ((x - y).float().norm() / y.float().norm()).item()
        if not error < 0.03:
            raise RuntimeError(f"disagrees with the other softmax by {error:.2g}")


def compare(rows: Sequence[Row]) -> None:
    """Fill in the ratios: to FlexAttention in the same setting, and to the same contestant with the weakest gates."""
    for row in rows:
        alike = [r for r in rows if _shape(r.setting) == _shape(row.setting)]
        weakest = min(r.setting.strength for r in alike)
        for kind, ms in row.ms.items():
            for other in alike:
                if kind not in other.ms:
                    continue
                if other.name == FLEX and other.setting == row.setting:
                    row.vs_flex[kind] = other.ms[kind] / ms
                if other.name == row.name and other.setting.strength == weakest:
                    row.vs_weakest[kind] = other.ms[kind] / ms


def _shape(setting: Setting) -> tuple[int, int]:
    return setting.head_dim, setting.length
