import torch

from reluformer.memory.norms import HeadRMSNorm, RMSNorm


def test_every_head_is_normed_by_itself():
    norm = HeadRMSNorm(12, 3).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    heads = [x[..., i : i + 4] / x[..., i : i + 4].square().mean(-1, keepdim=True).sqrt() for i in (0, 4, 8)]
    torch.testing.assert_close(norm(x), torch.cat(heads, -1) * norm.weight)


def test_a_float_gain_norms_what_autocast_made_of_its_input(recwarn):
    norm = RMSNorm(8)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 8).bfloat16()
    out = norm(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), torch.nn.functional.rms_norm(x.float(), (8,), norm.weight), rtol=0.02, atol=0.02
    )
    out.sum().backward()
    assert norm.weight.grad.dtype == torch.float32
    assert not recwarn.list  # PyTorch says so where it cannot take its fused kernel
