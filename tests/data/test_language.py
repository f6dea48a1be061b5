"""One letter in fifty languages, and what is in none: who is sure of another language, and who says nothing."""

import itertools
import unicodedata
from pathlib import Path

import pytest

from reluformer.data.bible import bible_documents
from reluformer.data.documents import Languages
from reluformer.data.language import SAMPLE, doubt, other_language, tongues
from reluformer.data.scripts import LANGUAGES
from reluformer.data.speech import speech

LETTERS = dict(
    line.split(": ", 1) for line in Path(__file__).with_name("letters.txt").read_text(encoding="utf-8").splitlines()
)
ENGLISH, SPANISH = Languages("en", "de"), Languages("es", "de")
CODES = {tongue.name: tongue.codes[0] for tongue in reversed(tongues())}

# What one may well translate as English, though hardly a common English word is in it.
NO_LANGUAGE = {
    "nothing": "",
    "a word": "Hallo",
    "numbers": "1 2 3\n4.5\n12:30\n",
    "a title": "Das Kapital",
    "capitals": "WAR AND PEACE",
    "people": "Vincent van Gogh, Juan de la Cruz, Ursula von der Leyen, Charles de Gaulle, Leonardo da Vinci, "
    "José dos Santos, Francisco de los Cobos, Guillermo del Toro, José Ortega y Gasset, Lars von Trier",
    "places": "Los Angeles, Las Vegas, El Paso, Le Mans, Des Moines, Rio de Janeiro, Frankfurt am Main, Den Haag",
    "hotels": "Hotel de la Ville, Casa del Mar, Villa d'Este, Hostal de los Reyes, Palazzo dei Dogi",
    "countries": "AT BE BG CY CZ DE DK EE EL ES FI FR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK",
    "codes of languages": "bg cs da de el en es et fi fr ga hr hu it lt lv mt nl pl pt ro sk sl sv",
    "a menu": "Soupe du jour\nCrème brûlée\nPâté de foie gras\nPasta alla carbonara\nMousse au chocolat\n",
    "addresses": "Ann Lee <ann@gmail.com>\nBob Roy <bob@mail.com>\nhttps://para.com/uma/por\nnos@mais.com\n",
    "code": "int main(void) { for (int i = 0; i < n; i++) do { x += i; } while (x < 10); return 0; }",
    "formulas": "α + β = γ, δ > ε",
    "names in their own script": "Beijing (北京), Shanghai (上海), Moscow (Москва), Athens (Αθήνα)",
    "a quotation": 'She said "ich bin in der Stadt und nicht auf dem Land" and hung up on him.',
    "Burns": "We twa hae run about the braes, and pu'd the gowans fine",
    "law": "The rule of stare decisis applies mutatis mutandis, inter alia, to habeas corpus ad testificandum.",
}


@pytest.mark.parametrize("name", sorted(LETTERS.keys() - {"English"}))
def test_a_letter_in_another_language(name: str) -> None:
    assert other_language(LETTERS[name], "en") == name


@pytest.mark.parametrize("name", LETTERS)
def test_a_letter_in_the_language_of_the_model(name: str) -> None:
    assert other_language(LETTERS[name], CODES[name]) is None


@pytest.mark.parametrize("name", ["German", "Russian", "Chinese", "Greek"])
def test_models_that_do_not_read_english(name: str) -> None:
    assert other_language(LETTERS["English"], CODES[name]) == "English"


@pytest.mark.parametrize("text", NO_LANGUAGE.values(), ids=NO_LANGUAGE)
def test_what_is_in_no_language_is_not_doubted(text: str) -> None:
    assert other_language(text, "en") is None


def test_chapters_of_the_bible() -> None:
    for chapter in bible_documents("test"):
        assert doubt(chapter["en"], ENGLISH) is None
        assert "looks like Spanish" in str(doubt(chapter["es"], ENGLISH))
        assert doubt(chapter["es"], SPANISH) is None


def test_the_speech_of_the_demo() -> None:
    assert doubt(speech(), ENGLISH) is None
    assert doubt(speech(), SPANISH) == (
        "looks like English, and this model reads Spanish: the translation will make no sense"
    )


def test_a_text_in_two_languages_is_as_good_as_one() -> None:
    assert other_language(LETTERS["English"] + LETTERS["German"], "en") is None


def test_how_it_is_written_does_not_matter() -> None:
    assert other_language(unicodedata.normalize("NFD", LETTERS["Vietnamese"]), "en") == "Vietnamese"
    assert other_language(LETTERS["German"].upper(), "en") == "German"
    assert other_language(LETTERS["Spanish"], "en_GB") == "Spanish"
    assert other_language("ｆｕｌｌ ｗｉｄｔｈ ａｎｄ 𝓼𝓬𝓻𝓲𝓹𝓽", "en") is None


@pytest.mark.parametrize("language", [None, "text", "src", "klingon"])
def test_where_nobody_knows_the_language_nothing_is_said(language: str | None) -> None:
    assert doubt([LETTERS["German"]], language and Languages(language, "de")) is None


def test_of_a_long_text_only_the_beginning_is_read() -> None:
    assert doubt(itertools.repeat(LETTERS["French"]), ENGLISH) is not None
    assert doubt(["x" * SAMPLE, LETTERS["French"]], ENGLISH) is None


def test_every_language_with_a_script_has_a_name() -> None:
    assert LANGUAGES.keys() <= {code for tongue in tongues() for code in tongue.codes}
