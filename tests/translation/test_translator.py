"""Documents come back sentence for sentence, whatever the model does."""

import random
from collections import deque

import pytest
import torch
from tokenizers import Tokenizer, models

from reluformer.data.documents import Languages
from reluformer.data.files import DataError
from reluformer.data.packing import split_sentences
from reluformer.data.tokenizer import EOS_ID, SEP_ID
from reluformer.translation import translator as translator_module
from reluformer.translation.engine import THREADS
from reluformer.translation.translator import POOL, Translator, tidy
from tests.translation import stubs
from tests.translation.conftest import tiny_model
from tests.translation.stubs import Copier

TEXT = "In the days when judges ruled, a man of Bethlehem went to live in Moab; 😀 naïve <sep> </s> 起初 100 %"
WORDS = TEXT.split()
LENGTHS = [0, 1, 8, 16, 40, 200]


def documents(seed: int, count: int = 12, words: list[str] = WORDS) -> list[list[str]]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        sizes = [draw.choice([0, 1, 3, 8, 20, 90]) for _ in range(draw.randrange(12))]
        made.append([" ".join(draw.choices(words, k=size)) or draw.choice(["", " ", "\t"]) for size in sizes])
    return made


def squeezed(given: list[list[str]]) -> list[list[str]]:
    return [["".join(text.split()) for text in document] for document in given]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(4))
def test_a_copy_is_the_same(tokenizer, seed: int, length: int) -> None:
    model = Copier()
    translator = Translator(model, tokenizer, length=length, context=0.3, cost=500)
    given = documents(seed)
    found = list(translator.translate(given))
    assert squeezed(found) == squeezed(given)
    assert found == given or length in (8, 16)  # where a word takes several pieces
    sources = [source for batch in model.calls for source in batch]
    assert all(len(source) <= (length if length > 1 else 256) for source in sources)
    assert all(all(split_sentences(source)) for source in sources)  # nothing blank was sent
    for batch in model.calls:
        assert len(batch) == 1 or len(batch) * max(map(len, batch)) * 5 <= 500


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["drops_separators", "adds_separators", "repeats_the_first", "leaves_out_the_last"])
def test_no_sentence_is_lost_or_doubled(tokenizer, name: str, length: int) -> None:
    model = Copier(getattr(stubs, name))
    for seed in range(3):
        given = documents(seed, words=[word for word in WORDS if word.isascii()])
        found = list(Translator(model, tokenizer, length=length).translate(given))
        assert squeezed(found) == squeezed(given)  # a separator in a sentence alone became a space
        assert found == given or name == "adds_separators" or length in (8, 16)


def test_context_is_sent_and_left_out(tokenizer) -> None:
    seen = []
    model = Copier(lambda tokens: [x for i, x in enumerate(tokens)])
    translator = Translator(model, tokenizer, length=100, context=0.5)
    given = [[f"sentence number {i} of a text" for i in range(40)]]
    assert list(translator.translate(given, written=seen.append)) == given
    assert len(seen) > 3
    assert all(x.window.first - x.window.start > 1 for x in seen if x.window.first)
    for x in seen:
        assert len(split_sentences(x.source)) == x.window.end - x.window.start
        assert x.source == x.target


def test_a_bad_window_alone_is_tried_again(tokenizer) -> None:
    """Others keep the context they had; the bad one ends up in single sentences."""
    bad = "there was no peace"
    marks = Translator(Copier(), tokenizer, length=16).tokenizer.encode(bad, add_special_tokens=False).ids

    def write(tokens: list[int]) -> list[int]:
        alone = SEP_ID not in tokens
        holds = any(tokens[i : i + len(marks)] == marks for i in range(len(tokens)))
        return tokens if alone or not holds else tokens[: tokens.index(SEP_ID)]

    model, seen, done = Copier(write), [], []
    given = [["and the sun went down"] * 30, ["and the sun went down"] * 5 + [bad] + ["and it was morning"] * 5]
    assert (
        list(Translator(model, tokenizer, length=400).translate(given, written=seen.append, watch=done.append)) == given
    )
    assert sum(done) == 41
    whole, parts = ([x.window for x in seen if x.document == i] for i in (0, 1))
    assert len(whole) == 1
    assert (5, 5, 6) in [(x.start, x.first, x.end) for x in parts]
    assert any(x.end - x.first > 1 for x in parts)
    assert sorted(i for x in parts for i in range(x.first, x.end)) == list(range(11))


def test_long_lines(tokenizer) -> None:
    model = Copier()
    lines = ["the earth was without form, and void. " * 2600, "x" * 100_000, "😀" * 5000]
    found = next(iter(Translator(model, tokenizer, length=128).translate([lines])))
    assert [len(x.replace(" ", "")) for x in found] == [len(x.replace(" ", "")) for x in lines]
    assert tidy(lines[0]) == found[0]
    assert found[2].replace(" ", "") == lines[2]
    assert max(len(source) for batch in model.calls for source in batch) <= 128


def test_line_ends_inside_a_sentence_become_spaces(tokenizer) -> None:
    bare = Translator(Copier(), tokenizer, length=16).tokenizer
    end = bare.encode("\n", add_special_tokens=False).ids
    translator = Translator(Copier(lambda tokens: [*tokens, *end, *tokens]), tokenizer, length=0)
    assert list(translator.translate([["a\u2028b\x85c\x0cd\r\ne\u00a0f"]])) == [["a b c d e\u00a0f a b c d e\u00a0f"]]


def test_a_piece_of_an_overlong_sentence_is_done_in_part(tokenizer) -> None:
    done: list[float] = []
    given = ["light", "light " * 200, "light"]
    list(Translator(Copier(), tokenizer, length=32).translate([given], watch=done.append))
    assert len(done) > 5
    assert sum(done) == pytest.approx(len(given))


