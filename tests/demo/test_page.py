"""The page as a browser gets it: one file, whole."""

import json
import re

import pytest

from reluformer.demo.page import LEAST, _formula, page
from reluformer.demo.run import Demonstration
from reluformer.memory.settings import MemorySettings


@pytest.fixture(scope="module")
def text(found: Demonstration) -> str:
    return page(found)


def test_the_page_needs_nothing_else(text: str) -> None:
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    references = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert references
    assert all(reference.startswith("data:image/png;base64,") for reference in references)
    assert not re.search(r"https?:|@import|url\(|fetch\(", text)
    for tag in ("section", "figure", "svg", "table", "div", "p", "span", "script"):
        assert text.count(f"<{tag}>") + text.count(f"<{tag} ") == text.count(f"</{tag}>"), tag


def test_every_word_can_be_pointed_at(text: str, found: Demonstration) -> None:
    for side in "st":
        words = re.findall(rf'<span id="{side}(\d+)">', text)
        assert words == [str(i) for i in range(len(words))]
        assert len(words) == found.words


def test_looks_name_words_of_the_source(text: str, found: Demonstration) -> None:
    looks = json.loads(re.search(r'id="looks">(.*?)</script>', text)[1])
    assert len(looks) == sum(len(pair.target) for pair in found.pairs)
    words = [word.text for pair in found.pairs for word in pair.source]
    assert all(0 <= place < len(words) and 0 <= share <= 100 for row in looks for place, share in row)
    # The last word of the document, in the window in which it counts, in which it also reads some context.
    window = found.windows[-1].window
    shares = found.alignment[-1][-1]
    read = [word.text for pair in found.pairs[window.start : window.end] for word in pair.source]
    expected = [read[j] for j in range(len(read)) if shares[j] >= LEAST]
    assert [words[place] for place, _ in looks[-1]] == expected


def test_the_page_says_what_was_measured(text: str, found: Demonstration) -> None:
    assert f"<b>{100 * found.zeros('attention'):.1f} %</b>of all attention weights are exactly zero" in text
    assert f"<b>{100 * found.zeros('key-value'):.1f} %</b>of all FFN weights are exactly zero" in text
    head = found.heads.cross[0].map
    assert f"decoder.cross_attention, layer {head.layer}, head {head.head}" in text
    assert "reluformer translate notes.txt" in text


def test_text_is_no_markup(found: Demonstration, monkeypatch: pytest.MonkeyPatch) -> None:
    word = found.pairs[0].target[0]
    object.__setattr__(word, "text", "<script>x</script>&")
    try:
        assert ">&lt;script&gt;x&lt;/script&gt;&amp;</span>" in page(found)
    finally:
        object.__setattr__(word, "text", "The")


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({}, "w_ij = relu(q_i · k_j / √d) / (γ (n_i / 2)^0.5)"),
        (
            {"alpha": 1.0, "bias": 1.0, "centred": True},
            "w_ij = relu(q_i · (k_j - mean k) / √d + b) / (γ (n_i / 2)^1)",
        ),
        ({"gamma": "none", "alpha": 1.0, "bias": 1.0}, "w_ij = relu(q_i · k_j / √d + b) / ((n_i / 2)^1)"),
        (
            {"activation": "relu_squared", "norm": "mass"},
            "w_ij = relu(q_i · k_j / √d)^2 / (Σ_m relu(q_i · k_m / √d)^2)",
        ),
    ],
)
def test_the_formula_is_that_of_the_model(settings: dict[str, object], formula: str) -> None:
    text = _formula(MemorySettings(**settings))
    assert re.sub("</su[bp]>", "", text.replace("<sub>", "_").replace("<sup>", "^")) == formula
