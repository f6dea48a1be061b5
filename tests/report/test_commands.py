"""``reluformer inspect`` on a tiny model with random weights."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import typer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from reluformer import pretrained
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.report import commands
from reluformer.report.commands import inspect

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "small", "house", "ein", "kleines", "Haus"]
app = typer.Typer()
app.command()(inspect)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as ``save_pretrained`` leaves it."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    path = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(path)
    config = ReLUFormerConfig.preset(
        "reluformer-tiny", vocab_size=len(WORDS), pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    ReLUFormerForConditionalGeneration(config).save_pretrained(path)
    return path


def run(*arguments: object, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(x) for x in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_prints_and_keeps(folder: Path, tmp_path: Path) -> None:
    status, out = run(
        "a small house", "--model", folder, "--target", "ein kleines Haus", "--out", tmp_path / "seen",
        "--heads", "decoder.cross_attention:1:*,encoder.self_attention:0:2",
    )  # fmt: skip
    assert status == 0, out
    assert "target: ein kleines Haus" in out
    for site in ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention", "decoder.ffn"):
        assert site in out
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == [
        *(f"decoder.cross_attention-1-{h}.png" for h in range(4)),
        "encoder.self_attention-0-2.png",
        "report.json",
    ]
    report = json.loads((tmp_path / "seen" / "report.json").read_text())
    assert report["about"]["source"] == "a small house"
    rows = {site["site"]: site["heads"][0]["rows"] for site in report["sites"]}
    assert rows == dict.fromkeys(rows, 4)  # three words and the end; the start and three words


def test_json_of_what_the_model_says(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a house\n")
    for text, stdin in ((str(file), None), ("-", "a house\n"), ("a house", None)):
        status, out = run(text, "--model", folder, "--json", stdin=stdin)
        assert status == 0, out
        report = json.loads(out[out.index("{") :])
        assert report["about"]["source"] == "a house"
        assert {site["layer"] for site in report["sites"]} == {0, 1}
    assert list(tmp_path.iterdir()) == [file]


def test_the_model_in_the_box(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", folder)
    status, out = run("a house", "--json")
    assert status == 0, out
    assert json.loads(out[out.index("{") :])["about"]["model"] == "en-de (in the box)"
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    status, out = run("a house")
    assert status == 2
    assert "no model in the box" in out


def test_usual_maps(folder: Path, tmp_path: Path) -> None:
    status, out = run("a house", "--model", folder, "--target", "ein Haus", "--out", tmp_path)
    assert status == 0, out
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "decoder.cross_attention-1-0.png",
        "decoder.self_attention-1-0.png",
        "encoder.self_attention-1-0.png",
    ]


def test_refusals(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    shutil.copytree(folder, tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    refused = {
        ("a", "--model", tmp_path / "broken"): "cannot inspect",
        ("a", "--model", folder, "--out", "/proc/nowhere"): "cannot write",
        (" ", "--model", folder): "takes a text, got an empty one",
        (tmp_path / "bytes.txt", "--model", folder): "not UTF-8, byte 1 of",
        ("\udcff", "--model", folder): "TEXT: takes text in UTF-8",
        ("a", "--model", folder, "--target", ""): "takes a text, got an empty one",
        ("a", "--model", folder, "--heads", "x:0:0"): "give --out too",
        ("a", "--model", folder, "--heads", "x", "--out", tmp_path / "o"): "must be site:layer:head",
        ("a", "--model", folder, "--heads", "x:0:0", "--out", tmp_path / "o"): "heads must name an attention head",
        ("a", "--model", folder, "--out", __file__): "takes a folder",
        ("a", "--model", tmp_path / "empty"): "is no model: no config.json",
        ("/dev/zero", "--model", folder): "/dev/zero is a device, takes a file",
        ("missing.txt", "--model", folder): "there is no file 'missing.txt'",
        ("a", "--model", tmp_path / "none"): "takes a folder or a name, there is no folder",
    }
    for arguments, words in refused.items():
        status, out = run(*arguments)
        assert status == 2, arguments
        assert words in " ".join(out.replace("│", " ").split()), out
    assert not (tmp_path / "o").exists()


def test_standard_input_that_is_no_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["-", "--model", str(folder)], input=b"a \xff")
    assert result.exit_code == 2
    assert "not UTF-8, byte 3 of standard input" in " ".join(result.output.replace("│", " ").split())
    monkeypatch.setattr(commands, "LONGEST", 3)
    result = CliRunner().invoke(app, ["-", "--model", str(folder)], input=b"four")
    assert "standard input is longer than 3 bytes" in " ".join(result.output.replace("│", " ").split())
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(typer.BadParameter, match="standard input is closed"):
        inspect("-")


def test_files_and_pipes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "windows.txt").write_bytes("\ufeffa house\r\n".encode())
    reader, writer = os.pipe()
    os.write(writer, b"a house\n")
    os.close(writer)
    for name in (tmp_path / "windows.txt", f"/dev/fd/{reader}"):  # as a shell calls the output of a command
        result = CliRunner().invoke(app, [str(name), "--model", str(folder), "--json"])
        assert json.loads(result.stdout)["about"]["source"] == "a house"
    os.close(reader)


def test_a_text_longer_than_those_of_training(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"trained_length": 4}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(app, ["a small house a house", "--model", str(tmp_path / "model"), "--json"])
    assert json.loads(result.stdout)["about"]["source"] == "a small house a house"
    assert "the text has 6 tokens, and the model learned from 4 at most: this may take long" in result.stderr


def test_a_text_that_the_model_does_not_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"languages": ["en", "fr"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    german = "Das Haus ist sehr klein, und wir haben es noch nicht gesehen."
    arguments = [german, "--model", str(tmp_path / "model"), "--target", "Haus", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert json.loads(result.stdout)["about"]["source"] == german
    words = "the text looks like German, and this model reads English: the translation will make no sense\n"
    assert result.stderr.endswith(f"reluformer inspect: {words}")
