"""A tree of keys gives every beam the keys of its own past, whatever the beams do."""

import pytest
import torch
from torch import Tensor

from reluformer.translation.engine import keys
from reluformer.translation.engine.keys import TreeKeys

LAYERS, HEADS, WIDTH = 2, 3, 4


class Copies:
    """The plain way: every beam has all its keys, and they move with it."""

    def __init__(self, sources: int, beam: int) -> None:
        self.beam = beam
        self.kept = torch.empty(sources * beam, 0, LAYERS, 2, HEADS, WIDTH)

    def write(self, new: Tensor) -> None:
        self.kept = torch.cat([self.kept, new[:, None]], dim=1)

    def reorder(self, rows: Tensor) -> None:
        self.kept = self.kept[rows]

    def keep(self, sources: Tensor) -> None:
        self.kept = self.kept.unflatten(0, (-1, self.beam))[sources].flatten(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("sources", "beam", "steps"), [(1, 1, 70), (3, 2, 45), (4, 5, 130), (1, 150, 4)])
@pytest.mark.parametrize("converging", [True, False])
def test_beams_own_their_past(sources: int, beam: int, steps: int, converging: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(steps)
    tree, plain = TreeKeys(LAYERS, sources, beam, HEADS, WIDTH, dtype, summed=True), Copies(sources, beam)
    most = 0
    for step in range(steps):
        new = torch.randn(sources * beam, LAYERS, 2, HEADS, WIDTH).to(dtype).float()
        tree.begin_step()
        plain.write(new)
        for layer in range(LAYERS):
            k, v = (x.view(sources, beam, HEADS, WIDTH) for x in new[:, layer].unbind(1))
            tree.write(layer, k, v)
            assert tree.sums is not None
            tree.sums[layer] += k
            sums = plain.kept[:, :, layer, 0].sum(1).view(sources, beam, HEADS, WIDTH)
            torch.testing.assert_close(tree.sums[layer], sums, atol=1e-4, rtol=1e-5)
            for row in range(sources * beam):
                source, owned = row // beam, tree.owned[row // beam, row % beam] > 0
                for found, expected in zip(tree.tensor[layer], plain.kept[row, :, layer].unbind(1), strict=True):
                    mine = found[source][:, owned].float()  # (H, step + 1, D)
                    assert torch.equal(mine.transpose(0, 1), expected)
        assert not tree.owned[:, :, tree.used :].any()
        assert tree.tensor.isfinite().all()  # what nobody owns is read, too, and multiplied by zero
        most = max(most, tree.used)
        if beam > 1:
            # Converging beams have a parent in common now and then; others never change places.
            chosen = torch.randint(beam if converging else 1, (sources, beam))
            parents = chosen if converging else torch.arange(beam).expand(sources, -1)
            rows = (parents + beam * torch.arange(sources)[:, None]).flatten()
            tree.reorder(rows)
            plain.reorder(rows)
        if sources > 1 and step == 20:
            sources -= 1
            left = torch.arange(1, sources + 1)
            tree.keep(left)
            plain.keep(left)
    if converging and beam > 1:
        assert most < steps + beam * (keys.PRUNED + 10)  # not beam * steps


def test_no_key_is_kept_twice() -> None:
    """Beams that share all but their last keys cost one key each."""
    tree = TreeKeys(1, 1, 5, 1, 1)
    for _ in range(keys.PRUNED * 3 + 1):
        tree.begin_step()
        tree.write(0, torch.ones(1, 5, 1, 1), torch.ones(1, 5, 1, 1))
        tree.reorder(torch.zeros(5, dtype=torch.long))  # all go on from the first
    assert tree.used == 3 * keys.PRUNED + 5
