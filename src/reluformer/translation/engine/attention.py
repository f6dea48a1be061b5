"""Attention of an encoder-decoder, as plain functions of rows, its constants folded into its matrices."""

from typing import Any

import torch
from torch import Tensor

from reluformer.memory.activations import FUSED
from reluformer.memory.attention import Attention
from reluformer.memory.constant import with_constant
from reluformer.memory.dispatch import look_up
from reluformer.memory.lookup import Lookup
from reluformer.ops.statistics import TINY
from reluformer.translation.engine import native
from reluformer.translation.engine.keys import TreeKeys
from reluformer.translation.engine.layers import Frame, MakeLinear, Norm, eps_of, joined, normer, rms_normer, same

SHORT = 64  # tokens of a source up to which step.c looks at every pair of them; products of longer ones are matrices'


class Looking(Frame):
    """What every attention has: how values are made, and weighed by queries.

    Args:
        sublayer: Of the model.
        make: Makes its linear layers.
        kept: The dtype of keys and values, hence of scores.
        compiled: Whether step.c looks up, or else PyTorch.
    """

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype, compiled: bool = False) -> None:
        super().__init__(sublayer)
        memory: Attention = sublayer.memory
        self.compiled, self.kept = compiled, kept
        self.settings, self.heads, self.head_dim = memory.settings, memory.heads, memory.head_dim
        self.scale, self.constant, self.counted = memory.head_dim**-0.5, memory.constant, memory.counted
        self.sees_zeros = self.settings.activation not in FUSED  # under ReLU values of zeros add nothing to a sum
        self.bias = None if memory.bias is None else memory.bias.detach().float()  # (H,)
        self.output = make(memory.output.weight, memory.output.bias)
        # Of queries that are still to be normed: how, and what that takes.
        self.query_norm: Norm = same
        self.gain: Tensor | None = None
        self.eps = 0.0
        gamma = memory.gamma()
        # What values are multiplied by, and what is added to them then, by channel: ``(width,)`` or a number.
        self.factor: Any = 1.0
        self.added: Any = 0.0
        if self.counted:
            self.added = self._first_channels()
            self.factor = 1 - self.added
        elif gamma is not None:
            self.factor = gamma.detach().float().reciprocal().repeat_interleave(memory.head_dim)

    def _first_channels(self) -> Tensor:
        """``(width,)``, 1 for the first of every head."""
        return (torch.arange(self.heads * self.head_dim) % self.head_dim == 0).float()

    def settle(self, made: Tensor, mask: Tensor) -> Tensor:
        """Keys and values ``(2, S, H, N, D)`` that any query may look at, of ``made (S, N, 2, H, D)``.

        Those of padding, False in ``mask (S, N)``, become zeros. Scores are centred by centred keys, once for all rows.
        """
        count = mask.sum(1)
        made = made * mask[:, :, None, None, None]
        if self.settings.centred:  # what pads has values of zeros, whatever its keys
            made[:, :, 0] -= made[:, :, 0].sum(1, keepdim=True) / count[:, None, None, None]
        if self.constant:
            made[:, :, 0, :, 0] = 0  # the bias is added to the scores
        made[:, :, 1] *= (count / 2).pow(-self.settings.alpha)[:, None, None, None]
        return made.permute(2, 0, 3, 1, 4).to(self.kept).contiguous()

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, used: int, count: float, mask: Tensor | None) -> Tensor:
        """Sums ``(S * beam, width)`` of ``q (S, beam, H, D)`` over ``k, v (S, H, room, D)``, in the dtype of these.

        Args:
            q: Queries.
            k: Keys.
            v: Values, divided by gamma.
            used: How many keys there are in that room, zeros behind them.
            count: How many keys a query sees, where values are not divided by that already; 2 where they are.
            mask: ``(S, beam | 1, room)``, 0 for what may not be seen; values of zeros need none under ReLU.
        """
        power = FUSED.get(self.settings.activation, 0)
        factor = (count / 2) ** (-self.settings.alpha / power) if power else 1.0  # of a row, hence of its scores
        if self.compiled:
            return native.look_up(
                q, k, v, used, power=power, scale=self.scale, factor=factor, bias=self.bias,
                gain=self.gain, eps=self.eps, mask=mask, counted=self.counted,
            )  # fmt: skip
        sources, beam, heads, _ = q.shape
        k, v = k.flatten(0, 1), v.flatten(0, 1)
        q = self.query_norm(q).transpose(1, 2).flatten(0, 1).to(k.dtype)  # (S * H, beam, D)
        weights = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=factor * self.scale)  # (S * H, beam, M)
        spread = weights.view(sources, heads, beam, -1)
        if self.bias is not None:
            spread.add_(self.bias.to(k.dtype)[:, None, None], alpha=factor)
        if not power:
            if mask is not None:
                spread.masked_fill_(mask[:, None] == 0, -torch.inf)
            weights = weights.softmax(-1)
        else:
            weights.relu_()
            if mask is not None:
                spread.mul_(mask[:, None])
            for _ in range(power.bit_length() - 1):
                weights.mul_(weights)
        out = torch.bmm(weights, v).view(sources, heads, beam, -1)
        if self.counted:
            out = out / out[..., :1].clamp_min(TINY)  # of a dead row all is 0
        return out.transpose(1, 2).reshape(sources * beam, -1).float()


