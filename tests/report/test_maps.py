"""Maps: the weights of one sequence, its padding cut away, as chosen and as drawn."""

import re
from pathlib import Path

import pytest
import torch

from reluformer.report import AttentionMap, HeadChoice, attention_maps
from reluformer.report.figures import draw_map
from tests.report import brute
from tests.report.models import WIDTH, Translator, batch, padded
from tests.report.test_measure import attention


@pytest.mark.parametrize("sequence", [0, 1])
def test_weights_of_a_cross_map(sequence):
    module = attention("softmax", heads=4, key_heads=2, slots=2, bias=0.5)
    call = {
        "x": torch.randn(2, 4, WIDTH),
        "context": torch.randn(2, 6, WIDTH),
        "query_mask": padded(3, 4),
        "key_mask": padded(6, 5),
    }
    maps = attention_maps(module, call, ["Attention:0:*"], sequence=sequence)
    assert [m.head for m in maps] == [0, 1, 2, 3]
    one = {name: x[sequence, None] for name, x in call.items()}
    expected = brute.attention_rows(module, **one)
    for drawn in maps:
        torch.testing.assert_close(drawn.weights, torch.tensor(expected[drawn.head]))
        assert drawn.queries == [str(i) for i in range([3, 4][sequence])]
        assert drawn.keys == ["slot 0", "slot 1"] + [str(i) for i in range([6, 5][sequence])]
        assert drawn.visible.all()


def test_causal_map_shows_what_is_hidden():
    module, x = attention(causal=True), torch.randn(1, 5, WIDTH)
    (drawn,) = attention_maps(module, {"x": x}, [HeadChoice("Attention", 0, 1)], source_tokens=list("abcde"))
    assert torch.equal(drawn.visible, torch.ones(5, 5).tril().bool())
    for i, row in enumerate(brute.attention_rows(module, x)[1]):
        torch.testing.assert_close(drawn.weights[i, : i + 1], torch.tensor(row))
    assert drawn.queries == drawn.keys == list("abcde")


def test_pairs_by_head():
    module, x = attention(), torch.randn(2, 4, WIDTH)
    pairs = torch.rand(2, 2, 4, 4) < 0.6
    maps = attention_maps(module, {"x": x, "attn_mask": pairs}, ["*:*:*"], sequence=1)
    for drawn in maps:
        shown = pairs[1, drawn.head].any(0)
        assert torch.equal(drawn.visible, pairs[1, drawn.head][:, shown])


def test_tokens_belong_to_their_side():
    data = batch((7, 4), (5, 6))
    source, target = [f"s{i}" for i in range(7)], [f"t{i}" for i in range(6)]
    maps = attention_maps(
        Translator(), data, ["*:1:0", "decoder.cross:0:1"], sequence=1, source_tokens=source, target_tokens=target
    )
    names = {(m.site, m.layer, m.head): (m.queries, m.keys) for m in maps}
    assert names == {
        ("encoder.attention", 1, 0): (source[:4], source[:4]),
        ("decoder.cross", 0, 1): (target, source[:4]),
        ("decoder.attention", 1, 0): (target, target),
        ("decoder.cross", 1, 0): (target, source[:4]),
    }


@pytest.mark.parametrize(
    ("heads", "options", "words"),
    [
        (["cross"], {}, "heads must be site:layer:head, * for all, such as encoder.attention:0:1, got 'cross'"),
        (["a:b:0"], {}, "heads must be site:layer:head"),
        (
            ["encoder.attention:2:0"],
            {},
            "heads must name an attention head, got encoder.attention:2:0; there are "
            "encoder.attention:0-1:0-3, decoder.attention:0-1:0-3, decoder.cross:0-1:0-1",
        ),
        (["encoder.feedforward:0:0"], {}, "heads must name an attention head"),
        (["*:0:0"], {"sequence": 2}, "sequence must be 0 to 1 in this batch, got 2"),
        (["*:0:0"], {"limit": 6}, "batch has a sequence of 7 tokens: attention maps take at most 6"),
        (["*:0:0"], {"source_tokens": ["a"]}, "source_tokens must name 7 positions, got 1"),
    ],
)
def test_refusals(heads, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        attention_maps(Translator(), batch(), heads, **options)


def test_choices_in_words():
    for text in ("encoder.attention:0:1", "*:*:3"):
        assert str(HeadChoice.parse(text)) == text
    assert HeadChoice.parse(" a : 1 : * ") == ("a", 1, None)
    assert attention_maps(Translator(), batch(), []) == []


def pixels(path: Path) -> set[tuple[int, int, int]]:
    """The colours of at least a few pixels."""
    from PIL import Image

    with Image.open(path) as image:
        counts = image.convert("RGB").getcolors(maxcolors=10**6)
    return {colour for count, colour in counts if count > 200}


def a_map(weights: torch.Tensor, visible: torch.Tensor | None = None) -> AttentionMap:
    n, m = weights.shape
    visible = torch.ones_like(weights, dtype=torch.bool) if visible is None else visible
    return AttentionMap("site", 0, 1, weights, visible, [f"$q_{i}$\n" for i in range(n)], ["▁kéy"] * m)


def test_colours(tmp_path):
    weights = torch.tensor([[0.0, 1.0, 0.25], [1e-6, 0.0, 0.0]])
    draw_map(tmp_path / "relu.png", a_map(weights, torch.tensor([[True, True, True], [True, True, False]])))
    found = pixels(tmp_path / "relu.png")
    assert (255, 255, 255) in found  # zero
    assert (11, 29, 87) in found  # the largest weight
    assert (219, 231, 253) in found  # next to nothing is not nothing
    assert (233, 235, 238) in found  # hidden
    draw_map(tmp_path / "signed.png", a_map(torch.tensor([[-1.0, 1.0], [0.0, 0.5]])))
    assert {(107, 31, 8), (11, 29, 87)} <= pixels(tmp_path / "signed.png")


@pytest.mark.parametrize("shape", [(1, 1), (2, 300), (300, 2)])
def test_every_shape_is_drawn(tmp_path, shape):
    draw_map(tmp_path / "new" / "map.png", a_map(torch.rand(shape)))
    assert len(pixels(tmp_path / "new" / "map.png")) > 2


def test_a_dead_head_is_drawn_white(tmp_path):
    draw_map(tmp_path / "dead.png", a_map(torch.zeros(3, 3)))
    assert (255, 255, 255) in pixels(tmp_path / "dead.png")


def test_negative_weights_stay():
    (drawn,) = attention_maps(attention("identity"), {"x": torch.randn(1, 4, WIDTH)}, ["*:0:0"])
    assert (drawn.weights < 0).any()
