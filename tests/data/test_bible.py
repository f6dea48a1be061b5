import importlib.util
import lzma
import re
import unicodedata
from importlib.resources import files
from pathlib import Path

import pytest

from reluformer.data.bible import DEV, TEST, bible_documents

PACKED = files("reluformer.data").joinpath("bible.jsonl.xz")
SCRIPT = Path(__file__).parents[2] / "scripts/build_bible.py"
SWORD = Path("/usr/share/sword")
MODULES = [SWORD / f"mods.d/{name}.conf" for name in ("engWEB2015eb", "spaRV1909eb")]
REBUILDS = SCRIPT.exists() and all(module.exists() for module in MODULES)
SIDES = ("en", "es")
LETTERS = {"en": "a-zA-Z", "es": "a-zA-ZáéíóúüñâêîôûÁÉÍÓÚÑ"}
SIGNS = {"en": " ,.;:!?()’‘“”—-", "es": " ,.;:!?¿¡()-"}


@pytest.fixture(scope="module")
def chapters():
    return {chapter["id"]: chapter for chapter in bible_documents()}


def lines(documents, side):
    return [line for document in documents for line in document[side]]


def words(line):
    return tuple(re.findall(r"\w+", line.lower()))


def phrases(documents, side, length):
    found = set()
    for line in lines(documents, side):
        text = words(line)
        found.update(text[i : i + length] for i in range(len(text) - length + 1))
    return found


def test_the_file_is_small():
    assert len(PACKED.read_bytes()) < 4 * 10**6


def test_counts(chapters):
    assert len(chapters) == 1189
    assert len({name.rpartition(" ")[0] for name in chapters}) == 66
    assert sum(len(chapter["en"]) for chapter in chapters.values()) == 31044
    counts = {part: len(list(bible_documents(part))) for part in ("train", "dev", "test")}
    assert counts == {"train": 1128, "dev": 30, "test": 31}


def test_both_sides_are_equally_long_and_never_empty(chapters):
    for chapter in chapters.values():
        assert list(chapter) == ["id", *SIDES]
        assert len(chapter["en"]) == len(chapter["es"]) > 0
        assert all(line.strip() == line != "" for side in SIDES for line in chapter[side])


@pytest.mark.parametrize("side", SIDES)
def test_letters_and_signs_are_those_of_the_language(chapters, side):
    # No markup, digits, foot-note marks, Greek or Hebrew; nothing decomposed.
    allowed = re.compile(f"[{LETTERS[side]}{re.escape(SIGNS[side])}]+")
    for line in lines(chapters.values(), side):
        assert allowed.fullmatch(line), line
        assert unicodedata.is_normalized("NFC", line)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "pattern",
    [
        r"  ",
        r" [,.;:!?)”]",  # a foot-note was here
        r"[¿¡(“‘] ",
        r"[,.;:!?][^\W\d]",
        r"[”)][^\W\d]|\w[“¿¡(]",
        r"[a-záéíóúñ][A-Z]",  # words that lost the space between them
        r",,",
    ],
)
def test_spacing(chapters, side, pattern):
    assert [line for line in lines(chapters.values(), side) if re.search(pattern, line)] == []


@pytest.mark.parametrize(("side", "letters"), [("en", "AIOa"), ("es", "AEOYeoyÁáéóú")])
def test_no_stray_letters(chapters, side, letters):
    found = {letter for line in lines(chapters.values(), side) for letter in re.findall(r"(?<![\w’])\w(?!\w)", line)}
    assert "".join(sorted(found)) == letters


def test_spanish_openings_have_lost_their_capitals(chapters):
    shouting = {name for name, chapter in chapters.items() if re.match(r"(\w )?[A-ZÁÉÍÓÚÑ]{2}", chapter["es"][0])}
    assert shouting == {"Psalms 119"}  # ALEPH, as in English


