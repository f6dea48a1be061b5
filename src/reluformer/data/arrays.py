"""Arrays on disk: plain binary files without a header, written piece by piece and read through a memory map."""

from pathlib import Path
from types import TracebackType

import numpy as np

from reluformer.data.files import DataError

INDEX = np.dtype("<i8")


class ArrayFile:
    """A writer for an array that grows on disk, and so may be larger than memory."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self._file = path.open("wb")

    def __enter__(self) -> "ArrayFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def append(self, values: np.ndarray) -> None:
        """Write values at the end of the file."""
        self._file.write(np.ascontiguousarray(values, self.dtype).data)


def open_array(path: Path, dtype: np.dtype) -> np.ndarray:
    """Map a whole array into memory without reading it."""
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise DataError(f"{path} is cut short: {size} bytes are no whole number of items of {dtype.itemsize}")
        # An empty file cannot be mapped.
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None


def starts_of(lengths: np.ndarray, start: int) -> np.ndarray:
    """Return where every piece ends when the first begins at ``start``: each end is the start of the next piece."""
    ends: np.ndarray = np.cumsum(lengths, dtype=INDEX) + start
    return ends
