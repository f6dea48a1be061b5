"""``attn_implementation="reluformer"`` in models that were never converted, and its masks."""

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, BertModel, MistralConfig, MistralForCausalLM
from transformers.cache_utils import DynamicCache, StaticCache

from reluformer import relu_attention
from reluformer.integration import register
from reluformer.integration.attention import NAME, attend, make_mask
from tests.integration.stock import logits, stock, tokens


def mistral(**changes) -> MistralForCausalLM:
    config = MistralConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=1, initializer_range=0.3, **changes,
    )  # fmt: skip
    config._attn_implementation = NAME
    torch.manual_seed(7)
    return MistralForCausalLM(config).eval()


def qkv(queries: int = 6, keys: int = 6, key_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 4, queries, 8), torch.randn(2, key_heads, keys, 8), torch.randn(2, key_heads, keys, 8)


class Site(nn.Module):
    """An attention module as a model has it."""

    is_causal = False


def test_register_is_idempotent():
    register()
    register()
    assert AttentionInterface()[NAME] is attend
    assert AttentionMaskInterface()[NAME] is make_mask


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_an_unconverted_module_has_gamma_1(key_heads, causal):
    q, k, v = qkv(key_heads=key_heads)
    site = Site()
    site.is_causal = causal
    out, weights = attend(site, q, k, v, None, dropout=0.9, scaling=0.5)
    expected = relu_attention(q, k, v, scale=0.5, causal=causal)
    assert weights is None
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_the_argument_beats_the_modules_causality():
    q, k, v = qkv()
    out, _ = attend(Site(), q, k, v, None, is_causal=True)
    torch.testing.assert_close(out.transpose(1, 2), relu_attention(q, k, v, causal=True))


@pytest.mark.parametrize("minus_infinity", [-torch.inf, torch.finfo(torch.float32).min, -65504.0, -1e9, -1e4])
def test_float_masks_are_added_and_their_minus_infinities_hide(minus_infinity):
    q, k, v = qkv()
    visible = torch.rand(2, 1, 6, 6) < 0.7
    bias = torch.randn(2, 1, 6, 6)
    mask = torch.where(visible, bias, minus_infinity)
    expected = relu_attention(q, k, v, attn_mask=torch.where(visible, bias, -torch.inf))
    out, _ = attend(Site(), q, k, v, mask)
    torch.testing.assert_close(out.transpose(1, 2), expected)


@pytest.mark.parametrize("kind", ["none", "padding", "boolean", "float"])
def test_a_position_bias_joins_every_mask(kind):
    q, k, v = qkv()
    bias = torch.randn(1, 4, 6, 6, requires_grad=True)
    visible = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    visible[1, :, :, 4:] = False
    mask = {
        "none": None,
        "padding": visible[:, :, :1],
        "boolean": visible,
        "float": torch.zeros(2, 1, 6, 6).masked_fill(~visible, torch.finfo(torch.float32).min),
    }[kind]
    expected = relu_attention(
        q, k, v, attn_mask=bias if mask is None else bias.expand(2, -1, -1, -1).masked_fill(~visible, -torch.inf)
    )
    out, _ = attend(Site(), q, k, v, mask, position_bias=bias)
    torch.testing.assert_close(out.transpose(1, 2), expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), bias)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_a_mask_of_one_row_is_for_all_sequences():
    q, k, v = qkv()
    seen = torch.tensor([True, True, False, True, True, False])
    out, _ = attend(Site(), q, k, v, seen[None, None, None])
    expected = relu_attention(q, k, v, key_padding_mask=seen.expand(2, -1))
    torch.testing.assert_close(out.transpose(1, 2), expected)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "cache"])
def test_options_that_would_change_the_result_are_refused(name):
    with pytest.raises(ValueError, match=f"'reluformer' has no {name}"):
        attend(Site(), *qkv(), None, **{name: 1.0})
    attend(Site(), *qkv(), None, **{name: None}, use_cache=True)


def test_masks_must_have_four_dimensions():
    with pytest.raises(ValueError, match=r"attention_mask must have 4 dimensions, got shape \(6, 6\)"):
        attend(Site(), *qkv(), torch.ones(6, 6, dtype=torch.bool))


def test_padding_in_an_unconverted_bert_changes_nothing():
    config = stock("bert").config
    config._attn_implementation = NAME
    model = BertModel(config).eval()
    batch = tokens(9, 5)
    together = model(**batch).last_hidden_state
    alone = model(input_ids=batch["input_ids"][1:, :5]).last_hidden_state
    torch.testing.assert_close(together[1:, :5], alone)
    batch["attention_mask"][0, 3] = 0
    assert (model(**batch).last_hidden_state[0, 0] - together[0, 0]).abs().max() > 1e-3


def test_masks_that_padding_alone_makes_have_one_row():
    model = stock("bert")
    model.set_attn_implementation(NAME)
    seen = []
    model.bert.encoder.layer[0].attention.self.register_forward_pre_hook(
        lambda _, args, options: seen.append(args[1] if len(args) > 1 else options["attention_mask"]), with_kwargs=True
    )
    model(**tokens(9, 5))
    model(**tokens(9, 9))
    assert seen[0].shape == (2, 1, 1, 9)
    assert seen[0].dtype == torch.bool
    assert seen[1] is None


def test_a_sliding_window_hides_what_is_far():
    model = mistral(sliding_window=3)
    ids = tokens(10)["input_ids"]
    whole = model(ids).logits
    far = ids.clone()
    far[0, 0] = (far[0, 0] + 7) % 50 + 4
    changed = (model(far).logits - whole).abs().amax(-1)[0]  # two layers of a window of 3 reach 4 back
    assert (changed[:5] > 1e-4).any()
    assert changed[5:].max() == 0


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("static", [False, True])
def test_step_by_step_is_at_once(window, static):
    model = mistral(sliding_window=window)
    batch = tokens(10, 6, left=True)
    whole = logits(model, batch)
    cache = StaticCache(config=model.config, max_cache_len=16) if static else DynamicCache(config=model.config)
    steps = []
    for stop, start in ((4, 0), (7, 4), (8, 7), (9, 8), (10, 9)):
        positions = (batch["attention_mask"].cumsum(-1) - 1).clamp_min(0)[:, start:stop]
        with torch.no_grad():
            out = model(
                input_ids=batch["input_ids"][:, start:stop], attention_mask=batch["attention_mask"][:, :stop],
                position_ids=positions, past_key_values=cache,
            )  # fmt: skip
        steps.append(out.logits)
    stepwise = torch.cat(steps, 1)[batch["attention_mask"].bool()]
    torch.testing.assert_close(stepwise, whole, rtol=1e-4, atol=1e-4)


def test_packed_sequences_do_not_see_each_other():
    model = mistral()
    ids = tokens(9)["input_ids"]
    packed = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), use_cache=False).logits
    torch.testing.assert_close(packed[:, 4:], model(ids[:, 4:]).logits, rtol=1e-4, atol=1e-4)
