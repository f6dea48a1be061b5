import torch

from reluformer.memory.lookup import Lookup, changed, up_to
from reluformer.memory.settings import MemorySettings
from reluformer.report.rows import block


def test_a_limit_is_a_mask():
    """A cache with room for more keys than there are: those behind the last one do not count."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 10, 8)
    limit = torch.tensor([3, 4, 5, 6])
    k[:, :, 7:] = 0
    plain = Lookup(q, k, k, MemorySettings())
    rows = slice(1, 3)
    found = block(changed(plain, limit=limit), rows=rows)
    expected = block(changed(plain, attn_mask=up_to(limit, 10)), rows=rows)
    torch.testing.assert_close(found.weights, expected.weights)
    assert torch.equal(found.visible.expand_as(expected.visible), expected.visible)
    assert found.visible.sum(-1).flatten().tolist() == [5, 6]
