"""Files are written whole or not at all."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from reluformer.data.files import (
    DataError,
    check_readable,
    check_writable,
    open_bytes,
    plain_suffix,
    read_json,
    write_json,
    written_file,
    written_folder,
)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "x.json", {"a": "ä"})
    with pytest.raises(TypeError), written_file(tmp_path / "new" / "x.json") as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert read_json(tmp_path / "new" / "x.json") == {"a": "ä"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.json"]


def test_what_is_replaced_keeps_its_rights(tmp_path: Path) -> None:
    def rights(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    file, folder, usual = tmp_path / "x.json", tmp_path / "x", tmp_path / "usual"
    usual.touch()
    write_json(file, 1)
    assert rights(file) == rights(usual)
    file.chmod(0o600)
    with written_file(file) as opened:
        assert rights(Path(opened.name)) == 0o600  # from the first byte on
    assert rights(file) == 0o600
    folder.mkdir(0o700)
    with written_folder(folder) as made:
        assert rights(made) == 0o700
    assert rights(folder) == 0o700


def test_a_name_may_be_as_long_as_names_are(tmp_path: Path) -> None:
    for name in ("x" * 255, "ü" * 125 + ".json"):
        write_json(tmp_path / name, name)
        assert read_json(tmp_path / name) == name


def test_a_full_disk_names_the_file_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("x.json"), 1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_json(Path("x.json"), 2)
    assert raised.value.filename == "x.json"
    assert read_json(Path("x.json")) == 1
    assert os.listdir() == ["x.json"]


def test_a_folder_is_whole_or_as_it_was(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        with written_folder(tmp_path / "x") as folder:
            (folder / "a").write_bytes(content)
    with pytest.raises(FileNotFoundError), written_folder(tmp_path / "x") as folder:
        (folder / "a").rename(folder / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),  # as arrays raise it: of no file
        Exception("No space left on device (os error 28)"),  # as tokenisers do
    ],
)
def test_a_full_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="No space left") as raised, written_folder(Path("x")):
        raise error
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "x")
    assert os.listdir() == []


def test_other_errors_in_a_folder_are_as_they_were(tmp_path: Path) -> None:
    for error in (Exception("(os error 2)"), ValueError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, written_folder(tmp_path / "x"):
            raise error
        assert raised.value is error


def test_json_of_a_name_in_latin_1(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", "caf\udce9ä")
    assert read_json(tmp_path / "x.json") == "caf\udce9ä"


def test_json_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    assert read_json(tmp_path / "x.json") is read_json(tmp_path / "no.json") is None


@pytest.mark.parametrize("name", ["x.jsonl", "x.y.JSONL", "x.jsonl.gz", "x.jsonl.XZ"])
def test_plain_suffix(name: str) -> None:
    assert plain_suffix(Path(name)) == ".jsonl"


def test_a_device_stays_one_and_so_does_a_link(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, [1])
    assert json.loads(os.read(reader, 100)) == [1]
    os.close(reader)
    assert pipe.is_fifo()
    link.symlink_to(tmp_path / "real.json")
    write_json(link, {"a": 2})
    assert link.is_symlink()
    assert read_json(tmp_path / "real.json") == {"a": 2}
    assert sorted(x.name for x in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]


def test_devices_that_may_never_end_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    main, terminal = os.openpty()
    for path in (tmp_path / "pipe", tmp_path / "file", Path(os.ttyname(terminal))):
        check_readable(path)
    os.close(main)
    os.close(terminal)
    with pytest.raises(DataError, match=r"^/dev/zero is a device, takes a file$"), open_bytes(Path("/dev/zero")):
        pass
    with pytest.raises(DataError, match=r"^cannot read .*file/x: Not a directory"):
        check_readable(tmp_path / "file" / "x")


def test_what_can_be_written_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for name in ("file", "new", "new/folder/x", "pipe", "."):
        check_writable(tmp_path / name)
    with pytest.raises(DataError, match="file is a file, takes a folder for x"):
        check_writable(tmp_path / "file" / "x")
    for place in ("/proc/none", "/proc/none/x", "/proc/version"):
        with pytest.raises(DataError, match=f"cannot write {place}: "):
            check_writable(Path(place))
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


def test_a_file_that_is_protected_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").touch(0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: bool(path.stat().st_mode & 0o222))  # root may do anything
    with pytest.raises(DataError, match="kept: Permission denied"):
        check_writable(tmp_path / "kept")
