import os
from pathlib import Path

import pytest

from reluformer.bench.files import write_csv

PLACE = {"machine": "here"}


def test_one_row_per_record_and_the_place_in_each(tmp_path: Path) -> None:
    write_csv(tmp_path / "new" / "x.csv", [{"ms": 1.2345678, "note": None}, {"ms": 2, "note": "ä, b"}], PLACE)
    text = (tmp_path / "new" / "x.csv").read_text(encoding="utf-8")
    assert text == 'ms,note,machine\n1.2346,,here\n2,"ä, b",here\n'


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [{"ms": 1}], PLACE)
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        write_csv(tmp_path / "x.csv", [{"ms": 2}, {"s": 3}], PLACE)
    assert (tmp_path / "x.csv").read_text() == "ms,machine\n1,here\n"
    assert os.listdir(tmp_path) == ["x.csv"]
