"""The model in the box: a small translator that ships with the package, so that it works without a download.

It lies in ``en-de/`` beside this file, as ``reluformer compress`` wrote it; its README says what it was trained on.
"""

from pathlib import Path

from reluformer.data.documents import Languages
from reluformer.data.files import DataError, read_json
from reluformer.data.scripts import LANGUAGES as CODES
from reluformer.data.scripts import base

LANGUAGES = Languages("en", "de")
FOLDER = Path(__file__).parent / f"{LANGUAGES.source}-{LANGUAGES.target}"


def has_model() -> bool:
    """Whether this installation has the model in the box."""
    return (FOLDER / "config.json").is_file()


def model_or_default(model: Path | None) -> Path:
    """The given folder or, for None, that of the model in the box."""
    if model is None and not has_model():
        raise DataError("this installation has no model in the box: takes --model FOLDER")
    return FOLDER if model is None else model


def name_of(model: Path) -> str:
    """Name to show for a model: its languages for the one in the box, its folder for any other."""
    return f"{LANGUAGES.source}-{LANGUAGES.target} (in the box)" if model == FOLDER else str(model)


def languages_of(model: Path) -> Languages | None:
    """Languages that a model translates between, as training left them in its configuration; None if unknown."""
    match read_json(model / "config.json"):
        case {"languages": [str(source), str(target)]}:
            return Languages(source, target)
    return None


def check_languages(source: str | None, target: str | None, keyed: bool = True) -> None:
    """Raise ``DataError`` for languages that the model in the box does not know.

    ``keyed`` data may name its two sides freely: there, only a name that is the code of a language is taken for one.
    """
    for option, name, known in (("--source", source, LANGUAGES.source), ("--target", target, LANGUAGES.target)):
        if name is not None and base(name) != known and (base(name) in CODES or not keyed):
            raise DataError(
                f"the model in the box translates {LANGUAGES.source} into {LANGUAGES.target}, got {option} {name}: "
                "other languages take a --model of their own"
            )
