"""The scripts that languages are written in, and which letters belong to them."""

import functools
import re

# Unicode blocks as ranges of a regular expression. Rough on purpose: they tell Russian from English, no more.
SCRIPTS = {
    "Latin": "A-Za-zªºÀ-ÖØ-öø-ʯḀ-ỿ\u2c60-\u2c7f\ua722-\ua7ff\ufb00-\ufb06Ａ-Ｚａ-ｚ",
    "Cyrillic": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Armenian": "\u0530-\u058f\ufb13-\ufb17",
    "Hebrew": "\u0590-\u05ff\ufb1d-\ufb4f",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff",
    "Devanagari": "\u0900-\u097f\ua8e0-\ua8ff",
    "Bengali": "\u0980-\u09ff",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Thai": "\u0e00-\u0e7f",
    "Georgian": "\u10a0-\u10ff\u1c90-\u1cbf",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "Kana": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "Han": "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f",
}

_WRITTEN_IN = {
    ("Latin",): "af az bs ca cs cy da de en es et eu fi fr ga gl hr hu id is it la lb lt lv ms mt nb nl nn no oc pl pt "
    "ro sk sl sq sv sw tl tr uz vi",
    ("Cyrillic",): "be bg kk ky mk mn ru tg uk",
    ("Cyrillic", "Latin"): "sr",
    ("Arabic",): "ar fa ps ur",
    ("Hebrew",): "he yi",
    ("Devanagari",): "hi mr ne",
    ("Greek",): "el",
    ("Armenian",): "hy",
    ("Bengali",): "bn",
    ("Tamil",): "ta",
    ("Telugu",): "te",
    ("Thai",): "th",
    ("Georgian",): "ka",
    ("Hangul", "Han"): "ko",
    ("Kana", "Han"): "ja",
    ("Han",): "zh",
}
LANGUAGES = {language: scripts for scripts, names in _WRITTEN_IN.items() for language in names.split()}

# How many letters of an alphabet one character counts for when lengths are compared.
WEIGHTS = {"zh": 3.0, "ja": 2.0, "ko": 2.0}


def base(language: str) -> str:
    """Return a language code without its region: ``pt`` for ``pt_BR``."""
    return re.split("[-_]", language.lower())[0]


def share_in_script(text: str, language: str) -> float:
    """Return the share of a text's letters in the language's script; 1 without letters or for an unknown language."""
    foreign = _foreign_letters(base(language))
    if foreign is None:
        return 1.0
    pattern, latin = foreign
    if latin and text.isascii():
        return 1.0
    letters = sum(map(str.isalpha, text))
    # Not every match is a letter: some numbers, such as the raised 2 of a square metre, are no digits to ``\d``.
    return 1.0 - sum(map(str.isalpha, pattern.findall(text))) / letters if letters else 1.0


@functools.cache
def _foreign_letters(language: str) -> tuple[re.Pattern[str], bool] | None:
    """Return a pattern for one letter outside the language's script, and whether ASCII letters belong to the script."""
    if language not in LANGUAGES:
        return None
    own = "".join(SCRIPTS[script] for script in LANGUAGES[language])
    return re.compile(rf"[^\W\d_{own}]"), "Latin" in LANGUAGES[language]
