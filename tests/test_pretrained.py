from pathlib import Path

import pytest

from reluformer import pretrained
from reluformer.data.documents import Languages
from reluformer.data.files import DataError

MODEL = Path("runs/model")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model in the box would be."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "en-de")
    return tmp_path / "en-de"


def test_a_model_that_is_named_is_the_one(folder: Path) -> None:
    assert pretrained.model_or_default(MODEL) == MODEL
    assert pretrained.name_of(MODEL) == "runs/model"
    assert pretrained.languages_of(MODEL) is None


def test_an_installation_without_one_says_so(folder: Path) -> None:
    folder.mkdir()
    assert not pretrained.has_model()
    with pytest.raises(DataError, match="no model in the box: takes --model FOLDER"):
        pretrained.model_or_default(None)


def test_the_one_in_the_box(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").touch()
    assert pretrained.has_model()
    assert pretrained.model_or_default(None) == folder
    assert pretrained.name_of(folder) == "en-de (in the box)"


@pytest.mark.parametrize(
    ("config", "languages"),
    [
        ('{"languages": ["pt_BR", "en"]}', Languages("pt_BR", "en")),
        ('{"languages": ["en"]}', None),
        ('{"languages": "en"}', None),
        ('{"languages": [1, 2]}', None),
        ("{}", None),
        ("[]", None),
        ("no JSON", None),
    ],
)
def test_a_model_may_know_its_languages(tmp_path: Path, config: str, languages: Languages | None) -> None:
    (tmp_path / "config.json").write_text(config)
    assert pretrained.languages_of(tmp_path) == languages


@pytest.mark.parametrize("names", [("en", "de"), ("en_GB", "de-AT"), ("EN", "DE"), (None, None), ("text", "said")])
def test_languages_that_it_knows_and_names_that_are_no_languages(names: tuple[str | None, str | None]) -> None:
    pretrained.check_languages(*names)


def test_where_nothing_has_names_only_languages_are_known() -> None:
    pretrained.check_languages("en", "de-AT", keyed=False)
    with pytest.raises(DataError, match="got --target klingon"):
        pretrained.check_languages("en", "klingon", keyed=False)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("en", "fr"), "translates en into de, got --target fr: other languages take a --model of their own"),
        (("de", "en"), "translates en into de, got --source de"),
        ((None, "pt_BR"), "got --target pt_BR"),
        (("ZH", None), "got --source ZH"),
    ],
)
def test_languages_that_it_does_not_know(names: tuple[str | None, str | None], words: str) -> None:
    with pytest.raises(DataError, match=words):
        pretrained.check_languages(*names)


@pytest.mark.skipif(not pretrained.has_model(), reason="this checkout has no model in the box")
def test_what_the_box_holds_translates() -> None:
    from reluformer.translation.translator import Translator

    names = {path.name for path in pretrained.FOLDER.iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors", "README.md"}
    translator = Translator.load(pretrained.FOLDER)
    ((text,),) = translator.translate([["Thank you very much."]])
    assert "Dank" in text
    assert translator.languages == pretrained.LANGUAGES
