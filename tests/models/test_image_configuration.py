import pytest
import torch
from transformers import AutoConfig, ViTConfig, ViTForImageClassification

from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig
from reluformer.models.image_configuration import SIZES


def test_survives_saving(tmp_path):
    config = ReLUFormerImageConfig.preset(
        "reluformer-digits",
        encoder_self={"alpha": 0.5, "query_key_norm": True},
        ffn={"activation": "relu6", "norm": "gated"},
        image_size=(4, 6),
        regulariser={"mass": 0.1},
    )
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, ReLUFormerImageConfig)
    assert again.to_diff_dict() == config.to_diff_dict()
    assert (again.memory("encoder_self").alpha, again.memory("ffn").activation) == (0.5, "relu6")
    assert (again.edges, again.tokens, again.num_labels) == ((4, 6), 7, 10)


@pytest.mark.parametrize("size", SIZES)
def test_presets_of_a_size_differ_in_the_memories_of_their_attention_alone(size):
    softmax, relu = (ReLUFormerImageConfig.preset(f"{x}-{size}").to_dict() for x in ("transformer", "reluformer"))
    assert {name for name in softmax if softmax[name] != relu[name]} == {"encoder_self"}


@pytest.mark.parametrize(
    ("size", "width", "depth", "heads", "patch"),
    [("s32", 384, 12, 6, 32), ("s16", 384, 12, 6, 16), ("b32", 768, 12, 12, 32), ("b16", 768, 12, 12, 16)]
    + [("l16", 1024, 24, 16, 16)],
)
def test_presets_have_the_sizes_of_vision_transformers(size, width, depth, heads, patch):
    with torch.device("meta"):
        model = ReLUFormerForImageClassification(ReLUFormerImageConfig.preset(f"transformer-{size}"))
        stock = ViTForImageClassification(
            ViTConfig(
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                patch_size=patch,
            )
        )
    ours, theirs = (sum(p.numel() for p in x.parameters()) for x in (model, stock))
    assert ours == theirs - width  # the class token needs no position


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_self": {"activation": "rely"}}, r"encoder_self\.activation must be one of relu, .*, got 'rely'"),
        ({"ffn": {"width": 3}}, r"ffn\.width is no memory setting; there are .*"),
        ({"patch_size": 5}, r"image_size must be a multiple of patch_size = 5, got 224"),
        ({"patch_size": 0}, r"patch_size must be an int >= 1, got 0"),
        ({"image_size": 8}, r"image_size must be an int >= 16, got 8"),
        ({"image_size": [32, 32, 3]}, r"image_size must be an int, or a height and a width, got \[32, 32, 3\]"),
        ({"channels": "RGB"}, r"channels must be an int >= 1, got 'RGB'"),
        ({"pooling": "max"}, r"pooling must be one of class, mean, got 'max'"),
        ({"layers": -1}, r"layers must be an int >= 0, got -1"),
        ({"heads": 5}, r"heads must divide d_model = 384, got 5"),
        ({"norm_eps": 0.0}, r"norm_eps must be a positive number, got 0\.0"),
        ({"norm_eps": float("inf")}, "norm_eps must be a positive number, got inf"),
        ({"dropout": 1.0}, r"dropout must be a number from 0 to below 1, got 1\.0"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        ReLUFormerImageConfig(**fields)


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match=r"preset must be one of transformer-digits, .*, got 'reluformer-h14'"):
        ReLUFormerImageConfig.preset("reluformer-h14")
