"""Choice of the heads to show: those that know where to look, and those that look into other sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.demo.words import Word, sentence_numbers, sentences_of
from reluformer.report.maps import AttentionMap
from reluformer.translation.attention import window_maps
from reluformer.translation.translator import Translator, Written

CROSS = 2  # heads of cross-attention to show
LOOKS = 6  # weights into other sentences to show for a head

# Text beside the heads, which explains the measures below.
RULE = (
    "Information: the entropy of the average row less the average entropy of the rows, in nats. It is high where every "
    "row has keys of its own, and 0 where all look at the same ones. Reach: the share of the mass that lies in other "
    f"sentences. Shown are the {CROSS} heads of cross-attention with the most information and, of the encoder's and of "
    "the decoder's self-attention, the head with the most information times reach."
)


@dataclass(frozen=True)
class Look:
    """One weight between two sentences: the word that looks, the word it looks at, and the share of the row's mass."""

    query: str
    query_sentence: int
    key: str
    key_sentence: int
    share: float


@dataclass(frozen=True)
class Side:
    """The positions along one axis of a map: the sentence of every position, counted from 0, and the words."""

    sentences: list[int]
    words: list[Word]


@dataclass(frozen=True)
class Head:
    """A head on one window.

    Attributes:
        map: Weights of the head.
        information: Information in nats, see :data:`RULE`.
        reach: Share of the mass that lies in other sentences.
        queries: Positions of the rows.
        keys: Positions of the columns.
    """

    map: AttentionMap
    information: float
    reach: float
    queries: "Side"
    keys: "Side"


@dataclass(frozen=True)
class HeadsShown:
    """Heads of cross-attention, most information first, and one head of each self-attention."""

    cross: list[Head]
    context: list[Head]


def choose_heads(translator: Translator, written: Written) -> HeadsShown:
    """Choose the heads to show of a window."""
    source, target = (_side(translator, tokens) for tokens in (written.source, written.target))
    # A decoder position stands for the token that it is about to write; in self-attention for the one that it has read.
    before = Side([0, *target.sentences][: len(target.sentences)], [_moved(word) for word in target.words])
    heads: dict[str, list[Head]] = {"cross": [], "decoder": [], "encoder": []}
    for drawn in window_maps(translator, written, ["*:*:*"]):
        if "cross" in drawn.site:
            heads["cross"].append(measured(drawn, target, source))
        else:
            site = drawn.site.partition(".")[0]
            heads[site].append(measured(drawn, *[before if site == "decoder" else source] * 2))
    cross = sorted(heads["cross"], key=lambda head: -head.information)[:CROSS]
    context = [max(heads[site], key=lambda head: head.information * head.reach) for site in ("encoder", "decoder")]
    return HeadsShown(cross, context)


def measured(drawn: AttentionMap, queries: Side, keys: Side) -> Head:
    """Return a head with its measures, from which dead rows are left out."""
    rows = _distributions(drawn.weights)  # (N, M)
    live = rows[rows.sum(-1) > 0]
    own = torch.tensor(queries.sentences)[:, None] == torch.tensor(keys.sentences)  # (N, M)
    if not len(live):
        return Head(drawn, 0.0, 0.0, queries, keys)
    information = _entropy(live.mean(0)) - _entropy(live).mean()
    reach = rows.masked_fill(own, 0.0).sum() / len(live)
    return Head(drawn, float(information), float(reach), queries, keys)


def strongest_looks(head: Head) -> list[Look]:
    """Return the strongest weights from words of one sentence to words of another, each word once.

    A weight is strong if its share is many times an even one: half of a row among three keys is unremarkable.
    """
    shares = by_words(head.map.weights, head.queries.words, head.keys.words)  # (words, words)
    queries, keys = (torch.tensor([side.sentences[w.start] for w in side.words]) for side in (head.queries, head.keys))
    shares = shares.masked_fill(queries[:, None] == keys, 0.0)
    seen = torch.tensor([head.map.visible[word.start].sum() for word in head.queries.words])
    looks: list[Look] = []
    for place in (shares * seen[:, None]).flatten().argsort(descending=True).tolist():
        i, j = divmod(place, len(keys))
        query, key = _letters(head.queries.words[i].text), _letters(head.keys.words[j].text)
        if len(looks) == LOOKS or shares[i, j] == 0:
            break
        if query and key and all(query != look.query and key != look.key for look in looks):
            looks.append(Look(query, int(queries[i]), key, int(keys[j]), float(shares[i, j])))
    return looks


def by_words(weights: Tensor, queries: Sequence[Word], keys: Sequence[Word]) -> Tensor:
    """Return the shares that words give to words, ``(queries, keys)``, from weights ``(N, M)`` of tokens."""
    rows = _distributions(weights)  # (N, M)
    n, m = rows.shape
    asks, gives = (torch.zeros(len(words), size).double() for words, size in ((queries, n), (keys, m)))
    for i, word in enumerate(queries):
        asks[i, word.start : word.end] = 1 / word.tokens  # the mean over its rows
    for j, word in enumerate(keys):
        gives[j, word.start : word.end] = 1.0
    return asks @ rows @ gives.T


def _side(translator: Translator, tokens: Sequence[int]) -> Side:
    words = [word for sentence in sentences_of(translator.tokenizer, tokens) for word in sentence]
    return Side(sentence_numbers(tokens), words)


def _moved(word: Word) -> Word:
    return Word(word.text, word.start + 1, word.end + 1)


def _distributions(weights: Tensor) -> Tensor:
    """Return rows of positive weights normalised to sum to one; dead rows stay zero."""
    positive = weights.double().clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return positive / total.where(total > 0, 1.0)


def _entropy(rows: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(rows).sum(-1)
    return entropy


def _letters(text: str) -> str:
    """Return a word without the punctuation around it, or an empty string if it has no letter."""
    found = text.strip(".,;:!?()\"'»«„“”%")
    return found if any(map(str.isalpha, found)) else ""
