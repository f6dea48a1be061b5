"""Keys and values of the target during a search: beams are the leaves of a tree, and every key is stored once.

Beams of one source share most of their past. So a step adds one key per beam to those of the source, and nothing is
moved when beams change places: what changes is which keys a beam owns, a row of ones and zeros. From time to time, keys
that no beam owns any more are dropped. All beams of a source look at all its keys, and give no weight to those that
they do not own.
"""

import torch
from torch import Tensor
from torch.nn import functional

ROOM = 64  # keys to make room for at first, and again whenever the room is used up
PRUNED = 16  # steps between two prunings of keys without an owner


class TreeKeys:
    """Keys and values of all layers, for ``sources`` with ``beam`` hypotheses each.

    Attributes:
        tensor: Keys and values ``(layers, 2, S, H, room, D)``, zeros where nothing was ever written: PyTorch's products
            read all of the room, since a part of it would have to be copied first.
        owned: ``(S, beam, room)``, 1 where a beam owns a key.
        sums: Sums ``(layers, S, beam, H, D)`` of all keys that a beam owns, or None unless asked for. Whoever writes
            keys adds them; always float32, since the sums grow.
        used: Number of keys stored for each source.
    """

    def __init__(
        self,
        layers: int,
        sources: int,
        beam: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        summed: bool = False,
    ) -> None:
        self.beam, self.used, self.steps = beam, 0, 0
        self.tensor = torch.zeros(layers, 2, sources, heads, ROOM, head_dim, dtype=dtype)
        self.owned = torch.zeros(sources, beam, ROOM, dtype=dtype)
        self.sums = torch.zeros(layers, sources, beam, heads, head_dim, dtype=torch.float32) if summed else None
        self.each = torch.eye(beam, dtype=dtype)

    def begin_step(self) -> None:
        """Make room for one more key per beam, which that beam owns."""
        if self.beam > 1 and self.steps and self.steps % PRUNED == 0:
            self._prune()
        begin, self.used, self.steps = self.used, self.used + self.beam, self.steps + 1
        if self.used > (room := self.owned.shape[-1]):
            more = -(-(self.used - room) // ROOM) * ROOM  # one step of many beams may take several times ROOM
            self.tensor = functional.pad(self.tensor, (0, 0, 0, more))
            self.owned = functional.pad(self.owned, (0, more))
        self.owned[:, :, begin : self.used] = self.each

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values ``(S, beam, H, D)`` of this step."""
        kept = self.tensor[layer]  # (2, S, H, room, D)
        kept[0, :, :, self.used - self.beam : self.used] = keys.transpose(1, 2)
        kept[1, :, :, self.used - self.beam : self.used] = values.transpose(1, 2)

    def reorder(self, rows: Tensor) -> None:
        """Let every beam continue from the present row given in ``rows (S * beam,)``."""
        self.owned = self.owned.flatten(0, 1).index_select(0, rows).view_as(self.owned)
        if self.sums is not None:
            self.sums = self.sums.flatten(1, 2).index_select(1, rows).view_as(self.sums)

    def keep(self, sources: Tensor) -> None:
        """Continue with some of the sources only."""
        self.tensor, self.owned = self.tensor.index_select(2, sources), self.owned.index_select(0, sources)
        self.sums = None if self.sums is None else self.sums.index_select(1, sources)

    def _prune(self) -> None:
        """Drop keys without an owner; sources with fewer owned keys than others keep some without."""
        owned = self.owned[:, :, : self.used] > 0  # (S, beam, used)
        settled = int(owned.all(1).int().cumprod(-1).sum(-1).min())  # the first keys, owned by every beam, stay
        alive = owned[:, :, settled:].any(1)  # (S, rest)
        count = int(alive.sum(-1).max())
        order = alive.int().sort(dim=-1, descending=True, stable=True).indices[:, :count] + settled  # order kept
        end = settled + count
        for source, places in enumerate(order):
            keys = self.tensor[:, :, source]  # (layers, 2, H, room, D)
            keys[..., settled:end, :] = keys.index_select(-2, places)
        self.owned[:, :, settled:end] = self.owned.gather(-1, order[:, None].expand(-1, self.beam, -1))
        self.owned[:, :, end:] = 0
        self.used = end
