import csv

import pytest

from reluformer.bench.models import MARIAN, REGULARISED, TWIN
from reluformer.bench.trainers import RECORDED
from reluformer.cli import main
from tests.training.runs import prepare_data


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def test_everybody_trains_on_the_same_data(tmp_path, capsys):
    data = prepare_data(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(
            [
                "bench",
                "trainers",
                "--data",
                str(data),
                "--lengths",
                "0,60",
                "--quick",
                "--graphs",
                "--out",
                str(tmp_path / "out"),
            ]
        )
    assert end.value.code == 0, capsys.readouterr().err
    (kept,) = (tmp_path / "out").glob("trainers-*.csv")
    rows = list(csv.DictReader(kept.open()))
    names = (MARIAN, REGULARISED, TWIN, REGULARISED + RECORDED, TWIN + RECORDED)
    assert [(row["trainer"], row["length"]) for row in rows] == [
        (name, length) for length in ("0", "60") for name in names
    ]
    for marian, ours, twin, recorded, recorded_twin in (rows[:5], rows[5:]):
        assert recorded["tokens_per_step"] == recorded_twin["tokens_per_step"]
        assert ours["tokens_per_step"] == twin["tokens_per_step"]  # the same batches
        assert float(marian["tokens_per_step"]) == pytest.approx(float(ours["tokens_per_step"]), rel=0.5)
        assert float(ours["vs_marian"]) == pytest.approx(
            float(ours["tokens_per_s"]) / float(marian["tokens_per_s"]), rel=1e-3
        )
    assert kept.with_suffix(".png").stat().st_size > 10_000


def test_data_that_are_none(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", "trainers", "--data", str(tmp_path), "--quick"])
    assert end.value.code == 2
    assert "is no folder of reluformer data prepare" in capsys.readouterr().err
