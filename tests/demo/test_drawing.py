import base64
import re
from io import BytesIO

import pytest
import torch
from matplotlib.image import imread

from reluformer.demo.drawing import sentence_map, whole_map
from reluformer.demo.heads import Side, measured
from reluformer.demo.words import Word
from reluformer.report.maps import AttentionMap

WEIGHTS = torch.tensor([[0.0, 1e-6, 0.5], [2.0, 0.0, 0.0]])


@pytest.fixture
def head():
    keys, queries = ["<a>", " &", "</s>"], ["<s>", "x" * 40]
    drawn = AttentionMap("decoder.cross_attention", 1, 2, WEIGHTS, WEIGHTS >= 0, queries, keys)
    return measured(drawn, Side([0, 1], [Word("x", 0, 1)]), Side([0, 0, 1], [Word("a", 0, 1)]))


def test_exactly_the_zeros_are_not_painted(head) -> None:
    svg = whole_map(head)
    picture = imread(BytesIO(base64.b64decode(re.search('base64,([^"]+)', svg)[1])))  # (N, M, RGBA)
    paint = torch.tensor(picture[..., 3])
    assert torch.equal(paint == 0, WEIGHTS == 0)
    assert paint[1, 0] == 1
    assert paint[0, 1] < paint[0, 2] < paint[1, 0]
    assert 'd="M0 1H3M2 0V2"' in svg  # lines between the sentences


def test_a_sentence_token_by_token(head) -> None:
    svg = sentence_map(head, 0)
    assert svg.count("<title>") == 1  # of row 0, the keys 0 and 1, the second with a weight
    assert "<title>xxxxxxxxxxx… ← &amp;: 0.000</title>" in svg  # the row is called after what it writes
    assert "&lt;a&gt;" in svg
    assert "<title>&lt;/s&gt; ← " not in svg
    assert sentence_map(head, 1).count("<title>") == 0
