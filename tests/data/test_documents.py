"""Documents from JSONL, text files, TMX and the hub: what they give, and what they say of files that are wrong."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from reluformer.data.documents import Document, Languages, read_documents, read_jsonl, to_line
from reluformer.data.files import DataError

EN_DE = Languages("en", "de")
LINE = '{"id": "a", "en": ["One 😀.", "Two."], "de": ["Eins.", "Zwei."]}'
DOCUMENT = Document("a", ["One 😀.", "Two."], ["Eins.", "Zwei."])


def read(item: str | Path, languages: Languages = EN_DE) -> list[Document]:
    return list(read_documents(str(item), languages))


def refused(item: str | Path, languages: Languages = EN_DE) -> str:
    with pytest.raises(DataError) as error:
        read(item, languages)
    return str(error.value)


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("content", [LINE, LINE + "\n", LINE + "\r\n\r\n", "\ufeff" + LINE + "\n"])
def test_jsonl_with_all_kinds_of_line_ends(tmp_path: Path, content: str) -> None:
    assert read(text(tmp_path / "x.jsonl", content)) == [DOCUMENT]


def test_jsonl_compressed_and_turned_around(tmp_path: Path) -> None:
    text(tmp_path / "x.jsonl.gz", gzip.compress(LINE.encode()))
    text(tmp_path / "x.jsonl.xz", lzma.compress(LINE.encode()))
    assert read(tmp_path / "x.jsonl.gz") == read(tmp_path / "x.jsonl.xz") == [DOCUMENT]
    assert read(tmp_path / "x.jsonl.gz", Languages("de", "en"))[0].source == ["Eins.", "Zwei."]


def test_jsonl_is_a_stream(tmp_path: Path) -> None:
    documents = read_documents(str(text(tmp_path / "x.jsonl", LINE + "\nno JSON\n")), EN_DE)
    assert next(documents) == DOCUMENT


def test_a_document_without_an_id_is_called_after_its_line(tmp_path: Path) -> None:
    assert read(text(tmp_path / "x.jsonl", '\n{"en": [], "de": []}'))[0].id == "x.jsonl:2"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "x.jsonl, line 2: not JSON"),
        ("[1]", "x.jsonl, line 2: takes an object with 'en' and 'de', got list"),
        ('{"en": ["a"], "fr": ["b"]}', "x.jsonl, line 2: takes lists of sentences as 'en' and 'de', has en, fr"),
        ('{"en": "a", "de": ["b"]}', "line 2: takes lists of sentences as 'en' and 'de', 'en' is no list of strings"),
        ('{"id": "b", "en": ["a"], "de": []}', "line 2: document 'b' has 1 sentences en and 0 de"),
        ('{"id": "b", "en": ["\\ud800"], "de": ["x"]}', "line 2: not Unicode text"),
        (b"\xff\xfe", "x.jsonl, line 2: not UTF-8, byte 1 of the line"),
    ],
)
def test_jsonl_refuses(tmp_path: Path, content: str | bytes, words: str) -> None:
    content = content.encode() if isinstance(content, str) else content
    assert words in refused(text(tmp_path / "x.jsonl", LINE.encode() + b"\n" + content))


def test_files_that_are_none(tmp_path: Path) -> None:
    assert f"{tmp_path}/no.jsonl does not exist" in refused(tmp_path / "no.jsonl")
    assert "is a folder: takes a .jsonl or .tmx file" in refused(tmp_path)
    assert "/dev/zero is a device, takes a file" in refused("/dev/zero,/dev/zero")
    latin = text(tmp_path / "caf\udce9.jsonl", LINE)
    assert "takes a name in UTF-8" in refused(latin)
    assert "cannot tell what" in refused(text(tmp_path / "x.txt", ""))
    assert "b.de does not exist" in refused(f"{text(tmp_path / 'a.en', '')},{tmp_path / 'b.de'}")
    assert "cut short or no .gz file" in refused(text(tmp_path / "x.jsonl.gz", LINE))
    assert "cut short or no .xz file" in refused(text(tmp_path / "x.jsonl.xz", lzma.compress(LINE.encode())[:-20]))


@pytest.mark.parametrize("languages", ["en", "en-", "en-de-fr", "en-en", ""])
def test_languages_are_two(languages: str) -> None:
    with pytest.raises(DataError, match="takes two languages such as en-de"):
        Languages.parse(languages)


def test_clean_text_reads_back(tmp_path: Path) -> None:
    record = {"id": "a", "first": 3, "en": ["x"], "de": ["y"]}
    assert read(text(tmp_path / "x.jsonl", json.dumps(record))) == [Document("a", ["x"], ["y"], 3)]


def test_the_embedded_corpus_is_an_input() -> None:
    ruth = read("bible:dev", Languages("es", "en"))[0]
    assert ruth.id == "Ruth 1"
    assert ruth.source[0].startswith("Y aconteció en los días que gobernaban los jueces")
    assert ruth.target[0].startswith("In the days when the judges judged")
    assert len(read("bible:all", Languages("en", "es"))) == 1189
    assert "bible:genesis: part must be one of train, dev, test, all" in refused("bible:genesis", Languages("en", "es"))
    assert "bible:dev: takes lists of sentences as 'en' and 'de', has id, en, es" in refused("bible:dev")


@pytest.mark.parametrize("first", ["John", 1.5, -1, True, None])
def test_a_first_that_is_no_number_of_a_sentence_is_somebody_else_s(first: object, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "d", "first": first, "en": ["a"], "de": ["b"]}))
    assert list(read_jsonl(tmp_path / "a.jsonl", EN_DE)) == [Document("d", ["a"], ["b"])]


def test_indonesian_is_a_language_and_no_name(tmp_path: Path) -> None:
    languages = Languages("id", "en")
    document = Document("d1", ["Selamat pagi."], ["Good morning."])
    (tmp_path / "a.jsonl").write_bytes(to_line(document, languages))
    assert list(read_jsonl(tmp_path / "a.jsonl", languages)) == [document]
    (tmp_path / "b.jsonl").write_text('{"id": ["Selamat."], "en": ["Hello."]}')
    assert next(read_jsonl(tmp_path / "b.jsonl", languages)).id == "b.jsonl:1"
