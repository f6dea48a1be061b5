"""Every wrong argument is refused, in words that name it, what it got and what it takes."""

import pytest
import torch
from torch import Tensor

from reluformer import relu_attention, relu_attention_varlen
from reluformer.ops import attention


def qkv(b: int = 2, hq: int = 4, hk: int = 2, n: int = 6, m: int = 9, d: int = 16) -> dict[str, Tensor]:
    return {"q": torch.randn(b, hq, n, d), "k": torch.randn(b, hk, m, d), "v": torch.randn(b, hk, m, d)}


def packed() -> dict[str, object]:
    """Two sequences of 3 and 4 tokens."""
    bounds = torch.tensor([0, 3, 7], dtype=torch.int32)
    tensors = {name: torch.randn(7, 2, 16) for name in "qkv"}
    return tensors | {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds, "max_seqlen_q": 4, "max_seqlen_k": 4}


# What is wrong, the arguments that make it so, and what the message must say: the argument, what it got, what it takes.
REFUSED = {
    "q not a tensor": ({"q": [1.0]}, ["q must be a tensor", "list"]),
    "q of rank 3": ({"q": torch.randn(4, 6, 16)}, ["q must have 4 dimensions", "B, H, N, D", "(4, 6, 16)"]),
    "k of rank 5": ({"k": torch.randn(1, 2, 2, 9, 16)}, ["k must have 4 dimensions", "(1, 2, 2, 9, 16)"]),
    "v of rank 2": ({"v": torch.randn(9, 16)}, ["v must have 4 dimensions", "(9, 16)"]),
    "integers": ({"q": torch.ones(2, 4, 6, 16, dtype=torch.int64)}, ["q must be float16", "torch.int64"]),
    "k of another dtype": ({"k": torch.randn(2, 2, 9, 16).half()}, ["k", "torch.float32", "torch.float16"]),
    "v of another dtype": ({"v": torch.randn(2, 2, 9, 16).double()}, ["v", "torch.float32", "torch.float64"]),
    "k on another device": ({"k": torch.randn(2, 2, 9, 16, device="meta")}, ["k", "cpu", "meta"]),
    "v of another length": ({"v": torch.randn(2, 2, 8, 16)}, ["v", "(2, 2, 9, 16)", "(2, 2, 8, 16)"]),
    "another head dimension": ({"q": torch.randn(2, 4, 6, 8)}, ["head dimension", "8", "16"]),
    "no head dimension": ({x: torch.randn(2, 2, 9, 0) for x in "qkv"}, ["q", "head dimension", "(2, 2, 9, 0)"]),
    "another batch size": ({"q": torch.randn(3, 4, 6, 16)}, ["batch size", "3", "2"]),
    "heads that do not divide": ({"q": torch.randn(2, 3, 6, 16)}, ["q", "multiple of k's 2 heads", "got 3"]),
    "no key heads": ({x: torch.randn(2, 0, 9, 16) for x in "kv"}, ["k must have at least 1 head", "(2, 0, 9, 16)"]),
    "no query heads": ({"q": torch.randn(2, 0, 6, 16)}, ["q must have at least 1 head", "(2, 0, 6, 16)"]),
    "gamma 0": ({"gamma": 0}, ["gamma must be a positive number", "0"]),
    "gamma negative": ({"gamma": -1.5}, ["gamma must be a positive number", "-1.5"]),
    "gamma NaN": ({"gamma": float("nan")}, ["gamma must be a positive number", "nan"]),
    "gamma a string": ({"gamma": "1"}, ["gamma", "(4,)", "'1'"]),
    "gamma of wrong shape": ({"gamma": torch.ones(2)}, ["gamma", "(4,)", "(2,)"]),
    "gamma of integers": ({"gamma": torch.ones(4, dtype=torch.int32)}, ["gamma", "floating-point", "torch.int32"]),
    "gamma on another device": ({"gamma": torch.ones(4, device="meta")}, ["gamma", "cpu", "meta"]),
    "bias a number": ({"bias": 1.0}, ["bias", "(4,)", "1.0"]),
    "bias of wrong shape": ({"bias": torch.zeros(4, 1)}, ["bias", "(4,)", "(4, 1)"]),
    "alpha negative": ({"alpha": -0.5}, ["alpha must be a number >= 0", "-0.5"]),
    "alpha infinite": ({"alpha": float("inf")}, ["alpha", "inf"]),
    "power 3": ({"power": 3}, ["power must be one of 1, 2, 4", "3"]),
    "power True": ({"power": True}, ["power must be one of 1, 2, 4", "True"]),
    "scale 0": ({"scale": 0.0}, ["scale must be None or a positive number", "0.0"]),
    "scale a tensor": ({"scale": torch.tensor(1.0)}, ["scale", "tensor"]),
    "causal a number": ({"causal": 1}, ["causal must be True or False", "1"]),
    "window 0": ({"window": 0}, ["window", "int >= 1", "0"]),
    "window of three": ({"window": (1, 2, 3)}, ["window", "(left, right)", "(1, 2, 3)"]),
    "window below -1": ({"window": (-2, 0)}, ["window", "(-2, 0)"]),
    "key mask of floats": ({"key_padding_mask": torch.ones(2, 9)}, ["key_padding_mask", "boolean", "torch.float32"]),
    "key mask of queries": (
        {"key_padding_mask": torch.ones(2, 6, dtype=torch.bool)},
        ["key_padding_mask", "(2, 9)", "(2, 6)"],
    ),
    "key mask a list": ({"key_padding_mask": [[True] * 9] * 2}, ["key_padding_mask", "boolean tensor", "list"]),
    "key mask on another device": (
        {"key_padding_mask": torch.ones(2, 9, dtype=torch.bool, device="meta")},
        ["key_padding_mask", "cpu", "meta"],
    ),
    "mask of integers": ({"attn_mask": torch.ones(6, 9, dtype=torch.int32)}, ["attn_mask", "boolean", "torch.int32"]),
    "mask transposed": (
        {"attn_mask": torch.ones(9, 6, dtype=torch.bool)},
        ["attn_mask", "(2, 4, 6, 9)", "(9, 6)"],
    ),
    "mask of rank 5": ({"attn_mask": torch.zeros(1, 1, 1, 6, 9)}, ["attn_mask", "(1, 1, 1, 6, 9)"]),
    "mask of key heads": ({"attn_mask": torch.zeros(2, 2, 6, 9)}, ["attn_mask", "(2, 4, 6, 9)", "(2, 2, 6, 9)"]),
    "mask not a tensor": ({"attn_mask": True}, ["attn_mask must be a tensor", "bool"]),
    "mask on another device": ({"attn_mask": torch.zeros(6, 9, device="meta")}, ["attn_mask", "cpu", "meta"]),
    "statistics of no sequence": (
        {"return_stats": True, "stats_batch": 0},
        ["stats_batch must be None or an int from 1 to the batch size, 2", "got 0"],
    ),
    "statistics of too many": ({"return_stats": True, "stats_batch": 3}, ["stats_batch", "the batch size, 2", "got 3"]),
    "statistics of half a sequence": ({"return_stats": True, "stats_batch": 0.5}, ["stats_batch", "int", "got 0.5"]),
    "statistics of True": ({"return_stats": True, "stats_batch": True}, ["stats_batch", "int", "got True"]),
    "statistics of some, and of none": ({"stats_batch": 1}, ["stats_batch needs return_stats", "return_stats=False"]),
    "gates without causal": ({"log_forget": torch.zeros(2, 4, 9)}, ["log_forget needs causal=True", "causal=False"]),
    "gates of key heads": (
        {"log_forget": torch.zeros(2, 2, 9), "causal": True},
        ["log_forget", "(B, Hq, M) = (2, 4, 9)", "(2, 2, 9)"],
    ),
    "gates of queries": (
        {"log_forget": torch.zeros(2, 4, 6), "causal": True},
        ["log_forget", "(2, 4, 9)", "(2, 4, 6)"],
    ),
    "gates in half precision": (
        {"log_forget": torch.zeros(2, 4, 9).half(), "causal": True},
        ["log_forget must be torch.float32", "torch.float16"],
    ),
    "gates on another device": (
        {"log_forget": torch.zeros(2, 4, 9, device="meta"), "causal": True},
        ["log_forget", "cpu", "meta"],
    ),
    "gates a number": ({"log_forget": -0.1, "causal": True}, ["log_forget must be a tensor", "(2, 4, 9)", "float"]),
    "unknown back end": ({"backend": "cuda"}, ["backend", "auto, reference, chunked, triton", "'cuda'"]),
}

