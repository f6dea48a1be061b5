"""Files in and out: read line by line, compressed or not; written whole or not at all."""

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

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors that can end a write that began well
BOM = b"\xef\xbb\xbf"
_BROKEN = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)


class DataError(ValueError):
    """Data that cannot be used; the message says which file, what is wrong with it, and where."""


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if its name ends in .gz or .xz; any failure is a :class:`DataError`."""
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
    """Refuse a missing file, a folder, or a device, which may never end; pipes and terminals are fine."""
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
    """Refuse a name that is not UTF-8, which neither libraries in Rust nor the names of documents can hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: takes a name in UTF-8, this one is not") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Iterate over lines with their numbers from 1, without ``\n``, ``\r\n`` or a byte order mark.

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
    """Return the suffix that tells the format: ``.jsonl`` for ``x.jsonl.gz``."""
    return Path(path.stem if path.suffix.lower() in (".gz", ".xz") else path.name).suffix.lower()


def check_writable(path: Path) -> None:
    """Refuse a file or folder that cannot be written, before work that may take hours.

    Permissions alone do not tell, for instance on a disk mounted read-only, so this tries to create a temporary file,
    which leaves nothing behind.
    """
    try:
        place = path.resolve()
        if place.exists() and not os.access(place, os.W_OK):  # it could be replaced, but somebody protected it
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
    """Write a file under a temporary name beside its own, which it takes when all of it is on disk.

    A link stays a link, a file that is replaced passes on its permissions, and a pipe or a device is written to
    directly. An error of the system, such as a full disk, names the file.
    """
    place = path.resolve()
    short = f"{place.name[:40]}.{hash_of(place.name)}"  # file systems limit the length of a name
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
    """Write a folder in the same way: the caller writes its files, and an existing folder of that name is replaced."""
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
    """Copy permissions before anything is written, so that private content is never exposed; some disks have none."""
    with contextlib.suppress(OSError):
        shutil.copymode(old, new)


def _number_in(error: Exception) -> int | None:
    """Return the errno that libraries in Rust (tokenizers, safetensors) put into the message of a system error."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _is_special(path: Path) -> bool:
    """Return whether the path is a device or a pipe, which is written to and never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON that people can read."""
    with written_file(path) as file:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        file.write(text.encode(errors="backslashreplace") + b"\n")  # a file name in Latin-1 becomes JSON escapes


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it is missing or cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def hash_of(content: Any) -> str:
    """Return a short hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def hash_of_file(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
