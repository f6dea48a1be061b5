"""Rebuild the embedded corpus from Debian's SWORD modules: ``python scripts/build_bible.py [SWORD folder]``.

Needs ``apt-get install sword-text-web sword-text-sparv`` and ``pip install pysword``. The same modules always give the
same bytes (from one version of liblzma). What the corpus holds and why is told in ``src/reluformer/data/BIBLE.md``.
"""

import argparse
import html
import json
import lzma
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from math import log
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "src/reluformer/data/bible.jsonl.xz"
ENGLISH, SPANISH = "engWEB2015eb", "spaRV1909eb"

Verse = tuple[str, int, int]  # book, chapter, verse
Text = dict[Verse, str]
Document = dict[str, str | list[str]]

# Where verse N of one is not verse N of the other, English to Spanish: = pairs verse by verse, ~ makes one line of
# verses that divide their text differently, ! leaves out what only one of them says, or says in two chapters.
RENUMBERED = """
Numbers 12:16 = 13:1
Numbers 13:1-31 = 13:2-32
Numbers 13:32-33 ~ 13:33
Numbers 29:40 = 30:1
Numbers 30:1-14 = 30:2-15
Numbers 30:15-16 ~ 30:16
Judges 6:29-30 ~ 6:29-30
Judges 14:18 ~ 14:18-19
Judges 14:19-20 ~ 14:20
Judges 19:3-4 ~ 19:3-4
1 Samuel 10:25-26 ~ 10:25-26
1 Samuel 15:24-25 ~ 15:24-25
1 Samuel 17:55-56 ~ 17:55-56
1 Samuel 23:29 = 24:1
1 Samuel 24:1-20 = 24:2-21
1 Samuel 24:21-22 ~ 24:22
1 Samuel 28:12-13 ~ 28:12-13
2 Samuel 2:31-32 ~ 2:31-32
2 Samuel 20:25-26 ~ 20:25
1 Kings 16:29-30 ~ 16:29-30
1 Kings 18:33-34 ~ 18:33-34
1 Kings 22:43 ~ 22:43-44
1 Kings 22:44-51 = 22:45-52
1 Kings 22:52-53 ~ 22:53
2 Kings 4:30-31 ~ 4:30-31
1 Chronicles 1:30-31 ~ 1:30
1 Chronicles 1:32 ~ 1:31-32
1 Chronicles 2:34-35 ~ 2:34-35
1 Chronicles 21:4-5 ~ 21:4-5
1 Chronicles 21:15 ~ 21:15-16
1 Chronicles 21:16-28 = 21:17-29
1 Chronicles 21:29-30 ~ 21:30
1 Chronicles 27:30-31 ~ 27:30-31
1 Chronicles 29:9-10 ~ 29:9-10
2 Chronicles 33:10-11 ~ 33:10
2 Chronicles 33:12-25 = 33:11-24
Job 35:15-16 ~ 35:15
Job 38:39-41 = 39:1-3
Job 39:1-26 = 39:4-29
Job 39:27-30 !
Job 40:1-5 !
Job 40:6-24 = 40:1-19
Psalms 137:3-4 ~ 137:3-4
Jeremiah 51:21-22 ~ 51:21-22
Hosea 11:12 = 12:1
Hosea 12:1-12 = 12:2-13
Hosea 12:13-14 ~ 12:14
Jonah 1:17 = 2:1
Jonah 2:1-8 = 2:2-9
Jonah 2:9-10 ~ 2:10
Matthew 23:13 = 23:14
Matthew 23:14 = 23:13
Matthew 27:35 !
Matthew 28:8-9 ~ 28:8-9
Luke 7:18-19 ~ 7:18-19
Acts 9:5-6 !
Acts 11:25-26 ~ 11:25-26
Acts 13:19-20 ~ 13:19-20
Acts 19:40-41 ~ 19:40
Acts 24:6-8 !
Romans 14:23 !
2 Corinthians 13:12-13 ~ 13:12
2 Corinthians 13:14 = 13:13
1 John 5:7-8 !
"""

# Pronouns that hang on the verb before them, and words before them that are none: see separate.
PRONOUNS = {"la", "las", "le", "les", "lo", "los", "me", "nos", "os", "se", "te"}
NOT_VERBS = {"como", "cuánto", "dios", "ellos", "gentes", "jehová", "josué", "no", "os", "que", "y"}
SLIPS = {",,": ",", "Gessur i y": "Gessuri y", "Y El ángel": "Y el ángel"}
OPENING = re.compile(r"(?!ALEPH)\b([A-ZÁÉÍÓÚÎÑ] )*[A-ZÁÉÍÓÚÎÑ]{2,}\b( [A-ZÁÉÍÓÚÎÑ]{2,}\b)*")


