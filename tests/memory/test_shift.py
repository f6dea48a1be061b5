import torch

from reluformer.memory.shift import TokenShift


def slow_shift(shift, x, kv):
    """Token by token, head by head."""
    batch, heads, n, both = kv.shape
    rows = []
    for t in range(n):
        for projection, side in ((shift.key, slice(0, both // 2)), (shift.value, slice(both // 2, both))):
            share = torch.sigmoid(x[:, t] @ projection.weight.T)[..., None]  # (B, H, 1)
            before = kv[:, :, t - 1, side] if t else torch.zeros(batch, heads, both // 2, dtype=kv.dtype)
            rows.append(share * before + (1 - share) * kv[:, :, t, side])
    return torch.stack([torch.cat(rows[2 * t : 2 * t + 2], -1) for t in range(n)], 2)


def case():
    torch.manual_seed(0)
    shift = TokenShift(12, 3).double()
    x, kv = torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(2, 3, 7, 10, dtype=torch.float64)
    return shift, x.requires_grad_(), kv.requires_grad_()


def test_mixes_every_token_with_the_one_before():
    shift, x, kv = case()
    found, expected = shift(x, kv), slow_shift(shift, x, kv)
    torch.testing.assert_close(found, expected)
    inputs, upstream = (x, kv, *shift.parameters()), torch.randn_like(found)
    grads = (torch.autograd.grad(out, inputs, upstream) for out in (found, expected))
    for grad, want in zip(*grads, strict=True):
        torch.testing.assert_close(grad, want)


def test_goes_on_from_the_token_before():
    shift, x, kv = case()
    pieces = [shift(x[:, :3], kv[:, :, :3]), shift(x[:, 3:], kv[:, :, 3:], kv[:, :, 2:3])]
    torch.testing.assert_close(torch.cat(pieces, 2), shift(x, kv))
