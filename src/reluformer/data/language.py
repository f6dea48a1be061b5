"""Guess the language of a text from its letters and commonest words: enough to notice what a model cannot read.

Silence is the rule: names, numbers, code and a few words of anything prove nothing, and only a plain case is reported.
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

SAMPLE = 20_000  # characters: the beginning of a text is enough
LEAST_LETTERS = 8  # that a text in another script must have: fewer are a name or a formula
PROOF = 7  # letters that distinct words of the other language must add up to, without words common in names
SHARE = 0.12  # of all words that words of the other language must be; in running text they are a quarter or more
TIMES = 3  # how many times they must outnumber words of the expected language, which may be a quotation

_IN_NAMES = {
    "al", "am", "da", "das", "de", "dei", "del", "della", "den", "der", "des", "di", "do", "dos", "du", "el", "la",
    "las", "le", "les", "los", "van", "von", "zu",
}  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")
_ADDRESS = re.compile(r"\w[@/._=\\]\w")  # an address, a path or code: "com" is Portuguese only as a word of its own


@dataclass(frozen=True)
class Tongue:
    """A language, or several that are hard to tell apart: codes, a name, and the commonest words."""

    codes: tuple[str, ...]
    name: str
    words: frozenset[str]


def doubt(sentences: Iterable[str], languages: Languages | None) -> str | None:
    """Return a warning, beginning with "looks like", about a text that is not in the language that a model reads.

    Args:
        sentences: Sentences of the text, read until there are enough to tell.
        languages: Languages that the model translates; None if unknown.

    Returns:
        The warning, or None where the text may well be in that language or is too short to tell.
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
    """Return the name of a text's language if it is plainly another than the one with this code, else None."""
    sample = unicodedata.normalize("NFKC", text[:SAMPLE])
    words = _words(sample)
    if share_in_script(sample, language) < 0.5:
        return _by_letters(sample, words, base(language)) if sum(map(str.isalpha, sample)) >= LEAST_LETTERS else None
    return _by_words(words, base(language))


def _words(sample: str) -> Counter[str]:
    """Count the words of a text, case kept: names have capitals ("Los Angeles"), common words seldom do."""
    parts = (sample.lower() if sample.isupper() else sample).split()
    return Counter(word for part in parts if not _ADDRESS.search(part) for word in _WORD.findall(part))


def _by_letters(sample: str, words: Counter[str], language: str) -> str | None:
    """Return the language of a text in another script: of those written in it, the one with most of the words."""
    some = sample[:: 1 + len(sample) // 1000]  # about 1000 characters, since every known language scans them
    shares = {tongue: share_in_script(some, tongue.codes[0]) for tongue in tongues()}
    written = [tongue for tongue in tongues() if shares[tongue] > 0.5 and language not in tongue.codes]
    written.sort(key=lambda x: (sum(words[word] for word in x.words), shares[x]), reverse=True)
    return written[0].name if written else None


def _by_words(words: Counter[str], language: str) -> str | None:
    """Return the language of a text, judged by words in it that the expected language does not have."""
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
    """Return all known languages, some of them with a script but no words."""
    lines = files("reluformer.data").joinpath("common_words.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.partition(":")[::2] for line in lines)
    return tuple(Tongue(tuple(head.split()[:-1]), head.split()[-1], frozenset(words.split())) for head, words in rows)
