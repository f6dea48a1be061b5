"""Slots of attention that are a memory of their own, as in an FFN, against that memory written out."""

import pytest
import torch

from reluformer.memory import Attention, KeyValueMemory, MemorySettings, PersistentMemory, calibrate
from reluformer.memory.activations import ACTIVATIONS, NORMALISED, weigh
from reluformer.memory.settings import EIGHTH_ATTENTION, SOFTMAX_ATTENTION
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.positions import rotation
from reluformer.report import attention_maps, memory_report

LOCAL = {
    "ReLU": MemorySettings(),
    "softmax": SOFTMAX_ATTENTION,
    "power 8": EIGHTH_ATTENTION,
    "ReLU, a layer norm": MemorySettings(norm="layer"),
}


def with_slots(settings, slots=5, activation="relu"):
    return MemorySettings(**settings.to_dict() | {"slots": slots, "slot_activation": activation})


def pair(settings, slots=5, activation="relu", width=32, heads=4, **options):
    """An attention with such slots, and the same without any."""
    torch.manual_seed(0)
    attention = Attention(width, heads, with_slots(settings, slots, activation), **options).double()
    plain = Attention(width, heads, settings, **options).double()
    plain.load_state_dict({name: x for name, x in attention.state_dict().items() if not name.startswith("slots.")})
    return attention, plain


def sums_of(attention, x, activation="relu"):
    """What every query finds in the slots, ``(B, N, width)``, head by head."""
    q = attention.query(x).unflatten(-1, (attention.heads, -1))  # (B, N, H, D)
    groups = attention.heads // attention.key_heads
    keys, values = (t.repeat_interleave(groups, 0) for t in (attention.slots.keys, attention.slots.values))
    scores = torch.einsum("bnhd,hsd->bnhs", q, keys) / q.shape[-1] ** 0.5
    weights = weigh(scores, activation, float(keys.shape[1]))
    return torch.einsum("bnhs,hsd->bnhd", weights, values).flatten(2)


