"""The command line of ``reluformer train``."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reluformer import cli
from reluformer.training.recipe import Recipe, Stage
from tests.training.runs import python, same, small_recipe, weights, write_recipe


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_train_and_again(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    path = write_recipe(small_recipe(data, tmp_path / "run"), tmp_path / "recipe.yaml")
    model = tmp_path / "run" / "model"
    status, out, err = run(capsys, path, "stages.1.steps=2", "checkpoints.average=1")
    assert (status, out) == (
        0,
        f"Trained 8 steps: {model}, that of the last checkpoint\nBest on its own: {tmp_path}/run/checkpoints/step-8\n",
    )
    assert [line.split()[1] for line in err.splitlines()] == ["2/8", "3/8", "3:", "4/8", "6/8", "6:", "8/8", "8:"]
    assert run(capsys, path, "stages.1.steps=2") == (0, f"Nothing to do: {model} is trained.\n", "")
    status, out, err = run(capsys, path, "stages.1.steps=2", "optimiser.lr=0.5")
    assert (status, out) == (2, "")
    assert err == (
        f"reluformer train: {tmp_path}/run holds another run: optimiser.lr was 0.003, is 0.5; "
        "take another out, or remove it\n"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["optimizer.lr=1"], "recipe.yaml: optimizer is not known; did you mean optimiser?"),
        (["model.dmodel=1"], "model.dmodel is not known; did you mean model.d_model?"),
        (["model.preset=3"], "model.preset must be one of transformer-tiny"),
        (["model.vocab_size=abc"], "model.vocab_size must be an int >= 1, got 'abc'"),
        (
            ["model.positions=learned", "model.max_position_embeddings=9"],
            "model.max_position_embeddings must be at least ",
        ),
        (["data=nowhere"], "nowhere is no folder of reluformer data prepare"),
        (["stages.0.length=7"], "is packed to the lengths 0, 60, got 7"),
        (["checkpoints.average=3"], "checkpoints.average must be at most checkpoints.keep = 2, got 3"),
        (["lr"], "a change must read key=value, got 'lr'"),
        (["out={recipe}"], "recipe.yaml is a file, takes a folder"),
        (["out={folder}"], "holds other files: takes a new or empty folder"),
        (["out=/proc/none"], "cannot use /proc/none: No such file"),
    ],
)
def test_wrong_recipes_are_one_line(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, changes: list[str], words: str
) -> None:
    path = write_recipe(small_recipe(data, tmp_path / "run"), tmp_path / "recipe.yaml")
    changes = [change.format(recipe=path, folder=tmp_path) for change in changes]
    status, out, err = run(capsys, path, *changes)
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("reluformer train: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    expected = f"reluformer train: {path} does not exist\n"
    assert run(capsys, path) == (2, "", expected)
    path.write_bytes(b"data: \xff\n")
    assert run(capsys, path) == (2, "", f"reluformer train: {path} is not UTF-8\n")
    path.write_text("data: [\n")
    assert "is not YAML" in run(capsys, path)[2]


def test_no_validation_data(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    from reluformer.data.documents import Languages
    from reluformer.data.prepare import Plan, prepare

    inputs = (str(data.parent / "train.jsonl"),)
    prepare(Plan(inputs, Languages("en", "de"), vocab=300, lengths=(0,)), tmp_path / "data", 1)
    recipe = small_recipe(tmp_path / "data", tmp_path / "run", stages=(Stage(0, 2),))
    path = write_recipe(recipe, tmp_path / "recipe.yaml")
    assert "need validation data" in run(capsys, path, "checkpoints.patience=2")[2]
    status, out, _ = run(capsys, path)
    assert status == 0
    assert "Best" not in out


def test_a_real_interrupt(whole: Recipe, tmp_path: Path) -> None:
    """The command itself: Ctrl-C, then the same again."""
    path = write_recipe(replace(whole, out=str(tmp_path / "run")), tmp_path / "recipe.yaml")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "reluformer", "train", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines = [process.stderr.readline()]  # the first point of the curve
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    lines += err.splitlines()
    assert process.returncode == 130, lines
    assert out == ""
    assert lines[-1].startswith("stopped at step ")
    assert lines[-1].endswith("; the same command goes on")
    ran = python("-m", "reluformer", "train", path)
    assert ran.returncode == 0, ran.stderr
    assert same(weights(tmp_path / "run"), weights(whole.out))


def test_a_full_disk(whole: Recipe, tmp_path: Path) -> None:
    """A real one, as small as a checkpoint and a half."""
    disk, path = tmp_path / "disk", tmp_path / "recipe.yaml"
    disk.mkdir()
    write_recipe(replace(whole, out=str(disk / "run")), path)
    size = sum(file.stat().st_size for file in (Path(whole.out) / "checkpoints" / "step-9").iterdir()) * 3 // 2
    mount = f"mount -t tmpfs -o size={size} none {disk} && "
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount + "true"]).returncode:
        pytest.skip("needs the right to mount")
    after = f'; status=$?; find {disk}/run -path "*checkpoints/*" | sort; exit $status'
    ran = python("-m", "reluformer", "train", path, before=["unshare", "-rm", "sh", "-c", mount + '"$@"' + after, "sh"])
    assert ran.returncode == 2, ran.stderr
    last = f"{disk}/run/checkpoints/step-3"
    assert ran.stderr.splitlines()[-1] == (
        "reluformer train: cannot write the checkpoint of step 6: No space left on device; "
        f"the last good checkpoint is {last}"
    )
    assert "Traceback" not in ran.stderr
    expected = {file.name for file in (Path(whole.out) / "checkpoints" / "step-9").iterdir()}
    assert set(ran.stdout.split()) == {last, *(f"{last}/{name}" for name in expected)}


@pytest.mark.slow
def test_killed_at_any_moment(whole: Recipe, tmp_path: Path) -> None:
    """The command, killed again and again at whatever it does, gets there in the end."""
    path = write_recipe(replace(whole, out=str(tmp_path / "run")), tmp_path / "recipe.yaml")
    command = [sys.executable, "-m", "reluformer", "train", str(path)]
    for attempt in range(4):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(0.07 * attempt)
        process.kill()
        process.communicate(timeout=60)
    ran = python("-m", "reluformer", "train", path)
    assert ran.returncode == 0, ran.stderr
    assert same(weights(tmp_path / "run"), weights(whole.out))
