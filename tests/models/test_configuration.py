import pytest
from transformers import AutoConfig

from reluformer.models import ReLUFormerConfig
from reluformer.models.configuration import FAMILIES, SITES, SIZES


def test_survives_saving(tmp_path):
    config = ReLUFormerConfig.preset(
        "reluformer-tiny", vocab_size=99, cross={"alpha": 1.0, "bias": 0.5}, regulariser={"mass": 0.1}, key_heads=2
    )
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, ReLUFormerConfig)
    assert again.to_diff_dict() == config.to_diff_dict()
    assert again.memory("cross").alpha == 1.0
    assert again.memory("cross").activation == "relu"


def test_what_was_saved_can_be_changed_in_part(tmp_path):
    ReLUFormerConfig.preset("transformer-tiny", vocab_size=99, regulariser={"mass": 0.1}).save_pretrained(tmp_path)
    changed = AutoConfig.from_pretrained(tmp_path, cross={"slots": 4}, regulariser={"entropy": 0.2}, dropout=0.3)
    assert (changed.memory("cross").activation, changed.memory("cross").slots) == ("softmax", 4)
    assert (changed.regulariser["mass"], changed.regulariser["entropy"]) == (0.1, 0.2)
    assert (changed.dropout, changed.vocab_size) == (0.3, 99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cross": {"activaton": "relu"}}, r"cross\.activaton is no memory setting"),
        ({"cross": "relu"}, r"cross must be a mapping of settings, got 'relu'"),
        ({"heads": 3}, r"heads must divide d_model = 64, got 3"),
        ({"dropout": 1.5}, r"dropout must be a number from 0 to below 1, got 1\.5"),
    ],
)
def test_changes_of_what_was_saved_are_checked(changes, message, tmp_path):
    ReLUFormerConfig.preset("transformer-tiny").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        ReLUFormerConfig.from_pretrained(tmp_path, **changes)


@pytest.mark.parametrize("size", SIZES)
def test_presets_of_a_size_differ_in_their_memories_alone(size):
    softmax, *others = (ReLUFormerConfig.preset(f"{family}-{size}").to_dict() for family in FAMILIES)
    for other in others:
        assert {name for name in softmax if softmax[name] != other[name]} == set(SITES[:3])


def test_the_small_preset_is_the_paper_s_size():
    config = ReLUFormerConfig.preset("reluformer-small", vocab_size=16000)
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.heads) == (6, 6, 512, 4)
    assert config.memory("ffn").slots == 1024


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cross": {"activation": "rely"}}, r"cross\.activation must be one of relu, .*, got 'rely'"),
        ({"encoder_self": {"alpha": -0.5}}, r"encoder_self\.alpha must be a number >= 0, got -0\.5"),
        ({"ffn": {"width": 3}}, r"ffn\.width is no memory setting; there are .*"),
        ({"ffn": "relu"}, r"ffn must be a mapping of settings, got 'relu'"),
        ({"ffn": {"query_key_norm": True}}, r"ffn\.query_key_norm must be False"),
        ({"ffn": {"centred": True}}, r"ffn\.centred must be False"),
        ({"ffn": {"constant_channel": True, "norm": "mass", "bias": 1.0}}, r"ffn\.constant_channel must be False"),
        ({"ffn": {"sentence_bias": 1.0}}, r"ffn\.sentence_bias must be None: it is a part of attention, got 1\.0"),
        ({"ffn": {"slot_activation": "relu"}}, r"ffn\.slot_activation must be None: it is a part of attention"),
        ({"cross": {"activation": "softmax", "centred": True}}, r"cross\.centred must be False for softmax"),
        ({"regulariser": {"mass": -1}}, r"regulariser\.mass must be a number >= 0, got -1"),
        ({"regulariser": {"mass": float("inf")}}, r"regulariser\.mass must be a number >= 0, got inf"),
        ({"regulariser": {"weight": 1}}, r"regulariser\.weight is no setting; there are mass, entropy, ceiling"),
        ({"heads": 3}, r"heads must divide d_model = 512, got 3"),
        ({"key_heads": 3}, r"key_heads must divide heads = 8, got 3"),
        ({"norm_order": "middle"}, r"norm_order must be one of pre, post, got 'middle'"),
        ({"positions": "none"}, r"positions must be one of sinusoidal, learned, rotary, got 'none'"),
        ({"dropout": 1.0}, r"dropout must be a number from 0 to below 1, got 1\.0"),
        ({"position_shift": -1}, r"position_shift must be an int >= 0, got -1"),
        (
            {"position_shift": 5, "positions": "rotary"},
            r"position_shift must be 0 unless .* sinusoidal, got 5",
        ),
        ({"d_model": -4}, r"d_model must be an int >= 1, got -4"),
        ({"vocab_size": 0}, r"vocab_size must be an int >= 1, got 0"),
        ({"use_cache": "x"}, r"use_cache must be True or False, got 'x'"),
        ({"tie_word_embeddings": 1}, r"tie_word_embeddings must be True or False, got 1"),
        ({"encoder_layers": -1}, r"encoder_layers must be an int >= 0, got -1"),
        ({"d_model": 24, "positions": "rotary"}, r"positions 'rotary' needs an even head dimension, got 3"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        ReLUFormerConfig(**fields)


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match=r"preset must be one of transformer-tiny, .*, got 'reluformer-huge'"):
        ReLUFormerConfig.preset("reluformer-huge")
    with pytest.raises(ValueError, match=r"preset must be one of transformer-tiny, .*, got 3"):
        ReLUFormerConfig.preset(3)
