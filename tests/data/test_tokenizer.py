"""The tokeniser gives every text back, and is the same whenever it is learnt."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from reluformer.data.files import DataError
from reluformer.data.tokenizer import EOS_ID, SEP_ID, SPECIALS, encode, load_encoder, train_tokenizer

TEXTS = ["the house is on the hill", "das Haus steht auf dem Hügel", "the hill and the house"] * 5
ODD = [
    "",
    " ",
    "  the house ",
    "a\tb\r\nc\n",
    "ein 😀 👩\u200d👩\u200d👧 Haus",
    "日本語のテスト",
    "e\u0301 \u00e9 ﬁ",
    "\0\x7f\u200b\ufeff",
    "<sep>",
    "the</s> <pad><s><unk> house",
    "x ' s . n't , !",
    "\U0010ffff\ud7ff",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, 300).save_pretrained(path)
    return path


def test_special_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == [0, 1, 2, 3, 4]
    ids = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    assert (*ids, tokenizer.sep_token_id) == (0, 1, 2, 3, 4)
    assert 261 < len(tokenizer) <= 300


@pytest.mark.parametrize("text", ODD)
def test_every_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == EOS_ID
    assert min(ids[:-1], default=99) > SEP_ID  # text is text, whatever it spells
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.decode(ids[:-1]) == text
    assert encode(load_encoder(folder), [text, "the"])[0] == ids[:-1]


def test_learning_is_deterministic(folder: Path, tmp_path: Path) -> None:
    program = f"""
from reluformer.data.tokenizer import train_tokenizer
train_tokenizer({TEXTS!r}, 300).save_pretrained({str(tmp_path)!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_bytes_must_fit() -> None:
    with pytest.raises(DataError, match=r"takes 261 tokens or more .*, got 260"):
        train_tokenizer(TEXTS, 260)
    with pytest.raises(DataError, match=r"takes .* at most 4194304, got 10000000000"):
        train_tokenizer(TEXTS, 10**10)  # for which there is no memory
    assert len(train_tokenizer([], 1000)) == 261
