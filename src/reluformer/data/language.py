"""Which language a text is in, as far as its letters and commonest words tell: enough to see what a model cannot read.

Silence is the rule. Names, numbers, code and a few words of anything are no language; what speaks up must be plain.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from reluformer.data.documents import Languages
from reluformer.data.scripts import base, share_in_script

SAMPLE = 20_000  # characters: the beginning of a text tells
LEAST_LETTERS = 8  # of another script: less is a name or a formula
PROOF = 7  # letters of different words of the other language, but for those that stand in names and lists
SHARE = 0.12  # of all words that these must be; in running text they are a quarter and more
TIMES = 3  # as many as words of the expected language, which may be a quotation

_IN_NAMES = {
    "al", "am", "da", "das", "de", "dei", "del", "della", "den", "der", "des", "di", "do", "dos", "du", "el", "la",
    "las", "le", "les", "los", "van", "von", "zu",
}  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")
_ADDRESS = re.compile(r"\w[@/._=\\]\w")  # or a path, or code: "com" is Portuguese only if nothing hangs on it


@dataclass(frozen=True)
class Tongue:
    """A language, or several that are hard to tell apart: codes, what to call it, and its commonest words."""

    codes: tuple[str, ...]
    name: str
    words: frozenset[str]


def doubt(sentences: Iterable[str], languages: Languages | None) -> str | None:
    """What to say of a text that is not in the language which a model reads, from "looks like" on.

    Args:
        sentences: Read until there is enough to tell.
        languages: What the model translates; None if nobody knows.

    Returns:
        None where the text may well be in that language, or there is too little of it.
    """
    known = [tongue.name for tongue in tongues() if languages and base(languages.source) in tongue.codes]
    if languages is None or not known:
        return None
    text = ""
    for sentence in sentences:
        text += f"{sentence[:SAMPLE]}\n"
        if len(text) >= SAMPLE:
            break
    other = other_language(text, languages.source)
    return other and f"looks like {other}, and this model reads {known[0]}: the translation will make no sense"


def other_language(text: str, language: str) -> str | None:
    """The name of the language of a text, if it is plainly another than the one with this code."""
    sample = unicodedata.normalize("NFKC", text[:SAMPLE])
    words = _words(sample)
    if share_in_script(sample, language) < 0.5:
        return _by_letters(sample, words, base(language)) if sum(map(str.isalpha, sample)) >= LEAST_LETTERS else None
    return _by_words(words, base(language))


def _words(sample: str) -> Counter[str]:
    """The words of a text as they stand: names have capitals ("Los Angeles"), the common words seldom do."""
    parts = (sample.lower() if sample.isupper() else sample).split()
    return Counter(word for part in parts if not _ADDRESS.search(part) for word in _WORD.findall(part))


def _by_letters(sample: str, words: Counter[str], language: str) -> str | None:
    """The language of a text in another script: of those that are written so, the one with most of the words."""
    some = sample[:: 1 + len(sample) // 1000]  # for each of fifty languages
    shares = {tongue: share_in_script(some, tongue.codes[0]) for tongue in tongues()}
    written = [tongue for tongue in tongues() if shares[tongue] > 0.5 and language not in tongue.codes]
    written.sort(key=lambda x: (sum(words[word] for word in x.words), shares[x]), reverse=True)
    return written[0].name if written else None


def _by_words(words: Counter[str], language: str) -> str | None:
    """The language of a text by words that it has and the expected language has not."""
    own = frozenset[str]().union(*(tongue.words for tongue in tongues() if language in tongue.codes))
    if not own:
        return None
    found = []
    for tongue in tongues():
        theirs = {word: words[word] for word in tongue.words - own if word in words}
        ours = sum(words[word] for word in own - tongue.words)
        count = sum(theirs.values())
        proof = sum(len(word) for word in theirs.keys() - _IN_NAMES if len(word) > 1)
        if proof >= PROOF and count >= max(SHARE * words.total(), TIMES * ours):
            found.append((count, tongue.name))
    return max(found)[1] if found else None


@functools.cache
def tongues() -> tuple[Tongue, ...]:
    """All that are known; of some only the letters."""
    lines = files("reluformer.data").joinpath("common_words.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.partition(":")[::2] for line in lines)
    return tuple(Tongue(tuple(head.split()[:-1]), head.split()[-1], frozenset(words.split())) for head, words in rows)