class Reading(Looking):
    """The encoder's, of all positions of some sources at once."""

    def __init__(self, sublayer: Any, make: MakeLinear, compiled: bool = False) -> None:
        super().__init__(sublayer, make, torch.float32, compiled)
        memory: Attention = sublayer.memory
        self.norms = normer(memory.query_norm), normer(memory.key_norm)
        layers = [memory.query, memory.key, memory.value]
        self.inputs = joined(layers, make, [1.0, 1.0, self.factor], [0.0, 0.0, self.added])

    def __call__(self, x: Tensor, mask: Tensor, padded: bool, rotate: Any) -> Tensor:
        """The stream ``(S * N, width)`` after it; ``mask (S, N)`` is False for padding, if there is any."""
        made = self.inputs(self.enter(x)).view(*mask.shape, 3, self.heads, self.head_dim)
        q, k, v = made.permute(2, 0, 3, 1, 4)  # each (S, H, N, D)
        q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        if rotate is not None:
            q, k = rotate(q, k)
        if self.compiled and q.shape[2] <= SHORT and not self.sees_zeros:
            k, v = self.settle(torch.stack([k, v], 2).permute(0, 3, 2, 1, 4), mask)
            found = self.weigh(q.transpose(1, 2).contiguous(), k, v, k.shape[2], 2.0, None)
        else:
            k = with_constant(k) if self.constant else k
            seen = mask if padded else None
            out, _ = look_up(Lookup(q, k, v, self.settings, bias=self.bias, key_mask=seen, counted=self.counted))
            found = out.transpose(1, 2).reshape(x.shape)
        return self.leave(x + self.output(found))


class SourceAttention(Looking):
    """The decoder's, to the keys and values of the source, which are made once."""

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype, compiled: bool = False) -> None:
        super().__init__(sublayer, make, kept, compiled)
        memory: Attention = sublayer.memory
        self.query_norm, self.key_norm = normer(memory.query_norm), normer(memory.key_norm)
        if memory.query_norm is not None:
            self.gain, self.eps = memory.query_norm.weight.detach().float(), eps_of(memory.query_norm.eps)
        self.query = make(memory.query.weight, memory.query.bias)
        self.source = joined([memory.key, memory.value], make, [1.0, self.factor], [0.0, self.added])

    def __call__(self, x: Tensor, source: Tensor, mask: Tensor | None, beam: int) -> Tensor:
        """The stream ``(S * beam, width)`` after it.

        Args:
            x: The stream before.
            source: What :meth:`remember` made.
            mask: ``(S, 1, N)``, 0 for padding.
            beam: Rows of a source.
        """
        q = self.query(self.enter(x)).view(-1, beam, self.heads, self.head_dim)
        k, v = source
        found = self.weigh(q, k, v, k.shape[2], 2.0, mask if self.sees_zeros else None)
        return self.leave(x + self.output(found))

    def remember(self, states: Tensor, mask: Tensor) -> Tensor:
        """Keys and values ``(2, S, H, N, D)`` of what was read, ``(S, N, width)``; those of padding are zeros."""
        sources, length, _ = states.shape
        made = self.source(states.flatten(0, 1)).view(sources, length, 2, self.heads, self.head_dim)
        made[:, :, 0] = self.key_norm(made[:, :, 0])
        return self.settle(made, mask)


