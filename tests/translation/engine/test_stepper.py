"""Searches over a model as it is: the tokens that ``generate`` finds, of every kind of model, recorded or not."""

import pytest
import torch

from reluformer.models.reluformer import ReLUFormerForConditionalGeneration
from reluformer.models.stepping import StepCache
from reluformer.translation.engine import Stepper, beam_search, can_step, greedy_search, obstacle, stepper
from tests.models.test_stepping import record
from tests.translation.engine.test_model import everywhere
from tests.translation.engine.test_search import END, generated, model_that_ends, sources_of

# What an engine on a CPU cannot run, and one that it can.
MODELS = [
    {},
    {"positions": "rotary", "norm_order": "post"},
    {"positions": "learned"},
    {"key_heads": 2},
    everywhere({"norm": "layer"}),
    everywhere({"activation": "gelu", "slots": 3}),
    everywhere({"sentence_bias": 2.0, "norm": "rms"}) | {"sep_token_id": 9},
    everywhere({"activation": "softmax", "alpha": 0.0, "gamma": "none", "temperature": 2.0}),
]


@pytest.fixture(params=[False, True], ids=["plain", "recorded"])
def records(request, monkeypatch):
    """The steps that were recorded, as on a GPU, or nothing."""
    found = []
    monkeypatch.setattr(
        StepCache, "_record", lambda cache, ids, decode: found.append(len(ids)) or record(cache, ids, decode)
    )
    monkeypatch.setattr(
        ReLUFormerForConditionalGeneration,
        "_can_record",
        lambda self: request.param and self.config.positions != "learned",
    )
    return found if request.param else None


def search(model, sources, limits, beam, penalty=1.0):
    with torch.inference_mode():
        if beam == 1:
            return greedy_search(Stepper(model), sources, limits)
        return beam_search(Stepper(model), sources, limits, beam, penalty)


def limits_of(sources):
    return [2 * len(x) + 16 for x in sources]


@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize(("beam", "penalty"), [(1, 1.0), (4, 1.0), (3, 2.0)])
def test_the_same_tokens(records, fields, beam, penalty):
    """Sources end at different times: some leave the batch early, some come to their limit."""
    model, sources = model_that_ends(0, **fields), sources_of(0)
    assert can_step(model)
    assert (obstacle(model) is None) is (fields in MODELS[:3])
    expected = generated(model, sources, limits_of(sources), beam, penalty)
    assert search(model, sources, limits_of(sources), beam, penalty) == expected
    assert len({len(x) for x in expected}) > 1


def test_rows_stay_until_half_of_them_are_done(records):
    """What is recorded has rows for all: to record it again for each that is done would take longer than to go on."""
    model, sources = model_that_ends(0), sources_of(0)
    limits = [3, 5, 7, 9, 11]
    with torch.no_grad():
        model.model.shared.weight[END] = -100.0  # none ends by itself
    assert [len(x) for x in search(model, sources, limits, 2)] == limits
    if records is not None:
        assert records == [10, 4, 2]  # five sources; two, when three are done; one


def test_keys_outgrow_their_room(records, monkeypatch):
    model, sources = model_that_ends(1), sources_of(1)
    expected = search(model, sources, limits_of(sources), 3)
    monkeypatch.setattr(stepper, "ROOM", 3)
    assert search(model, sources, limits_of(sources), 3) == expected


def test_a_source_alone_is_the_same(records):
    model, sources, limits = model_that_ends(1, norm_order="post"), sources_of(1), [40, 3, 20, 50, 1]
    together = search(model, sources, limits, 3)
    assert together == [search(model, [x], [n], 3)[0] for x, n in zip(sources, limits, strict=True)]


def test_weights_are_used_as_they_are():
    model, sources = model_that_ends(0), sources_of(0)
    asked = Stepper(model)
    with torch.inference_mode():
        before = greedy_search(asked, sources, [9] * 5)
    with torch.no_grad():
        model.model.decoder.norm.weight.neg_()
    assert asked.is_current(model)
    assert not asked.is_current(model_that_ends(0))
    with torch.inference_mode():
        assert greedy_search(asked, sources, [9] * 5) != before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_tokens_on_a_gpu(fields, beam, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    model, sources = model_that_ends(0, **fields), sources_of(0)
    expected = search(model, sources, limits_of(sources), beam)
    records, recording = [], StepCache._record
    monkeypatch.setattr(StepCache, "_record", lambda *args: records.append(1) or recording(*args))
    assert search(model.cuda(), sources, limits_of(sources), beam) == expected
    assert bool(records) is (fields.get("positions") != "learned")
