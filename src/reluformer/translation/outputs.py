"""Where translations go: one file for each input, written whole or not at all, and never over an input."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reluformer.data.documents import check_output
from reluformer.data.files import DataError, check_readable, open_bytes, plain_suffix, written_file

STANDARD = Path("-")  # path that stands for standard input or output


@dataclass(frozen=True)
class Job:
    """A file to translate and where its translation goes; either may be :data:`STANDARD`."""

    input: Path
    output: Path

    @property
    def name(self) -> str:
        """Name of the input, for messages."""
        return "standard input" if self.input == STANDARD else str(self.input)

    @contextlib.contextmanager
    def reading(self) -> Iterator[IO[bytes]]:
        """Open the input for reading bytes."""
        if self.input == STANDARD:
            if sys.stdin is None:
                raise DataError("standard input is closed: name a file")
            yield sys.stdin.buffer
        else:
            with open_bytes(self.input) as file:
                yield file

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Open the output for writing bytes; a full disk, say, is a :class:`DataError` that names the file."""
        place = "standard output" if self.output == STANDARD else str(self.output)
        try:
            if self.output == STANDARD:
                if sys.stdout is None:
                    raise DataError("standard output is closed: name a file with --output")
                yield sys.stdout.buffer
                sys.stdout.buffer.flush()
            else:
                with written_file(self.output) as file:
                    yield file
        except BrokenPipeError:
            # The reader has seen enough. What is still buffered must not fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            raise DataError(f"cannot write {place}: {error.strerror or error}") from None


def plan_jobs(files: Sequence[Path], output: str | Path | None, language: str, force: bool) -> list[Job]:
    """Plan what to read and where to write, checked before any work is done.

    Args:
        files: Files to translate; none, or ``-``, for standard input.
        output: A file, for one input; a folder, in which translations keep the names of their inputs (a path that ends
            in a slash is one even if it does not exist yet); ``-`` for standard output; or None for files beside the
            inputs: ``report.de.md`` beside ``report.md``.
        language: Language to put into the names of files beside the inputs.
        force: Whether existing files may be replaced. A file that the user named is replaced without asking.
    """
    files = files or [STANDARD]
    if list(files).count(STANDARD) > 1:
        raise DataError("standard input can be read only once")
    folder = len(files) > 1 or str(output or "").endswith(("/", os.sep))
    output = None if output is None else Path(output)
    for path in files:
        if path != STANDARD:
            check_readable(path)
    jobs = [Job(path, _output_of(path, output, folder, language)) for path in files]
    taken: dict[Path, Path] = {}
    inputs = {path.resolve() for path in files if path != STANDARD}
    for job in jobs:
        if job.output == STANDARD:
            continue
        place = job.output.resolve()
        if place in inputs:
            raise DataError(f"the translation of {job.name} would go to {job.output}, which is an input")
        if place in taken:
            raise DataError(f"the translations of {taken[place]} and {job.input} would both go to {job.output}")
        if place.is_dir():
            raise DataError(f"{job.output} is a folder, takes a file")
        if job.output != output and job.output.exists() and not force:
            raise DataError(f"{job.output} exists: --force replaces it")
        taken[place] = job.input
        check_output(job.output, ())
    return jobs


def _output_of(path: Path, output: Path | None, folder: bool, language: str) -> Path:
    plain = path.with_suffix("") if path.suffix.lower() in (".gz", ".xz") else path  # translations are not compressed
    if output is None:
        if path != STANDARD and Path(language).name != language:
            raise DataError(f"target is part of the name of a file, got {language!r}: name the file with --output")
        return STANDARD if path == STANDARD else plain.with_name(f"{plain.stem}.{language}{plain_suffix(path)}")
    if output == STANDARD:
        return STANDARD
    if folder or output.is_dir():
        if path == STANDARD:
            raise DataError(f"standard input has no name for a file in {output}: name the file")
        if output.exists() and not output.is_dir():
            raise DataError(f"{output} is a file, takes a folder")
        return output / plain.name
    return output