REFUSED_PACKED = {
    "q of rank 4": ({"q": torch.randn(1, 7, 2, 16)}, ["q must have 3 dimensions", "T, H, D", "(1, 7, 2, 16)"]),
    "v shorter than k": ({"v": torch.randn(6, 2, 16)}, ["v", "(7, 2, 16)", "(6, 2, 16)"]),
    "heads that do not divide": ({"q": torch.randn(7, 3, 16)}, ["q", "multiple of k's 2 heads", "got 3"]),
    "boundaries a list": ({"cu_seqlens_q": [0, 3, 7]}, ["cu_seqlens_q", "int32", "list"]),
    "boundaries of int64": ({"cu_seqlens_k": torch.tensor([0, 3, 7])}, ["cu_seqlens_k", "int32", "torch.int64"]),
    "boundaries of rank 2": (
        {"cu_seqlens_q": torch.tensor([[0, 7]], dtype=torch.int32)},
        ["cu_seqlens_q", "(sequences + 1,)", "(1, 2)"],
    ),
    "boundaries that fall": (
        {"cu_seqlens_q": torch.tensor([0, 5, 3, 7], dtype=torch.int32)},
        ["cu_seqlens_q must rise from 0 to 7", "[0, 5, 3, 7]"],
    ),
    "boundaries that start late": (
        {"cu_seqlens_k": torch.tensor([1, 3, 7], dtype=torch.int32)},
        ["cu_seqlens_k must rise from 0 to 7", "[1, 3, 7]"],
    ),
    "boundaries that end early": (
        {"cu_seqlens_k": torch.tensor([0, 3, 6], dtype=torch.int32)},
        ["cu_seqlens_k must rise from 0 to 7", "[0, 3, 6]"],
    ),
    "fewer sequences of keys": (
        {"cu_seqlens_k": torch.tensor([0, 7], dtype=torch.int32), "max_seqlen_k": 7},
        ["cu_seqlens_k", "3", "2"],
    ),
    "boundaries on another device": (
        {"cu_seqlens_q": torch.zeros(3, dtype=torch.int32, device="meta")},
        ["cu_seqlens_q", "cpu", "meta"],
    ),
    "longest too short": ({"max_seqlen_q": 3}, ["max_seqlen_q must be at least the longest sequence, 4", "got 3"]),
    "longest a float": ({"max_seqlen_k": 4.0}, ["max_seqlen_k must be an int >= 0", "4.0"]),
    "longest negative": ({"max_seqlen_k": -1}, ["max_seqlen_k must be an int >= 0", "-1"]),
    "gamma 0": ({"gamma": 0.0}, ["gamma must be a positive number", "0.0"]),
    "unknown back end": ({"backend": "flash"}, ["backend", "auto, reference, chunked, triton", "'flash'"]),
}


