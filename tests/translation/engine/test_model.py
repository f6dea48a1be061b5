"""The engine computes what the model computes."""

import copy
import itertools

import pytest
import torch

from reluformer.models.quantising import can_multiply_integers
from reluformer.translation.engine import Engine, keys, obstacle
from tests.translation.conftest import VOCABULARY, tiny_model
from tests.translation.stubs import Copier

SOFTMAX = {"activation": "softmax", "alpha": 0.0, "gamma": "none"}
KINDS = [
    {"activation": activation, "alpha": 1.0, "bias": bias, "centred": centred}
    for activation, bias, centred in itertools.product(("relu", "relu_squared"), (None, 2.0), (False, True))
]
OVER_MASS = {"activation": "relu_fourth", "bias": 4.0, "centred": True, "norm": "mass"}
CHANNEL = {"activation": "relu_eighth", "bias": 8.0, "constant_channel": True, "norm": "mass"}
KINDS += [x | {"query_key_norm": normed} for x in (OVER_MASS, CHANNEL) for normed in (False, True)]
KINDS += [KINDS[1] | {"query_key_norm": True}, KINDS[3] | {"query_key_norm": True}, SOFTMAX | {"query_key_norm": True}]
SOURCES = [[5, 9, 2], [7, 8, 9, 10, 11, 2], [4, 2]]
MODELS = [
    {},
    {"norm_order": "post"},
    {"positions": "rotary"},
    {"positions": "learned"},
    {"ffn": {"slots": 0}},
    {"encoder_self": {"activation": "relu_squared"}, "cross": {"activation": "relu_squared", "alpha": 1.0}},
    {"decoder_self": {"activation": "relu_squared", "gamma": "shared"}, "encoder_layers": 0},
    {"encoder_self": SOFTMAX, "decoder_self": SOFTMAX, "cross": SOFTMAX},
    {"tie_word_embeddings": False, "decoder_layers": 2},
]


def everywhere(attention) -> dict[str, dict[str, object]]:
    """The fields of a model with one kind of attention."""
    return {site: attention for site in ("encoder_self", "decoder_self", "cross")}


def model_of(fields):
    model = tiny_model(**fields)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 1:  # biases, norms and gammas start as nothing or alike: let them count
                x.add_(0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


def padded(sources: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, sources))
    return {
        "input_ids": torch.tensor([x + [0] * (width - len(x)) for x in sources]),
        "attention_mask": torch.tensor([[1] * len(x) + [0] * (width - len(x)) for x in sources]),
    }


@torch.inference_mode()
def logits_of(engine: Engine, targets: torch.Tensor) -> torch.Tensor:
    """Step by step, one hypothesis per source."""
    decoding = engine.start(SOURCES, 1)
    return torch.stack([decoding.step(tokens) for tokens in targets.T], dim=1)


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_the_same_logits(compiled: bool, fields) -> None:
    model = model_of(fields)
    targets = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = model.double()(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model.float(), compiled=compiled), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", KINDS, ids=str)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_the_same_logits_of_every_kind(compiled: bool, attention, positions: str) -> None:
    """For longer than there was room at first."""
    model = model_of(everywhere(attention) | {"positions": positions, "decoder_layers": 2})
    targets = torch.randint(3, VOCABULARY, (3, keys.ROOM + 6), generator=torch.Generator().manual_seed(1))
    expected = model.double()(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model.float(), compiled=compiled), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", [KINDS[3], KINDS[9], SOFTMAX], ids=str)
