"""Translation memories."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from reluformer.data.documents import Document, Languages, read_documents
from reluformer.data.files import DataError
from reluformer.data.tmx import read_tmx

HEAD = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><header srclang="en">{}</header><body>'


def unit(source: str, target: str, document: str = "", tag: str = "de-DE") -> str:
    prop = f'<prop type="document">{document}</prop>' if document else ""
    variants = f'<tuv xml:lang="EN"><seg>{source}</seg></tuv><tuv xml:lang="{tag}"><seg>{target}</seg></tuv>'
    return f"<tu>{prop}{variants}</tu>"


def tmx(*units: str, header: str = "") -> bytes:
    return (HEAD.format(header) + "".join(units) + "</body></tmx>").encode()


def read(path: Path, content: bytes, languages: str = "en-de") -> list[Document]:
    path.write_bytes(content)
    return list(read_documents(str(path), Languages.parse(languages)))


def test_one_document_per_file(tmp_path: Path) -> None:
    content = tmx(unit("a &amp; 😀", "A"), unit("b", "B"))
    expected = [Document("x.tmx", ["a & 😀", "b"], ["A", "B"])]
    assert read(tmp_path / "x.tmx", content) == expected
    assert (
        read(tmp_path / "x.tmx", content.decode().replace('"?>', '" encoding="utf-16"?>', 1).encode("utf-16"))
        == expected
    )
    assert read(tmp_path / "x.tmx.gz", gzip.compress(content))[0].source == ["a & 😀", "b"]


def test_units_and_headers_name_documents(tmp_path: Path) -> None:
    units = [unit("a", "A", "one"), unit("b", "B", "one"), unit("c", "C", "two"), unit("d", "D", "one")]
    documents = read(tmp_path / "x.tmx", tmx(*units))
    assert [(d.id, d.source) for d in documents] == [("one", ["a", "b"]), ("two", ["c"]), ("one#2", ["d"])]
    (document,) = read(tmp_path / "x.tmx", tmx(unit("a", "A"), header='<prop type="document">speech</prop>'))
    assert document.id == "speech"


def test_codes_are_no_text(tmp_path: Path) -> None:
    (document,) = read(tmp_path / "x.tmx", tmx(unit('a <bpt i="1">&lt;b></bpt>bold<ept i="1"/> <hi>end</hi>.', "A")))
    assert document.source == ["a bold end."]


def test_a_missing_variant_keeps_its_place(tmp_path: Path) -> None:
    (document,) = read(tmp_path / "x.tmx", tmx(unit("a", "A"), unit("b", "B", tag="fr"), unit("c", "C")))
    assert document.target == ["A", "", "C"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tmx(unit("a", "A", tag="fr"), unit("b", "B", tag="it")), "x.tmx has no 'de', it has EN, fr, it"),
        (b"<html></html>", "x.tmx is no TMX file: its root is <html>"),
        (tmx(unit("a", "A"))[:-10], "x.tmx is no XML: .*line 1"),
        (b"", "x.tmx is no XML"),
    ],
)
def test_refuses(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(tmp_path / "x.tmx", content)


def test_memory_does_not_grow(tmp_path: Path) -> None:
    units = [unit("a" * 500, "A" * 500, f"d{i}") for i in range(4000)]  # 4 MB
    (tmp_path / "x.tmx").write_bytes(tmx(*units))
    del units
    tracemalloc.start()
    count = sum(1 for _ in read_documents(str(tmp_path / "x.tmx"), Languages("en", "de")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 4000
    assert peak < 2_000_000


@pytest.mark.parametrize("encoding", ["GBK", "nonsense"])
def test_an_encoding_that_cannot_be_read(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_text(f'<?xml version="1.0" encoding="{encoding}"?><tmx></tmx>')
    with pytest.raises(DataError, match="is no XML"):
        list(read_tmx(tmp_path / "a.tmx", Languages("en", "de")))
