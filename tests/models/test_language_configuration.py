import pytest
from transformers import AutoConfig

from reluformer.models import ReLUFormerConfig, ReLUFormerImageConfig, ReLUFormerLanguageConfig


def test_survives_saving(tmp_path):
    config = ReLUFormerLanguageConfig.preset("reluformer-lm-forget-pro-small", decoder_self={"forget": 2.5}, layers=3)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, ReLUFormerLanguageConfig)
    assert again.memory("decoder_self") == config.memory("decoder_self")
    assert (again.memory("decoder_self").forget, again.layers, again.positions) == (2.5, 3, "none")


@pytest.mark.parametrize("name", ReLUFormerLanguageConfig.families)
def test_presets_say_what_they_are(name):
    config = ReLUFormerLanguageConfig.preset(f"{name}-tiny")
    memory = config.memory("decoder_self")
    assert memory.activation == ("relu" if name.startswith("reluformer") else "softmax")
    assert (memory.forget is not None) == ("forget" in name)
    parts = (memory.query_key_norm, memory.token_shift, memory.output_gate, memory.norm == "rms")
    assert set(parts) == {name.endswith("pro")}


def test_a_gate_does_without_positions_unless_told_otherwise():
    assert ReLUFormerLanguageConfig.preset("transformer-lm-tiny").positions == "rotary"
    assert ReLUFormerLanguageConfig.preset("transformer-lm-forget-tiny").positions == "none"
    assert ReLUFormerLanguageConfig.preset("transformer-lm-forget-tiny", positions="learned").positions == "learned"
    assert ReLUFormerLanguageConfig(decoder_self={"forget": 0.0}).positions == "none"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": -1}, "layers must be an int >= 0, got -1"),
        ({"vocab_size": 0}, "vocab_size must be an int >= 1, got 0"),
        ({"positions": "absolute"}, "positions must be one of none, sinusoidal, learned, rotary, got 'absolute'"),
        ({"positions": "rotary", "d_model": 12, "heads": 4}, "positions 'rotary' needs an even head dimension, got 3"),
        ({"decoder_self": {"forget": True}}, r"decoder_self\.forget must be None or a number, got True"),
        ({"decoder_self": {"token_shift": 1}}, r"decoder_self\.token_shift must be True or False, got 1"),
        ({"decoder_self": {"forget": 1.0, "slots": 4}}, r"decoder_self\.forget must be None beside slots"),
        ({"ffn": {"forget": 1.0}}, r"ffn\.forget must be None beside slots"),
        ({"ffn": {"token_shift": True}}, r"ffn\.token_shift must be False: it is a part of attention, got True"),
        ({"ffn": {"output_gate": True}}, r"ffn\.output_gate must be False: it is a part of attention, got True"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        ReLUFormerLanguageConfig(**fields)


def test_an_unknown_preset_is_told_those_there_are():
    with pytest.raises(ValueError, match=r"one of transformer-lm-tiny, .*reluformer-lm-forget-pro-base, got 'relu-lm'"):
        ReLUFormerLanguageConfig.preset("relu-lm")


@pytest.mark.parametrize("config", [ReLUFormerConfig, ReLUFormerImageConfig])
def test_models_whose_caches_cannot_keep_them_refuse_what_needs_an_order(config):
    with pytest.raises(ValueError, match=r"encoder_self\.forget must be None: only .*, got 0\.0"):
        config(encoder_self={"forget": 0.0})
    with pytest.raises(ValueError, match=r"encoder_self\.token_shift must be False: only .*, got True"):
        config(encoder_self={"token_shift": True})
