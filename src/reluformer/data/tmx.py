"""Translation memories: TMX, read unit by unit.

Consecutive units that name the same document (``<prop type="document">``) form one; units that name none belong to the
document of the file, which a property of the header may name. A unit that lacks one of the languages keeps its place
with an empty side, so that cleaning sees the gap.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, iterparse

from reluformer.data.documents import Document, Languages, check_text
from reluformer.data.files import DataError, open_bytes

DOCUMENT_PROPERTIES = ("document", "x-document", "doc", "docid")
CODES = ("bpt", "ept", "it", "ph", "ut")  # elements that hold another program's markup, not text
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_tmx(path: Path, languages: Languages) -> Iterator[Document]:
    """Read the documents of a TMX file."""
    seen: set[str] = set()
    names: dict[str, int] = {}
    for name, units in groupby(_units(path, languages, seen), key=lambda unit: unit[0]):
        source, target = (list(side) for side in zip(*((s, t) for _, s, t in units), strict=True))
        check_text([name, *source, *target], f"{path}, document {name!r}")
        again = names[name] = names.get(name, 0) + 1
        yield Document(name if again == 1 else f"{name}#{again}", source, target)
    for language in (languages.source, languages.target):
        if seen and not any(_speaks(tag, language) for tag in seen):
            raise DataError(f"{path} has no {language!r}, it has {', '.join(sorted(seen))}")


def _units(path: Path, languages: Languages, seen: set[str]) -> Iterator[tuple[str, str, str]]:
    document = path.name
    with open_bytes(path) as file:
        try:
            root: Element | None = None
            for event, element in iterparse(file, ("start", "end")):
                if root is None:
                    root = element
                    if element.tag != "tmx":
                        raise DataError(f"{path} is no TMX file: its root is <{element.tag}>")
                if event == "start":
                    continue
                if element.tag == "header":
                    document = _document(element) or document
                elif element.tag == "tu":
                    texts = dict(_variants(element))
                    seen.update(texts)
                    source, target = (
                        next((text for tag, text in texts.items() if _speaks(tag, language)), "")
                        for language in (languages.source, languages.target)
                    )
                    yield _document(element) or document, source, target
                    for body in root:
                        body.clear()  # or units already read would pile up in memory
        except DataError:
            raise
        except (ParseError, LookupError, ValueError) as error:  # the last two: an encoding that cannot be read
            raise DataError(f"{path} is no XML: {error}") from None


def _document(element: Element) -> str | None:
    found = (prop.text for prop in element.findall("prop") if prop.get("type", "").lower() in DOCUMENT_PROPERTIES)
    return next((text.strip() for text in found if text and text.strip()), None)


def _variants(unit: Element) -> Iterator[tuple[str, str]]:
    for variant in unit.findall("tuv"):
        segment = variant.find("seg")
        if segment is not None:
            yield variant.get(LANGUAGE) or variant.get("lang") or "", "".join(_text(segment))


def _text(element: Element) -> Iterator[str]:
    """Iterate over the text of a segment, that of highlights included and that of codes left out."""
    yield element.text or ""
    for child in element:
        if child.tag not in CODES:
            yield from _text(child)
        yield child.tail or ""


def _speaks(tag: str, language: str) -> bool:
    """Return whether a tag is of a language: ``en-GB`` is of ``en``, and ``pt_BR`` is the same as ``pt-BR``."""
    tag, language = (name.lower().replace("_", "-") for name in (tag, language))
    return tag == language or tag.startswith(f"{language}-")
