"""The sublayers of an encoder-decoder as plain functions of rows, their constants folded into their matrices."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.memory.activations import FUSED
from reluformer.memory.attention import Attention
from reluformer.memory.constant import with_constant
from reluformer.memory.lookup import lookup
from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.models.quantising import Linear
from reluformer.ops.statistics import TINY

MakeLinear = Callable[..., Linear]  # weight, bias and relu, as in reluformer.models.quantising


class Frame:
    """What is around a memory on the residual stream: norm and sum."""

    def __init__(self, sublayer: Any) -> None:
        self.before, self.norm = sublayer.before, normer(sublayer.norm)

    def __call__(self, x: Tensor, memory: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream ``(rows, width)`` after the sublayer."""
        if self.before:
            return x + memory(self.norm(x))
        return self.norm(x + memory(x))


def normer(module: nn.Module | None) -> Callable[[Tensor], Tensor]:
    """A norm, or nothing."""
    if isinstance(module, nn.LayerNorm):
        weight, bias = module.weight.detach().float(), module.bias.detach().float()
        return lambda x: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    if isinstance(module, nn.RMSNorm):
        return rms_normer(module.weight.detach().float(), module.eps)
    return lambda x: x


def rms_normer(gain: Tensor, eps: float | None) -> Callable[[Tensor], Tensor]:
    """RMS norm over the last dimension, its gain broadcast: PyTorch's own takes five times as long for a few rows."""
    width = gain.shape[-1]
    gain = gain * math.sqrt(width)
    least = torch.tensor(math.sqrt(width * (torch.finfo(torch.float32).eps if eps is None else eps)))
    return lambda x: x * gain / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(least)


class FeedForward(Frame):
    """An FFN of ReLU."""

    def __init__(self, sublayer: Any, make: MakeLinear) -> None:
        super().__init__(sublayer)
        memory = sublayer.memory
        self.keys = make(memory.keys.weight, memory.keys.bias, relu=True)
        self.values = make(memory.values.weight, memory.values.bias)

    def look_up(self, x: Tensor) -> Tensor:
        """Of rows ``(rows, width)``."""
        return self.values(self.keys(x))


class Reading(Frame):
    """The encoder's self-attention: all positions of some sources at once."""

    def __init__(self, sublayer: Any, make: MakeLinear) -> None:
        super().__init__(sublayer)
        memory: Attention = sublayer.memory
        self.settings, self.heads = memory.settings, memory.heads
        self.constant, self.counted = memory.constant, memory.counted
        gamma = memory.gamma()
        self.gamma = None if gamma is None else gamma.detach().float()
        self.bias = None if memory.bias is None else memory.bias.detach().float()
        self.inputs = joined([memory.query, memory.key, memory.value], make)
        self.query_norm, self.key_norm = normer(memory.query_norm), normer(memory.key_norm)
        self.output = make(memory.output.weight, memory.output.bias)

    def look_up(self, x: Tensor, sources: int, mask: Tensor | None, rotate: Any) -> Tensor:
        """Of rows ``(S * N, width)``; ``mask (S, N)`` is False for padding."""
        split = self.inputs(x).view(sources, -1, 3, self.heads, x.shape[1] // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (S, H, N, D)
        q, k = self.query_norm(q), self.key_norm(k)
        if rotate is not None:
            q, k = rotate(q, k)
        k = with_constant(k) if self.constant else k
        v = with_constant(v) if self.counted else v
        out, _ = lookup(
            q, k, v, self.settings, gamma=self.gamma, bias=self.bias, key_mask=mask, counted=self.counted
        )  # fmt: skip
        return self.output(out.transpose(1, 2).reshape(x.shape))


class Writing(Frame):
    """An attention of the decoder, of one position of each beam.

    Args:
        sublayer: Of the model.
        make: Makes its linear layers.
        kept: The dtype of keys, hence of scores.
    """

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype) -> None:
        super().__init__(sublayer)
        memory: Attention = sublayer.memory
        self.settings, self.heads, self.head_dim = memory.settings, memory.heads, memory.head_dim
        self.scale, self.constant, self.counted = memory.head_dim**-0.5, memory.constant, memory.counted
        self.sees_zeros = self.settings.activation not in FUSED  # under ReLU values of zeros add nothing to a sum
        bias = None if memory.bias is None else memory.bias.detach().float()
        self.bias = None if bias is None else bias[:, None, None].to(kept)
        self.output = make(memory.output.weight, memory.output.bias)
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

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, count: float, mask: Tensor | None) -> Tensor:
        """Sums ``(S * beam, width)`` of ``q (S, beam, H, D)`` over ``k, v (S * H, M, D)``, in the dtype of these.

        Args:
            q: Queries.
            k: Keys.
            v: Values, divided by gamma.
            count: How many keys a query sees, where values are not divided by that already; 2 where they are.
            mask: ``(S, beam | 1, M)``, 0 for what may not be seen; what has values of zeros needs none under ReLU.
        """
        sources, beam, heads, _ = q.shape
        power = FUSED.get(self.settings.activation)
        factor = (count / 2) ** (-self.settings.alpha / power) if power else 1.0  # of a row, hence of its scores
        q = q.transpose(1, 2).flatten(0, 1).to(k.dtype)  # (S * H, beam, D)
        weights = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=factor * self.scale)  # (S * H, beam, M)
        spread = weights.view(sources, heads, beam, -1)
        if self.bias is not None:
            spread.add_(self.bias, alpha=factor)
        if power is None:
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


