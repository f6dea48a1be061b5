import random

import pytest

from reluformer.data.tokenizer import encode
from reluformer.translation.translator import Translator
from reluformer.translation.windows import Window, split_overlong, windows_of
from tests.translation.stubs import Copier

SEEDS = range(50)


def lengths_of(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.choice([1, 2, 5, 9, 30, 70]) for _ in range(draw.randrange(40))]


@pytest.mark.parametrize("context", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_sentence_counts_once(seed: int, context: float) -> None:
    lengths, room = lengths_of(seed), 60
    windows = windows_of(lengths, room, context)
    assert [i for x in windows for i in range(x.first, x.end)] == list(range(len(lengths)))
    for x in windows:
        filled = sum(lengths[x.start : x.end])
        assert filled <= room or (x.start, x.end) == (x.first, x.first + 1)
        assert sum(lengths[x.start : x.first]) <= context * room
        # Greedy: neither a sentence more nor, within its share, a sentence of context more would fit.
        assert x.end == len(lengths) or filled + lengths[x.end] > room
        if x.start:
            more = sum(lengths[x.start - 1 : x.first])
            assert more > int(context * room) or more + lengths[x.first] > room


def test_context_is_what_comes_before() -> None:
    assert windows_of([10] * 7, 40, 0.5) == [Window(0, 0, 4), Window(2, 4, 6), Window(4, 6, 7)]
    assert windows_of([10] * 3, 0, 0.5) == [Window(0, 0, 1), Window(1, 1, 2), Window(2, 2, 3)]
    assert windows_of([], 40, 0.5) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_smaller_windows_hold_the_same_and_come_to_an_end(seed: int) -> None:
    draw = random.Random(seed)
    start = draw.randrange(5)
    first = start + draw.randrange(9)
    window = Window(start, first, first + draw.randrange(1, 20))
    todo, alone = [window], []
    for _ in range(1000):
        if not todo:
            break
        x = todo.pop(0)
        smaller = x.smaller()
        alone += [] if smaller else [x]
        todo = smaller + todo
        if smaller:
            assert [i for y in smaller for i in range(y.first, y.end)] == list(range(x.first, x.end))
            assert all(x.start <= y.start <= y.first and y.end - y.start < x.end - x.start for y in smaller)
    assert not todo
    assert alone == [Window(i, i, i + 1) for i in range(window.first, window.end)]


TEXTS = {
    "sentences": "In those days there was no king. Everyone did what was right! " * 30,
    "clauses": "and the sons of Levi, and the sons of Kohath; " * 30,
    "words": "and the sons of Levi and the sons of Kohath " * 30,
    "one word": "a" * 900,
    "emoji": "😀🏽👩‍👩‍👧" * 60,
    "chinese": "起初神创造天地。地是空虚混沌，渊面黑暗。" * 30,
}
ENDS = {"sentences": ".!", "clauses": ",;", "chinese": "。，"}


@pytest.mark.parametrize("name", TEXTS)
def test_overlong_text_is_cut_where_it_hurts_least(name: str, tokenizer) -> None:
    bare = Translator(Copier(), tokenizer, length=16).tokenizer
    tokens = encode(bare, [TEXTS[name]])[0]
    for most in (5, 6, 50, 101):
        pieces = split_overlong(tokens, most, bare.decode)
        assert [x for piece in pieces for x in piece] == tokens
        assert max(map(len, pieces)) <= most
        assert min(map(len, pieces[:-1])) >= min(most // 2 + 1, most - 3)
        texts = [bare.decode(piece) for piece in pieces]
        assert "".join(texts) == TEXTS[name]  # no character was cut in two
        if most < 50:
            continue
        for text in texts[:-1]:
            assert text.endswith(tuple(ENDS.get(name, text)))
        if name == "words":
            assert all(text.startswith(" ") for text in texts[1:])


def test_smaller_windows_keep_half_of_the_context() -> None:
    assert Window(0, 4, 8).smaller() == [Window(2, 4, 6), Window(4, 6, 8)]
    assert Window(0, 2, 3).smaller() == [Window(2, 2, 3)]
    assert Window(2, 2, 3).smaller() == []
