"""The command line of ``reluformer data``."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import typer

from reluformer import cli
from reluformer.data import commands
from reluformer.data.commands import data
from reluformer.data.prepare import Watch
from tests.data.corpus import write_corpus


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.add_typer(data, name="data")
    monkeypatch.setattr(cli, "_command", lambda: typer.main.get_command(app))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def prepare(capsys: pytest.CaptureFixture[str], folder: Path, *more: object) -> tuple[int, str, str]:
    options = ["--languages", "en-de", "--out", folder / "out", "--vocab", 300, "--workers", 1]
    return run(capsys, "prepare", write_corpus(folder / "x.jsonl"), *options, *more)


def test_prepare_again_and_inspect(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    valid = write_corpus(tmp_path / "valid.jsonl", 2, 7)
    status, out, err = prepare(capsys, tmp_path, "--valid", valid, "--lengths", "0,50")
    assert (status, err) == (0, "")
    assert "Kept: " in out
    status, out, err = prepare(capsys, tmp_path, "--valid", valid, "--lengths", "0,50")
    assert (status, out, err) == (0, f"Nothing to do: {tmp_path / 'out'} holds this already.\n", "")
    status, out, err = run(capsys, "inspect", tmp_path / "out", "--examples", 2)
    assert (status, err) == (0, "")
    assert "example 0: doc-0-0, " in out
    assert "😀." in out
    assert "valid" in out


def test_prepare_is_stopped_and_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}

    with monkeypatch.context() as patch:
        patch.setattr(commands, "_progress", ctrl_c_in("encode"))
        status, out, err = prepare(capsys, tmp_path)
    assert (status, out, err) == (130, "", "stopped; the same command goes on with the step that it was in\n")
    before = files()
    assert before
    assert list((tmp_path / "out").rglob("*.tmp")) == []  # nothing is half-written
    status, out, _ = prepare(capsys, tmp_path)
    assert status == 0
    assert "Kept: " in out
    again = {path for path, time in files().items() if path in before and time != before[path]}
    assert again == {tmp_path / "out" / "inputs.json"}  # neither cleaned nor learned once more


def test_a_sample_is_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_progress", ctrl_c_in("draw"))
    write_corpus(Path("x.jsonl"))
    arguments = ["sample", "x.jsonl", "--languages", "en-de", "--pairs", 1, "--out", "drawn.jsonl"]
    assert run(capsys, *arguments) == (130, "", "stopped; drawn.jsonl is not written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def ctrl_c_in(chosen: str) -> Callable[[], AbstractContextManager[Watch]]:
    """Progress that somebody watches who presses Ctrl-C in a step."""

    def watch(step: str, item: str, done: int, total: int | None) -> None:
        if step == chosen:
            raise KeyboardInterrupt

    return lambda: nullcontext(watch)


def test_inspect_shows_no_example_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text('{"id": "a", "en": ["one two", "three four"], "de": ["eins zwei", "drei vier"]}\n')
    run(capsys, "prepare", few, "--languages", "en-de", "--out", tmp_path / "out", "--vocab", 300, "--workers", 1)
    _, out, _ = run(capsys, "inspect", tmp_path / "out", "--length", 0, "--examples", 9)
    shown = [line.partition(":")[0] for line in out.splitlines() if line.startswith("example")]
    assert shown == ["example 0", "example 1"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("x.jsonl", "--out: x.jsonl is an input"),
        ("link.jsonl", "--out: link.jsonl is an input"),
        ("drawn.jsonl.gz", "--out: takes a file that is not compressed"),
        (".", "--out: takes a file, . is a folder"),
        ("-", "--out: takes a file, - is standard output only for translations"),
        ("x.jsonl/drawn.jsonl", "--out: x.jsonl is a file"),
    ],
)
def test_a_sample_replaces_no_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(Path("x.jsonl"))
    before = Path("x.jsonl").read_bytes()
    Path("link.jsonl").symlink_to("x.jsonl")
    status, _, err = run(capsys, "sample", "x.jsonl", "--languages", "en-de", "--pairs", 1, "--out", out)
    assert (status, err.count("\n")) == (2, 1)
    assert words in err
    assert Path("x.jsonl").read_bytes() == before


def test_inspect_shows_what_was_dropped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "y.jsonl").write_text('{"id": "bad", "en": ["[b]", "", "c"], "de": ["дом дом", "x", "c"]}')
    assert prepare(capsys, tmp_path, tmp_path / "y.jsonl")[0] == 0
    _, out, _ = run(capsys, "inspect", tmp_path / "out", "--examples", 0)
    assert "dropped (a side without text), bad, sentence 1:  | x" in out
    assert "dropped (letters of another script), bad, sentence 0: [b] | дом дом" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--languages", "english"], "--languages: takes two languages such as en-de or pt_BR-en, got 'english'"),
        (["--lengths", "1k"], "--lengths: takes numbers and commas, e.g. 0,512,1024, got '1k'"),
        (["--lengths", "8,8"], "lengths takes different numbers of tokens"),
        (["--overlong", "keep"], "--overlong: takes cut or drop, got 'keep'"),
        (["--lengths", "9" * 20], "lengths takes different numbers of tokens, 0 to 2147483647"),
        (["--vocab", "9"], "vocab takes 261 tokens or more"),
        (["--vocab", "1000000000000"], "at most 4194304, got 1000000000000"),
        (["--ratio", "0.5"], "ratio takes 0, or 1 or more, got 0.5"),
        (["--valid", "none.jsonl"], "INPUTS: none.jsonl does not exist"),
        (["none.tmx"], "INPUTS: none.tmx does not exist"),
        (["--out", "/proc/none"], "cannot use /proc/none: No such file"),
        (["--languages", "en-fr"], "x.jsonl, line 1: takes lists of sentences as 'en' and 'fr', has id, en, de"),
    ],
)
def test_wrong_argument_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], words: str
) -> None:
    status, out, err = prepare(capsys, tmp_path, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("reluformer data prepare: ")
    assert err.count("\n") == 1


def test_a_folder_of_something_else_is_no_fault_of_the_inputs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for out, words in ((tmp_path / "file", "is a file, takes a folder"), (tmp_path, "holds other files: takes a new")):
        status, _, err = prepare(capsys, tmp_path, "--out", out)
        assert (status, err.count("\n")) == (2, 1)
        assert f"--out: {out} {words}" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", "7"], "is packed to the lengths 0, 512, 1024, got 7"),
        (["--split", "test"], "has the splits train"),
    ],
)
def test_inspect_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], words: str) -> None:
    status, _, err = run(capsys, "inspect", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "is no folder of reluformer data prepare" in err
    prepare(capsys, tmp_path)
    status, _, err = run(capsys, "inspect", tmp_path / "out", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert words in err


def test_a_damaged_tokeniser_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prepare(capsys, tmp_path)
    (tmp_path / "out" / "tokenizer" / "tokenizer.json").write_text("x")
    status, out, err = run(capsys, "inspect", tmp_path / "out")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{tmp_path}/out/tokenizer cannot be read: " in err
    assert f"prepare {tmp_path}/out again" in err


def test_a_log_gets_lines_of_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "EVERY", 0.0)
    with commands._progress() as watch:
        watch("clean", "folder/a.jsonl", 1200, None)
        watch("encode", "folder/a.jsonl", 1, 4)
    assert capsys.readouterr().err == "clean a.jsonl: 1,200 pairs\nencode a.jsonl: 25%\n"
