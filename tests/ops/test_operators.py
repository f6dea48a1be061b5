"""The custom operators as PyTorch checks them: schema, fake kernels, autograd, dynamic shapes."""

import pytest
import torch
from torch import Tensor

import reluformer.ops  # noqa: F401, registers the operators

FORWARD = torch.ops.reluformer.attention_forward.default
BACKWARD = torch.ops.reluformer.attention_backward.default


def operator_arguments(case: str) -> tuple[object, ...]:
    """Flat arguments of the forward operator for one kind of call."""
    batch, stats_batch = (3, 2) if case == "statistics of some" else (1, 1)
    tensors = {"q": None, "k": None, "v": None, "gamma": None, "bias": None, "key_mask": None, "attn_mask": None}
    lengths = {"q": 17, "k": 23, "v": 23}
    tensors |= {name: torch.randn(batch, 2, n, 16, requires_grad=True) for name, n in lengths.items()}
    packing: tuple[object, ...] = (None, None, None, None)  # count, cu_q, cu_k, faded
    longest = [17, 23]
    left, right, stats = -1, -1, False
    if case == "masked":
        visible = torch.rand(1, 23) < 0.7
        tensors |= {"bias": torch.randn(2, requires_grad=True), "key_mask": visible}
        tensors |= {"attn_mask": torch.randn(1, 1, 17, 23, requires_grad=True)}
        packing = (visible.sum(-1).float()[:, None, None].expand(1, 1, 17), None, None, None)
    if case == "statistics":
        tensors |= {"gamma": torch.rand(2).add(0.5).requires_grad_()}
        left, right, stats = 5, 0, True
    if case == "statistics of some":
        tensors |= {"gamma": torch.rand(2).add(0.5).requires_grad_()}
        tensors |= {"attn_mask": torch.randn(3, 1, 17, 23, requires_grad=True)}
        packing, stats = (torch.full((3, 1, 17), 23.0), None, None, None), 2
    if case == "packed":
        tensors |= {name: torch.randn(1, 2, 17, 16, requires_grad=True) for name in "qkv"}
        bounds = torch.tensor([0, 4, 17], dtype=torch.int32)
        packing, longest, right = (None, bounds, bounds, None), [13, 13], 0
    if case == "forgetting":
        faded = -torch.rand(1, 2, 23, dtype=torch.float64).cumsum(-1)
        packing, right, stats = (None, None, None, faded.requires_grad_()), 0, True
    sizes = [*longest, left, right, stats_batch]
    return (*tensors.values(), *packing, sizes, [1.5, 0.5, 0.25], 1, stats, "chunked")


@pytest.mark.parametrize("case", ["dense", "masked", "statistics", "statistics of some", "packed", "forgetting"])
def test_opcheck(case: str) -> None:
    arguments = operator_arguments(case)
    torch.library.opcheck(FORWARD, arguments)
    # The backward operator refuses to be differentiated, so it is checked on tensors that need no gradient.
    frozen = [x.detach() if isinstance(x, Tensor) else x for x in arguments]
    out, mass, entropy, _ = FORWARD(*frozen)
    stats = frozen[-2]
    grads = [torch.randn_like(out), *(torch.randn_like(x) if stats else None for x in (mass, entropy))]
    saved = [x if stats else None for x in (mass, entropy)]
    needs = [frozen[i] is not None for i in (3, 4, 6, 10)]  # gamma, bias, attn_mask, faded
    torch.library.opcheck(BACKWARD, (*grads, *saved, needs, *frozen))
