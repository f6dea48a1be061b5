"""The demo as one self-contained page: text, pictures, styles and the script are inside."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate, count

from reluformer.demo.drawing import sentence_map, whole_map
from reluformer.demo.heads import RULE, Head, strongest_looks
from reluformer.demo.run import Demonstration
from reluformer.demo.screen import NEXT
from reluformer.demo.sites import site_grids, site_rows
from reluformer.demo.words import Word
from reluformer.memory.activations import FUSED
from reluformer.memory.settings import MemorySettings

LEAST = 0.02  # share of a row's mass from which the page colours a word
WIDEST = 22  # tokens of a sentence that can be drawn token by token
WHERE = {
    "encoder": "In the encoder, a head that reads across sentences",
    "decoder": "In the decoder, a head that looks back",
}


def page(found: Demonstration) -> str:
    """Return the whole page as HTML."""
    style, script = (files("reluformer.demo").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    body = [_lead(found), _translation(found), _alignment(found), _context(found), _memories(found), _next()]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>reluformer: a document through ReLU memories</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f'\n<script type="application/json" id="looks">{json.dumps(_looks(found), separators=(",", ":"))}</script>'
        f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _lead(found: Demonstration) -> str:
    source, target = found.tokens
    facts = {
        f"{found.seconds:.1f} s": f"for {source:,} tokens in and {target:,} out",
        f"{found.words / found.seconds:,.0f} words/s": f"{found.dtype} on {found.machine}",
        f"{100 * found.zeros('attention'):.1f} %": "of all attention weights are exactly zero",
        f"{100 * found.zeros('key-value'):.1f} %": "of all FFN weights are exactly zero",
    }
    cards = "".join(f"<div><b>{html.escape(x)}</b>{html.escape(y)}</div>" for x, y in facts.items())
    return (
        "<header><h1>A document through ReLU memories</h1>"
        "<p>Every layer of this translator is a lookup in a memory of keys and values: in the FFN they are learned, in "
        "attention they are the tokens of the document. <b>ReLU decides in all of them which values count.</b> A key "
        "with a negative score has weight zero, exactly; softmax would give every key something.</p>"
        f'<p class="formula">{_formula(found.settings)}</p>'
        f'<div class="facts">{cards}</div>'
        f'<p class="quiet">Model: {html.escape(found.model)}, {found.parameters / 1e6:.1f} M parameters, '
        f"{found.megabytes:.1f} MB. The text is a speech that nobody gave, about a town that is on no map.</p></header>"
    )


def _formula(settings: MemorySettings) -> str:
    """Return the formula of this model's attention weights as HTML."""
    bias, power = "" if settings.bias is None else " + b", FUSED[settings.activation]
    raised = "" if power == 1 else f"<sup>{power}</sup>"

    def weight(key: str) -> str:
        centred = f"(k<sub>{key}</sub> - mean k)" if settings.centred else f"k<sub>{key}</sub>"
        return f"relu(q<sub>i</sub> · {centred} / √d{bias}){raised}"

    if settings.norm == "mass":
        over = f"Σ<sub>m</sub> {weight('m')}"
    else:
        over = ("" if settings.gamma == "none" else "γ ") + f"(n<sub>i</sub> / 2)<sup>{settings.alpha:g}</sup>"
    return f"w<sub>ij</sub> = {weight('j')} / ({over})"


def _translation(found: Demonstration) -> str:
    sides = [_words([getattr(pair, side) for pair in found.pairs], side[0]) for side in ("source", "target")]
    known = found.languages
    spoken = [f' lang="{html.escape(name)}"' for name in (known.source, known.target)] if known else ["", ""]
    rows = "".join(
        f'<div class="pair"><i>{number}</i><p class="source"{spoken[0]}>{source}</p>'
        f'<p class="target"{spoken[1]}>{target}</p></div>'
        for number, (source, target) in enumerate(zip(*sides, strict=True), 1)
    )
    head = found.heads.cross[0].map
    return (
        "<section><h2>The translation</h2><p>Point at a word, or tap it: the other side shows where cross-attention "
        f"(layer {head.layer}, head {head.head}) looked while that word was written. The stronger the colour, the "
        f"more. Words without colour had no weight, or less than {100 * LEAST:.0f} % of the row.</p>"
        f'<div class="pairs">{rows}</div></section>'
    )