def test_documents_stream(tokenizer) -> None:
    pulled = []

    def many():
        for i in range(2000):
            pulled.append(i)
            yield [f"verse {i}"]

    translator = Translator(Copier(), tokenizer, length=16, cost=10, beam=1)
    found = translator.translate(many())
    assert [next(found) for _ in range(200)] == [[f"verse {i}"] for i in range(200)]
    assert len(pulled) <= 200 + POOL * 10
    assert list(translator.translate([])) == []
    assert list(translator.translate([[], [""]])) == [[], [""]]


def test_out_of_memory_halves_the_batch(tokenizer) -> None:
    given = documents(5)
    assert list(Translator(Copier(most=2), tokenizer, length=40).translate(given)) == given
    with pytest.raises(DataError, match=r"out of memory at \d+ tokens"):
        list(Translator(Copier(most=0), tokenizer, length=40).translate(given))


@pytest.mark.parametrize("beam", [1, 3])
def test_neighbours_do_not_matter(tokenizer, beam: int) -> None:
    """A random model never ends by itself: each sequence must stop at its own limit."""
    model = tiny_model(positions="rotary")
    translator = Translator(model, tokenizer, length=64, beam=beam)
    given = [document[:3] for document in documents(1, 8)]
    seen = []
    together = list(translator.translate(given, written=seen.append))
    assert [len(document) for document in together] == [len(document) for document in given]
    assert any(any(document) for document in together)
    assert together == [next(iter(translator.translate([document]))) for document in given]
    sizes = [(len(x.target), translator.most_new(len(x.source))) for x in seen]
    assert all(size <= most for size, most in sizes)
    assert any(size == most for size, most in sizes)
    assert all(x.target[-1] == EOS_ID for x in seen)


def test_learned_positions_are_never_exceeded(tokenizer) -> None:
    model = tiny_model(positions="learned", max_position_embeddings=32)
    found = list(Translator(model, tokenizer, length=32, beam=2).translate([["and God said " * 30, "x"]]))
    assert len(found[0]) == 2
    with pytest.raises(DataError, match="at most the 32 positions"):
        Translator(model, tokenizer, length=33)


# What the engine runs, and what it does not.
WAYS = pytest.mark.parametrize("fields", [{}, {"cross": {"norm": "layer"}}], ids=["engine", "stepper"])


@WAYS
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_the_model_can_go_on_training(tokenizer, fields, positions) -> None:
    model = tiny_model(**fields, positions=positions).train()
    list(Translator(model, tokenizer, length=64, beam=1).translate([["and God said"]]))
    assert model.training
    model(input_ids=torch.tensor([[5, 2]]), labels=torch.tensor([[6, 2]])).loss.backward()
    assert model.model.shared.weight.grad.abs().sum() > 0


@WAYS
def test_threads_are_those_that_there_are_cores_for(tokenizer, fields, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(THREADS, "seen", deque(maxlen=1))
    monkeypatch.setattr(
        "reluformer.translation.engine.threads.cores_between", lambda *_: looked.append(torch.get_num_threads()) or 1
    )
    monkeypatch.setattr("reluformer.translation.engine.threads.PERIOD", 0.0)
    torch.set_num_threads(2)
    list(Translator(tiny_model(**fields), tokenizer, length=0, beam=1).translate([["A sentence."]]))
    assert len(looked) > 2  # in every step
    assert looked[1:] == [1] * (len(looked) - 1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "make", [tiny_model, lambda: tiny_model(cross={"norm": "layer"}), Copier], ids=["engine", "stepper", "generate"]
)
def test_beam_and_length_penalty_reach_the_search(tokenizer, make, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the engine, of the model as it is and, for models that are not ours, of ``generate``."""
    model = make()
    asked = []
    generate, search = model.generate, translator_module.beam_search
    model.generate = lambda **options: asked.append(options) or generate(**options)

    def searching(engine, sources, limits, beam, length_penalty):
        asked.append({"num_beams": beam, "length_penalty": length_penalty})
        return search(engine, sources, limits, beam, length_penalty)

    monkeypatch.setattr(translator_module, "beam_search", searching)
    list(Translator(model, tokenizer, length=64, beam=4, length_penalty=0.3).translate([["a"]]))
    assert [(x["num_beams"], x["length_penalty"]) for x in asked] == [(4, 0.3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 3}, "length takes 0 or 8"),
        ({"length": 64, "context": 1.0}, "context takes a share"),
        ({"length": 64, "beam": 0}, "beam takes 1 to 128"),
        ({"length": 64, "length_penalty": float("nan")}, "length_penalty takes -10 to 10, got nan"),
        ({"length": 64, "length_penalty": -400.0}, "length_penalty takes -10 to 10"),
        ({"length": 64, "cost": 0}, "cost takes 1 or more"),
    ],
)
def test_wrong_settings(tokenizer, options: dict[str, float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Translator(Copier(), tokenizer, **options)


def test_a_foreign_tokeniser_is_refused() -> None:
    with pytest.raises(DataError, match="no <sep> as token 4"):
        Translator(Copier(), Tokenizer(models.BPE()), length=16)


def test_a_text_that_the_model_does_not_read(tokenizer) -> None:
    german = [
        "Wir haben euch nicht gesehen, und das ist sehr schade,",
        "denn es war schon spät, und ihr habt uns gefehlt.",
    ]
    assert Translator(Copier(), tokenizer, length=16).doubt(german) is None  # who knows
    translator = Translator(Copier(), tokenizer, length=16, languages=Languages("en", "fr"))
    assert "looks like German, and this model reads English" in str(translator.doubt(german))
    assert translator.doubt(["We have not seen you, and that is a pity."]) is None
