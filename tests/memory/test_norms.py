import torch

from reluformer.memory.norms import HeadRMSNorm


def test_every_head_is_normed_by_itself():
    norm = HeadRMSNorm(12, 3).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    heads = [x[..., i : i + 4] / x[..., i : i + 4].square().mean(-1, keepdim=True).sqrt() for i in (0, 4, 8)]
    torch.testing.assert_close(norm(x), torch.cat(heads, -1) * norm.weight)
