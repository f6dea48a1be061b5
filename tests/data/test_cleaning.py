"""What stays, what goes and why, and where documents are split."""

import random

import pytest

from reluformer.data.cleaning import Cleaner, Cleaning, SeenPairs, hash_pair
from reluformer.data.documents import Document, Languages
from reluformer.data.files import DataError
from reluformer.data.scripts import share_in_script

EN_DE = Languages("en", "de")
LONG = "A sentence that is long enough to be more than a phrase."


def cleaner(languages: Languages = EN_DE, **rules: float) -> Cleaner:
    return Cleaner(Cleaning(**rules), languages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("A house.", "Ein Haus.", None),
        ("No.", "Das glaube ich nicht, mein Lieber.", None),
        ("1984", "1984", None),
        ("5 m² 😀", "5 m² 😀", None),
        ("", "Ein Haus.", "empty"),
        ("A house.", " ", "empty"),
        ("a" * 2001, "b" * 2001, "long"),
        ("A house.", "Ein Haus, " * 20, "ratio"),
        ("A house.", "Дом стоит.", "script"),
        ("The word дом is Russian.", "Das Wort дом ist russisch.", None),
    ],
)
def test_reasons(source: str, target: str, reason: str | None) -> None:
    assert cleaner().reason_to_drop(source.strip(), target.strip()) == reason


def test_rules_can_be_switched_off() -> None:
    lenient = cleaner(longest=0, ratio=0, script=0)
    assert lenient.reason_to_drop("a" * 9999, "Дом") is None


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("ru", "Дом стоит на горе."),
        ("el", "Το σπίτι"),
        ("ja", "日本語のテスト"),
        ("ko", "한국어"),
        ("vi", "Tiếng Việt"),
        ("xx", "дом"),
    ],
)
def test_scripts(language: str, text: str) -> None:
    assert share_in_script(text, language) == 1
    assert language == "xx" or share_in_script("English", language) == (1 if language == "vi" else 0)


def test_chinese_may_be_short() -> None:
    english = "The weather is fine today, so we are going to the mountains to have a picnic with all our friends."
    assert (
        cleaner(Languages("en", "zh")).reason_to_drop(english, "今天天气很好，我们要和所有朋友一起去山上野餐。") is None
    )


def test_a_dropped_pair_splits_its_document() -> None:
    clean = cleaner()
    document = Document("a", [" One.", "", "Three. ", "Four.", ""], ["Eins.", "Zwei.", "Drei.", "Vier.", "x"], first=10)
    assert list(clean.clean([document])) == [
        Document("a", ["One."], ["Eins."], 10),
        Document("a", ["Three.", "Four."], ["Drei.", "Vier."], 12),
    ]
    report = clean.report
    assert (report.documents, report.pairs, report.kept, report.parts) == (1, 5, 3, 2)
    assert report.dropped["empty"] == 2
    assert report.examples["empty"][0] == {"document": "a", "sentence": 11, "source": "", "target": "Zwei."}


def test_only_a_few_examples_are_kept() -> None:
    clean = cleaner()
    assert list(clean.clean([Document("a", [""] * 9, ["x" * 999] * 9)])) == []
    assert len(clean.report.examples["empty"]) == 3
    assert len(clean.report.examples["empty"][0]["target"]) == 200


def test_duplicates_go_phrases_stay() -> None:
    documents = [Document(name, [LONG, "Thanks."], [LONG, "Danke."]) for name in "ab"]
    clean = cleaner()
    assert list(clean.clean(documents)) == [documents[0], Document("b", ["Thanks."], ["Danke."], 1)]
    assert clean.report.dropped["duplicate"] == 1
    strict = cleaner(phrase=0)
    assert list(strict.clean(documents)) == documents[:1]
    other = [Document("c", [LONG], [LONG + " Nein."])]  # another pair, though one side is the same
    assert list(clean.clean(other)) == other


def test_seen_pairs_is_a_set() -> None:
    draw = random.Random(1)
    values = [draw.getrandbits(64) if i % 3 else draw.randrange(50) for i in range(3000)]
    seen, known = SeenPairs(fresh=16), set()
    for value in values:
        assert seen.add(value) == (value not in known)
        known.add(value)


def test_hashes_are_the_same_everywhere() -> None:
    assert hash_pair("ab", "c") != hash_pair("a", "bc")
    assert hash_pair("a", "b").to_bytes(8, "little").hex() == "ffc151170352baa3"  # printf 'a\0b' | b2sum -l 64


@pytest.mark.parametrize(("name", "value"), [("longest", -1), ("ratio", 0.5), ("script", 1.5), ("phrase", -1)])
def test_rules_that_are_none(name: str, value: float) -> None:
    with pytest.raises(DataError, match=f"{name} takes .*, got {value}"):
        cleaner(**{name: value})
