import csv

import pytest

from reluformer.cli import main
from tests.data.corpus import write_corpus


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["bench", "data", *map(str, arguments)])
    return end.value.code


def test_counts_pairs_and_measures(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 20)
    assert run(corpus, "--languages", "en-de", "--lengths", "0", "--out", tmp_path / "out") == 0
    (row,) = csv.DictReader((tmp_path / "out" / "data-cpu.csv").open())
    pairs = int(row["pairs"])
    assert pairs > 20
    assert float(row["pairs_per_s"]) == pytest.approx(pairs / float(row["seconds"]), rel=1e-3)
    assert 20 < float(row["peak_mib"]) < 4000  # a Python with its libraries, and not a machine
    assert row["inputs"] == "corpus.jsonl"


def test_what_cannot_be_prepared(tmp_path, capsys):
    assert run(tmp_path / "missing.jsonl", "--languages", "en-de") == 2
    assert "missing.jsonl" in capsys.readouterr().err
