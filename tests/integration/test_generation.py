"""``generate`` of converted models: the cache, its kind and padding change nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reluformer.integration import convert
from tests.integration.stock import GENERATORS, SEQ2SEQ, batch_for, stock, tokens

STEPS = 8


@pytest.fixture(scope="module", params=GENERATORS)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(family):
    return convert(stock(family), batch=batch_for(family))


def generate(model, batch: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    """New tokens ``(B, STEPS)`` and the logits that they were taken from ``(steps, B * beams, vocabulary)``."""
    out = model.generate(
        **batch, min_new_tokens=STEPS, max_new_tokens=STEPS, do_sample=False, output_logits=True,
        return_dict_in_generate=True, **options,
    )  # fmt: skip
    return out.sequences[:, -STEPS:], torch.stack(out.logits)


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(one[0], other[0])
    torch.testing.assert_close(one[1], other[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}])
def test_the_cache_changes_nothing(family, model, beams, options):
    batch = tokens(9, 5, left=family == "llama")
    same(generate(model, batch, num_beams=beams), generate(model, batch, num_beams=beams, **options))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}])
def test_padding_changes_nothing(family, model, beams, options):
    batch = tokens(9, 5, left=family == "llama")
    together = generate(model, batch, num_beams=beams, **options)
    place = slice(-5, None) if family == "llama" else slice(5)
    alone = generate(model, {"input_ids": batch["input_ids"][1:, place]}, num_beams=beams, **options)
    same((together[0][1:], together[1][:, beams:]), alone)


def test_generation_follows_the_forward_pass(family, model):
    batch = tokens(9, 9)
    sequences, steps = generate(model, batch)
    if family in SEQ2SEQ:
        start = torch.full((2, 1), model.config.decoder_start_token_id)
        whole = model(**batch, decoder_input_ids=torch.cat([start, sequences[:, :-1]], 1)).logits
    else:
        whole = model(input_ids=torch.cat([batch["input_ids"], sequences[:, :-1]], 1)).logits[:, -STEPS:]
    torch.testing.assert_close(steps.transpose(0, 1), whole, rtol=1e-3, atol=1e-3)
