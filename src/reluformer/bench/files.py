"""Results as CSV files: one row per measurement, with the machine in every row."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from reluformer.data.files import written_file


def write_csv(path: Path, records: Sequence[Mapping[str, object]], place: Mapping[str, str]) -> None:
    """Write the records, floats to five digits, followed by where and when they were measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0], *place], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _text(x) for name, x in record.items()} | dict(place))
    with written_file(path) as file:
        file.write(text.getvalue().encode())


def _text(x: object) -> object:
    return "" if x is None else f"{x:.5g}" if isinstance(x, float) else x
