"""The chunked and Triton back ends as PyTorch operators: what to run, how to differentiate it, which shapes result.

To ``torch.compile``, ``reluformer::attention_forward`` and ``reluformer::attention_backward`` are opaque, each a single
node of the graph. The reference needs none of this: it is plain PyTorch.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from reluformer.ops import chunked
from reluformer.ops.problem import Problem
from reluformer.ops.statistics import AttentionStats
from reluformer.ops.visibility import Band

# Sizes and numbers come in lists because every call costs PyTorch time quadratic in the number of arguments.
_TENSORS = 11
_OPTIONAL = (3, 4, 6, 10)  # positions of gamma, bias, attn_mask and faded, each of which may need a gradient
_PROBLEM = (
    "Tensor q, Tensor k, Tensor v, Tensor? gamma, Tensor? bias, Tensor? key_mask, Tensor? attn_mask, Tensor? count, "
    "Tensor? cu_q, Tensor? cu_k, Tensor? faded, SymInt[] sizes, float[] numbers, int power, int stats, str backend"
)


def attend(p: Problem, backend: str) -> tuple[Tensor, AttentionStats]:
    """Run the problem on this back end, differentiably; statistics that were not requested are empty."""
    sizes = [p.max_q, p.max_k, *p.band, p.stats_batch]
    numbers = [p.divisor, p.alpha, p.scale]
    out, mass, entropy, active = torch.ops.reluformer.attention_forward.default(
        *p[:_TENSORS], sizes, numbers, p.power, p.stats, backend
    )
    return out, AttentionStats(mass, entropy, active)


def _problem(args: Sequence[Any]) -> Problem:
    """Rebuild the Problem from the operator's flat arguments; the last of them, the back end, is not part of it."""
    *tensors, (max_q, max_k, left, right, stats_batch), (divisor, alpha, scale), power, stats, _ = args
    return Problem(*[*tensors, max_q, max_k, divisor, alpha, power, scale, Band(left, right), stats, stats_batch])


def _module(backend: str) -> ModuleType:
    if backend == "chunked":
        return chunked
    from reluformer.ops import triton  # imported on first use: machines without Triton do not need it

    return triton


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run, p = _module(args[-1]), _problem(args)
    out = torch.empty_like(p.q)
    if p.whole:
        return (out, *run.forward(p, out))
    stats, _ = (run.forward(part, out[rows]) for rows, part in p.split())
    return (out, *stats)


def _backward(
    grad_out: Tensor,
    grad_mass: Tensor | None,
    grad_entropy: Tensor | None,
    mass: Tensor | None,
    entropy: Tensor | None,
    need: list[bool],
    *args: Any,
) -> tuple[Tensor, ...]:
    run, p = _module(args[-1]), _problem(args)
    grads = [torch.empty_like(x) for x in p[:3]]
    stats = (grad_mass, grad_entropy, mass, entropy)
    if p.whole or (grad_mass is None and grad_entropy is None):
        return (*grads, *run.backward(p, grads, grad_out, *stats, *need))
    parts = [
        run.backward(part, [x[rows] for x in grads], grad_out[rows], *(stats if part.stats else [None] * 4), *need)
        for rows, part in p.split()
    ]
    gamma, bias, mask, faded = zip(*parts, strict=True)
    one_for_all = p.attn_mask is None or p.attn_mask.shape[0] == 1
    dmask = mask[0] + mask[1] if one_for_all else torch.cat(mask)
    return (*grads, gamma[0] + gamma[1], bias[0] + bias[1], dmask, torch.cat(faded))


def _fake_forward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, stats, stats_batch = args[0], args[-2], args[_TENSORS][-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    shapes = [(stats_batch, *q.shape[1:3]) if stats >= least else (0,) for least in (1, 1, 2)]
    return (torch.empty_like(q), *(q.new_empty(shape, dtype=wide) for shape in shapes))


def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    need, *tensors = args[5 : 6 + _TENSORS]
    q, k, v = tensors[:3]
    optional = (
        torch.empty_like(tensors[i], memory_format=torch.contiguous_format) if needed else q.new_empty(0)
        for i, needed in zip(_OPTIONAL, need, strict=True)
    )
    return (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *optional)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        out, mass, entropy, active = _below_autograd(torch.ops.reluformer.attention_forward.default, args)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(active)
        ctx.options = args[_TENSORS:]
        ctx.need = [ctx.needs_input_grad[i] for i in _OPTIONAL]
        stats = args[-2]
        ctx.save_for_backward(*args[:_TENSORS], mass if stats else None, entropy if stats else None)
        return out, mass, entropy, active

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_mass: Any, grad_entropy: Any, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        *tensors, mass, entropy = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(tensors[0])
        if mass is None:  # no statistics were requested: they are empty, and so are their gradients
            grad_mass = grad_entropy = None
        dq, dk, dv, *optional = torch.ops.reluformer.attention_backward.default(
            grad_out, grad_mass, grad_entropy, mass, entropy, ctx.need, *tensors, *ctx.options
        )
        grads = [dq, dk, dv, *(None,) * (_TENSORS - 3 + len(ctx.options))]
        for i, x, needed in zip(_OPTIONAL, optional, ctx.need, strict=True):
            grads[i] = x if needed else None
        return tuple(grads)


class _AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:  # type: ignore[override]
        ctx.backend = args[-1]
        return _below_autograd(torch.ops.reluformer.attention_backward.default, args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(
            f"backend {ctx.backend!r} of relu_attention has no second derivative; backend 'reference' has"
        )


def _below_autograd(op: Any, args: Sequence[Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def _differentiable(op: Any, function: Any) -> Callable[..., Any]:
    def dispatch(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return function.apply(*args)
        return _below_autograd(op, args)

    return dispatch


# torch.library.custom_op would do the same in fewer lines, but costs the host more time per call: it compares the
# storage of all arguments with that of the results, and walks the schema once more for autograd.
_library: Any = torch.library.Library("reluformer", "DEF")  # type: ignore[no-untyped-call]


def _register(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], function: Any) -> None:
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"reluformer::{name}", fake, lib=_library)
    _library.impl(name, _differentiable(getattr(torch.ops.reluformer, name).default, function), "Autograd")


_register(
    "attention_forward",
    f"({_PROBLEM}) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _fake_forward,
    _Attention,
)
_register(
    "attention_backward",
    "(Tensor grad_out, Tensor? grad_mass, Tensor? grad_entropy, Tensor? mass, Tensor? entropy, bool[] need, "
    f"{_PROBLEM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
    _AttentionBackward,
)
