"""Attention of an encoder-decoder as plain functions of rows, with its constants folded into its matrices."""

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
from reluformer.translation.engine.parting import parting_of

SHORT = 64  # tokens of a source up to which step.c goes through every pair; longer ones take products of matrices


class Looking(Frame):
    """What all attentions have in common: how values are made, and weighed by queries.

    Args:
        sublayer: Attention sublayer of the model.
        make: Function that makes its linear layers.
        kept: Dtype of keys and values, hence of scores.
        compiled: Whether step.c does the lookup, instead of PyTorch.
    """

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype, compiled: bool = False) -> None:
        super().__init__(sublayer)
        memory: Attention = sublayer.memory
        self.compiled, self.kept = compiled, kept
        self.settings, self.heads, self.head_dim = memory.settings, memory.heads, memory.head_dim
        self.scale, self.constant, self.counted = memory.head_dim**-0.5, memory.constant, memory.counted
        self.sees_zeros = self.settings.activation not in FUSED  # under ReLU zero values add nothing to a sum
        self.bias = None if memory.bias is None else memory.bias.detach().float()  # (H,)
        self.output = make(memory.output.weight, memory.output.bias)
        # The norm that :meth:`weigh` applies to queries, and its parameters for step.c.
        self.query_norm: Norm = same
        self.gain: Tensor | None = None
        self.eps = 0.0
        gamma = memory.gamma()
        # Factor on values, and what is added to them afterwards, by channel: ``(width,)`` or a number.
        self.factor: Any = 1.0
        self.added: Any = 0.0
        if self.counted:
            self.added = self._first_channels()
            self.factor = 1 - self.added
        elif gamma is not None:
            self.factor = gamma.detach().float().reciprocal().repeat_interleave(memory.head_dim)

    def _first_channels(self) -> Tensor:
        """Return ``(width,)``, 1 at the first channel of every head and 0 elsewhere."""
        return (torch.arange(self.heads * self.head_dim) % self.head_dim == 0).float()

    def settle(self, made: Tensor, mask: Tensor) -> Tensor:
        """Turn ``made (S, N, 2, H, D)`` into keys and values ``(2, S, H, N, D)`` that every query may look at.

        Values of padding, where ``mask (S, N)`` is False, become zeros. Centring the keys once centres all scores.
        """
        count = mask.sum(1)
        made = made * mask[:, :, None, None, None]
        if self.settings.centred:  # keys of padding do not matter: its values are zeros
            made[:, :, 0] -= made[:, :, 0].sum(1, keepdim=True) / count[:, None, None, None]
        if self.constant:
            made[:, :, 0, :, 0] = 0  # the bias is added to the scores instead
        made[:, :, 1] *= (count / 2).pow(-self.settings.alpha)[:, None, None, None]
        return made.permute(2, 0, 3, 1, 4).to(self.kept).contiguous()

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, used: int, count: float, mask: Tensor | None) -> Tensor:
        """Return the weighted sums of values ``(S * beam, width)``, computed in the dtype of keys and values.

        Args:
            q: Queries ``(S, beam, H, D)``.
            k: Keys ``(S, H, room, D)``.
            v: Values ``(S, H, room, D)``, divided by gamma.
            used: Number of keys in use; what follows them in the room is zero or masked.
            count: Number of keys that a query sees; 2 where values are divided by ``(count / 2) ** alpha`` already.
            mask: ``(S, beam | 1, room)``, 0 for keys that must not be seen; under ReLU zero values need none.
        """
        power = FUSED.get(self.settings.activation, 0)
        factor = (count / 2) ** (-self.settings.alpha / power) if power else 1.0  # of a row, moved into its scores
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
            out = out / out[..., :1].clamp_min(TINY)  # a dead row stays 0
        return out.transpose(1, 2).reshape(sources * beam, -1).float()