@pytest.mark.parametrize("settings", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("slots", [1, 300])  # 300 in one row with the keys would not be copied
def test_are_added_to_what_the_sequence_gives(settings, slots):
    attention, plain = pair(settings, slots, key_heads=2, causal=True)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    seen = []
    for module in (attention, plain):  # the sums before the projection
        module.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    attention(x), plain(x)
    if attention.norm is None:
        torch.testing.assert_close(seen[0], seen[1] + sums_of(attention, x))
    else:  # which acts on both together
        plain.norm = None
        plain(x)
        torch.testing.assert_close(seen[0], attention.norm(seen[2] + sums_of(attention, x)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_all_activations(activation):
    attention, plain = pair(MemorySettings(), activation=activation)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    inner = plain(x)[0] + sums_of(attention, x, activation) @ attention.output.weight.T
    torch.testing.assert_close(attention(x)[0], inner)


def test_are_an_ffn_of_every_head():
    """One head whose query is the input: the FFN with these keys and values."""
    attention = Attention(16, 1, with_slots(MemorySettings(), slots=24))
    ffn = KeyValueMemory(16, MemorySettings(alpha=0.0, gamma="none", slots=24))
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(16))
        attention.query.bias.zero_()
        ffn.keys.weight.copy_(attention.slots.keys[0] / 4)  # the scores of attention are divided by sqrt(16)
        ffn.values.weight.copy_(attention.slots.values[0].T)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(sums_of(attention, x), ffn(x))


def test_gradients():
    attention, _ = pair(MemorySettings(), slots=3, width=4, heads=2)
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    parameters = [attention.slots.keys, attention.slots.values]
    assert torch.autograd.gradcheck(lambda *_: attention(x)[0], [x, *parameters])


def test_statistics_and_counts_are_those_of_the_sequence():
    attention, plain = pair(MemorySettings(), causal=True)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    torch.testing.assert_close(
        tuple(attention(x, return_stats=True)[1]), tuple(plain(x, return_stats=True)[1]), rtol=0, atol=0
    )
    assert torch.equal(attention.count(9, 9, None, x.device), plain.count(9, 9, None, x.device))
    for module in (attention, plain):
        calibrate(module, x)
    assert torch.equal(attention.gamma(), plain.gamma())


def test_their_scores_do_not_depend_on_positions():
    attention, plain = pair(MemorySettings())
    x = torch.randn(1, 6, 32, dtype=torch.float64)
    rotate = rotation(torch.arange(6)[None], 8)
    difference = attention(x, rotate=rotate)[0] - plain(x, rotate=rotate)[0]
    torch.testing.assert_close(difference, sums_of(attention, x) @ attention.output.weight.T)


@torch.no_grad()
def test_a_step_of_beams_that_share_a_store():
    attention, _ = pair(MemorySettings())
    x, context = torch.randn(6, 1, 32, dtype=torch.float64), torch.randn(2, 7, 32, dtype=torch.float64)
    kept = attention.lookup(x[:2], context)
    shared = attention(x, context, store=lambda make: (kept.k, kept.v))[0]
    torch.testing.assert_close(shared, attention(x, context.repeat_interleave(3, 0))[0])


MOMENTS = {"identity": 1, "relu": 1 / 2, "relu_squared": 3 / 2, "relu_fourth": 105 / 2, "relu_eighth": 2027025 / 2}


@pytest.mark.parametrize("activation", MOMENTS)
def test_sums_start_with_unit_variance(activation):
    """Over S slots, that of the values times S times the second moment of a weight."""
    memory = PersistentMemory(1, 2048, 64, activation)
    assert memory.spread**2 * 2048 * MOMENTS[activation] == pytest.approx(1, rel=1e-6)
    assert memory.values.detach().std().item() == pytest.approx(memory.spread, rel=0.02)


@pytest.mark.parametrize("activation", [None, *NORMALISED])
def test_values_that_are_averaged_start_with_unit_variance(activation):
    assert PersistentMemory(1, 2048, 64, activation).values.detach().std().item() == pytest.approx(1, rel=0.02)


def test_a_model_starts_them_alike():
    site = {"slots": 512, "slot_activation": "relu"}
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", encoder_self=site))
    memories = [x for x in model.modules() if isinstance(x, PersistentMemory)]
    assert [x.values.detach().std().item() for x in memories] == pytest.approx([(2 / 512) ** 0.5] * 2, rel=0.02)


def test_a_report_has_a_site_for_them():
    attention, plain = pair(MemorySettings(), slots=7, causal=True)
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    report = memory_report(attention, {"x": x, "query_mask": mask})
    sequence, slots = report.sites
    (alone,) = memory_report(plain, {"x": x, "query_mask": mask}).sites
    assert [head.mass for head in sequence.heads] == [head.mass for head in alone.heads]
    assert (slots.site, slots.kind, slots.activation) == (f"{sequence.site}.slots", "key-value", "relu")
    q = attention.query(x).unflatten(-1, (4, -1))
    weights = torch.einsum("bnhd,hsd->bnhs", q, attention.slots.keys).div(8**0.5).relu()[mask]  # (P, H, S)
    live = (weights > 0).any(-1)  # (P, H)
    mass, zeros = weights.sum(-1), (weights == 0).double().mean(-1)
    for head, alive, its_mass, its_zeros in zip(slots.heads, live.T, mass.T, zeros.T, strict=True):
        assert (head.rows, head.live) == (10, int(alive.sum()))
        assert head.mass == pytest.approx(float(its_mass[alive].mean()))
        assert head.zeros == pytest.approx(float(its_zeros[alive].mean()))


def test_maps_show_the_sequence_alone():
    attention, _ = pair(MemorySettings(), slots=7)
    (drawn,) = attention_maps(attention, {"x": torch.randn(1, 6, 32, dtype=torch.float64)}, ["*:*:2"])
    assert drawn.weights.shape == (6, 6)


def test_settings():
    with pytest.raises(ValueError, match=r"slot_activation must be one of None, relu, .* got 'rely'"):
        MemorySettings(slots=2, slot_activation="rely")
    with pytest.raises(ValueError, match="slot_activation must be None without slots, got 'relu'"):
        MemorySettings(slot_activation="relu")
    assert MemorySettings(slots=2, slot_activation="relu", forget=1.0).slots_in_rows == 0  # tokens fade, slots do not
