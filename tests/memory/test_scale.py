"""Gamma as a part of a model: what precision it keeps, wherever the model goes."""

import math

import pytest
import torch
from torch import nn

from reluformer.memory import MemorySettings
from reluformer.memory.scale import Gamma
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

LARGE = math.exp(19.81)  # that of the eighth power with a bias: its logarithm, rounded to bfloat16, is 19.75


@pytest.mark.parametrize("kind", ["learned", "shared", "fixed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_spares_it(kind, dtype):
    gamma = Gamma(MemorySettings(gamma=kind), heads=2)
    gamma.start_at(LARGE)
    nn.Sequential(gamma).to(dtype)
    torch.testing.assert_close(gamma(), torch.full((2,), LARGE))
    assert gamma.double()().dtype == torch.float64
    assert gamma.to("meta").log_gamma.is_meta


def test_a_model_is_loaded_with_it_whole(tmp_path):
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", vocab_size=20))
    memory = model.model.encoder.layers[0].self_attention.memory
    memory.gamma.start_at(LARGE)
    model.save_pretrained(tmp_path)
    again = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    same = again.model.encoder.layers[0].self_attention.memory
    assert same.query.weight.dtype == torch.bfloat16
    assert torch.equal(same.gamma(), memory.gamma())