def test_sources_that_are_not_short(attention, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read by the operators of models, and written from by step.c."""
    monkeypatch.setattr("reluformer.translation.engine.attention.SHORT", 5)
    model = model_of(everywhere(attention) | {"positions": "rotary", "encoder_layers": 2})
    targets = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = model.double()(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model.float()), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


PARTED = [{"sentence_bias": 1.5}, CHANNEL, CHANNEL | {"query_key_norm": True}, SOFTMAX | {"query_key_norm": True}]


@pytest.mark.parametrize("attention", PARTED, ids=str)
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_sentences_are_told_apart(compiled: bool, attention, positions: str) -> None:
    """By a model whose targets and sources have a separator at every second place or so."""
    sites = everywhere(attention | {"sentence_bias": 1.5})
    model = model_of(sites | {"positions": positions, "decoder_layers": 2, "sep_token_id": 7})
    targets = torch.randint(3, 11, (3, 24), generator=torch.Generator().manual_seed(1))
    expected = model.double()(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model.float(), compiled=compiled), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
def test_sites_may_differ(compiled: bool, site: str) -> None:
    model = model_of({site: KINDS[-1]})
    targets = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = model.double()(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model.float(), compiled=compiled), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fields", [*MODELS[:2], MODELS[-2], *map(everywhere, (KINDS[1], KINDS[7], KINDS[9]))], ids=str)
@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.02), ("int8", 0.05)])
def test_nearly_the_same_logits(compiled: bool, fields, precision: str, most: float) -> None:
    if precision == "int8" and not can_multiply_integers():
        pytest.skip("PyTorch has no int8 matrices here")
    model = model_of(fields)
    targets = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = model(**padded(SOURCES), decoder_input_ids=targets).logits
    found = logits_of(Engine(model, precision, compiled), targets)
    assert 0 < (found - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_sources_of_one_token(compiled: bool, positions: str) -> None:
    model = model_of({"positions": positions})
    sources = [[5], [7], [2]]
    with torch.inference_mode():
        found, *_ = Engine(model, compiled=compiled).read(sources)
        expected = model.double().model.encoder(input_ids=torch.tensor(sources)).last_hidden_state
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_whatever_the_default_dtype(compiled: bool, dtype: torch.dtype) -> None:
    """It is a program's own, and no library should break by it."""
    model = model_of(everywhere(OVER_MASS) | {"positions": "rotary"})
    targets = torch.randint(3, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    expected = logits_of(Engine(model, compiled=compiled), targets)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = logits_of(Engine(model, compiled=compiled), targets)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_it_can_be_copied(compiled: bool) -> None:
    engine = Engine(model_of({}), "int8" if can_multiply_integers() else "fp32", compiled)
    targets = torch.randint(3, VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits_of(copy.deepcopy(engine), targets), logits_of(engine, targets))


def test_gradients_may_be_on(compiled: bool) -> None:
    """What a step needs is no part of any graph."""
    model = model_of(everywhere(OVER_MASS) | {"positions": "learned"})
    assert not Engine(model, compiled=compiled).start(SOURCES, 2).step(torch.ones(6, dtype=torch.long)).requires_grad


def test_it_notices_new_weights() -> None:
    model = tiny_model()
    engine = Engine(model)
    assert engine.is_current(model)
    with torch.no_grad():
        model.model.decoder.layers[0].ffn.memory.keys.weight.add_(1)
    assert not engine.is_current(model)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cross": {"norm": "layer"}}, "cross.norm layer"),
        ({"decoder_self": SOFTMAX | {"bias": 0.0}}, "decoder_self.bias 0.0"),
        ({"cross": {"bias": 0.0, "output_gate": True}}, "cross.output_gate True"),
        ({"encoder_self": {"activation": "gelu"}}, "encoder_self.activation gelu"),
        ({"encoder_self": SOFTMAX | {"alpha": 0.5}}, "encoder_self.alpha 0.5"),
        ({"decoder_self": {"slots": 4}}, "decoder_self.slots 4"),
        ({"ffn": {"activation": "softmax"}}, "ffn.activation softmax"),
        ({"key_heads": 1}, "heads that share keys"),
        ({"decoder_layers": 0}, "no decoder layer"),
        ({"eos_token_id": [2, 3]}, "no or several tokens that end a target"),
    ],
)
def test_other_memories_are_refused(fields, words: str) -> None:
    model = tiny_model(**fields)
    assert obstacle(model) == words
    with pytest.raises(ValueError, match=f"model must be a ReLUFormer of plain memories on a CPU, got {words}"):
        Engine(model)


def test_other_models_are_refused() -> None:
    assert obstacle(Copier()) == "a Copier"
    model = tiny_model()
    model.model.decoder.layers[0].cross_attention.memory.softmax_share = torch.tensor(0.5)
    assert obstacle(model) == "a softmax_share, which training sets"
    with pytest.raises(ValueError, match="precision must be one of int8, fp32, bf16, got 'half'"):
        Engine(tiny_model(), "half")


def test_without_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reluformer.translation.engine.model.can_multiply_integers", lambda: False)
    with pytest.raises(ValueError, match="no int8 matrices"):
        Engine(tiny_model(), "int8")
