"""Reports as JSON, as files and as tables."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from reluformer.report import attention_maps, memory_report
from reluformer.report.figures import draw_map
from tests.report.models import Translator, batch
from tests.report.test_measure import attention


def text_of(table, width: int = 118) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_json_round_trip():
    module = attention(bias=0.0)
    with torch.no_grad():
        module.bias[0] = -1000  # None where there is nothing to tell, for JSON has no NaN
    for report in (memory_report(Translator(), batch()), memory_report(module, {"x": torch.randn(1, 4, 16)})):
        values = report.to_dict()
        assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_save(tmp_path):
    model, data = Translator(), batch()
    report, maps = memory_report(model, data), attention_maps(model, data, ["*:1:0", "encoder.attention:0:3"])
    paths = report.save(tmp_path / "new", maps)
    assert sorted(p.name for p in paths) == [
        "decoder.attention-1-0.png",
        "decoder.cross-1-0.png",
        "encoder.attention-0-3.png",
        "encoder.attention-1-0.png",
        "report.json",
    ]
    assert json.loads((tmp_path / "new" / "report.json").read_text()) == report.to_dict()
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths if p.suffix == ".png")


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    model, data = Translator(), batch()
    report, maps = memory_report(model, data), attention_maps(model, data, ["encoder.attention:0:3"])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*report\.json'"):
        report.save(tmp_path, maps)
    with pytest.raises(OSError, match=r"No space left on device: '.*map\.png'"):
        draw_map(tmp_path / "map.png", maps[0])
    assert os.listdir(tmp_path) == []


def test_table_has_a_row_per_memory():
    report = memory_report(Translator(), batch())
    lines = [line.split() for line in text_of(report.table()).splitlines()]
    first = report.sites[0]
    row = next(line for line in lines if line[:1] == ["encoder.attention"])
    assert row[1:4] == ["0", f"{first.mean.mass:.2f}", f"{first.mean.entropy:.2f}"]
    assert len([line for line in lines if len(line) == 12 and line[1] in "01"]) == len(report.sites)


def test_table_of_heads_and_table_of_lengths():
    report = memory_report(Translator(), batch())
    assert report.table(heads=True).row_count == sum(len(site.heads) for site in report.sites)
    lengths = text_of(report.length_table())
    assert "1-2" in lengths
    assert "feedforward" not in lengths


def test_table_fits_a_terminal():
    table = text_of(memory_report(Translator(), batch()).table(), 80)
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_tables_of_dead_heads():
    module = attention(bias=-1000.0)
    report = memory_report(module, {"x": torch.randn(1, 4, 16)})
    assert "n/a" in text_of(report.table())
    assert "relu" in text_of(report.table())
    text_of(report.length_table())


def test_a_report_needs_torch_alone():
    program = """
import sys
import reluformer.report
assert not {"rich", "matplotlib", "typer", "transformers"} & set(sys.modules), "imported too early"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