def main() -> None:
    """Write the corpus, or stop where a chapter looks shifted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sword", nargs="?", default="/usr/share/sword", help="the SWORD folder (%(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write (%(default)s)")
    arguments = parser.parse_args()
    documents = build(arguments.sword)
    if shifted := [str(document["id"]) for document in documents if looks_shifted(document)]:
        sys.exit(f"verses seem to be shifted against each other in {', '.join(shifted)}: see RENUMBERED")
    arguments.output.write_bytes(pack(documents))
    print(f"{len(documents)} documents, {arguments.output.stat().st_size} bytes: {arguments.output}")


def build(sword: str) -> list[Document]:
    """All chapters that both have, as documents."""
    english, spanish = read(sword, ENGLISH), read(sword, SPANISH)
    drop_colophons(spanish)
    lower_openings(spanish)
    lines: dict[str, list[tuple[str, str]]] = {}
    for en, es in align(english, spanish):
        sides = " ".join(english[x] for x in en), " ".join(spanish[x] for x in es)
        if all(sides):
            book, chapter, _ = en[0]
            lines.setdefault(f"{book} {chapter}", []).append(sides)
    return [{"id": i, "en": [en for en, _ in pairs], "es": [es for _, es in pairs]} for i, pairs in lines.items()]


def pack(documents: list[Document]) -> bytes:
    """The documents as compressed JSON lines."""
    text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def read(sword: str, name: str) -> Text:
    """The clean text of a module."""
    from pysword.modules import SwordModules  # type: ignore[import-not-found]

    modules = SwordModules(sword)
    modules.parse_modules()
    bible = modules.get_bible_from_module(name)
    bible._decompressed_text = lru_cache(1)(bible._decompressed_text)  # else a book is unpacked for every verse
    text = {}
    for books in bible.get_structure().get_books().values():
        for book in books:
            for chapter in range(1, book.num_chapters + 1):
                for verse, raw in enumerate(bible.get_iter(book.name, chapter, clean=False), 1):
                    text[usual_name(book.name), chapter, verse] = clean(raw)
    return text


def usual_name(book: str) -> str:
    """``II Kings`` is ``2 Kings``."""
    number, _, rest = book.partition(" ")
    return f"{len(number)} {rest}" if set(number) == {"I"} else book.removesuffix(" of John")


def clean(osis: str) -> str:
    """The words of a verse, without its markup."""
    text = osis.partition("<chapter eID")[0]  # behind the last verse of all there is a glossary
    text = re.sub(r"<(note|speaker)\b.*?</\1>", " ", text)
    text = re.sub(r"</?w\b[^>]*>", "", text)
    text = re.sub(r"(\w*)<transChange[^>]*>(.*?)</transChange>", separate, text)
    text = re.sub(r"<[^>]*>", " ", text)
    text = " ".join(unicodedata.normalize("NFC", html.unescape(text)).split())
    text = re.sub(r" (?=[,.;:!?)”—])|(?<=[—¿¡(“‘]) ", "", text)
    for wrong, right in SLIPS.items():
        text = text.replace(wrong, right)
    return text


def separate(match: re.Match[str]) -> str:
    """Words that the translators added: the module has lost the spaces around them.

    A pronoun belongs to the verb before it (``díjo`` + ``le``), anything else is a word of its own.
    """
    before, added = match.groups()
    enclitic = added in PRONOUNS and before and before.lower() not in NOT_VERBS
    return f"{before}{'' if enclitic else ' '}{added} "


def drop_colophons(spanish: Text) -> None:
    """Epistles end with ``Amén.`` and then say where they were sent from, which the English does not."""
    last = {book: (book, chapter, verse) for (book, chapter, verse), text in spanish.items() if text}
    for verse in last.values():
        spanish[verse] = re.sub(r"(?<=Amén\.) .*", "", spanish[verse])


def lower_openings(spanish: Text) -> None:
    """Chapters open with a word in capitals, an ornament: give it the case that it has elsewhere."""
    case = Counter(word for text in spanish.values() for word in re.findall(r"(?<=[^\W\d] )\w+", text))
    case["Achab"] += 1  # who is Achâb elsewhere

    def lower(match: re.Match[str]) -> str:
        first, *others = (word.lower() for word in match[0].split())
        usual = [max(word, word.capitalize(), key=case.__getitem__) for word in others]
        return " ".join([first.capitalize(), *usual])

    for (book, chapter, verse), text in spanish.items():
        if verse == 1:
            spanish[book, chapter, verse] = re.sub(OPENING, lower, text, count=1)


def align(english: Text, spanish: Text) -> Iterator[tuple[list[Verse], list[Verse]]]:
    """Which verses say the same, in the order of the English ones."""
    moved: dict[Verse, tuple[list[Verse], list[Verse]] | None] = {}
    for line in RENUMBERED.strip().splitlines():
        place, how, target = re.split(r" ([=~!]) ?", line)
        book, _, span = place.rpartition(" ")
        en = verses(book, span)
        moved |= dict.fromkeys(en)
        if how == "=":
            moved |= {x: ([x], [y]) for x, y in zip(en, verses(book, target), strict=True)}
        elif how == "~":
            moved[en[0]] = en, verses(book, target)
    for verse in english:
        pair = moved.get(verse, ([verse], [verse]))
        if pair and all(x in spanish for x in pair[1]):
            yield pair


def verses(book: str, span: str) -> list[Verse]:
    """``13:32-33`` of a book."""
    chapter, first, last = re.fullmatch(r"(\d+):(\d+)(?:-(\d+))?", span).groups()  # type: ignore[union-attr]
    return [(book, int(chapter), verse) for verse in range(int(first), int(last or first) + 1)]


def looks_shifted(document: Document) -> bool:
    """Whether the lengths fit twice as well one verse earlier or later, at the end of the chapter.

    A shift lasts until the last verse, which swallows the surplus: the ten before it show the shift best.
    """
    en, es = ([log(len(line)) for line in document[side]] for side in ("en", "es"))
    rows = range(max(1, len(en) - 11), len(en) - 1)
    if len(rows) < 5:
        return False
    before, here, after = (sum(abs(en[i] - es[i + shift]) for i in rows) for shift in (-1, 0, 1))
    return min(before, after) < here / 2


if __name__ == "__main__":
    main()
