import dataclasses
from pathlib import Path

import pytest

from reluformer.study import bench as module
from reluformer.study.bench import Bench


def test_only_the_last_checkpoint_has_an_optimiser(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen runs side by side would fill a disk with what nothing goes on from."""
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)  # of what is left when all is done
    lean = Bench(dataclasses.replace(bench.scale, points=4, average=3), bench.corpus, tmp_path)
    run = lean.train({}, 0).folder.parent
    found = {path.parent.name for path in (run / "checkpoints").glob("*/optimizer.pt")}
    weights = {path.parent.name for path in (run / "checkpoints").glob("*/model.safetensors")}
    assert found == {"step-4"}
    assert {"step-2", "step-3", "step-4"} <= weights
