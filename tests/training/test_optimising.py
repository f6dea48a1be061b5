import pytest

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.training.optimising import ParameterKinds
from reluformer.training.recipe import Optimiser


def model_of(preset, **fields):
    return ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset(preset, vocab_size=32, **fields))


def names(model, group):
    known = {id(x): name for name, x in model.named_parameters()}
    return {known[id(x)] for x in group["params"]}


def test_every_parameter_learns_once():
    model = model_of("reluformer-tiny", cross={"bias": 1.0}, decoder_self={"sentence_bias": 1.0})
    groups = ParameterKinds.of(model).groups(model, Optimiser(lr=2.0, gamma_lr=5.0, weight_decay=0.1))
    matrices, vectors, scales = (names(model, group) for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]
    assert [group.get("lr") for group in groups] == [None, None, 10.0]
    assert matrices | vectors | scales == {name for name, _ in model.named_parameters()}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert "model.shared.weight" in matrices
    assert all(name.endswith(("norm.weight", "bias")) for name in vectors)
    assert sum(name.endswith("log_gamma") for name in scales) == 6
    assert sum(name.endswith("cross_attention.memory.bias") for name in scales) == 2
    assert sum(name.endswith("self_attention.memory.sentence_bias") for name in scales) == 2
    assert len(scales) == 10


def test_the_twin_has_no_scales():
    model = model_of("transformer-tiny")
    assert len(ParameterKinds.of(model).groups(model, Optimiser())) == 2
    assert list(ParameterKinds.of(model).find_gammas(model)) == []


def test_gammas_are_found():
    model = model_of("reluformer-tiny")
    found = list(ParameterKinds.of(model).find_gammas(model))
    assert len(found) == 6
    assert found[0].tolist() == pytest.approx([model.model.encoder.layers[0].self_attention.memory.gamma.start] * 4)
