"""The command line: what it prints, and one line for what it refuses."""

import csv
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

import reluformer
import reluformer.translation.commands
from reluformer import cli, translation
from reluformer.cli import main

REFUSED = {
    "unknown command": (
        ["fly"],
        "reluformer: No such command 'fly'. "
        "It takes bench, compress, data, demo, evaluate, inspect, study, train, translate, verify.",
    ),
    "unknown benchmark": (
        ["bench", "sort"],
        "reluformer bench: No such command 'sort'. It takes attention, data, decode",
    ),
    "unknown option": (["bench", "attention", "--fast"], "reluformer bench attention: No such option: --fast"),
    "unknown device": (["bench", "attention", "--device", "tpu"], "--device: takes auto, cpu or cuda, got 'tpu'"),
    "unknown dtype": (["bench", "memory", "--dtype", "int8"], "--dtype: takes float16, bfloat16, float32, got 'int8'"),
    "lengths not numbers": (
        ["bench", "attention", "--lengths", "1k"],
        "--lengths: takes integers from 1 on and commas",
    ),
    "length zero": (["bench", "memory", "--lengths", "16,0"], "--lengths: takes integers from 1 on and commas"),
    "no such causality": (["bench", "attention", "--causal", "maybe"], "--causal: takes both, yes or no, got 'maybe'"),
    "tokens not a number": (["bench", "attention", "--tokens", "many"], "--tokens"),
    "heads without a slash": (["bench", "decode", "--heads", "8x64"], "--heads: takes e.g. 32/8x128,16/16x64"),
    "heads that do not divide": (["bench", "decode", "--heads", "3/2x64"], "--heads: query heads must be a multiple"),
    "a file for a folder": (["bench", "attention", "--out", __file__], "--out: takes a folder"),
    "nowhere to write": (["bench", "memory", "--out", "/proc/none"], "--out: cannot write /proc/none: No such file"),
    "nobody of that name": (
        ["bench", "attention", "--without", "eager,zzz"],
        "--without: takes words in the names ReLU, this operator; ReLU, this operator, statistics; softmax",
    ),
    "nobody at all": (
        ["bench", "attention", "--without", "relu,Softmax"],
        "--without: leaves nobody to measure, got 'relu,Softmax'",
    ),
    "nobody translates": (
        ["bench", "translation", "--without", "zzz"],
        "--without: takes words in the names ReLUFormer",
    ),
    "part of a head": (["bench", "attention", "--width", "3"], "--width: takes a multiple of the head dim 64, got 3"),
    "heads and a half": (
        ["bench", "forgetting", "--head-dims", "32,64", "--width", "96"],
        "--width: takes a multiple of the head dim 64, got 96",
    ),
    "unknown size": (
        ["bench", "training", "--size", "foo", "--quick"],
        "--size: takes tiny, small, base, got 'foo'",
    ),
    "layers in an unknown way": (
        ["bench", "training", "--layers", "foo", "--quick"],
        "--layers: takes plain, compiled, both, got 'foo'",
    ),
    "unknown size of trainers": (
        ["bench", "trainers", "--data", "none", "--size", "foo"],
        "--size: takes tiny, small, base, got 'foo'",
    ),
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_argument_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"reluformer {reluformer.__version__}\n", "")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "bench" in out
    assert "demo" in out


@pytest.mark.parametrize("absent", ["typer", "rich", "matplotlib"])
def test_missing_toolkit_is_one_line(absent: str, tmp_path: Path) -> None:
    program = f"""
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
hide = lambda name, *rest: None if name.partition(".")[0] == {absent!r} else find(name, *rest)
PathFinder.find_spec = staticmethod(hide)  # called on the class by some, on an instance by others
sys.path.insert(0, {str(Path(reluformer.__file__).parents[1])!r})
from reluformer.cli import main
main(["bench", "memory", "--quick", "--device", "cpu", "--out", {str(tmp_path)!r}])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert ran.stderr == f'reluformer: {absent} is not installed: pip install "reluformer[toolkit]"\n'
    assert ran.stdout == ""


@pytest.mark.parametrize("name", ["attention", "decode", "memory"])
def test_bench_prints_and_keeps(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    status, out, err = run(capsys, "bench", name, "--quick", "--device", "cpu", "--out", str(tmp_path / "new"))
    assert (status, err) == (0, "")
    assert f"{name}-cpu.csv" in out.replace("\n", "")
    with (tmp_path / "new" / f"{name}-cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["torch"] and row["date"] and row["machine"] for row in rows)
    assert not any("this operator" in row.get("contestant", "") and row["note"] for row in rows)
    assert (tmp_path / "new" / f"{name}-cpu.png").read_bytes().startswith(b"\x89PNG")


def test_bench_keeps_nothing_unasked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "bench", "memory", "--quick", "--device", "cpu")
    assert status == 0
    assert "--out DIR" in out
    assert list(tmp_path.iterdir()) == []


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return int(stopped.value.code or 0)


def test_a_full_standard_output_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["--version"], ["--help"]):  # by print and by rich
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert ended(*arguments) == 2
        assert capsys.readouterr().err == "reluformer: cannot write standard output: No space left on device\n"


def test_a_terminal_with_few_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(cli, "_command", lambda: lambda **_: print("für"))
    assert ended() == 0
    assert shown.getvalue() == b"f?r\n"


def test_a_name_that_is_no_text_is_shown_as_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8"))
    monkeypatch.setattr(cli, "_command", lambda: lambda **_: print("für caf\udce9"))
    assert ended() == 0
    assert shown.getvalue() == "für caf".encode() + b"\xe9\n"


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(translation.commands, "plan_jobs", stopped)
    assert run(capsys, "translate", "a.txt", "--model", "m") == (130, "", "stopped\n")


@pytest.mark.parametrize("start", ["from reluformer.cli import main", "import reluformer.__main__"])
def test_ctrl_c_while_torch_loads_is_one_line(start: str) -> None:
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as some of what torch loads would have it
                pass
sys.meta_path.insert(0, Finder)
sys.path.insert(0, {str(Path(reluformer.__file__).parents[1])!r})
{start}
main()
"""
    ran = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "stopped\n")


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for what a script runs in the background
    try:
        with cli._ctrl_c(signal.default_int_handler):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_who_left_is_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--version"], ["--help"]):
        with nobody_reads() as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert ended(*arguments) == 1
        assert capsys.readouterr().err == ""


def test_files_are_there_though_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory", "decode"):
        with nobody_reads() as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert ended("bench", name, "--quick", "--device", "cpu", "--out", str(tmp_path)) == 1
    assert sorted(os.listdir(tmp_path)) == ["decode-cpu.csv", "memory-cpu.csv", "memory-cpu.png"]


def nobody_reads() -> IO[str]:
    """The end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")
