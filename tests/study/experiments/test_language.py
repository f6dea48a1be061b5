from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from reluformer.data.files import DataError
from reluformer.study.bench import Bench
from reluformer.study.cells import grid, run_cell
from reluformer.study.experiment import Arm, Diverged
from reluformer.study.experiments import find_experiments, language
from reluformer.study.experiments.language import EXPERIMENT, TIMES
from reluformer.study.language.texts import read_corpus
from reluformer.study.language.training import Course, score_language
from reluformer.study.scales import SCALES

OWN = """
from reluformer.study.experiments.language import Plan, language
from reluformer.study.language.training import Course

PLAN = Plan("tiny", Course(steps=2, length=8, batch=2, points=1), {{"layers": 1, "d_model": 16, "heads": 2}})
EXPERIMENT = language({file!r}, name="book", plans=PLAN)
"""


def arm_of(name: str) -> Arm:
    return next(arm for arm in EXPERIMENT.arms(SCALES["smoke"]) if arm.name == name)


def test_a_model_is_trained_once_and_tested_at_every_length(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    train = language.train_language
    monkeypatch.setattr(language, "train_language", lambda *args: trained.append(1) or train(*args))
    results = [EXPERIMENT.run(arm_of(f"relu, gate, {times}x"), 0, bench) for times in TIMES]
    assert len(trained) == 1
    for times, result in zip(TIMES, results, strict=True):
        assert {column.key for column in EXPERIMENT.columns} <= result.keys()
        assert list(result["by_position"])[-1] == str(16 * times)
        assert ("curve" in result) == (times == 1)
    assert results[0]["nll"] != results[-1]["nll"]
    assert 0 < results[0]["gate"] < 1


def test_numbers_are_those_of_the_kept_model(bench: Bench, tmp_path: Path) -> None:
    arm = arm_of("softmax, 2x")
    result = EXPERIMENT.run(arm, 0, replace(bench, work=tmp_path))
    (folder,) = (path.parent for path in tmp_path.rglob("model.safetensors"))
    model, text = AutoModelForCausalLM.from_pretrained(folder), read_corpus(bench.corpus)
    losses = score_language(model, text.test[: arm.settings["scored"]], 32, Course(**arm.settings["course"]))
    assert result["nll"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert result["late"] == pytest.approx(float(losses[16:].mean()), rel=1e-5)
    assert result["by_position"]["1"] == pytest.approx(float(losses[0]), rel=1e-5)
    assert result["by_position"]["8"] == pytest.approx(float(losses[4:8].mean()), rel=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("In the beginning", add_special_tokens=False).input_ids) == "In the beginning"


def test_a_file_of_your_own_is_an_experiment_in_a_file(bench: Bench, tmp_path: Path) -> None:
    book, file = tmp_path / "book.txt", tmp_path / "own.py"
    book.write_text("".join(f"The line with the number {i} says nothing new.\n" for i in range(200)))
    file.write_text(OWN.format(file=str(book)))
    experiment, place = find_experiments([file])["book"]
    cells = grid(experiment, place, SCALES["smoke"], bench.corpus, 1, tmp_path / "out")
    cell = next(cell for cell in cells if cell.arm.name == "relu, gate, pro, 8x")
    assert run_cell(cell, experiment) == "done", cell.record()
    record = cell.record()
    assert record is not None
    assert record["corpus"] == str(book)
    names = {cell.arm.name for cell in cells}
    assert all({claim.arm, claim.other} <= names for claim in experiment.claims_at(None))
    book.write_text(book.read_text() + "But this one does.\n")
    others = grid(experiment, place, SCALES["smoke"], bench.corpus, 1, tmp_path / "out")
    assert {cell.path for cell in cells}.isdisjoint(cell.path for cell in others)


def test_a_model_that_only_gets_worse_has_diverged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = [{"step": 1, "nll": 50.0, "seconds": 1.0}, {"step": 2, "nll": 60.0, "seconds": 2.0}]
    monkeypatch.setattr(language, "train_language", lambda *_: curve)
    with pytest.raises(Diverged, match=r"the loss ends at 60\.00, above the"):
        EXPERIMENT.run(arm_of("relu, 1x"), 1, bench)


def test_a_text_that_has_changed_is_not_taken_for_the_one_that_was(bench: Bench, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("".join(f"The line with the number {i} says nothing new.\n" for i in range(200)))
    arm = language.language(str(book)).arms(SCALES["smoke"])[0]
    book.write_text("Another one.\n" * 200)
    with pytest.raises(DataError, match=r"book\.txt is not the text that the cell was made of: it has changed"):
        EXPERIMENT.run(arm, 0, replace(bench, work=tmp_path))
