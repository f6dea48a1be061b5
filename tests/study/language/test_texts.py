from pathlib import Path

import pytest
import torch

from reluformer.data.files import DataError
from reluformer.data.tokenizer import EOS_ID, SEP_ID
from reluformer.study.bench import Bench
from reluformer.study.corpus import open_corpus
from reluformer.study.language.texts import read_corpus, read_file
from reluformer.training.validation import valid_documents


def sentences_of(tokens: torch.Tensor, tokenizer: object) -> list[str]:
    """Back to text: what stands between separators, whichever."""
    ends = ((tokens == SEP_ID) | (tokens == EOS_ID)).nonzero().flatten().tolist()
    starts = [0, *(end + 1 for end in ends)]
    return [tokenizer.decode(tokens[a:b]) for a, b in zip(starts, ends, strict=False)]  # type: ignore[attr-defined]


def test_a_corpus_is_its_source_side_document_by_document(bench: Bench) -> None:
    text = read_corpus(bench.corpus)
    documents = valid_documents(bench.corpus.folder, text.tokenizer, 10**6)[0]
    assert sentences_of(text.valid, text.tokenizer) == [sentence for document in documents for sentence in document]
    assert int((text.valid == EOS_ID).sum()) == len(documents)
    assert text.valid[-1] == EOS_ID
    assert torch.equal(text.test, text.valid)  # this one has no test set
    assert int(text.train.max()) < text.vocabulary


def test_a_test_set_is_read_as_the_rest_is(bench: Bench, tmp_path: Path) -> None:
    languages = bench.corpus.languages
    file = tmp_path / "test.jsonl"
    file.write_text(f'{{"{languages.source}": ["One.", "Two words."], "{languages.target}": ["1", "2"]}}\n' * 2)
    text = read_corpus(open_corpus(Path(bench.corpus.folder), str(file)))
    assert sentences_of(text.test, text.tokenizer) == ["One.", "Two words."] * 2
    marks = text.test[(text.test == SEP_ID) | (text.test == EOS_ID)]
    assert marks.tolist() == [SEP_ID, EOS_ID] * 2


def test_a_file_is_held_out_from_its_end(tmp_path: Path) -> None:
    lines = [f"This is line number {i}." if i % 4 else "" for i in range(1, 41)]
    file = tmp_path / "book.txt"
    file.write_text("\n".join(lines) + "\n")
    text = read_file(file, 300)
    for part, own in ((text.train, lines[:32]), (text.valid, lines[32:36]), (text.test, lines[36:])):
        assert sentences_of(part, text.tokenizer) == [line for line in own if line]
        assert int((part == EOS_ID).sum()) == own.count("")


@pytest.mark.parametrize(("content", "words"), [(None, "is no text file"), ("one\ntwo\n", "it has 2 lines")])
def test_what_is_no_text_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=words):
        read_file(file, 300)
