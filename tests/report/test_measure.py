"""Every measure against its definition, written out."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import nn

from reluformer.memory import Attention, KeyValueMemory, MemorySettings
from reluformer.memory.activations import ACTIVATIONS
from reluformer.report import memory_report, rows
from tests.report import brute
from tests.report.models import WIDTH, Translator, batch, padded

CASES = {
    "self": {},
    "causal": {"causal": True},
    "grouped": {"key_heads": 1, "causal": True},
    "slots": {"slots": 5, "causal": True},
    "cross": {"context": 9},
    "one query": {"queries": 1, "context": 9},
    "one key": {"context": 1},
    "padding": {"padding": True},
    "causal padding": {"padding": True, "causal": True, "slots": 2},
    "cross padding": {"padding": True, "context": 9, "key_heads": 1},
    "pairs": {"pairs": True, "padding": True},
    "pairs and slots": {"pairs": True, "slots": 3},
}


def attention(activation="relu", heads=2, key_heads=None, causal=False, **settings) -> Attention:
    module = Attention(WIDTH, heads, MemorySettings(activation, **settings), key_heads, causal)
    if module.gamma.log_gamma is not None:
        module.gamma.take_in(torch.rand(1, heads, 1) + 0.5)
    return module


def inputs(queries=6, context=None, padding=False, pairs=False, dtype=torch.float32, heads=2) -> dict:
    """What an attention takes."""
    found = {"x": torch.randn(2, queries, WIDTH, dtype=dtype)}
    if context is not None:
        found["context"] = torch.randn(2, context, WIDTH, dtype=dtype)
    if padding:
        found["query_mask"] = padded(queries, queries - 2)
        found["key_mask"] = padded(context - 3, context) if context else found["query_mask"]
    if pairs:
        found["attn_mask"] = torch.rand(2, heads, queries, context or queries) < 0.5
        found["attn_mask"][0, 0, 1] = False  # a query that sees nothing
    return found


def check(module: Attention, call: dict, **tolerance: float) -> None:
    (site,) = memory_report(module, call, block=4).sites
    expected = brute.attention_rows(module, **call)
    with torch.no_grad():
        out = module(**call)[0]
    assert len(site.heads) == module.heads
    for head, rows_ in zip(site.heads, expected, strict=True):
        brute.check_head(head, rows_, **tolerance)
    kept = call.get("query_mask", torch.ones(call["x"].shape[:2], dtype=torch.bool))
    assert site.variance_ratio == pytest.approx(brute.variance(out[kept]) / brute.variance(call["x"][kept]))
    assert site.anisotropy == pytest.approx(brute.anisotropy(out[kept]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_as_defined(case):
    of_module = {k: v for k, v in case.items() if k in ("causal", "key_heads", "slots")}
    of_inputs = {k: v for k, v in case.items() if k not in of_module}
    check(attention(**of_module), inputs(**of_inputs), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("activation", ["relu", "softmax", "relu_squared", "entmax15"])
@pytest.mark.parametrize("case", [{}, {"key_heads": 1}, {"padding": True}], ids=str)
def test_attention_that_forgets(activation, case):
    module = attention(activation, causal=True, forget=0.5, key_heads=case.get("key_heads"))
    check(module, inputs(queries=9, padding=case.get("padding", False)), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    more = {"temperature": 0.5} if activation == "softmax" else {"bias": 0.2}
    check(attention(activation, causal=True, **more), inputs(queries=9), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_key_value_memory_as_defined(activation):
    module = KeyValueMemory(WIDTH, MemorySettings(activation, slots=30))
    x, mask = torch.randn(2, 6, WIDTH), padded(6, 3)
    (site,) = memory_report(module, {"x": x}, query_mask=mask, block=4).sites
    brute.check_head(site.heads[0], brute.memory_rows(module, x[mask]), rel=1e-3, abs=1e-5)
    with torch.no_grad():
        out = module(x)[mask]
    assert (site.kind, site.site, site.activation) == ("key-value", "KeyValueMemory", activation)
    assert site.variance_ratio == pytest.approx(brute.variance(out) / brute.variance(x[mask]))
    assert site.anisotropy == pytest.approx(brute.anisotropy(out))


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16(causal):
    module = attention(causal=causal, slots=2).to(torch.bfloat16)
    check(module, inputs(padding=True, dtype=torch.bfloat16), rel=1e-4, abs=1e-6)
    memory = KeyValueMemory(WIDTH, MemorySettings(slots=30)).to(torch.bfloat16)
    x = torch.randn(2, 6, WIDTH, dtype=torch.bfloat16)
    (site,) = memory_report(memory, {"x": x}).sites
    # Its weights are rounded to bfloat16, as they are in the model.
    brute.check_head(site.heads[0], brute.memory_rows(memory, x.flatten(0, 1)), rel=1e-2)


@pytest.mark.parametrize("n", [1, 2, 10, 11, 500, 501, 1500])
def test_equal_weights(n):
    """All weights tie: the measures are those of the uniform row, and a share of the keys has its share of the mass."""
    module = attention(bias=1.0, heads=1)
    nn.init.zeros_(module.query.weight)
    nn.init.zeros_(module.query.bias)
    (site,) = memory_report(module, {"x": torch.randn(1, 1, WIDTH), "context": torch.randn(1, n, WIDTH)}).sites
    (head,) = site.heads
    assert head.entropy == pytest.approx(math.log(n), abs=1e-5)
    assert head.effective_keys == pytest.approx(n, rel=1e-5)
    for name, thousandths in (("top_0_2_percent", 2), ("top_1_percent", 10), ("top_10_percent", 100)):
        keys = max(1, -(-n * thousandths // 1000))
        assert getattr(head, name) == pytest.approx(keys / n, rel=1e-5)
    assert site.anisotropy is None  # one position has no other


def test_tied_largest_weights():
    weights = torch.tensor([[3.0, 1, 3, 0, 3, 0, 0, 0, 0, 0, 0]])  # 10 % of 11 keys are 2
    found = rows.measure_rows(weights, torch.ones_like(weights, dtype=torch.bool))
    assert found["top_10_percent"].item() == pytest.approx(0.6)
    assert found["top_1_percent"].item() == pytest.approx(0.3)


def test_rows_of_any_scale():
    weights = torch.rand(4, 20)
    visible = torch.ones_like(weights, dtype=torch.bool)
    for scale in (1e-36, 1e30):
        found, expected = rows.measure_rows(scale * weights, visible), rows.measure_rows(weights, visible)
        for name in ("entropy", "effective_keys", "top_10_percent"):
            torch.testing.assert_close(found[name], expected[name])


def test_dead_heads_say_nothing_else():
    module = attention(bias=0.0)
    with torch.no_grad():
        module.bias[0] = -1000
    (site,) = memory_report(module, inputs()).sites
    dead, living = site.heads
    assert (dead.rows, dead.live, dead.dead, dead.by_length) == (12, 0, 1.0, [])
    assert {dead.mass, dead.entropy, dead.effective_keys, dead.zeros, dead.top_1_percent} == {None}
    assert living.live > 0
    assert site.mean.entropy == pytest.approx(living.entropy)
    assert site.mean.dead == pytest.approx(1 - living.live / 24)


def test_everything_padding():
    call = inputs() | {"query_mask": torch.zeros(2, 6, dtype=torch.bool)}
    (site,) = memory_report(attention(), call).sites
    assert [(h.rows, h.dead, h.entropy) for h in site.heads] == [(0, None, None)] * 2
    assert (site.variance_ratio, site.anisotropy, site.mean.dead) == (None, None, None)


def test_zero_outputs_have_no_direction():
    module = KeyValueMemory(WIDTH, MemorySettings(slots=4))  # without biases, a dead row's output is zero
    x = torch.randn(1, 40, WIDTH)
    (site,) = memory_report(module, {"x": x}).sites
    assert site.heads[0].dead > 0
    with torch.no_grad():
        assert site.anisotropy == pytest.approx(brute.anisotropy(module(x)[0]))


def test_block_size_does_not_matter():
    model, data = Translator(), batch((40, 17, 33), (9, 30, 21))
    whole = memory_report(model, data, block=1000).to_dict()
    for block in (1, 7, 64):
        assert_close(memory_report(model, data, block=block).to_dict(), whole)


def test_never_more_rows_than_a_block(monkeypatch):
    sizes, weights_of = [], rows.weights_of

    def watched(call, fades):
        sizes.append(call.q.shape[0] * call.q.shape[2])
        assert call.attn_mask.shape[2] <= 16
        return weights_of(call, fades)

    monkeypatch.setattr(rows, "weights_of", watched)
    memory_report(Translator(), batch((50, 20, 3), (5, 4, 5)), block=16)
    assert max(sizes) <= 16


def test_a_memory_called_twice_is_measured_over_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = attention()

        def forward(self, a, b):
            return self.memory(a), self.memory(b)

    model, a, b = Twice(), torch.randn(1, 5, WIDTH), torch.randn(1, 3, WIDTH)
    (site,) = memory_report(model, {"a": a, "b": b}).sites
    expected = [brute.attention_rows(model.memory, x) for x in (a, b)]
    for h, head in enumerate(site.heads):
        brute.check_head(head, expected[0][h] + expected[1][h], rel=1e-4)


def test_a_whole_model():
    sites = memory_report(Translator(), batch()).sites
    names = [(site.site, site.layer, len(site.heads), site.heads[0].rows) for site in sites]
    encoder = [(s, i, h, 11) for i in range(2) for s, h in (("encoder.attention", 4), ("encoder.feedforward", 1))]
    parts = (("decoder.attention", 4), ("decoder.cross", 2), ("decoder.feedforward", 1))
    assert names == encoder + [(s, i, h, 11) for i in range(2) for s, h in parts]


@pytest.mark.parametrize("block", [0, -1, 2.0, True])
def test_wrong_block(block):
    with pytest.raises(ValueError, match="block must be an int >= 1, got"):
        memory_report(attention(), inputs(), block=block)


def test_pooled_heads_are_all_rows_together():
    module, call = attention(heads=4, causal=True), inputs(queries=9)
    (site,) = memory_report(module, call).sites
    together = [row for rows_ in brute.attention_rows(module, **call) for row in rows_]
    brute.check_head(site.mean, together, rel=1e-4)
    assert asdict(site.mean).keys() == asdict(site.heads[0]).keys()


def assert_close(found, expected) -> None:
    """Nested dicts and lists with the same numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        expected, found = list(expected.values()), list(found.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            assert_close(x, y)
    else:
        assert found == (pytest.approx(expected, rel=1e-5, abs=1e-7) if isinstance(expected, float) else expected)
