"""The search finds the tokens that ``generate`` finds."""

import pytest
import torch
from transformers import LogitsProcessorList

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.translation.engine import Engine, beam_search, greedy_search, keys
from reluformer.translation.engine.search import _largest
from reluformer.translation.translator import _Limits, _until_end
from tests.translation.engine.test_model import KINDS, everywhere, padded

END = 2


def sources_of(seed: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [[*torch.randint(5, 60, (n,), generator=draw).tolist(), END] for n in (5, 17, 9, 30, 1)]


def model_that_ends(seed: int, family: str = "reluformer", **fields):
    """A random model to which the end is likelier than to others: some hypotheses end early, some never."""
    torch.manual_seed(seed)
    model = ReLUFormerForConditionalGeneration(
        ReLUFormerConfig.preset(f"{family}-tiny", vocab_size=60, **fields)
    ).eval()
    with torch.no_grad():
        model.model.shared.weight[END] *= 1.5 + seed % 3
        for name, x in model.named_parameters():
            if name.endswith("memory.bias"):  # of scores, one per head, all alike at first
                x.add_(torch.linspace(-0.5, 0.5, len(x)))
    return model


def generated(model, sources: list[list[int]], limits: list[int], beam: int, penalty: float) -> list[list[int]]:
    options = {"num_beams": beam, "do_sample": False, "max_new_tokens": max(limits)}
    if beam > 1:
        options |= {"length_penalty": penalty, "early_stopping": False}
    limiting = LogitsProcessorList([_Limits(torch.tensor(limits), beam)])
    rows = model.generate(**padded(sources), logits_processor=limiting, **options)
    return [_until_end(row[1:]) for row in rows.tolist()]


@pytest.mark.parametrize("family", ["reluformer", "transformer"])
@pytest.mark.parametrize(("beam", "penalty"), [(1, 1.0), (2, 1.0), (5, 1.0), (3, 0.0), (3, -0.7), (4, 2.5)])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_tokens(compiled: bool, seed: int, beam: int, penalty: float, family: str) -> None:
    model, sources = model_that_ends(seed, family, norm_order=("pre", "post")[seed % 2]), sources_of(seed)
    limits = [2 * len(x) + 16 for x in sources]
    expected = generated(model, sources, limits, beam, penalty)
    engine = Engine(model, compiled=compiled)
    with torch.inference_mode():
        found = (
            greedy_search(engine, sources, limits) if beam == 1 else beam_search(engine, sources, limits, beam, penalty)
        )
    assert found == expected


@pytest.mark.parametrize("attention", KINDS, ids=str)
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_tokens_of_every_kind(attention, beam: int) -> None:
    """Long enough to outgrow the first room for keys, and to drop some; sources end at different times."""
    model, sources = model_that_ends(0, **everywhere(attention)), sources_of(0)
    limits = [2 * len(x) + 16 for x in sources]
    expected = generated(model, sources, limits, beam, 1.0)
    engine = Engine(model)
    with torch.inference_mode():
        found = greedy_search(engine, sources, limits) if beam == 1 else beam_search(engine, sources, limits, beam)
    assert found == expected
    assert max(map(len, found)) > keys.ROOM
    assert len(set(map(len, found))) > 1


def test_some_of_them_end_early_and_some_never() -> None:
    """The test above is one of both."""
    lengths = set()
    for seed in range(3):
        model, sources = model_that_ends(seed, norm_order=("pre", "post")[seed % 2]), sources_of(seed)
        limits = [2 * len(x) + 16 for x in sources]
        found = beam_search(Engine(model), sources, limits, 5)
        lengths |= {len(x) == limit for x, limit in zip(found, limits, strict=True)}
        assert all(x[-1] == END and END not in x[:-1] for x in found)
    assert lengths == {True, False}


@pytest.mark.parametrize("beam", [1, 3])
def test_a_source_alone_is_the_same(beam: int) -> None:
    model, sources = model_that_ends(1, norm_order="post"), sources_of(1)
    engine, limits = Engine(model), [40, 3, 20, 50, 1]

    def search(sources, limits):
        return greedy_search(engine, sources, limits) if beam == 1 else beam_search(engine, sources, limits, beam)

    together = search(sources, limits)
    assert together == [search([x], [n])[0] for x, n in zip(sources, limits, strict=True)]
    assert all(len(x) <= n for x, n in zip(together, limits, strict=True))


@pytest.mark.parametrize("beam", [1, 3])
def test_a_broken_model_comes_to_an_end(beam: int) -> None:
    model = model_that_ends(0)
    with torch.no_grad():
        model.model.decoder.norm.weight.fill_(torch.nan)
    engine, sources = Engine(model), sources_of(0)
    search = greedy_search if beam == 1 else lambda *arguments: beam_search(*arguments, beam)
    assert [x[-1] for x in search(engine, sources, [9] * 5)] == [END] * 5


@pytest.mark.parametrize("size", [60, 640, 705, 8000])
def test_the_largest_of_long_rows(size: int) -> None:
    x = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    x[:, 3] = -torch.inf
    for found, expected in zip(_largest(x, 10), x.topk(10), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_fewest_tokens(beam: int) -> None:
    model, sources = model_that_ends(2), sources_of(2)
    engine, limits = Engine(model), [12] * 5
    search = greedy_search if beam == 1 else lambda *a, **k: beam_search(*a, beam, **k)
    assert [len(x) for x in search(engine, sources, limits, fewest=12)] == limits