class Reading(Looking):
    """Self-attention of the encoder, for all positions of some sources at once."""

    def __init__(self, sublayer: Any, make: MakeLinear, compiled: bool = False) -> None:
        super().__init__(sublayer, make, torch.float32, compiled)
        memory: Attention = sublayer.memory
        self.norms = normer(memory.query_norm), normer(memory.key_norm)
        self.parting = parting_of(memory)
        layers = [memory.query, memory.key, memory.value]
        self.inputs = joined(layers, make, [1.0, 1.0, self.factor], [0.0, 0.0, self.added])

    def __call__(self, x: Tensor, mask: Tensor, padded: bool, rotate: Any, sentences: Tensor | None) -> Tensor:
        """Return the stream ``(S * N, width)`` after this sublayer; ``mask (S, N)`` is False at padding, if any."""
        made = self.inputs(self.enter(x)).view(*mask.shape, 3, self.heads, self.head_dim)
        q, k, v = made.permute(2, 0, 3, 1, 4)  # each (S, H, N, D)
        q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        if rotate is not None:
            q, k = rotate(q, k)
        if self.parting is not None and sentences is not None:
            self.parting.mark_queries(q.transpose(1, 2), sentences)
            self.parting.mark_keys(k.transpose(1, 2), sentences)
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
    """Cross-attention of the decoder, to keys and values of the source that are made once."""

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype, compiled: bool = False) -> None:
        super().__init__(sublayer, make, kept, compiled)
        memory: Attention = sublayer.memory
        self.query_norm, self.key_norm = normer(memory.query_norm), normer(memory.key_norm)
        self.parting = parting_of(memory)
        self.norm_first: Norm = same
        if self.parting is not None:  # queries are normed before they are marked
            self.norm_first, self.query_norm = self.query_norm, same
        elif memory.query_norm is not None:
            self.gain, self.eps = memory.query_norm.weight.detach().float(), eps_of(memory.query_norm.eps)
        self.query = make(memory.query.weight, memory.query.bias)
        self.source = joined([memory.key, memory.value], make, [1.0, self.factor], [0.0, self.added])

    def __call__(self, x: Tensor, source: Tensor, mask: Tensor | None, beam: int, sentences: Tensor | None) -> Tensor:
        """Return the stream ``(S * beam, width)`` after this sublayer.

        Args:
            x: Stream before this sublayer.
            source: Keys and values from :meth:`remember`.
            mask: ``(S, 1, N)``, 0 at padding.
            beam: Number of rows per source.
            sentences: Those that the rows are writing, ``(S, beam)``, if any memory of the decoder asks for them.
        """
        q = self.norm_first(self.query(self.enter(x)).view(-1, beam, self.heads, self.head_dim))
        if self.parting is not None and sentences is not None:
            self.parting.mark_queries(q, sentences)
        k, v = source
        found = self.weigh(q, k, v, k.shape[2], 2.0, mask if self.sees_zeros else None)
        return self.leave(x + self.output(found))

    def remember(self, states: Tensor, mask: Tensor, sentences: Tensor | None) -> Tensor:
        """Return keys and values ``(2, S, H, N, D)`` of encoder states ``(S, N, width)``; padding has zero values."""
        sources, length, _ = states.shape
        made = self.source(states.flatten(0, 1)).view(sources, length, 2, self.heads, self.head_dim)
        made[:, :, 0] = self.key_norm(made[:, :, 0])
        if self.parting is not None and sentences is not None:
            self.parting.mark_keys(made[:, :, 0], sentences)
        return self.settle(made, mask)


class OwnAttention(Looking):
    """Self-attention of the decoder, for one position of each beam at a time.

    Where positions turn queries and keys, two channels that turn together are adjacent here, as one complex number:
    products do not depend on the order of channels.

    Attributes:
        constant: Whether queries carry the bias and the mean of their scores, see :meth:`complete`.
        folded: Whether the matrices already make the first channels that this takes: 0 in queries, 1 in keys.
    """

    def __init__(
        self, sublayer: Any, make: MakeLinear, kept: torch.dtype, turned: bool, compiled: bool = False
    ) -> None:
        super().__init__(sublayer, make, kept, compiled)
        memory: Attention = sublayer.memory
        self.folded = self.constant and not (turned or self.settings.query_key_norm)
        self.first = torch.zeros(self.heads, dtype=torch.float32)  # what the bias adds to a query's first channel
        if self.constant and self.bias is not None:
            self.first, self.bias = self.bias / self.scale, None
        order = torch.arange(self.head_dim)
        if turned:
            order = order.view(2, -1).T.flatten()
        self.parting = parting_of(memory, order)
        self.normed: Norm = same  # norm of queries and keys, (..., 2, H, D)
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

    def __call__(self, x: Tensor, kept: TreeKeys, layer: int, turn: Tensor | None, sentences: Tensor | None) -> Tensor:
        """Return the stream ``(S * beam, width)`` after this sublayer, and store the keys and values of this step.

        Args:
            x: Stream before this sublayer.
            kept: Stored keys and values of all layers.
            layer: Index of this layer.
            turn: Complex numbers ``(D / 2,)`` by which the position turns queries and keys.
            sentences: Those that the rows are writing, ``(S, beam)``, if any memory of the decoder asks for them.
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
        if self.parting is not None and sentences is not None:
            self.parting.mark_queries(q, sentences)
            self.parting.mark_keys(k[:, :, kept.used - kept.beam : kept.used].transpose(1, 2), sentences)
        owned = kept.owned if kept.beam > 1 or self.sees_zeros else None
        return self.leave(x + self.output(self.weigh(q, k, v, kept.used, kept.steps, owned)))

    def split(self, made: Tensor, turn: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Split ``made (S, beam, 3, H, D)`` into normed and turned queries and keys, and values ``(S, beam, H, D)``."""
        both = self.normed(made[:, :, :2])
        if turn is not None:
            both = torch.view_as_real(torch.view_as_complex(both.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        return both[:, :, 0], both[:, :, 1], made[:, :, 2]

    def complete(self, q: Tensor, k: Tensor, sums: Tensor | None, count: int) -> None:
        """Change queries so that their scores include the bias and are centred; tensors are ``(S, beam, H, D)``.

        The first channel of every key is 1, so that of a query is added to all its scores. The cost does not grow with
        the number of keys. The mean could be taken from the scores instead: a little faster for one beam, but several
        would first have to leave out each other's keys, which takes longer than everything else here.

        Args:
            q: Queries, changed in place.
            k: Keys of this step, whose first channel becomes 1.
            sums: Sums of the keys before, to which these are added; None where scores are not centred.
            count: Number of keys in the sums, those of this step included.
        """
        first = q.select(-1, 0)  # (S, beam, H)
        if not self.folded:  # else the matrices have made the 0 and the 1
            first.zero_()
            k.select(-1, 0).fill_(1)
        if sums is None:
            first.copy_(self.first)
        else:
            torch.sub(self.first, (q * sums.add_(k)).sum(-1), alpha=1 / count, out=first)
