"""``reluformer compress``: a folder like the one it was made of, or one line that says why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reluformer import cli
from reluformer.data.files import DataError
from reluformer.models.compressing import WEIGHTS, is_compressed
from reluformer.models.quantising import can_multiply_integers
from reluformer.translation.compression import compress_folder
from reluformer.translation.loading import wants_integers
from reluformer.translation.translator import Translator
from tests.translation.conftest import tiny_model

TEXT = [["In the beginning God created the heaven and the earth.", "And the earth was without form."]]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(x) for x in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_a_folder_like_the_first(model_folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "small"
    status, said, wrong = run(capsys, "compress", model_folder, out)
    assert (status, wrong) == (0, "")
    assert sorted(x.name for x in out.iterdir()) == sorted(x.name for x in model_folder.iterdir())
    for name in load_file(model_folder / WEIGHTS):
        assert any(line.split()[0] == name for line in said.splitlines() if line.strip())
    before, after = ((x / WEIGHTS).stat().st_size for x in (model_folder, out))
    assert f"{before / 1e6:.2f} MB became {after / 1e6:.2f} MB" in said
    assert is_compressed(out)


@pytest.mark.skipif(not can_multiply_integers(), reason="PyTorch has no int8 matrices here")
@pytest.mark.parametrize("beam", [1, 3])
def test_it_translates_in_integers(model_folder: Path, tmp_path: Path, beam: int) -> None:
    compress_folder(model_folder, tmp_path / "small")
    translator = Translator.load(tmp_path / "small", "cpu", beam=beam)
    assert translator.settings()["dtype"] == "int8"
    assert translator.model.dtype == torch.float32
    found = list(translator.translate(TEXT))
    assert [len(x) for x in found] == [2]
    assert found == list(Translator.load(tmp_path / "small", "cpu", precision="int8", beam=beam).translate(TEXT))
    floats = Translator.load(tmp_path / "small", "cpu", precision="fp32", beam=beam)
    assert floats.settings()["dtype"] == "float32"
    assert not Translator.load(model_folder, "cpu", beam=beam).integers  # its weights are no integers


@pytest.mark.skipif(not can_multiply_integers(), reason="PyTorch has no int8 matrices here")
def test_a_model_that_no_engine_runs(tokenizer, tmp_path: Path) -> None:
    tiny_model(cross={"norm": "layer"}).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    compress_folder(tmp_path / "plain", tmp_path / "small")
    translator = Translator.load(tmp_path / "small", "cpu", beam=2)
    assert not translator.integers
    assert len(next(iter(translator.translate(TEXT)))) == 2
    with pytest.raises(DataError, match=r"int8 takes a ReLUFormer of plain memories on a CPU, got cross.norm layer"):
        Translator.load(tmp_path / "small", "cpu", precision="int8")


def test_integers_take_a_cpu_that_has_them(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="precision int8 takes a CPU for which PyTorch has int8 matrices, got cuda"):
        wants_integers("int8", torch.device("cuda"), model_folder)
    monkeypatch.setattr("reluformer.translation.loading.can_multiply_integers", lambda: False)
    with pytest.raises(DataError, match="got cpu"):
        wants_integers("int8", torch.device("cpu"), model_folder)


def other_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "marian"}))


def not_finite(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.shared.weight"][3, 4] = float("nan")
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def twice(folder: Path) -> None:
    compress_folder(folder, folder.parent / "once")
    shutil.rmtree(folder)
    (folder.parent / "once").rename(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "model is no folder: takes the folder of a model"),
        (other_kind, "model takes a config.json of model_type reluformer, got marian"),
        (
            lambda folder: (folder / "config.json").write_text("[1]"),
            "model takes a config.json of model_type reluformer, got None",
        ),
        (
            lambda folder: (folder / "config.json").unlink(),
            "model takes a config.json of model_type reluformer, got None",
        ),
        (lambda folder: (folder / WEIGHTS).unlink(), "model is no model in one file: no model.safetensors"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 99), "model.safetensors cannot be compressed: "),
        (not_finite, "model.shared.weight must be finite to be compressed, got inf or nan"),
        (twice, "model is compressed already"),
        (
            lambda folder: (folder.parent / "out").write_text("x"),
            "out is there already: takes the name of a new folder",
        ),
    ],
)
def test_what_is_refused(spoil, words: str, model_folder: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    spoil(folder)
    status, said, wrong = run(capsys, "compress", folder, tmp_path / "out")
    assert (status, said) == (2, "")
    assert words in wrong
    assert len(wrong.splitlines()) == 1
    assert not (tmp_path / "out").is_dir()