class OwnAttention(Looking):
    """The decoder's, to the target's own keys: queries, keys and values of one position of each beam at a time.

    Where positions turn queries and keys, two channels that turn together stand side by side here, as one complex
    number: their order is no matter to a product.

    Attributes:
        constant: Whether bias and mean come with the queries, see :meth:`complete`.
        folded: Whether the matrices make the first channels that this takes.
    """

    def __init__(
        self, sublayer: Any, make: MakeLinear, kept: torch.dtype, turned: bool, compiled: bool = False
    ) -> None:
        super().__init__(sublayer, make, kept, compiled)
        memory: Attention = sublayer.memory
        self.folded = self.constant and not (turned or self.settings.query_key_norm)
        self.first = torch.zeros(self.heads, dtype=torch.float32)  # what the first channel has of the bias
        if self.constant and self.bias is not None:
            self.first, self.bias = self.bias / self.scale, None
        order = torch.arange(self.head_dim)
        if turned:
            order = order.view(2, -1).T.flatten()
        self.normed: Norm = same  # queries and keys, (..., 2, H, D)
        self.gains: Tensor | None = None  # (2, D)
        self.gains_eps = 0.0
        if memory.query_norm is not None and memory.key_norm is not None:
            self.gains = torch.stack([x.weight.detach().float()[order] for x in (memory.query_norm, memory.key_norm)])
            self.gains_eps = eps_of(memory.query_norm.eps)
            self.normed = rms_normer(self.gains[:, None], self.gains_eps)
        rest = 1 - self._first_channels() if self.folded else 1.0
        rows = (order + self.head_dim * torch.arange(self.heads)[:, None]).flatten()
        self.inputs = joined(
            [memory.query, memory.key, memory.value],
            make,
            [rest, rest, self.factor],
            [0.0, 1 - rest, self.added],
            [rows, rows, slice(None)],
        )

    def __call__(self, x: Tensor, kept: TreeKeys, layer: int, turn: Tensor | None) -> Tensor:
        """The stream ``(S * beam, width)`` after it; keys and values of this step are kept.

        Args:
            x: The stream before.
            kept: All keys and values.
            layer: Which of them.
            turn: Complex, ``(D / 2,)``: how the position turns queries and keys.
        """
        made = self.inputs(self.enter(x)).view(-1, kept.beam, 3, self.heads, self.head_dim)
        k, v = kept.tensor[layer]  # (S, H, room, D)
        sums = None if kept.sums is None or not self.settings.centred else kept.sums[layer]
        if not self.compiled:
            q, key, value = self.split(made, turn)
            if self.constant:
                self.complete(q, key, sums, kept.steps)
            kept.write(layer, key, value)
        else:
            q = made[:, :, 0]
            native.keep(
                made, k, v, kept.used - kept.beam, gains=self.gains, eps=self.gains_eps, turn=turn,
                first=self.first if self.constant else None, folded=self.folded, sums=sums, count=kept.steps,
            )  # fmt: skip
        owned = kept.owned if kept.beam > 1 or self.sees_zeros else None
        return self.leave(x + self.output(self.weigh(q, k, v, kept.used, kept.steps, owned)))

    def split(self, made: Tensor, turn: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(S, beam, H, D)`` of ``made (S, beam, 3, H, D)``, turned by ``turn (D / 2,)``."""
        both = self.normed(made[:, :, :2])
        if turn is not None:
            both = torch.view_as_real(torch.view_as_complex(both.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        return both[:, :, 0], both[:, :, 1], made[:, :, 2]

    def complete(self, q: Tensor, k: Tensor, sums: Tensor | None, count: int) -> None:
        """Change queries so that scores come out with their bias, and centred; all are ``(S, beam, H, D)``.

        The first channel of every key is 1, so that of a query is added to all its scores. What this costs does not
        grow with the keys. The mean could be taken from the scores instead: a little faster for one beam, but several
        would have to leave out each other's keys first, which takes longer than all else here.

        Args:
            q: Queries, changed in place.
            k: Keys of this step, which get their constant.
            sums: Of the keys before, to which these are added; None where scores are not centred.
            count: How many keys these are then.
        """
        first = q.select(-1, 0)  # (S, beam, H)
        if not self.folded:  # else the matrices make a 0 and a 1
            first.zero_()
            k.select(-1, 0).fill_(1)
        if sums is None:
            first.copy_(self.first)
        else:
            torch.sub(self.first, (q * sums.add_(k)).sum(-1), alpha=1 / count, out=first)
