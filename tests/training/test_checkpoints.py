from pathlib import Path

import pytest

from reluformer.training.checkpoints import CheckpointFolder


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