def test_lines_match_in_length(chapters):
    ratios = [len(es) / len(en) for c in chapters.values() for en, es in zip(c["en"], c["es"], strict=True)]
    assert 0.45 < min(ratios) < max(ratios) < 2


@pytest.mark.parametrize(
    ("chapter", "row", "en", "es"),
    [
        (
            "Genesis 1",
            0,
            "In the beginning, God created the heavens and the earth.",
            "En el principio crió Dios los cielos y la tierra.",
        ),
        (
            "Psalms 23",
            0,
            "A Psalm by David. Yahweh is my shepherd; I shall lack nothing.",
            "Salmo de David. Jehová es mi pastor; nada me faltará.",
        ),
        (
            "John 3",
            15,
            "For God so loved the world, that he gave his only born Son, "
            "that whoever believes in him should not perish, but have eternal life.",
            "Porque de tal manera amó Dios al mundo, que ha dado á su Hijo unigénito, "
            "para que todo aquel que en él cree, no se pierda, mas tenga vida eterna.",
        ),
        (  # Jonah 1:17 in English, 2:1 in Spanish
            "Jonah 1",
            16,
            "Yahweh prepared a huge fish to swallow up Jonah, "
            "and Jonah was in the belly of the fish three days and three nights.",
            "Mas Jehová había prevenido un gran pez que tragase á Jonás: "
            "y estuvo Jonás en el vientre del pez tres días y tres noches.",
        ),
        (  # without the note that it was sent from Rome
            "Galatians 6",
            -1,
            "The grace of our Lord Jesus Christ be with your spirit, brothers. Amen.",
            "Hermanos, la gracia de nuestro Señor Jesucristo sea con vuestro espíritu. Amén.",
        ),
        (
            "Revelation 22",
            -1,
            "The grace of the Lord Jesus Christ be with all the saints. Amen.",
            "La gracia de nuestro Señor Jesucristo sea con todos vosotros. Amén.",
        ),
    ],
)
def test_verses(chapters, chapter, row, en, es):
    assert (chapters[chapter]["en"][row], chapters[chapter]["es"][row]) == (en, es)


def test_the_parts_are_whole_books_and_make_the_whole(chapters):
    parts = {part: [c["id"] for c in bible_documents(part)] for part in ("train", "dev", "test")}
    assert sorted(parts["train"] + parts["dev"] + parts["test"]) == sorted(chapters)
    assert {name.rpartition(" ")[0] for name in parts["dev"]} == set(DEV)
    assert {name.rpartition(" ")[0] for name in parts["test"]} == set(TEST)


@pytest.mark.parametrize("part", ["dev", "test"])
@pytest.mark.parametrize("side", SIDES)
def test_nothing_leaks_across_the_split(chapters, side, part):
    held = list(bible_documents(part))
    names = {chapter["id"] for chapter in held}
    others = [chapter for name, chapter in chapters.items() if name not in names]
    assert not {words(x) for x in lines(held, side)} & {words(x) for x in lines(others, side)}
    mine = phrases(held, side, 8)
    assert len(mine & phrases(others, side, 8)) < 0.004 * len(mine)  # 9 % in Matthew, 15 % in 2 Kings


def test_an_unknown_part_is_an_error_at_once():
    with pytest.raises(ValueError, match="part must be one of train, dev, test, all, got 'valid'"):
        bible_documents("valid")


@pytest.mark.slow
@pytest.mark.skipif(not REBUILDS, reason="needs Debian's sword-text-web and sword-text-sparv")
def test_the_build_gives_this_file():
    pytest.importorskip("pysword")
    spec = importlib.util.spec_from_file_location("build_bible", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    documents = script.build(str(SWORD))
    assert not any(script.looks_shifted(document) for document in documents)
    packed = script.pack(documents)
    assert packed == script.pack(script.build(str(SWORD)))
    assert lzma.decompress(packed) == lzma.decompress(PACKED.read_bytes())  # another liblzma may pack it otherwise
