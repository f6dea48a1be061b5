from importlib.util import find_spec
from pathlib import Path

import pytest

from reluformer import cli, pretrained
from reluformer.bench import translation
from reluformer.bench.translation import CT2, RELU, STOCK, TWIN, Load, Race, Shape
from reluformer.data.speech import speech
from reluformer.data.tokenizer import train_tokenizer
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

SHAPE = Shape(1, 1, width=32, heads=2, slots=16, vocabulary=400)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    train_tokenizer(speech(), SHAPE.vocabulary).save_pretrained(folder)
    config = ReLUFormerConfig.preset(
        "reluformer-power-tiny", vocab_size=SHAPE.vocabulary, d_model=SHAPE.width, heads=SHAPE.heads,
        encoder_layers=SHAPE.encoder_layers, decoder_layers=SHAPE.decoder_layers, ffn={"slots": SHAPE.slots},
        positions="rotary",
    )  # fmt: skip
    ReLUFormerForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_everybody_writes_as_many_tokens(model_folder: Path, tmp_path: Path) -> None:
    race = Race.of(model_folder, tmp_path)
    assert race.shape == SHAPE
    assert {name.partition(",")[0] for name in race.writers} == {RELU, TWIN, "Marian"}
    sources = race.sources(Load(length=5, batch=2, beams=1))
    for name, write in race.writers.items():
        for beams in (1, 3):
            if name.startswith(CT2) and find_spec("ctranslate2") is None:
                with pytest.raises(RuntimeError, match="not installed"):
                    write(sources, beams)
                continue
            found = write(sources, beams)
            lengths = [len(x) - ("generate" in name) for x in found]  # which begins with the start token
            assert lengths == [5, 5], name


def test_the_twin_differs_in_its_activation_alone(model_folder: Path) -> None:
    model = ReLUFormerForConditionalGeneration.from_pretrained(model_folder)
    twin = translation.twin_of(model.config)
    for site in ("encoder_self", "decoder_self", "cross"):
        assert twin.config.memory(site).activation == "softmax"
        assert twin.config.memory(site).query_key_norm
    assert twin.config.memory("ffn") == model.config.memory("ffn")
    assert twin.config.positions == "rotary"
    assert Shape.of(twin.config) == Shape.of(model.config)


def test_sources_are_the_text_piece_by_piece() -> None:
    race = Race(SHAPE, {}, [5, 6, 7, 8, 399])  # the last is special to the stock model
    assert race.sources(Load(length=3, batch=3, beams=1)) == [[5, 6, 7], [8, 398, 5], [6, 7, 8]]


def test_rows_are_compared_with_the_stock_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "PAUSE", 0.0)
    writers = {name: lambda *_: sum(range(20000)) for name in (f"{RELU}, int8", STOCK)}

    def absent(*_):
        raise RuntimeError("not installed")

    rows = Race(SHAPE, writers | {f"{CT2} int8": absent}, [5, 6, 7]).run(Load(6, 2, 1), 0.001, 1)
    ours, stock, rival = rows
    assert ours.tokens_per_s == pytest.approx(1000 * 12 / ours.ms)
    assert ours.vs_stock == pytest.approx(stock.ms / ours.ms)
    assert stock.vs_stock == 1
    assert ours.vs_ctranslate2 is None
    assert (rival.ms, rival.note) == (None, "not installed")
    assert rival.record()["length"] == 6


def test_the_command(model_folder: Path, capsys, tmp_path: Path) -> None:
    arguments = ["bench", "translation", "--quick", "--model", str(model_folder), "--without", "twin,CTranslate2"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*arguments, "--out", str(tmp_path)])
    assert not stopped.value.code
    lines = (tmp_path / "translation-cpu.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 5  # for 1 and 5 beams
    assert "against generate" in capsys.readouterr().out


def test_a_folder_that_is_no_model(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "none")
    for arguments, words in (([], "no model in the box"), (["--model", str(tmp_path)], "no config.json")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["bench", "translation", *arguments])
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err
