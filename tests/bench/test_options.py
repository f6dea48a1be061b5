import errno
import os
from pathlib import Path

import pytest
import torch

from reluformer.bench import options
from reluformer.bench.options import Report, size_of
from reluformer.console import plain_table


def test_a_full_disk_does_not_take_the_table_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(options.files, "write_csv", full)
    report = Report("memory", torch.device("cpu"), tmp_path)
    with pytest.raises(OSError, match="No space left"):
        report.finish([], plain_table("measured", ["", "ms"], [("ReLU", "1.00")]), ["and why"])
    out = capsys.readouterr().out
    assert "measured" in out
    assert "n/a  and why" in out
    assert "Kept" not in out
    assert os.listdir(tmp_path) == []


def test_a_size_that_is_named_is_taken() -> None:
    assert (size_of(None, quick=True), size_of(None, quick=False)) == ("tiny", "small")
    assert size_of("base", quick=True) == "base"
