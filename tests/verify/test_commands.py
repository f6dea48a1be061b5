"""``reluformer verify``: what it prints, and one line for what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from reluformer.cli import main
from reluformer.verify import training


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_train_then_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folders = [str(tmp_path / kind) for kind in ("relu", "softmax")]
    for folder, kind in zip(folders, ("relu", "softmax"), strict=True):
        status, out, err = run(capsys, "--train", kind, "--epochs", "1", "--limit", "12", "--out", folder)
        assert (status, err) == (0, "")
        assert kind in out
    status, out, err = run(capsys, *folders, "--radius", "0,0.001", "--limit", "30")
    assert (status, err) == (0, "")
    for word in ("certified", "attacked", "width", "softmax", "0.001"):
        assert word in out
    status, out, err = run(capsys, *folders, "--radius", "0,0.001", "--limit", "30", "--json")
    assert (status, err) == (0, "")
    results = json.loads(out)["results"]
    assert [(x["model"], x["radius"]) for x in results] == [(f, r) for f in folders for r in (0.0, 0.001)]
    for x in results:
        assert x["images"] == 30
        assert 0 <= x["certified"] <= x["attacked"] <= x["right"] <= 1
        assert x["seen"] <= x["width"]
    assert results[0]["certified"] == results[0]["right"]


def test_a_file_of_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", pixels=generator.random((20, 4, 6)), labels=np.arange(20) % 3)
    arguments = ("--data", str(tmp_path / "mine.npz"), "--train", "relu-mass", "--ffn", "softmax", "--epochs", "1")
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    (result,) = json.loads(out)["results"]
    assert (result["attention"], result["ffn"], result["images"]) == ("relu-mass", "softmax", 4)


REFUSED = {
    "nothing to verify": ([], "MODELS: takes folders of classifiers, or --train to make one"),
    "no such folder": (["nowhere"], "MODELS: takes folders of classifiers, there is no folder 'nowhere'"),
    "no model in the folder": (["tests"], "MODELS: cannot load 'tests'"),
    "no such memory": (["--train", "gelu"], "--train: takes relu, relu-mass, softmax, got 'gelu'"),
    "no such ffn": (["--train", "relu", "--ffn", "none"], "--ffn: takes relu, relu-mass, softmax, got 'none'"),
    "radius no number": (["--train", "relu", "--radius", "0.1;0.2"], "--radius: takes numbers from 0 on and commas"),
    "radius negative": (["--train", "relu", "--radius", "-1"], "--radius: takes numbers from 0 on and commas"),
    "radius nan": (["--train", "relu", "--radius", "nan"], "--radius: takes numbers from 0 on and commas"),
    "training radius": (["--train", "relu", "--train-radius", "-0.1"], "--train-radius: takes a number from 0 on"),
    "nothing to keep": (["tests", "--out", "somewhere"], "--out: keeps what --train makes"),
    "ffn of nothing": (["tests", "--ffn", "relu"], "--ffn: is of what --train makes: give --train too"),
    "radius of nothing": (["tests", "--train-radius", "0.1"], "--train-radius: is of what --train makes"),
    "epochs of nothing": (["tests", "--epochs", "20"], "--epochs: is of what --train makes"),
    "seed of nothing": (["tests", "--seed", "1"], "--seed: is of what --train makes"),
    "seed too large": (["--train", "relu", "--seed", str(2**63)], "--seed"),
    "a file for a folder": (["--train", "relu", "--out", __file__], "--out: takes a folder"),
    "a folder of others": (["--train", "relu", "--out", "tests"], "--out: takes a new folder, or that of a model"),
    "nowhere to write": (["--train", "relu", "--epochs", "1", "--out", "/proc/x"], "--out: cannot write /proc/x"),
    "no such data": (["--train", "relu", "--data", "nothing.npz"], "--data: takes digits or a .npz file"),
    "data that is none": (["--train", "relu", "--data", __file__], "--data: takes digits or a .npz file"),
    "no epochs": (["--train", "relu", "--epochs", "0"], "--epochs"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_argument_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"pixels": np.zeros((5, 8, 8))}, "cannot read pixels and labels"),
        ({"pixels": np.zeros((5, 64)), "labels": np.zeros(5)}, "must hold pixels (N, rows, columns) and labels (N,)"),
        ({"pixels": np.full((5, 8, 8), 16.0), "labels": np.zeros(5)}, "must hold pixels from 0 to 1"),
        ({"pixels": np.zeros((1, 8, 8)), "labels": np.zeros(1)}, "takes at least two images"),
    ],
)
def test_wrong_data_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    np.savez(tmp_path / "wrong.npz", **arrays)
    status, _, err = run(capsys, "--train", "relu", "--data", str(tmp_path / "wrong.npz"))
    assert status == 2
    assert words in err
    assert err.count("\n") == 1


def test_data_must_fit_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "--train", "relu", "--epochs", "1", "--limit", "5", "--out", str(tmp_path / "m"))[0] == 0
    np.savez(tmp_path / "small.npz", pixels=np.zeros((5, 4, 4)), labels=np.zeros(5, int))
    status, _, err = run(capsys, str(tmp_path / "m"), "--data", str(tmp_path / "small.npz"))
    assert status == 2
    assert "takes 8 x 8 images of 10 classes, the data has 4 x 4" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("left", [0, 100], ids=["nothing", "a part"])
def test_a_broken_file_of_images_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, left: int) -> None:
    path = tmp_path / "broken.npz"
    np.savez(path, pixels=np.zeros((5, 8, 8)), labels=np.zeros(5))
    path.write_bytes(path.read_bytes()[:left])
    status, _, err = run(capsys, "--train", "relu", "--data", str(path))
    assert status == 2
    assert "is none, or broken" in err
    assert err.count("\n") == 1


def test_a_broken_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "--train", "relu", "--epochs", "1", "--limit", "2", "--out", str(tmp_path / "made"))
    weights = tmp_path / "made" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    status, _, err = run(capsys, str(tmp_path / "made"), "--limit", "2")
    assert status == 2
    assert "cannot load" in err
    assert err.count("\n") == 1


def test_a_place_for_the_model_is_looked_for_before_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "train_classifier", lambda *_, **__: pytest.fail("too early"))
    status, _, err = run(capsys, "--train", "relu", "--out", "/proc/none/x")
    assert (status, err.count("\n")) == (2, 1)
    assert "--out: cannot write /proc/none/x: No such file" in err
