"""A model that knows where sentences begin: however it is run, on both sides the same sentences."""

import pytest
import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.sentences import of_source, of_target
from reluformer.models.stepping import StepCache
from reluformer.report import attention_maps
from reluformer.translation.engine import Engine, Stepper, beam_search, greedy_search, obstacle
from tests.models.test_stepping import assert_same, record

VOCAB, SEP, END = 40, 4, 2
SITES = ("encoder_self", "decoder_self", "cross")


def make(family="reluformer-power", bias=2.0, **fields):
    torch.manual_seed(0)
    sites = {site: {"sentence_bias": bias} | fields.pop(site, {}) for site in SITES}
    fields = {"vocab_size": VOCAB, "positions": "rotary", "tie_word_embeddings": False} | sites | fields
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset(f"{family}-tiny", **fields))
    torch.nn.init.normal_(model.lm_head.weight)
    with torch.no_grad():
        model.lm_head.weight[SEP] *= 2  # a likely token, so that sentences end while the model writes
    return model.eval()


def tokens(*rows):
    return torch.tensor(rows)


SOURCE = tokens([7, 8, SEP, 9, 10, 11, SEP, 12, END, 0], [5, SEP, 6, 13, SEP, 14, SEP, 15, 16, END])
TARGET = tokens([1, 20, 21, SEP, 22, SEP, 23], [1, SEP, 24, 25, 26, SEP, 27])
FAMILIES = ["reluformer", "reluformer-power", "transformer"]


def test_a_separator_ends_a_sentence_of_the_source_and_begins_one_of_the_target():
    assert of_source(SOURCE[:1], SEP).tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]
    assert of_target(TARGET[:1], SEP).tolist() == [[0, 0, 0, 1, 1, 2, 2]]


def test_an_encoder_reads_every_sentence_by_itself_if_others_lose_all():
    """But for the token that ends it. Rotary positions tell distances alone."""
    model = make(bias=1e3)
    source = SOURCE[:1, :9]  # without the padding
    read = model.get_encoder()(source).last_hidden_state
    for begin, end in ((0, 3), (3, 7), (7, 9)):
        alone = model.get_encoder()(source[:, begin:end]).last_hidden_state
        torch.testing.assert_close(read[:, begin:end], alone, atol=1e-3, rtol=1e-3)
    other = make(bias=0.0)
    together = other.get_encoder()(source).last_hidden_state[:, 3:7]
    assert not torch.allclose(together, other.get_encoder()(source[:, 3:7]).last_hidden_state, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()), lambda: StepCache(2)])
def test_step_by_step_as_all_at_once(family, cache):
    model, mask = make(family), SOURCE != 0
    expected = model(SOURCE, mask, TARGET).logits
    read, past = model.get_encoder()(SOURCE, mask), cache()
    found = [
        model(None, mask, TARGET[:, i : i + 1], encoder_outputs=read, past_key_values=past).logits
        for i in range(TARGET.shape[1])
    ]
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-5, rtol=1e-5)
    several = EncoderDecoderCache(DynamicCache(), DynamicCache())
    first = model(None, mask, TARGET[:, :4], encoder_outputs=read, past_key_values=several).logits
    second = model(None, mask, TARGET[:, 4:], encoder_outputs=read, past_key_values=several).logits
    torch.testing.assert_close(torch.cat([first, second], 1), expected, atol=1e-5, rtol=1e-5)


