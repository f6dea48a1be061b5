"""The numeric rule: against the exact result, a back end errs at most twice as much as plain PyTorch in its dtype.

Exact is the reference on inputs cast up (float32 for half precision, float64 for float32). Plain PyTorch is the
reference on the inputs as they are. Rounding the exact result to the dtype is allowed on top.

One run of plain PyTorch may be lucky, so the yardstick is the worst of a few that differ in rounding alone. The
entropy's slope is badly conditioned where a score is almost zero (it goes with the score's logarithm), and there one
unlucky rounding decides the largest error of a gradient. So where the entropy enters the loss, the gradients that pass
through the scores get more room: the rule for all but the worst tenth, four times as much for the rest. Cases without
statistics hold them to the rule itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer import relu_attention

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
ROUNDINGS = 8
# Share of the elements, and how many times the rule's bound they may err.
THROUGH_SCORES = {"dq": ((0.9, 1), (1.0, 4)), "dk": ((0.9, 1), (1.0, 4)), "dlog_forget": ((0.9, 1), (1.0, 4))}
Attention = Callable[..., tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]


@dataclass
class Case:
    """Tensors by argument name, the plain options beside them, and which statistics enter the loss."""

    tensors: dict[str, Tensor]
    options: dict[str, object]
    stats: bool = True

    def run(self, attention: Attention, dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
        """Outputs, statistics and all gradients, by name, for inputs of this dtype."""
        cast = torch.promote_types(dtype, torch.float32)  # gamma and bias are never half precision
        args = {}
        for name, x in self.tensors.items():
            if x.is_floating_point():
                x = x.detach().to(dtype if name in ("q", "k", "v") else cast).requires_grad_(name != "attn_mask")
            args[name] = x
        result = attention(**args, **self.options, return_stats=self.stats, backend=backend)
        out, stats = result if self.stats else (result, ())
        # A loss with a different slope everywhere: a constant one would hide misplaced rows.
        weight = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=torch.float64).reshape(out.shape)
        loss = (out.double() * weight).sum()
        for x in stats[:2]:
            slope = torch.linspace(0.5, 1.5, x.numel(), device=x.device, dtype=torch.float64).reshape(x.shape)
            loss = loss + (x.double() * slope).sum()
        loss.backward()
        found = {"out": out.detach(), **dict(zip(("mass", "entropy", "active"), stats, strict=False))}
        found |= {f"d{name}": x.grad for name, x in args.items() if x.is_floating_point() and x.grad is not None}
        return {name: x.detach() for name, x in found.items()}


def assert_agrees(
    case: Case, backend: str, dtype: torch.dtype = torch.float32, attention: Attention = relu_attention
) -> None:
    """Outputs, statistics and gradients of the back end obey the rule in the module's docstring."""
    # What the inputs are in their dtype is where all three start from.
    narrow = {n: x.to(dtype) if n in ("q", "k", "v") else x for n, x in case.tensors.items()}
    case = Case(narrow, case.options, case.stats)
    exact = case.run(attention, WIDER[dtype], "reference")
    plain = [case.run(_rolled(attention, shift), dtype, "reference") for shift in range(ROUNDINGS)]
    found = case.run(attention, dtype, backend)
    assert found.keys() == exact.keys()
    for name, truth in exact.items():
        got = found[name]
        assert got.shape == truth.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(truth.shape)}"
        assert got.isfinite().all(), f"{name} is not finite"
        size = _largest(truth)
        rounding = 2 * torch.finfo(dtype).eps * size  # not of got's dtype: gamma's gradient comes through a half dout
        if name == "entropy":  # a difference of logarithms, each of them rounded, whatever is left of them
            rounding += torch.finfo(torch.float32).eps
        if name == "dlog_forget":  # a difference of q.dq and k.dk, each of them rounded, whatever is left of it
            rounding += 2 * torch.finfo(torch.float32).eps * _largest(_terms(case, exact))
        if name == "dgamma" and "cu_seqlens_q" not in case.options:  # the sum of q.dq, of either sign, over gamma
            terms = _terms(case, exact).sum((0, 2)) / case.tensors["gamma"].double()
            rounding += torch.finfo(torch.float32).eps * _largest(terms)
        for share, slack in THROUGH_SCORES.get(name, ((1.0, 1),)) if case.stats else ((1.0, 1),):
            error = _distance(got, truth, share)
            theirs = max(_distance(x[name], truth, share) for x in plain)
            if math.isinf(theirs) or name == "active":  # plain PyTorch overflowed; counts flip where scores round to 0
                theirs = 0.01 * size
            assert error <= slack * (2 * theirs + rounding), f"{name}: error {error:.3g}, plain PyTorch {theirs:.3g}"


def _largest(x: Tensor) -> float:
    return _distance(x, torch.zeros_like(x))


def _terms(case: Case, exact: dict[str, Tensor]) -> Tensor:
    """How much is added up in ``q.dq`` of every row, ``(B, H, N)``, whatever is left of it."""
    return (case.tensors["q"].double() * exact["dq"].double()).abs().sum(-1)


def _distance(x: Tensor, y: Tensor, share: float = 1.0) -> float:
    """The largest difference of this share of the elements; infinite if one of them is not a number."""
    if x.numel() == 0:
        return 0.0
    error = (x.double() - y.double()).abs().nan_to_num(nan=math.inf).flatten()
    return error.kthvalue(math.ceil(share * error.numel())).values.item()


def _rolled(attention: Attention, shift: int) -> Attention:
    """The same attention, its products summed in another order of the head dimension."""

    def rolled(q: Tensor, k: Tensor, v: Tensor, **kwargs: object) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        result = attention(*(x.roll(shift, -1) for x in (q, k, v)), **kwargs)
        out, *stats = result if isinstance(result, tuple) else (result,)
        return (out.roll(-shift, -1), *stats) if stats else out.roll(-shift, -1)

    return rolled


def random_case(
    b: int = 1,
    hq: int = 2,
    hk: int | None = None,
    n: int = 100,
    m: int | None = None,
    d: int = 32,
    device: torch.device | str = "cpu",
    gamma: bool = True,
    bias: bool = False,
    stats: bool = True,
    **options: object,
) -> Case:
    """A random problem; gamma and bias are one value per head, with gradients, when asked for."""
    hk, m = hk or hq, n if m is None else m
    tensors = {
        "q": torch.randn(b, hq, n, d, device=device),
        "k": torch.randn(b, hk, m, d, device=device),
        "v": torch.randn(b, hk, m, d, device=device),
    }
    if gamma:
        tensors["gamma"] = torch.rand(hq, device=device) + 0.5
    if bias:
        tensors["bias"] = torch.randn(hq, device=device) * 0.5
    tensors |= {name: options.pop(name) for name in list(options) if isinstance(options[name], Tensor)}
    return Case(tensors, options, stats)
