"""Watching: where the memories stand, what is padding, and nothing left behind."""

import pytest
import torch
from torch import nn

from reluformer.memory import Attention, KeyValueMemory, MemorySettings
from reluformer.report import memory_report
from reluformer.report.watch import Seen, places, watch
from tests.report.models import WIDTH, Translator, batch, padded


def seen(model: nn.Module, data: dict, **options) -> list[Seen]:
    found: list[Seen] = []
    watch(model, data, found.append, **options)
    return found


def masks(model: nn.Module, data: dict, **options) -> dict[str, torch.Tensor | None]:
    return {call.place.name: call.query_mask for call in seen(model, data, **options)}


def test_places():
    def memory() -> KeyValueMemory:
        return KeyValueMemory(WIDTH, MemorySettings(slots=2))

    def holding(**modules: nn.Module) -> nn.Module:
        return nn.ModuleDict(modules)

    model = holding(
        model=holding(encoder=holding(layers=nn.ModuleList([holding(ffn=holding(memory=memory())) for _ in range(2)]))),
        stack=nn.ModuleList([memory()]),
        other=memory(),
    )
    model.base_model_prefix = "model"
    assert [(p.site, p.layer) for p in places(model).values()] == [
        ("encoder.ffn", 0),
        ("encoder.ffn", 1),
        ("stack", 0),
        ("other", 0),
    ]
    assert [p.site for p in places(memory()).values()] == ["KeyValueMemory"]


@pytest.mark.parametrize("told", [True, False])
def test_each_side_has_its_own_padding(told):
    """Of one shape, and even so not taken for each other."""
    data = batch((6, 3), (2, 6))
    for name, mask in masks(Translator(told=told), data).items():
        side = "decoder_attention_mask" if name.startswith("decoder") else "attention_mask"
        assert torch.equal(mask, data[side].bool()), name


def test_labels_say_what_the_decoder_pads():
    class Trained(Translator):
        def forward(self, labels, **options):
            return super().forward(**options)

    data = batch((6, 3), (2, 6))
    mask = data.pop("decoder_attention_mask").bool()
    data["labels"] = data["decoder_input_ids"].masked_fill(~mask, -100)
    for name, found in masks(Trained(), data).items():
        assert torch.equal(found, mask if name.startswith("decoder") else data["attention_mask"].bool()), name


def test_a_decoder_without_a_mask_does_not_take_the_encoder_s():
    data = batch((6, 3), (2, 6))
    del data["decoder_attention_mask"]
    assert all((mask is None) == name.startswith("decoder") for name, mask in masks(Translator(), data).items())


def test_query_mask_is_for_who_has_no_other():
    module, x = KeyValueMemory(WIDTH, MemorySettings(slots=4)), torch.randn(2, 5, WIDTH)
    assert torch.equal(masks(module, {"x": x}, query_mask=padded(5, 2))[""], padded(5, 2))
    assert masks(module, {"x": x}, query_mask=padded(4, 2))[""] is None


def test_keys_are_those_of_the_cache_and_enter_it_once():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(WIDTH, 2, MemorySettings(), causal=True)
            self.kept = []

        def forward(self, x):
            def store(make):
                self.kept.append(make())
                return tuple(torch.cat(parts, dim=2) for parts in zip(*self.kept, strict=True))

            return self.attention(x, store=store)

    model = Cached()
    for steps in (3, 1):
        (call,) = seen(model, {"x": torch.randn(1, steps, WIDTH)})
    assert len(model.kept) == 2
    assert call.lookup.k.shape[2] == 4
    (site,) = memory_report(model, {"x": torch.randn(1, 1, WIDTH)}).sites
    assert len(model.kept) == 3
    assert all(x.fewest == 5 for head in site.heads for x in head.by_length)


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_is_left_behind(broken):
    model = Translator().train()
    data = batch()
    if broken:
        data["decoder_input_ids"] = data["decoder_input_ids"] + 1000
        with pytest.raises(IndexError):
            memory_report(model, data)
    else:
        memory_report(model, data)
    assert model.training
    assert all(x.grad is None for x in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert "_call" not in vars(module)


def test_dropout_is_off():
    module = KeyValueMemory(WIDTH, MemorySettings(slots=8), dropout=0.5).train()
    x = torch.randn(2, 5, WIDTH)
    (call,) = seen(module, {"x": x})
    torch.testing.assert_close(call.out, module.eval()(x))


def test_a_model_without_memories_is_refused():
    with pytest.raises(ValueError, match="model must hold an Attention or a KeyValueMemory, got Linear without"):
        memory_report(nn.Linear(2, 2), {})


def test_a_batch_is_a_mapping():
    with pytest.raises(TypeError, match="batch must be a mapping of what the model takes, got Tensor"):
        memory_report(Translator(), torch.zeros(1))