def generate(model, **options):
    out = model.generate(
        SOURCE, attention_mask=SOURCE != 0, max_new_tokens=12, min_new_tokens=12, return_dict_in_generate=True,
        output_logits=True, sequence_bias={(SEP,): 8.0}, **options,
    )  # fmt: skip
    return out.sequences, torch.stack(out.logits, 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_every_cache(family, beams):
    model = make(family)
    expected = generate(model, num_beams=beams, use_cache=False)
    assert (expected[0] == SEP).sum() >= 2, "no sentence ends: the test would see nothing"
    assert_same(generate(model, num_beams=beams), expected)
    assert_same(generate(model, num_beams=beams, cache_implementation="dynamic"), expected)
    assert_same(generate(model, num_beams=beams, cache_implementation="static"), expected)


@pytest.mark.parametrize(("runs", "recorded"), [(Engine, False), (Stepper, False), (Stepper, True)])
@pytest.mark.parametrize("beam", [1, 3])
def test_our_searches_find_what_generate_finds(beam, runs, recorded, monkeypatch):
    monkeypatch.setattr(StepCache, "_record", record)
    monkeypatch.setattr(ReLUFormerForConditionalGeneration, "_can_record", lambda self: recorded)
    model = make()
    assert obstacle(model) is None
    sources = [[x for x in row if x] for row in SOURCE.tolist()]
    options = {"max_new_tokens": 12, "num_beams": beam} | ({"early_stopping": False} if beam > 1 else {})
    rows = model.generate(SOURCE, attention_mask=SOURCE != 0, **options)[:, 1:].tolist()
    with torch.inference_mode():
        if beam == 1:
            found = greedy_search(runs(model), sources, [12, 12])
        else:
            found = beam_search(runs(model), sources, [12, 12], beam)
    for row, own in zip(rows, found, strict=True):
        ended = row[: row.index(END) + 1] if END in row else [*row[:11], END]
        assert own[:11] == ended[:11]
    assert any(SEP in x for x in found)


def test_gradients_reach_the_loss_of_every_head():
    model = make().train()
    model(SOURCE, SOURCE != 0, labels=TARGET).loss.backward()
    biases = [x for name, x in model.named_parameters() if "sentence_bias" in name]
    assert len(biases) == 2 + 2 * 2
    assert all(x.grad is not None and bool(x.grad.any()) for x in biases)


def test_maps_show_what_is_left_of_other_sentences():
    for bias, visible in ((0.0, True), (1e3, False)):
        batch = {"input_ids": SOURCE[:1, :9], "decoder_input_ids": TARGET[:1]}
        (drawn,) = attention_maps(make(bias=bias), batch, ["decoder.cross_attention:1:2"])
        other = of_target(TARGET[:1], SEP)[0][:, None] != of_source(SOURCE[:1, :9], SEP)[0]
        assert bool((torch.as_tensor(drawn.weights)[other] > 0).any()) is visible


def test_survives_saving(tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    again = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path)
    assert again.config.memory("cross").sentence_bias == 2.0
    assert torch.equal(again(SOURCE, decoder_input_ids=TARGET).logits, model(SOURCE, decoder_input_ids=TARGET).logits)


def test_compiled_layers_compute_the_same():
    model = make()
    expected = model(SOURCE, decoder_input_ids=TARGET).logits
    model.compile_layers(backend="aot_eager")
    torch.testing.assert_close(model(SOURCE, decoder_input_ids=TARGET).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_source_s_sentences_come_from_its_tokens_or_with_its_states():
    model = make()
    read = model.get_encoder()(SOURCE)
    expected = model(SOURCE, decoder_input_ids=TARGET).logits
    plain = BaseModelOutput(last_hidden_state=read.last_hidden_state)
    assert torch.equal(model(SOURCE, encoder_outputs=plain, decoder_input_ids=TARGET).logits, expected)
    for given in (plain, tuple(plain.values())):
        expected = rf"encoder_outputs must be the output of this model's encoder.*got {type(given).__name__} without"
        with pytest.raises(ValueError, match=expected):
            model(encoder_outputs=given, decoder_input_ids=TARGET)
    with pytest.raises(ValueError, match="input_ids must be given to a model with a sentence_bias"):
        model(inputs_embeds=torch.randn(2, 5, 64), decoder_input_ids=TARGET)
    with pytest.raises(ValueError, match="decoder_input_ids must be given to a model with a sentence_bias"):
        model(SOURCE, decoder_inputs_embeds=torch.randn(2, 5, 64))


def test_a_cache_whose_keys_are_elsewhere_is_refused():
    past = EncoderDecoderCache(DynamicCache(), DynamicCache())
    past.self_attention_cache.offloading = True
    with pytest.raises(ValueError, match="past_key_values must not be offloaded"):
        make()(SOURCE, decoder_input_ids=TARGET, past_key_values=past)


def test_settings():
    with pytest.raises(ValueError, match=r"decoder_self\.sentence_bias must be a number beside that of cross"):
        ReLUFormerConfig.preset("reluformer-tiny", cross={"sentence_bias": 1.0})
    for separator in (None, -1, 40, "<sep>"):
        with pytest.raises(ValueError, match=r"sep_token_id must be a token below 40 beside encoder_self\."):
            ReLUFormerConfig(vocab_size=VOCAB, encoder_self={"sentence_bias": 1.0}, sep_token_id=separator)
    with pytest.raises(ValueError, match=r"encoder_self\.sentence_bias must be None unless .* 8 channels, got 4"):
        ReLUFormerConfig(d_model=16, heads=4, encoder_self={"sentence_bias": 1.0})
    only = {site: {"sentence_bias": None} for site in ("decoder_self", "cross")}
    model = make(**only)
    assert model(SOURCE, decoder_input_ids=TARGET).logits.shape == (2, 7, VOCAB)
