"""The sentence bias: what it says about scores, whatever computes it."""

import math

import pytest
import torch

from reluformer.memory import Attention, MemorySettings, calibrate
from reluformer.memory.activations import weigh
from reluformer.memory.sentences import of_keys, of_queries, sentence_of
from reluformer.memory.settings import EIGHTH_ATTENTION, SOFTMAX_ATTENTION

WIDTH, HEADS, N, M = 32, 4, 9, 11
D = WIDTH // HEADS
RELU = MemorySettings()
RESERVED = [1, 2, 5, 6]  # two channels of either half
KEPT = [0, 3, 4, 7]
SENTENCES = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 3], [0, 1, 1, 1, 1, 1, 2, 3, 3]])
CONTEXT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3], [0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3]])


def attention_of(settings=RELU, **options):
    torch.manual_seed(0)
    settings = MemorySettings(**settings.to_dict() | {"sentence_bias": 1.0} | options.pop("changes", {}))
    made = Attention(WIDTH, HEADS, settings, **options).double()
    torch.nn.init.uniform_(made.sentence_bias, 0.2, 2.0)
    return made


def definition(attention, x, sentences, context=None, context_sentences=None):
    """Scores of the channels that are left, less the loss of the head wherever sentences differ."""
    context, context_sentences = (x, sentences) if context is None else (context, context_sentences)
    q, k, v = (
        layer(source).unflatten(-1, (-1, D)).transpose(1, 2)
        for layer, source in ((attention.query, x), (attention.key, context), (attention.value, context))
    )
    k, v = (y.repeat_interleave(HEADS // attention.key_heads, 1) for y in (k, v))
    scores = q[..., KEPT] @ k[..., KEPT].mT / D**0.5
    other = sentences[:, None, :, None] != context_sentences[:, None, None, :]
    scores = scores - attention.sentence_bias[:, None, None] * other
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if attention.causal else None
    count = (torch.arange(x.shape[1]) + 1.0 if attention.causal else torch.full((x.shape[1],), context.shape[1]))[
        :, None
    ]
    weights = weigh(scores, attention.settings.activation, count, visible)
    if attention.settings.activation == "relu":
        weights = weights / (attention.gamma()[:, None, None] * (count / 2) ** attention.settings.alpha)
    return attention.output((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("settings", [RELU, SOFTMAX_ATTENTION], ids=["relu", "softmax"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"key_heads": 2}], ids=str)
def test_is_what_the_definition_says_with_gradients(settings, options):
    attention = attention_of(settings, **options)
    x = torch.randn(2, N, WIDTH, dtype=torch.float64, requires_grad=True)
    found, expected = attention(x, sentences=SENTENCES)[0], definition(attention, x, SENTENCES)
    torch.testing.assert_close(found, expected)
    given = [x, *(y for name, y in attention.named_parameters() if name != "output.bias")]
    direction = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, given, direction), torch.autograd.grad(expected, given, direction), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("settings", [RELU, SOFTMAX_ATTENTION], ids=["relu", "softmax"])
def test_the_sentences_of_another_sequence(settings):
    attention = attention_of(settings)
    x, context = (torch.randn(2, n, WIDTH, dtype=torch.float64) for n in (N, M))
    found, _ = attention(x, context, sentences=SENTENCES, context_sentences=CONTEXT)
    torch.testing.assert_close(found, definition(attention, x, SENTENCES, context, CONTEXT))


@pytest.mark.parametrize("settings", [MemorySettings("relu_squared"), EIGHTH_ATTENTION, SOFTMAX_ATTENTION], ids=repr)
def test_with_a_large_loss_a_sentence_of_a_document_is_by_itself(settings):
    attention = attention_of(settings)
    torch.nn.init.constant_(attention.sentence_bias, 1e3)
    x = torch.randn(1, N, WIDTH, dtype=torch.float64)
    found, stats = attention(x, sentences=SENTENCES[:1], return_stats=True)
    for sentence in SENTENCES[0].unique():
        own = SENTENCES[0] == sentence
        alone, its_stats = attention(x[:, own], sentences=SENTENCES[:1, own], return_stats=True)
        torch.testing.assert_close(stats.active[..., own], its_stats.active)
        if settings.gamma == "none":  # otherwise a row is divided by the number of keys that it might have seen
            torch.testing.assert_close(found[:, own], alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_loss_is_exact_in_every_dtype(dtype):
    """Keys of the same sentence lose nothing at all, others the same number."""
    sentences, loss = torch.arange(300)[None], torch.tensor([0.3, 4.7])
    q = of_queries(torch.zeros(1, 2, 300, 64, dtype=dtype), sentences, loss, 64**-0.5).double()
    k = of_keys(torch.zeros(1, 2, 300, 64, dtype=dtype), sentences).double()
    lost = -(q @ k.mT)[0] / 8
    same = sentences[0][:, None] % 8 == sentences[0] % 8
    for head in range(2):
        assert lost[head][same].unique().tolist() == [0]
        assert lost[head][~same].unique().tolist() == pytest.approx([loss[head].item()], rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("loss", [1e5, -1e5])
def test_a_loss_beyond_float16_is_as_large_as_can_be(loss):
    """Infinite, it would make NaN of the keys that lose nothing."""
    sentences = torch.tensor([[0, 0, 1]])
    q = of_queries(torch.zeros(1, 1, 3, 64, dtype=torch.float16), sentences, torch.tensor([loss]), 64**-0.5).double()
    k = of_keys(torch.zeros(1, 1, 3, 64, dtype=torch.float16), sentences).double()
    most = math.copysign(torch.finfo(torch.float16).max, -loss)
    assert torch.equal((q @ k.mT)[0, 0], most * (sentences != sentences.T).double())


def test_the_loss_may_have_another_dtype_than_queries():
    """As in a model in bfloat16 under autocast, whose norms of queries are in float32."""
    loss = torch.tensor([2.0], dtype=torch.bfloat16)
    q = of_queries(torch.zeros(1, 1, 1, 64), torch.tensor([[0]]), loss, 64**-0.5)
    assert q.unique().tolist() == [-16, 0]


def test_keys_know_their_sentence():
    keys = of_keys(torch.randn(2, 3, 11, 64), CONTEXT + 9)
    assert torch.equal(sentence_of(keys), (CONTEXT + 9) % 8)


@pytest.mark.parametrize("settings", [RELU, EIGHTH_ATTENTION, SOFTMAX_ATTENTION], ids=repr)
@pytest.mark.parametrize("slots", [3, 300])  # in one row with the keys, and beside them
def test_slots_are_of_every_sentence(settings, slots):
    """With nothing but slots in sight of other sentences, where a query is does not matter."""
    attention = attention_of(settings, changes={"slots": slots})
    x = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    first, second = (attention(x, sentences=torch.full((1, 1), i))[0] for i in (0, 2))
    torch.testing.assert_close(first, second)
    keys = attention.lookup(x, sentences=SENTENCES[:1, :1]).slots[0]
    assert not keys[..., RESERVED].any()


def test_calibration_counts_what_is_lost():
    attention = attention_of()
    x = torch.randn(2, N, WIDTH, dtype=torch.float64)
    calibrate(attention, x, sentences=SENTENCES)
    mass = attention(x, sentences=SENTENCES, return_stats=True)[1].mass.transpose(0, 1).flatten(1)  # (H, B * N)
    torch.testing.assert_close(mass.sum(1) / (mass > 0).sum(1), torch.ones(HEADS, dtype=mass.dtype))


def test_what_it_needs():
    attention, x = attention_of(), torch.randn(2, N, WIDTH, dtype=torch.float64)
    for options in ({}, {"context": x, "sentences": SENTENCES}):
        with pytest.raises(ValueError, match="sentences, and context_sentences of a context, must be given"):
            attention(x, **options)
    with pytest.raises(ValueError, match="sentence_bias must be None unless heads have 8 channels, got 4"):
        Attention(16, 4, MemorySettings(sentence_bias=1.0))
    with pytest.raises(ValueError, match=r"sentence_bias must be None or a number, got 'far'"):
        MemorySettings(sentence_bias="far")
    with pytest.raises(ValueError, match=r"centred must be False beside a sentence_bias, got one of 1\.0"):
        MemorySettings(sentence_bias=1.0, centred=True)