class SourceAttention(Writing):
    """To the keys and values of the source, which are made once."""

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype) -> None:
        super().__init__(sublayer, make, kept)
        memory: Attention = sublayer.memory
        self.query_norm, self.key_norm = normer(memory.query_norm), normer(memory.key_norm)
        self.query = make(memory.query.weight, memory.query.bias)
        self.source = joined([memory.key, memory.value], make, [1.0, self.factor], [0.0, self.added])

    def queries(self, rows: Tensor, beam: int) -> Tensor:
        """Of ``rows (S * beam, width)``: ``(S, beam, H, D)``."""
        return self.query_norm(self.query(rows).view(-1, beam, self.heads, self.head_dim))

    def remember(self, states: Tensor, mask: Tensor) -> Tensor:
        """Keys and values ``(2, S, H, N, D)`` of what was read, ``(S, N, width)``; those of padding are zeros."""
        sources, length, _ = states.shape
        count = mask.sum(1)
        made = self.source(states.flatten(0, 1)).view(sources, length, 2, self.heads, self.head_dim)
        made[:, :, 0] = self.key_norm(made[:, :, 0])
        made = made * mask[:, :, None, None, None]
        if self.settings.centred:  # once for all rows; what pads has values of zeros, whatever its keys
            made[:, :, 0] -= made[:, :, 0].sum(1, keepdim=True) / count[:, None, None, None]
        if self.constant:
            made[:, :, 0, :, 0] = 0  # the bias is added to the scores
        made[:, :, 1] *= (count / 2).pow(-self.settings.alpha)[:, None, None, None]
        return made.permute(2, 0, 3, 1, 4)


class OwnAttention(Writing):
    """To the target's own keys: queries, keys and values of one row at a time.

    Where positions turn queries and keys, two channels that turn together stand side by side here, as one complex
    number: their order is no matter to a product.

    Attributes:
        constant: Whether bias and mean come with the queries, see :meth:`complete`.
        folded: Whether the matrices make the first channels that this takes.
    """

    def __init__(self, sublayer: Any, make: MakeLinear, kept: torch.dtype, turned: bool) -> None:
        super().__init__(sublayer, make, kept)
        memory: Attention = sublayer.memory
        self.folded = self.constant and not (turned or self.settings.query_key_norm)
        self.first = torch.zeros(self.heads)  # what the first channel has of the bias
        if self.constant and memory.bias is not None:
            self.first, self.bias = memory.bias.detach().float() / self.scale, None
        order = torch.arange(self.head_dim)
        if turned:
            order = order.view(2, -1).T.flatten()
        self.normed: Callable[[Tensor], Tensor] | None = None  # queries and keys, (..., 2, H, D)
        if memory.query_norm is not None and memory.key_norm is not None:
            gains = torch.stack([x.weight.detach().float()[order] for x in (memory.query_norm, memory.key_norm)])
            self.normed = rms_normer(gains[:, None], memory.query_norm.eps)
        rest = 1 - self._first_channels() if self.folded else 1.0
        rows = (order + self.head_dim * torch.arange(self.heads)[:, None]).flatten()
        self.inputs = joined(
            [memory.query, memory.key, memory.value],
            make,
            [rest, rest, self.factor],
            [0.0, 1 - rest, self.added],
            [rows, rows, slice(None)],
        )

    def split(self, rows: Tensor, beam: int, turn: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(S, beam, H, D)`` of ``rows (S * beam, width)``, turned by ``turn (D / 2,)``."""
        made = self.inputs(rows).view(-1, beam, 3, self.heads, self.head_dim)
        both = made[:, :, :2]
        if self.normed is not None:
            both = self.normed(both)
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


def joined(
    layers: list[nn.Linear],
    make: MakeLinear,
    factors: list[Any] | None = None,
    constants: list[Any] | None = None,
    orders: list[Any] | None = None,
) -> Linear:
    """Several linear layers as one, the outputs of each in an order, times a factor plus a constant.

    Factors and constants are ``(out,)`` or numbers, of the outputs as they stand then; an order is an index of them.
    """
    factors, constants = factors or [1.0] * len(layers), constants or [0.0] * len(layers)
    orders = orders or [slice(None)] * len(layers)
    weights, biases = [], []
    for layer, factor, constant, order in zip(layers, factors, constants, orders, strict=True):
        weights.append(layer.weight.detach().float()[order].mT.mul(factor).mT)
        biases.append(layer.bias.detach().float()[order] * factor + constant)
    return make(torch.cat(weights), torch.cat(biases))


def unlike_attention(name: str, settings: MemorySettings) -> str | None:
    """What is special about an attention that these classes cannot compute, or None."""
    if settings.activation not in (*FUSED, "softmax"):
        return f"{name}.activation {settings.activation}"
    plain, taken = SOFTMAX_ATTENTION, ["query_key_norm"]
    if settings.activation != "softmax":
        plain, taken = MemorySettings(), [*taken, "activation", "alpha", "gamma", "bias", "centred", "constant_channel"]
        if (settings.centred or settings.constant_channel) and settings.norm == "mass":
            taken += ["norm"]
    plain = dataclasses.replace(plain, **{field: getattr(settings, field) for field in taken})
    return _difference(name, settings, plain)


def unlike_feedforward(settings: MemorySettings) -> str | None:
    """The same of an FFN."""
    if not settings.slots:
        return None
    plain = MemorySettings(alpha=0.0, gamma="none", bias=settings.bias, slots=settings.slots)
    return _difference("ffn", settings, plain)


def _difference(name: str, settings: MemorySettings, plain: MemorySettings) -> str | None:
    """The first setting that is not the plain one: whatever settings there may be."""
    for field, value in settings.to_dict().items():
        if value != getattr(plain, field):
            return f"{name}.{field} {value}"
    return None
