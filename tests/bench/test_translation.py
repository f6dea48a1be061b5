from importlib.util import find_spec
from pathlib import Path

import pytest

from reluformer import cli
from reluformer.bench import translation
from reluformer.bench.translation import CT2, RELU, STOCK, Load, Shape

SHAPE = Shape(1, 1, width=32, heads=2, slots=16, vocabulary=40)


def test_everybody_writes_as_many_tokens(tmp_path: Path) -> None:
    sources = [[5, 6, 7, 8, 9]] * 2
    for name, write in translation.contestants(SHAPE, tmp_path).items():
        for beams in (1, 3):
            if name.startswith(CT2) and find_spec("ctranslate2") is None:
                with pytest.raises(RuntimeError, match="not installed"):
                    write(sources, beams)
                continue
            found = write(sources, beams)
            lengths = [len(x) - ("generate" in name) for x in found]  # which begins with the start token
            assert lengths == [5, 5], name


def test_rows_are_compared_with_the_stock_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "PAUSE", 0.0)
    writers = {name: lambda *_: sum(range(20000)) for name in (f"{RELU}, int8", STOCK)}

    def absent(*_):
        raise RuntimeError("not installed")

    rows = translation.race(SHAPE, writers | {f"{CT2} int8": absent}, Load(6, 2, 1), 0.001, 1)
    ours, stock, rival = rows
    assert ours.tokens_per_s == pytest.approx(1000 * 12 / ours.ms)
    assert ours.vs_stock == pytest.approx(stock.ms / ours.ms)
    assert stock.vs_stock == 1
    assert ours.vs_ctranslate2 is None
    assert (rival.ms, rival.note) == (None, "not installed")
    assert rival.record()["length"] == 6


def test_the_command(capsys, tmp_path: Path) -> None:
    arguments = ["bench", "translation", "--quick", "--layers", "1,1", "--without", "twin,CTranslate2", "--out"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*arguments, str(tmp_path)])
    assert not stopped.value.code
    lines = (tmp_path / "translation-cpu.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 4  # for 1 and 5 beams
    assert "against generate" in capsys.readouterr().out


def test_layers_are_two_numbers(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "translation", "--layers", "6"])
    assert stopped.value.code == 2
    assert "takes two numbers, got '6'" in capsys.readouterr().err