def _words(sentences: Sequence[Sequence[Word]], side: str) -> list[str]:
    """Return sentences as HTML whose words can be pointed at: an id is the side and a word's number in the document."""
    numbers = count()
    return [
        " ".join(f'<span id="{side}{next(numbers)}">{html.escape(word.text)}</span>' for word in sentence)
        for sentence in sentences
    ]


def _alignment(found: Demonstration) -> str:
    sentence, first = _detail(found.heads.cross[0]), found.longest.window.start + 1
    figures = "".join(
        f"<figure><figcaption>{_caption(head)}</figcaption>{whole_map(head)}{sentence_map(head, sentence)}</figure>"
        for head in found.heads.cross
    )
    return (
        "<section><h2>Which word translates which</h2><p>Cross-attention of the heads that know best where to look, "
        f"over {_size(found)}. Rows from top to bottom are the tokens being written, columns the tokens read; lines "
        "separate sentences, and what is not painted is exactly zero. Below each map: sentence "
        f'{first + sentence}.</p><div class="figures">{figures}</div><p class="quiet">{html.escape(RULE)}</p></section>'
    )


def _context(found: Demonstration) -> str:
    figures, first = [], found.longest.window.start + 1
    for head in found.heads.context:
        looks = "".join(
            f"<tr><td>{html.escape(x.query)} <small>{first + x.query_sentence}</small></td><td>→</td>"
            f"<td>{html.escape(x.key)} <small>{first + x.key_sentence}</small></td>"
            f'<td class="number">{100 * x.share:.0f} %</td></tr>'
            for x in strongest_looks(head)
        )
        table = (
            f'<table><thead><tr><th>word <small>sentence</small></th><th></th><th>looks at</th><th class="number">share'
            f"</th></tr></thead><tbody>{looks}</tbody></table>"
        )
        where = WHERE[head.map.site.partition(".")[0]]
        figures.append(
            f"<figure><figcaption><b>{where}</b><br>{_caption(head)}</figcaption>{whole_map(head)}{table}</figure>"
        )
    return (
        "<section><h2>What goes from sentence to sentence</h2><p>Self-attention sees the whole window. These heads "
        "look into other sentences than their own; the tables have their strongest looks from word to word.</p>"
        f'<div class="figures">{"".join(figures)}</div></section>'
    )


def _memories(found: Demonstration) -> str:
    return (
        "<section><h2>What the memories did</h2><p>Percent of weights that are exactly zero, a row for every layer and "
        f'a column for every head, over {_size(found)}.</p><div class="grids">{site_grids(found.report)}</div>'
        f'<div class="wide">{site_rows(found.report)}</div></section>'
    )


def _next() -> str:
    steps = "".join(f"<li>{html.escape(what)}<pre>{html.escape(command)}</pre></li>" for what, command in NEXT)
    return f"<section><h2>Go on</h2><ol>{steps}</ol></section>"


def _size(found: Demonstration) -> str:
    of = "the document" if len(found.windows) == 1 else f"the longest of {len(found.windows)} windows"
    return f"{of}, {len(found.longest.source)} tokens read and {len(found.longest.target)} written"


def _caption(head: Head) -> str:
    site = html.escape(f"{head.map.site}, layer {head.map.layer}, head {head.map.head}")
    return f"{site}<br><small>information {head.information:.2f} nats, reach {100 * head.reach:.0f} %</small>"


def _detail(head: Head) -> int:
    """Return the longest sentence of the window that is not too long to draw, or the shortest if all are."""
    sides = (head.queries.sentences, head.keys.sentences)
    longest = {number: max(side.count(number) for side in sides) for number in sorted(set(sides[1]))}
    fitting = {number: count for number, count in longest.items() if count <= WIDEST}
    return max(fitting, key=fitting.__getitem__) if fitting else min(longest, key=longest.__getitem__)


def _looks(found: Demonstration) -> list[list[list[int]]]:
    """Return, for every word of the translation, the source words that it looked at and their shares in percent."""
    firsts = [0, *accumulate(len(pair.source) for pair in found.pairs)]  # number of the first word of every sentence
    looks = []
    for written, shares in zip(found.windows, found.alignment, strict=True):
        # A window begins with its context, whose sentences count in an earlier window.
        first = firsts[written.window.start]
        for row in shares:
            seen = (row >= LEAST).nonzero().flatten().tolist()
            looks.append([[first + j, round(100 * float(row[j]))] for j in seen])
    return looks
