"""Files are written whole or not at all, and never over an input."""

import os
import sys
from pathlib import Path

import pytest

from reluformer.data.files import DataError
from reluformer.translation.outputs import STANDARD, Job, plan_jobs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "b.txt", "c.txt.gz", "sub/a.md"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("old")
    return tmp_path


def outputs(files: list[str], output: str | None = None, force: bool = False) -> list[str]:
    jobs = plan_jobs([Path(x) for x in files], None if output is None else Path(output), "de", force)
    return [str(job.output) for job in jobs]


def test_where_translations_go() -> None:
    assert outputs(["a.md", "b.txt", "c.txt.gz"]) == ["a.de.md", "b.de.txt", "c.de.txt"]
    assert outputs(["sub/a.md"]) == ["sub/a.de.md"]
    assert outputs([]) == outputs(["-"]) == ["-"]
    assert outputs(["a.md", "b.txt"], "-") == ["-", "-"]
    assert outputs(["a.md"], "new.md") == ["new.md"]
    assert outputs(["-"], "new.md") == ["new.md"]
    assert outputs(["a.md", "b.txt"], "new") == ["new/a.md", "new/b.txt"]
    assert outputs(["b.txt"], "sub") == ["sub/b.txt"]


@pytest.mark.parametrize(
    ("files", "output", "words"),
    [
        (["none.txt"], None, "none.txt does not exist"),
        (["sub"], None, "sub is a folder, takes a file"),
        (["/dev/zero"], "-", "/dev/zero is a device, takes a file"),
        (["a.md"], "a.md", "would go to a.md, which is an input"),
        (["a.md"], "sub/../a.md", "which is an input"),
        (["a.md"], "link.md", "which is an input"),
        (["b.txt", "a.md"], "sub", "sub/a.md exists: --force replaces it"),
        (["a.md", "sub/a.md"], "new", "of a.md and sub/a.md would both go to new/a.md"),
        (["a.md", "b.txt"], "c.txt.gz", "is a file, takes a folder"),
        (["-"], "sub", "standard input has no name"),
        (["-", "a.md", "-"], "-", "standard input can be read only once"),
        (["b.txt"], None, "b.de.txt exists: --force replaces it"),
    ],
)
def test_refusals(files: list[str], output: str | None, words: str) -> None:
    Path("link.md").symlink_to("a.md")
    Path("b.de.txt").touch()
    with pytest.raises(DataError, match=words):
        outputs(files, output)


@pytest.mark.parametrize("language", ["a/b", "/x"])
def test_a_target_that_no_file_can_be_named_after(language: str) -> None:
    with pytest.raises(DataError, match="target is part of the name of a file"):
        plan_jobs([Path("a.md")], None, language, False)
    assert plan_jobs([Path("a.md")], Path("new.md"), language, False)[0].output == Path("new.md")


def test_what_may_be_replaced() -> None:
    Path("b.de.txt").touch()
    assert outputs(["b.txt"], "b.de.txt") == ["b.de.txt"]  # named by the user
    assert outputs(["b.txt"], force=True) == ["b.de.txt"]


def test_nothing_is_left_half_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    job = Job(Path("a.md"), Path("b.txt"))

    def fail() -> None:
        with job.writing() as file:
            file.write(b"new")
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot write b\.txt: No space left"):
        fail()
    assert Path("b.txt").read_text() == "old"
    assert sorted(folder.rglob("*")) == before
    with job.writing() as file:
        file.write(b"new")
        assert Path("b.txt").read_text() == "old"
    assert Path("b.txt").read_text() == "new"
    assert sorted(folder.rglob("*")) == before


def test_links_and_devices_stay_what_they_are() -> None:
    Path("link").symlink_to("b.txt")
    with Job(STANDARD, Path("link")).writing() as file:
        file.write(b"new")
    assert Path("link").is_symlink()
    assert Path("b.txt").read_text() == "new"
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    with Job(STANDARD, Path("pipe")).writing() as file:
        file.write(b"through")
    assert os.read(reader, 99) == b"through"
    os.close(reader)
    job = Job(STANDARD, Path("/dev/full"))
    with pytest.raises(DataError, match="cannot write /dev/full: No space left"), job.writing() as file:
        file.write(b"x")
    assert Path("/dev/full").is_char_device()


def test_a_slash_makes_a_folder_of_one_output(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (job,) = plan_jobs([tmp_path / "a.txt"], f"{tmp_path}/new/", "de", False)
    assert job.output == tmp_path / "new" / "a.txt"
    with pytest.raises(DataError, match=r"is a file, takes a folder for x\.txt"):
        plan_jobs([tmp_path / "a.txt"], f"{tmp_path}/a.txt/x.txt", "de", False)


def test_closed_standard_streams_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    (job,) = plan_jobs([], None, "de", False)
    with pytest.raises(DataError, match="standard input is closed"), job.reading():
        pass
    with pytest.raises(DataError, match="standard output is closed"), job.writing():
        pass
