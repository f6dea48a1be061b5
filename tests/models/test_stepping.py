"""Recorded decoding steps: the same tokens and logits as steps that are not."""

import pytest
import torch

from reluformer.models import stepping
from reluformer.models.reluformer import ReLUFormerForConditionalGeneration
from reluformer.models.stepping import StepCache
from tests.models.test_reluformer import VARIANTS, batch, generate, make

BEAMS = [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}]


class _Recording:
    """Stands in for a CUDA graph: what it recorded runs again, with the host believing that it only records."""

    def __init__(self, cache, run):
        self.cache, self.run = cache, run

    def replay(self):
        self.cache.store.recording = True
        self.cache._logits = self.run()
        self.cache.store.recording = False


def record(cache, ids, decode):
    """In place of ``StepCache._record``."""
    cache._ids = ids.clone()
    cache._graph = _Recording(cache, lambda: decode(cache._ids))


@pytest.fixture
def recorded(monkeypatch):
    """Lets the CPU go the way of the GPU; counts the steps."""
    steps = []
    step = StepCache.step
    monkeypatch.setattr(StepCache, "_record", record)
    monkeypatch.setattr(StepCache, "step", lambda *args: steps.append(1) or step(*args))
    monkeypatch.setattr(ReLUFormerForConditionalGeneration, "_can_record", lambda self: bool(steps))
    return steps


def assert_same(first, second, tolerance=1e-4):
    assert first[0].tolist() == second[0].tolist()
    torch.testing.assert_close(first[1], second[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", BEAMS, ids=str)
@pytest.mark.parametrize("fields", [{}, {"activation": "softmax"}, *VARIANTS[-5:]], ids=str)
def test_computes_the_same(fields, options, recorded):
    model, inputs = make(**fields), batch()
    expected = generate(model, inputs, **options)
    assert not recorded
    recorded.append(1)  # from here on
    assert_same(generate(model, inputs, **options), expected)
    assert len(recorded) == 1 + 7  # the first of eight tokens is not a step


def test_keys_move_when_there_is_no_room(recorded, monkeypatch):
    model, inputs = make(), batch()
    expected = generate(model, inputs, num_beams=2)
    monkeypatch.setattr(stepping, "ROOM", 3)
    recorded.append(1)
    assert_same(generate(model, inputs, num_beams=2), expected)


def test_there_is_no_more_room_than_tokens_can_come():
    """A batch of thousands of short sentences would fill a GPU with room that nothing ever uses."""
    found = make().generate(**batch(), max_new_tokens=6, return_dict_in_generate=True)
    assert found.past_key_values.store.tensor.shape[-2] == 7


@pytest.mark.parametrize("shared", [1, 2, 5])
@pytest.mark.parametrize("recorded", [False, True])
def test_rows_follow_their_beams(recorded, shared):
    """Against keys that are all copied at every step: whatever the beams do, also when all go on from one."""
    torch.manual_seed(0)
    sources, layers = 3, 2
    store = stepping._Store(layers, recorded, room=4, shared=shared)
    plain = torch.empty(layers, 2, sources * shared, 1, 0, 2)
    for step in range(40):
        new = torch.randn(layers, 2, sources * shared, 1, 1, 2)
        plain = torch.cat([plain, new], dim=-2)
        for layer in range(layers):
            store.write(layer, *new[layer])
        many = 1 if step % 7 == 3 else shared
        parents = torch.randint(many, (sources, shared)) if step % 3 else torch.arange(shared).expand(sources, -1)
        rows = (parents + shared * torch.arange(sources)[:, None]).flatten()
        plain = plain.index_select(2, rows)
        store.reorder(rows)
        assert torch.equal(store.used(), plain)


def test_what_beams_have_in_common_stays_where_it_is():
    kin = stepping._Kin(rows=6, shared=3, device=torch.device("cpu"))
    assert kin.follow(torch.tensor([0, 0, 0, 3, 3, 3]), seen=1) == 0  # nobody knows yet what they share
    assert kin.follow(torch.tensor([0, 1, 2, 3, 4, 5]), seen=2) == 2  # nobody moves
    assert (
        kin.follow(torch.tensor([0, 0, 2, 3, 4, 5]), seen=3) == 1
    )  # the second and the first have one token in common
    assert kin.follow(torch.tensor([1, 0, 2, 3, 4, 5]), seen=7) == 3  # by now three
    assert kin.follow(torch.tensor([0, 1, 1, 3, 4, 5]), seen=8) == 1  # but not with the third


def test_an_eager_call_goes_on_with_the_same_cache(recorded):
    """Somebody who asks for hidden states gets them: that step is simply not recorded."""
    model, inputs = make(), batch()
    plain = generate(model, inputs)
    recorded.append(1)
    assert_same(generate(model, inputs, output_hidden_states=True), plain)
    assert len(recorded) == 1


@pytest.mark.parametrize("chosen", [{"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_who_chooses_a_cache_gets_it(chosen, recorded):
    model, inputs = make(), batch()
    recorded.append(1)
    generate(model, inputs, **chosen)
    assert len(recorded) == 1


def test_a_cache_can_be_looked_at_and_gone_on_with():
    """What ``generate`` returns is a cache like others: keys of all tokens but the last, and room for the next."""
    model, inputs = make(), batch()
    out = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True)
    cache = out.past_key_values
    assert isinstance(cache, StepCache)
    assert cache.get_seq_length() == 4
    assert cache.self_attention_cache.layers[0].keys.shape[2] == 4
    with torch.no_grad():
        more = model(**inputs, decoder_input_ids=out.sequences[:, -1:], past_key_values=cache).logits
        whole = model(**inputs, decoder_input_ids=out.sequences).logits[:, -1:]
    torch.testing.assert_close(more, whole, atol=1e-4, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="cannot be cropped"):
        cache.crop(1)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_cache_that_was_reset_begins_again(is_recorded, recorded):
    model = make()
    cache = StepCache(model.config.decoder_layers, is_recorded, padded=True)
    for rows in (3, 2):  # of another batch
        source = {name: x[:rows] for name, x in batch().items()}
        ids = source["input_ids"][:, :4]
        read = model.get_encoder()(**source)
        whole = model(**source, decoder_input_ids=ids, use_cache=False).logits
        with torch.no_grad():
            for i in range(4):
                step = {"decoder_input_ids": ids[:, i : i + 1], "encoder_outputs": read, "past_key_values": cache}
                found = model(attention_mask=source["attention_mask"], **step).logits
                torch.testing.assert_close(found, whole[:, i : i + 1], atol=1e-4, rtol=1e-4)
        assert cache.get_seq_length() == 4
        cache.reset()
        assert cache.get_seq_length() == 0
        assert cache.self_attention_cache.layers[0].keys is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("options", BEAMS, ids=str)
@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_computes_the_same_on_a_gpu(fields, options, monkeypatch):
    if fields.get("activation") in ("sparsemax", "entmax15"):
        pytest.importorskip("entmax")
    model, inputs = make(**fields).cuda(), {name: x.cuda() for name, x in batch().items()}
    steps, step = [], StepCache.step
    monkeypatch.setattr(StepCache, "step", lambda *args: steps.append(1) or step(*args))
    found = generate(model, inputs, **options)
    assert bool(steps) is (fields.get("positions") != "learned")
    monkeypatch.setattr(type(model), "_can_record", lambda self: False)
    assert_same(found, generate(model, inputs, **options), 1e-3)
