"""Stock vision transformers: converted in place, and read into a ReLUFormer."""

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from reluformer import convert, memory_report
from reluformer.integration import AttentionMemory, from_vit
from reluformer.memory import MemorySettings, calibrate
from reluformer.memory.settings import SOFTMAX_ATTENTION
from tests.integration.stock import stock


def vit(**changes):
    """A stock model in float64 whose every parameter matters: by default positions and biases are next to nothing."""
    torch.manual_seed(0)
    model = stock("vit", **changes).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def images(height=16, width=16, channels=3):
    return torch.randn(2, channels, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": False, "hidden_act": "relu"}, {"image_size": [8, 16], "patch_size": [4, 4], "num_channels": 1}],
    ids=str,
)
def test_with_softmax_it_computes_the_same(changes):
    model = vit(**changes)
    twin = from_vit(model)
    assert twin.config.memory("encoder_self") == SOFTMAX_ATTENTION
    pixels = images(*twin.config.edges, twin.config.channels)
    expected = model(pixels).logits
    torch.testing.assert_close(twin(pixels).logits, expected)
    single = images(*twin.config.edges, twin.config.channels).float()
    torch.testing.assert_close(twin.float()(single).logits, expected.float(), rtol=1e-4, atol=1e-4)


def test_with_softmax_it_computes_the_same_for_images_of_another_size():
    model = vit()
    pixels = images(24, 32)
    expected = model(pixels, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(from_vit(model)(pixels).logits, expected)


def test_gradients_are_those_of_the_stock_model():
    model = vit()
    twin = from_vit(model)
    labels = torch.tensor([0, 1])
    for x in (model, twin):
        x(images(), labels=labels).loss.backward()
    key, own = model.vit.layers[1].attention.k_proj, twin.model.layers[1].self_attention.memory.key
    torch.testing.assert_close(own.weight.grad, key.weight.grad)
    conv, linear = model.vit.embeddings.patch_embeddings.projection, twin.model.patches.project
    torch.testing.assert_close(linear.weight.grad, conv.weight.grad.flatten(1))


def test_relu_memories_start_at_unit_mass():
    twin = from_vit(vit(), {"alpha": 1.0})
    assert twin.config.memory("encoder_self") == MemorySettings(alpha=1.0)
    calibrate(twin, pixel_values=images())
    for site in memory_report(twin, {"pixel_values": images()}).sites:
        if site.kind == "attention":
            assert site.mean.mass == pytest.approx(1)


def test_stock_model_is_converted_in_place():
    model = convert(vit(), batch={"pixel_values": images()})
    assert type(model).__name__ == "ReLUViTForImageClassification"
    assert sum(isinstance(x, AttentionMemory) for x in model.modules()) == model.config.num_hidden_layers
    # The same weights, the same memories, another class: both ways to ReLU compute the same.
    twin = from_vit(vit(), MemorySettings())
    for here, there in zip(twin.model.layers, model.vit.layers, strict=True):
        here.self_attention.memory.gamma.log_gamma.data.copy_(there.attention.relu_memory.gamma.log_gamma)
    torch.testing.assert_close(twin(images()).logits, model(images()).logits)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ViTModel(stock("vit").config), "model must be a stock ViTForImageClassification, got ViTModel"),
        (convert(stock("vit")), "model must be a stock ViTForImageClassification, got ReLUViTForImageClassification"),
        (stock("vit", hidden_act="silu"), "hidden_act must be one of gelu, relu, got 'silu'"),
        (
            ViTForImageClassification(ViTConfig(**stock("vit").config.to_dict() | {"patch_size": [4, 8]})),
            r"patch_size must be square, got \[4, 8\]",
        ),
    ],
    ids=["no head", "converted", "another FFN", "oblong patches"],
)
def test_others_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        from_vit(model)
