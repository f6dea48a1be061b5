from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reluformer.data.files import write_json
from reluformer.training.checkpoints import CheckpointFolder, check_complete, check_readable
from reluformer.training.errors import TrainingError


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def write(folder: CheckpointFolder, step: int) -> None:
    written = folder.staging / f"checkpoint-{step}"
    (written / "deep").mkdir(parents=True)
    (written / "deep" / "weights").write_text(str(step))
    folder.publish(step, written)


def test_a_checkpoint_appears_whole(folder: CheckpointFolder) -> None:
    assert folder.last() is None
    for step in (9, 10):
        write(folder, step)
    assert folder.steps() == [9, 10]
    assert folder.last() == folder.path(10)
    assert (folder.path(10) / "deep" / "weights").read_text() == "10"
    assert not folder.staging.exists()


def test_what_was_not_complete_goes(folder: CheckpointFolder) -> None:
    write(folder, 5)
    (folder.staging / "checkpoint-10").mkdir(parents=True)
    folder.path(10).with_name("removing-step-3").mkdir()
    assert folder.steps() == [5]
    folder.clear()
    assert [path.name for path in folder.folder.iterdir()] == ["step-5"]


def test_the_last_the_best_and_the_newest_stay(folder: CheckpointFolder) -> None:
    for step in (10, 20, 30, 34, 40, 50, 57):
        write(folder, step)
    folder.rotate(keep=2, every=10, best=20)
    assert folder.steps() == [20, 40, 50, 57]
    write(folder, 60)
    folder.rotate(keep=2, every=10, best=None)
    assert folder.steps() == [50, 60]


def test_a_removal_that_is_cut_short_leaves_no_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write(folder, step)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before it did anything
    folder.rotate(keep=1, every=1, best=None)
    assert folder.steps() == [2]


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors", "optimizer.pt"])
def test_one_that_was_damaged_is_named(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "trainer_state.json", {"global_step": 3})
    save_file({"w": torch.zeros(9)}, tmp_path / "model.safetensors")
    torch.save({"step": 3}, tmp_path / "optimizer.pt")
    check_readable(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TrainingError, match=rf"cannot read .*{name}: .*; remove .* to go on from the one before it"):
        check_readable(tmp_path)


@pytest.mark.parametrize("lost", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_1.pth"])
def test_one_that_lacks_a_part_is_named(tmp_path: Path, lost: str) -> None:
    for name in {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_1.pth"} - {lost}:
        (tmp_path / name).touch()
    with pytest.raises(TrainingError, match=rf"{tmp_path} has no {lost[:9]}.*; remove .* to go on from the one before"):
        check_complete(tmp_path)
    (tmp_path / lost).touch()
    check_complete(tmp_path)
