"""Attention as a memory whose keys and values come from the sequence itself or from another one."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.memory.activations import FUSED, NORMALISED, require
from reluformer.memory.constant import with_constant
from reluformer.memory.dispatch import look_up
from reluformer.memory.forgetting import ForgetGate, pack, unpack
from reluformer.memory.lookup import Lookup, by_sequence, changed, joined, up_to
from reluformer.memory.norms import RMSNorm, output_norm
from reluformer.memory.persistent import PersistentMemory
from reluformer.memory.projections import project
from reluformer.memory.scale import Gamma
from reluformer.memory.sentences import FEWEST, of_keys, of_queries
from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.memory.shift import TokenShift
from reluformer.ops import AttentionStats
from reluformer.ops.attention import ReturnStats
from reluformer.ops.visibility import UNBOUNDED, Band, count_visible

Rotation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Store = Callable[[Callable[[], tuple[Tensor, Tensor]]], tuple[Tensor, Tensor]]
Carry = Callable[[Tensor], Tensor | None]


class Attention(nn.Module):
    """Every position looks into the keys and values of a sequence: its own (self-) or ``context`` (cross-attention).

    Args:
        width: Width of the model.
        heads: Number of query heads.
        settings: Kind of memory.
        key_heads: Number of key heads, a divisor of ``heads``; None for as many as ``heads``.
        causal: Whether later positions are hidden from a query.

    Attributes:
        constant: Whether the first channel of every key is 1, see :mod:`~reluformer.memory.constant`.
        counted: Whether the first channel of every value is 1 too, which makes that of a sum the mass of its row.
        softmax_share: While training anneals softmax into this memory, the share of the output that softmax still
            contributes: a tensor ``()``, since compiled code would take a number for a constant, and not stored with
            the model. None for no softmax at all.
        observer: Callback that receives the lookup of every call; None for none.
    """

    softmax_share: Tensor | None = None
    observer: Callable[[Lookup], None] | None = None

    def __init__(
        self,
        width: int,
        heads: int,
        settings: MemorySettings,
        key_heads: int | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        require(settings.activation)
        key_heads = heads if key_heads is None else key_heads
        if heads < 1 or width % heads:
            raise ValueError(f"heads must divide the width {width}, got {heads}")
        if key_heads < 1 or heads % key_heads:
            raise ValueError(f"key_heads must divide the {heads} heads, got {key_heads}")
        for name, part in (("forget", settings.forget is not None), ("token_shift", settings.token_shift)):
            if part and not causal:
                raise ValueError(f"{name} needs causal attention, got {getattr(settings, name)!r} where it is not")
        self.heads, self.key_heads, self.head_dim = heads, key_heads, width // heads
        self.settings, self.causal = settings, causal
        self.constant = settings.centred or settings.constant_channel
        self.counted = self.constant and settings.norm == "mass" and settings.activation in FUSED
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, key_heads * self.head_dim)
        self.value = nn.Linear(width, key_heads * self.head_dim)
        self.output = nn.Linear(width, width)
        self.gamma = Gamma(settings, heads)
        start = None if settings.activation in NORMALISED else settings.bias  # a constant in all scores cancels there
        self.bias = None if start is None else nn.Parameter(torch.full((heads,), float(start)))
        if settings.sentence_bias is not None and self.head_dim < FEWEST:
            raise ValueError(f"sentence_bias must be None unless heads have {FEWEST} channels, got {self.head_dim}")
        start = settings.sentence_bias
        self.sentence_bias = None if start is None else nn.Parameter(torch.full((heads,), float(start)))
        self.norm = output_norm(settings, width, heads)
        normed = settings.query_key_norm
        self.query_norm = RMSNorm(self.head_dim) if normed else None
        self.key_norm = RMSNorm(self.head_dim) if normed else None
        self.slots = (
            PersistentMemory(key_heads, settings.slots, self.head_dim, settings.slot_activation)
            if settings.slots
            else None
        )
        self.forget = None if settings.forget is None else ForgetGate(width, heads, settings.forget)
        self.shift = TokenShift(width, key_heads) if settings.token_shift else None
        self.gate = nn.Linear(width, width, bias=False) if settings.output_gate else None

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        limit: Tensor | None = None,
        rotate: Rotation | None = None,
        sentences: Tensor | None = None,
        context_sentences: Tensor | None = None,
        store: Store | None = None,
        carry: Carry | None = None,
        return_stats: ReturnStats = False,
        stats_batch: int | None = None,
    ) -> tuple[Tensor, AttentionStats | None]:
        """Look up ``x (B, N, width)``; return the output and, if asked, the statistics of its rows, ``(B, H, N)``.

        Args:
            x: Input that queries are computed from.
            context: Input that keys and values are computed from, ``(B, M, width)``; None for ``x``.
            key_mask: Keys that may be seen, boolean ``(B, M)``.
            attn_mask: Pairs that may be seen, boolean, broadcasts to ``(B, 1, N, M)``; replaces the causal mask.
            query_mask: Queries that are not padding, ``(B, N)``. Only the hooks of calibration and reports read it; the
                output does not depend on it.
            limit: Index of the last key that each query may see, ``(N,)``, for a store that returns all its room, with
                zeros where no key has been written yet.
            rotate: Rotates queries and keys by their positions.
            sentences: Number of the sentence that each position of ``x`` is in, ``(B, N)``, for a ``sentence_bias``.
            context_sentences: Those of ``context``, ``(B, M)``; not needed once a store holds its keys.
            store: Cache: given a function that makes the keys and values of this call, returns all that there are. If
                it returns fewer sequences than the batch has, runs of consecutive sequences of the batch share one, and
                there are no statistics. The keys of a memory that forgets carry their gates in extra channels.
            carry: Cache of the token shift: given the keys and values of ``x`` before their shift, ``(B, Hk, N, 2 D)``,
                keeps the last and returns those of the token before the first, ``(B, Hk, 1, 2 D)``, or None.
            return_stats: Whether to compute the statistics, as in :func:`~reluformer.relu_attention`.
            stats_batch: Number of sequences, from the first, that statistics are computed for; None for all.
        """
        call = self.lookup(
            x, context, key_mask=key_mask, attn_mask=attn_mask, limit=limit, rotate=rotate, sentences=sentences,
            context_sentences=context_sentences, store=store, carry=carry,
        )  # fmt: skip
        if self.observer is not None:
            self.observer(joined(call))
        queries, keys = call.q.shape[0], call.k.shape[0]
        if queries != keys and (store is None or not keys or queries % keys):
            raise ValueError(f"context must have as many sequences as x, {queries}, got {keys}")
        if queries != keys:
            out, stats = self._look_up_shared(call, queries // keys), None
        else:
            out, stats = self._look_up(call, return_stats=return_stats, stats_batch=stats_batch)
        if call.apart is not None:
            out = out + by_sequence(look_up(call.apart)[0], call.q)
        out = out.transpose(1, 2).flatten(2)  # (B, N, width)
        out = out if self.norm is None else self.norm(out)
        if self.gate is not None:
            out = out * torch.sigmoid(self.gate(x))
        return self.output(out), stats

    def count(self, n: int, m: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
        """Number of keys that each of ``n`` queries sees among ``m``, slots included; broadcasts to ``(B, H, N)``."""
        band = Band(UNBOUNDED, 0 if self.causal else UNBOUNDED)
        return count_visible(band, n, m, key_mask, None, device) + self.settings.slots_in_rows

    def lookup(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        limit: Tensor | None = None,
        rotate: Rotation | None = None,
        sentences: Tensor | None = None,
        context_sentences: Tensor | None = None,
        store: Store | None = None,
        carry: Carry | None = None,
    ) -> Lookup:
        """The lookup that :meth:`forward` performs, before it is performed; arguments as there."""
        for name, mask in (("key_mask", key_mask), ("attn_mask", attn_mask)):
            if mask is not None and mask.dtype != torch.bool:
                raise ValueError(f"{name} must be boolean, True where a key may be seen, got {mask.dtype}")
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        both = context is None and store is None  # otherwise the store may hold keys and values already
        q, *own = project(x, self.query, *((self.key, self.value) if both else ()))
        q = self._split(q, self.query_norm)  # (B, H, N, D)
        apart = self.slots.lookup(q) if self.slots is not None and self.settings.slot_activation else None
        log_forget = None if self.forget is None else self.forget(x)  # (B, H, N)

        def make() -> tuple[Tensor, Tensor]:
            nonlocal q
            source = x if context is None else context
            k, v = map(self._split, own or project(source, self.key, self.value))  # (B, Hk, M, D)
            if self.shift is not None:
                k, v = self._shift(self.shift, x, k, v, key_mask, carry)
            k = k if self.key_norm is None else self.key_norm(k)
            if rotate is not None:
                q, k = rotate(q, k)
            if self.constant:
                k = with_constant(k)
            if self.sentence_bias is not None:
                k = of_keys(k, _given(sentences if context is None else context_sentences))
            if self.counted:
                v = with_constant(v)
            return (k, v) if log_forget is None or store is None else (pack(k, log_forget), v)

        k, v = make() if store is None else store(make)
        if self.sentence_bias is not None:
            q = of_queries(q, _given(sentences), self.sentence_bias, self.head_dim**-0.5)
        if log_forget is not None and store is not None:
            k, log_forget = unpack(k, self.head_dim, self.heads)
        shape = (k.shape[0], k.shape[2])
        if key_mask is not None and store is None and key_mask.shape != shape:
            raise ValueError(f"key_mask must have shape (B, M) = {shape}, got {tuple(key_mask.shape)}")
        if key_mask is not None and key_mask.shape[1] < k.shape[2]:
            key_mask = F.pad(key_mask, (0, k.shape[2] - key_mask.shape[1]))  # hides the unused room of the store
        if log_forget is not None and key_mask is not None:
            log_forget = log_forget.masked_fill(~key_mask[:, None], 0.0)  # padding makes nothing fade
        if limit is not None and self.settings.slots_in_rows:
            attn_mask, limit = up_to(limit, k.shape[2]), None
        slots = None
        if self.slots is not None and apart is None:
            keys, values = self.slots(k.dtype)  # (Hk, S, D)
            keys = with_constant(keys) if self.constant else keys
            keys = keys if self.sentence_bias is None else of_keys(keys[None], None)[0]
            slots = keys, with_constant(values) if self.counted else values
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*attn_mask.shape[:2], q.shape[2], k.shape[2])
        return Lookup(
            q, k, v, self.settings, gamma=self.gamma(), bias=self.bias,
            causal=self.causal and attn_mask is None and limit is None,
            key_mask=key_mask, attn_mask=attn_mask, limit=limit, log_forget=log_forget, counted=self.counted,
            slots=slots, apart=apart,
        )  # fmt: skip

    def _look_up(self, call: Lookup, **measured: Any) -> tuple[Tensor, AttentionStats | None]:
        """The sums, including the share of softmax, and the statistics of the memory without it."""
        out, stats = look_up(call, **measured)
        if self.softmax_share is not None:
            soft, _ = look_up(changed(call, settings=SOFTMAX_ATTENTION, gamma=None, bias=None))
            out = self.softmax_share * soft + (1 - self.softmax_share) * out
        return out, stats

    def _look_up_shared(self, call: Lookup, shared: int) -> Tensor:
        """Look up queries ``(B * shared, H, N, D)`` in keys ``(B, Hk, M, D)``, each shared by consecutive sequences."""
        q, key_mask = call.q, call.key_mask
        _, heads, n, d = q.shape
        q = q.view(-1, shared, heads, n, d).transpose(1, 2).reshape(-1, heads, shared * n, d)
        out, _ = self._look_up(changed(call, q=q, key_mask=None if key_mask is None else key_mask[::shared]))
        return out.view(-1, heads, shared, n, d).transpose(1, 2).reshape(-1, heads, n, d)

    @staticmethod
    def _shift(
        shift: TokenShift, x: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Tensor]:
        kv = torch.cat([k, v], dim=-1)  # (B, Hk, N, 2 D)
        if key_mask is not None:  # what precedes the first token must be zeros, even if that is padding
            kv = kv.masked_fill(~key_mask[:, None, -kv.shape[2] :, None], 0.0)
        first, second = shift(x, kv, None if carry is None else carry(kv)).chunk(2, dim=-1)
        return first, second

    def _split(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        x = x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim)  # (B, N, H, D)
        x = x.transpose(1, 2)  # (B, H, N, D)
        return x if norm is None else norm(x)

    @torch.no_grad()
    def calibrate_on(
        self, x: Tensor, context: Tensor | None = None, *, query_mask: Tensor | None = None, **options: Any
    ) -> None:
        """Multiply gamma by the mean mass of the rows in ``query_mask (B, N)``; other options as in :meth:`forward`."""
        for name in ("return_stats", "stats_batch", "store", "carry"):
            options.pop(name, None)
        _, stats = look_up(self.lookup(x, context, **options), return_stats="mass_entropy")
        assert stats is not None
        self.gamma.take_in(stats.mass, query_mask)


def _given(sentences: Tensor | None) -> Tensor:
    if sentences is None:
        raise ValueError("sentences, and context_sentences of a context, must be given to a sentence_bias, got None")
    return sentences
