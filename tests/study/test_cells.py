import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reluformer.study.bench import Bench
from reluformer.study.cells import FULL, Cell, grid, one_line, run_cell, waits, write_obituary
from reluformer.study.corpus import Corpus
from reluformer.study.experiment import Arm, Experiment
from reluformer.study.experiments import find_experiments
from reluformer.study.scales import SCALES
from reluformer.training.errors import TrainingError


def experiment(run: object = None) -> Experiment:
    return Experiment("e", "E", "?", lambda scale: [Arm("A b", {"k": 1}), Arm("c", {}, seeds=1)], run, ())  # type: ignore[arg-type]


def test_grid_has_first_seeds_first(bench: Bench, tmp_path: Path) -> None:
    cells = grid(experiment(), "e.py", bench.scale, bench.corpus, 2, tmp_path)
    assert [(cell.arm.name, cell.seed) for cell in cells] == [("A b", 0), ("c", 0), ("A b", 1)]


def test_name_depends_on_what_the_result_does(bench: Bench, tmp_path: Path) -> None:
    cell = grid(experiment(), "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    assert cell.path.parent == tmp_path / "cells" / "e"
    assert cell.path.name.startswith("a-b-0-")
    assert Cell.from_line(cell.to_line()) == cell
    same = [replace(cell, scale=replace(cell.scale, seeds=5, slots=(1,))), replace(cell, file="other.py")]
    assert {x.path for x in same} == {cell.path}
    other = [
        replace(cell, seed=1), replace(cell, arm=Arm("A b", {"k": 2})),
        replace(cell, scale=replace(cell.scale, steps=5)),
        replace(cell, corpus=replace(cell.corpus, key="other")), replace(cell, study="f"),
    ]  # fmt: skip
    assert len({cell.path.name[-21:], *(x.path.name[-21:] for x in other)}) == 6


def test_kept_results_still_belong_to_cells() -> None:
    """A change of an experiment or of a scale must not orphan what was measured."""
    results = Path(__file__).parents[2] / "results"
    found = find_experiments()
    names = ("slots", "centralisation", "documents", "maps")
    paths = [path for name in names for path in results.glob(f"bible-laptop/cells/{name}/*.json")]
    paths += [path for name in ("europarl", "retrieval") for path in results.glob(f"{name}/cells/*/*.json")]
    assert len(paths) > 130
    for path in paths:
        record = json.loads(path.read_bytes())
        arms = {arm.name: arm for arm in found[record["study"]][0].arms(SCALES[record["scale"]])}
        cell = Cell.from_record(record, Path(), Corpus(**record["corpus_settings"]))
        today = replace(cell, arm=arms[record["arm"]], scale=SCALES[record["scale"]])
        assert today.path.name == cell.path.name == path.name


def test_record_says_everything(bench: Bench, tmp_path: Path) -> None:
    made = experiment(lambda arm, seed, bench: {"nll": 2.5, "curve": [{"step": 1}]})
    cell = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    assert cell.record() is None
    assert run_cell(cell, made) == "done"
    record = json.loads(cell.path.read_bytes())
    assert record["result"] == {"nll": 2.5}
    assert record["curve"] == [{"step": 1}]
    wanted = {
        "study",
        "arm",
        "seed",
        "scale",
        "settings",
        "status",
        "error",
        "seconds",
        "versions",
        "machine",
        "corpus",
    }
    assert wanted <= record.keys()
    assert str(cell.path) in record["command"]
    assert Cell.from_record(record, tmp_path, bench.corpus) == cell


def test_what_is_measured_alone_comes_second(bench: Bench, tmp_path: Path) -> None:
    calls: list[str] = []

    def alone(arm: Arm, seed: int, bench: Bench, result: dict[str, object]) -> dict[str, object]:
        calls.append(arm.name)
        if len(calls) == 1:
            raise RuntimeError("disturbed")
        return {"pace": len(result["curve"]) * result["nll"]}  # type: ignore[arg-type, operator]

    made = replace(experiment(lambda arm, seed, bench: {"nll": 2.5, "curve": [{}, {}]}), alone=alone)
    cell = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    assert not waits(cell, made)
    assert run_cell(cell, made) == "done"
    assert calls == []
    assert waits(cell, made)
    assert run_cell(cell, made) == "failed"
    assert run_cell(cell, made) == "done"
    assert not waits(cell, made)
    record = cell.record()
    assert record is not None
    assert record["result"] == {"nll": 2.5, "pace": 5.0}
    assert record["error"] is None
    assert record["alone"]["machine"] == record["machine"]


def test_what_no_file_can_hold_is_a_failure(bench: Bench, tmp_path: Path) -> None:
    made = experiment(lambda arm, seed, bench: {"nll": torch.zeros(())})
    cell = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    assert run_cell(cell, made) == "failed"
    assert (cell.record() or {})["error"] == "TypeError: Object of type Tensor is not JSON serializable"


@pytest.mark.parametrize("told", [True, False])
def test_lack_of_gpu_memory_is_told_from_other_failures(told: bool, bench: Bench, tmp_path: Path) -> None:
    def fill(*_: object) -> dict[str, object]:
        try:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        except torch.OutOfMemoryError:
            if told:
                raise TrainingError("the GPU's memory is full") from None
            raise

    made = experiment(fill)
    cell = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    assert run_cell(cell, made) == FULL
    record = cell.record() or {}
    assert record["status"] == "failed"
    assert record["error"] == ("the GPU's memory is full" if told else "OutOfMemoryError: tried to allocate 80 GiB")


def test_a_death_takes_nothing_that_was_found(bench: Bench, tmp_path: Path) -> None:
    made = experiment(lambda arm, seed, bench: {"nll": 2.5})
    done, new = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)
    run_cell(done, made)
    for cell in (done, new):
        write_obituary(cell, "killed", 1.0)
    found = [cell.record() or {} for cell in (done, new)]
    assert [(x["status"], x["error"], x["result"]) for x in found] == [
        ("done", "killed", {"nll": 2.5}), ("failed", "killed", {}),
    ]  # fmt: skip


def test_interruption_leaves_no_record(bench: Bench, tmp_path: Path) -> None:
    def stop(*_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    made = experiment(stop)
    cell = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)[0]
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, made)
    assert cell.record() is None


def test_errors_are_one_line() -> None:
    assert one_line(TrainingError("a\n b")) == "a b"
    assert one_line(KeyError("x")) == "KeyError: 'x'"
