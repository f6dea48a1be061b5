"""A folder that is no model says so in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reluformer.data.files import DataError
from reluformer.models import ReLUFormerConfig
from reluformer.translation.loading import choose_device, choose_dtype, load_model, trained_length
from reluformer.translation.translator import Translator


def test_load(model_folder: Path) -> None:
    translator = Translator.load(model_folder, "cpu", beam=2)
    assert translator.length == 64
    assert not translator.model.training
    assert translator.model.dtype == choose_dtype("auto", torch.device("cpu"))
    assert Translator.load(model_folder, "cpu", length=0).length == 0


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_precision(native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native}, raising=False)
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) == dtype
    assert choose_dtype("bf16", cpu) == torch.bfloat16
    assert Translator.load(model_folder, "cpu", precision="fp32").model.dtype == torch.float32
    with pytest.raises(DataError, match="precision takes auto, int8, bf16, fp32, got 'half'"):
        choose_dtype("half", cpu)


def test_trained_length() -> None:
    config = ReLUFormerConfig(max_position_embeddings=99)
    assert trained_length(config) == 99
    config.trained_length = 0
    assert trained_length(config) == 0


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def lose_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "decoder.layers.0" in name)
    save_file(
        {key: value for key, value in weights.items() if key != name}, folder / "model.safetensors", {"format": "pt"}
    )


def other_width(folder: Path) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"d_model": 2 * content["d_model"]}))


def other_vocabulary(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["zzzz"] = 600
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, "is no folder: takes the folder of a model"),
        (remove("config.json"), "is no model: no config.json"),
        (remove("tokenizer.json"), "is no model: no tokenizer.json"),
        (remove("model.safetensors"), "is no model that can be read: .*no file"),
        (cut_short, "is no model that can be read: "),
        (lose_a_weight, r"lacks weights of its model: model\.decoder\.layers\.0.* and 0 more"),
        (other_width, r"has weights of other shapes than its config\.json: model\.\S+ is \[\d.*\], takes \[\d"),
        (other_vocabulary, "has 601 tokens in its tokeniser and 600 in its model"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "no tokeniser that can be read"),
        (lambda folder: (folder / "config.json").write_text("{"), "is no model that can be read"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "is no model that can be read"),
    ],
)
def test_damaged_models(model_folder: Path, tmp_path: Path, damage, words: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    damage(folder)
    with pytest.raises(DataError, match=words) as caught:
        load_model(folder, "cpu")
    assert "\n" not in str(caught.value)


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(DataError, match="device takes auto, cpu, cuda, got 'tpu'"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(DataError, match="no CUDA device"):
            choose_device("cuda")
