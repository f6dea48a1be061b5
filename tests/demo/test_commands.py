"""``reluformer demo``, with a tiny model in the box and without any."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from reluformer import pretrained
from reluformer.cli import main
from reluformer.demo import operator
from reluformer.translation.translator import Translator
from tests.demo.conftest import copy
from tests.test_cli import ended, nobody_reads


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Translator, "_search", copy)
    return tmp_path


def test_a_translation_and_a_page(capsys, folder: Path, box: Path, monkeypatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", box)
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    head = out.splitlines()[1].split()
    assert head == ["en", "de"]
    assert out.count("The night trains of Almenau") == 2  # side by side
    for words in (
        "tokens in",
        "words/s",
        "Weights that are exactly zero: attention",
        "en-de (in the box)",
        "demo operator",
    ):
        assert words in out
    assert [path.name for path in folder.iterdir()] == ["reluformer-demo.html"]
    assert Path("reluformer-demo.html").read_text(encoding="utf-8").count('class="pair"') == 49


@pytest.mark.parametrize(
    ("languages", "head", "words"),
    [
        (["es", "fr"], ["es", "fr"], "reluformer demo: the speech looks like English, and this model reads Spanish"),
        (None, ["source", "translation"], ""),
    ],
)
def test_another_model_and_another_file(
    capsys, folder: Path, box: Path, languages: list[str] | None, head: list[str], words: str
) -> None:
    config = json.loads((box / "config.json").read_text()) | {"languages": languages}
    shutil.copytree(box, "other")
    Path("other/config.json").write_text(json.dumps(config))
    status, out, err = run(capsys, "--model", "other", "--out", "new/page.html")
    assert status == 0
    assert out.splitlines()[1].split() == head
    assert err.startswith(words)
    assert err.count("\n") == bool(words)
    assert Path("new/page.html").is_file()


def test_without_a_model_the_operator_is_shown(capsys, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", folder / "none")
    monkeypatch.setattr(operator, "show_operator", lambda: print("the operator"))
    assert run(capsys) == (
        0,
        "This installation has no model in the box: here is the operator instead.\n\nthe operator\n",
        "",
    )
    assert run(capsys, "operator") == (0, "the operator\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "WHAT: takes translation or operator, got 'dance'"),
        (["--model", "none"], "none is no folder: takes the folder of a model"),
        (["--model", "BOX", "--out", "."], "--out: takes a file, . is a folder"),
        (["operator", "--out", "page.html"], "--out: is of the translation"),
        (["operator", "--model", "BOX"], "--model: is of the translation"),
        (["--model", "BOX", "--out", "/proc/none/x"], "--out: cannot write /proc/none/x: No such file"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, folder: Path, box: Path, arguments: list[str], words: str) -> None:
    status, _, err = run(capsys, *(box if x == "BOX" else x for x in arguments))
    assert status == 2
    assert err.startswith("reluformer demo: ")
    assert words in err
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_a_place_for_the_page_is_looked_for_before_the_work(capsys, folder: Path, box: Path, monkeypatch) -> None:
    monkeypatch.setattr(Translator, "load", lambda *_: pytest.fail("too early"))
    assert run(capsys, "--model", box, "--out", "/proc/none/x")[:2] == (2, "")
    monkeypatch.setattr(pretrained, "FOLDER", folder / "none")
    status, out, err = run(capsys, "--out", "page.html")  # which the operator does not write
    assert (status, out) == (2, "")
    assert "has no model in the box" in err


def test_the_page_is_there_though_nobody_reads(folder: Path, box: Path, monkeypatch) -> None:
    with nobody_reads() as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert ended("demo", "--model", str(box)) == 1
    assert Path("reluformer-demo.html").is_file()