@pytest.mark.parametrize(("wrong", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_argument_is_named(wrong, words) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the words are checked below
        relu_attention(**qkv() | wrong)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(("wrong", "words"), REFUSED_PACKED.values(), ids=REFUSED_PACKED)
def test_wrong_packed_argument_is_named(wrong, words) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        relu_attention_varlen(**packed() | wrong)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_changed_boundaries_are_read_again() -> None:
    arguments = packed()
    relu_attention_varlen(**arguments)
    arguments["cu_seqlens_q"][1] = 9
    with pytest.raises(ValueError, match=r"cu_seqlens_q must rise from 0 to 7.*\[0, 9, 7\]"):
        relu_attention_varlen(**arguments)


class TestTritonAskedFor:
    """Asked for by name where it cannot run, Triton is refused, never replaced."""

    def test_without_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        with pytest.raises(RuntimeError, match=r"backend 'triton' cannot run.*q is on cpu.*use 'auto' or 'chunked'"):
            relu_attention(**qkv(), backend="triton")

    def test_without_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "_HAS_TRITON", False)
        with pytest.raises(RuntimeError, match="backend 'triton' cannot run: Triton is not installed"):
            relu_attention_varlen(**packed(), backend="triton")

    @pytest.mark.parametrize(
        ("inputs", "words"), [(qkv(d=264), "256, q has 264"), ({n: x.double() for n, x in qkv().items()}, "float64")]
    )
    def test_beyond_its_kernels(self, monkeypatch: pytest.MonkeyPatch, inputs, words) -> None:
        monkeypatch.setattr(attention, "_HAS_TRITON", True)
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        with pytest.raises(RuntimeError, match=f"backend 'triton' cannot run.*{words}"):
            relu_attention(**inputs, backend="triton")
        relu_attention(**inputs)  # auto finds another way
