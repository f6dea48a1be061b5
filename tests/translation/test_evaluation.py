import json
from pathlib import Path

import pytest

from reluformer.data.documents import Document, Languages
from reluformer.data.files import DataError
from reluformer.translation.evaluation import keep, read_hypotheses, read_references

DOCUMENTS = [Document("one", ["a", "b"], ["A", "B"]), Document("two", ["c"], ["C"])]
EN_DE = Languages("en", "de")


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    systems = [[["x", ""], ["ü"]], [["p", "q"], ["r"]]]
    keep(path, DOCUMENTS, EN_DE, systems)
    assert read_hypotheses(path, DOCUMENTS, "de") == systems[0]
    assert read_hypotheses(path, DOCUMENTS[:1], "de") == systems[0][:1]
    assert read_hypotheses(path, DOCUMENTS, "compare") == systems[1]
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {"id": "one", "en": ["a", "b"], "de": ["x", ""], "reference": ["A", "B"], "compare": ["p", "q"]}
    keep(path, DOCUMENTS, EN_DE, systems[:1])
    assert "compare" not in path.read_text()
    assert '"ü"' in path.read_text(encoding="utf-8")  # by people, too


@pytest.mark.parametrize("text", ["x\ny\nz\n", "x\ny\n\nz", "x\r\ny\r\n<d>\r\nz\r\n<d>\r\n"])
def test_hypotheses_as_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "said.de"
    path.write_bytes(text.encode())
    assert read_hypotheses(path, DOCUMENTS, "de") == [["x", "y"], ["z"]]


def test_a_blank_translation_is_one(tmp_path: Path) -> None:
    (tmp_path / "said.de").write_text("x\n\n<d>\nz\n")
    assert read_hypotheses(tmp_path / "said.de", DOCUMENTS, "de") == [["x", ""], ["z"]]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.de", "a\nb\n", "has 2 lines, the data has 3 sentences"),
        ("x.jsonl", '{"id": "one", "de": ["x", "y"]}', "has 1 documents, the data 2"),
        ("x.jsonl", '{"id": "two", "de": ["x"]}\n{"de": []}', "has document 'two' where the data has 'one'"),
        ("x.jsonl", '{"de": ["x"]}\n{"de": []}', "document 'one': 1 sentences, the data has 2"),
        ("x.jsonl", '{"en": ["x"]}', "line 1: takes an object with a list of sentences as 'de'"),
        ("x.jsonl", "[]", "line 1: takes an object"),
        ("x.jsonl", '{"de": "x"}', "line 1: 'de' is no list of strings"),
    ],
)
def test_hypotheses_that_do_not_fit(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        read_hypotheses(tmp_path / name, DOCUMENTS, "de")


def test_references(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"id": "{i}", "en": ["a"], "de": ["b"]}}\n' for i in range(5)))
    assert [x.id for x in read_references([str(path), str(path)], EN_DE, 6)] == ["0", "1", "2", "3", "4", "0"]
    assert len(read_references([str(path)], EN_DE, 10**30)) == 5
    for nothing in ("[]", '["", " "]'):
        path.write_text(f'{{"en": {nothing}, "de": {nothing}}}')
        with pytest.raises(DataError, match=r"x\.jsonl: no sentence to translate"):
            read_references([str(path)], EN_DE)
