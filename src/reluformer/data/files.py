"""Files in and out: compressed or not, read line by line; written whole or not at all."""

import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what writing may end with, however well it began
BOM = b"\xef\xbb\xbf"
_BROKEN = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)


class DataError(ValueError):
    """Data that cannot be used: the message names the file, what is wrong with it, and where."""


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read, unpacked if its name ends in .gz or .xz; whatever goes wrong is a :class:`DataError`."""
    check_readable(path)
    try:
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
        with opened(path, "rb") as file:
            yield file
    except _BROKEN as error:
        raise DataError(f"{path} is cut short or no {path.suffix} file: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def check_readable(path: Path) -> None:
    """Refuse what holds no text: nothing, a folder, or a device, which may never end; a pipe and a terminal do."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise DataError(f"{path} is a folder, takes a file")
        if (stat.S_ISCHR(kind) or stat.S_ISBLK(kind)) and not _is_terminal(path):
            raise DataError(f"{path} is a device, takes a file")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _is_terminal(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return file.isatty()


def check_name(path: Path) -> None:
    """Refuse a name that libraries in Rust and documents called after their files cannot take."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: takes a name in UTF-8, this one is not") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Lines with their numbers from 1, without ``\n``, ``\r\n`` or a byte order mark.

    Only ``\n`` ends a line: a stray carriage return or a Unicode separator inside a sentence must not shift the lines
    of one side against those of the other.
    """
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(BOM)
            try:
                yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: not UTF-8, byte {error.start + 1} of the line") from None


def plain_suffix(path: Path) -> str:
    """The suffix that tells the format: that of ``x.jsonl.gz`` is ``.jsonl``."""
    return Path(path.stem if path.suffix.lower() in (".gz", ".xz") else path.name).suffix.lower()


def check_writable(path: Path) -> None:
    """Refuse a place, of a file or of a folder, in which nothing can be written: before the work, which may take hours.

    Rights alone do not tell, as on a disk that is mounted to be read only: what is tried leaves nothing behind.
    """
    try:
        place = path.resolve()
        if place.exists() and not os.access(place, os.W_OK):  # a file could be replaced, but was protected
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if _is_special(place):
            return
        folder = place if place.is_dir() else next(parent for parent in place.parents if parent.exists())
        if not folder.is_dir():
            raise DataError(f"{os.path.relpath(folder)} is a file, takes a folder for {path.name}")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def written_file(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary name beside; the file takes its name when all of it is on the disk.

    A link stays one, a file that is replaced leaves who may read it as it was, and what is no file, a pipe or a device,
    is written to as it is. An error of the system, such as that of a full disk, names the file.
    """
    place = path.resolve()
    short = f"{place.name[:40]}.{hash_of(place.name)}"  # there may be no room for more letters
    temporary = place.with_name(f"{short}.{os.getpid()}.tmp")
    try:
        if _is_special(place):
            with place.open("wb") as file:
                yield file
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                _copy_mode(place, temporary)
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    _sync_folder(place.parent)


@contextlib.contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, whose files are the caller's to write; one of that name is replaced."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        _copy_mode(path, temporary)
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        _sync_folder(temporary)
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _number_in(error)
        if number not in FULL:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync_folder(path.parent)


def _copy_mode(old: Path, new: Path) -> None:
    """Before anything is written: what was private is so at no time. Not every disk knows rights."""
    with contextlib.suppress(OSError):
        shutil.copymode(old, new)


def _number_in(error: Exception) -> int | None:
    """The number that libraries in Rust, tokenisers and safetensors, put into an error of the system."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _is_special(path: Path) -> bool:
    """Whether there is a device or a pipe, which is written to and never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _sync_folder(path: Path) -> None:
    """Make the names themselves last; not every system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read."""
    with written_file(path) as file:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        file.write(text.encode(errors="backslashreplace") + b"\n")  # JSON's own way with the name of a file in Latin-1


def read_json(path: Path) -> Any:
    """Read it back; None if there is none, or none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def hash_of(content: Any) -> str:
    """A short name for whatever JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def hash_of_file(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
