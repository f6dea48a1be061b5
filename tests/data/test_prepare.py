"""Preparing data: what is written, what is kept, and what a killed run leaves to the next."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reluformer.data.dataset import PackedDataset, load_tokenizer
from reluformer.data.documents import Languages, read_documents
from reluformer.data.files import DataError
from reluformer.data.packing import split_sentences
from reluformer.data.prepare import Plan, prepare
from reluformer.data.tokenizer import SEP_ID
from tests.data.corpus import write_corpus

EN_DE = Languages("en", "de")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    inputs = tuple(write_corpus(tmp_path / f"train-{i}.jsonl", seed=i) for i in range(3))
    valid = (write_corpus(tmp_path / "valid.jsonl", count=5, seed=9),)
    return Plan(inputs, EN_DE, valid, vocab=400, lengths=(0, 40, 100))


def run(plan: Plan, out: Path, processes: int = 1) -> tuple[dict[str, Any], set[str]]:
    """The manifest, and the steps that were done."""
    steps: set[str] = set()
    manifest, _ = prepare(plan, out, processes, lambda step, item, *_: steps.add(f"{step} {Path(item).stem}"))
    return manifest, steps


def files(folder: Path) -> dict[str, bytes]:
    """Everything but the times of the inputs."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "inputs.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_all_sentences_come_back(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    tokenizer = load_tokenizer(tmp_path / "out")
    documents = [document for item in plan.inputs for document in read_documents(item, EN_DE)]
    for length in plan.lengths:
        packed = PackedDataset(tmp_path / "out", "train", length)
        found: dict[str, list[tuple[str, str]]] = {}
        for i in range(len(packed)):
            sides = [split_sentences(packed[i][name]) for name in ("input_ids", "labels")]
            assert len(sides[0]) == len(sides[1]) == packed.sentences[i]
            document, first = packed.origin(i)
            assert first == len(found.setdefault(document, []))  # in order
            found[document] += zip(*(map(tokenizer.decode, side) for side in sides), strict=True)
        assert found == {d.id: list(zip(d.source, d.target, strict=True)) for d in documents}


def test_a_second_run_does_nothing(plan: Plan, tmp_path: Path) -> None:
    manifest, done = prepare(plan, tmp_path / "out", 1)
    assert done
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.bin")}
    os.utime(plan.inputs[0])  # a new time, the same content
    assert prepare(plan, tmp_path / "out", 1) == (manifest, False)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.bin")} == before


def test_results_do_not_depend_on_processes(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan, tmp_path / "one", 1)
    monkeypatch.setattr("reluformer.data.prepare.BATCH", 3000)  # several to a shard
    monkeypatch.setattr("reluformer.data.shards.DOCUMENTS_AT_ONCE", 7)
    run(plan, tmp_path / "two", 2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_only_what_depends_on_a_change_is_redone(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(plan, out)
    manifest, steps = run(replace(plan, lengths=(64,)), out)
    assert steps == set()
    assert manifest["lengths"] == [64]
    _, steps = run(replace(plan, vocab=300), out)
    assert {step.split()[0] for step in steps} == {"learn", "encode"}
    write_corpus(Path(plan.inputs[2]), count=10, seed=5)
    manifest, steps = run(replace(plan, vocab=300), out)
    assert {step for step in steps if step.startswith("clean")} == {"clean train-2"}
    assert len(list((out / "shards").iterdir())) == 4  # nothing of earlier runs
    assert files(out) == (run(replace(plan, vocab=300), tmp_path / "new"), files(tmp_path / "new"))[1]


def test_manifest(plan: Plan, tmp_path: Path) -> None:
    manifest, _ = run(plan, tmp_path / "out")
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(manifest["versions"]) == {"reluformer", "tokenizers", "transformers", "numpy", "python"}
    shard = manifest["splits"]["train"]["shards"][0]
    assert shard["input"] == plan.inputs[0]
    assert shard["content"][1] == hashlib.sha256(Path(plan.inputs[0]).read_bytes()).hexdigest()
    assert shard["cleaning"]["pairs"] == shard["sentences"] == shard["packed"]["0"]["chunks"]
    for name, about in shard["files"].items():
        content = (tmp_path / "out" / shard["folder"] / name).read_bytes()
        assert about == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_the_embedded_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(("bible:dev",), Languages("en", "es"), ("bible:test",), vocab=400, lengths=(0,))
    manifest, _ = run(plan, tmp_path / "out")
    assert [split["shards"][0]["sentences"] for split in manifest["splits"].values()] == [616, 684]
    assert run(plan, tmp_path / "out") == (manifest, set())
    assert run(replace(plan, inputs=("bible:test",), valid=("bible:dev",)), tmp_path / "out")[0] != manifest
    monkeypatch.setattr("reluformer.data.bible.fingerprint", lambda: "another edition")
    assert "clean bible:dev" in run(plan, tmp_path / "out")[1]


def test_duplicates_are_found_across_inputs_but_validation_is_kept(plan: Plan, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(plan.inputs[0]).read_bytes())
    plan = replace(plan, inputs=(plan.inputs[0], str(copy)), cleaning=replace(plan.cleaning, phrase=0))
    valid = tmp_path / "again.jsonl"
    valid.write_text('{"id": "v", "en": ["", "x"], "de": ["", "x"]}\n' * 2)
    manifest, _ = run(replace(plan, valid=(str(valid),)), tmp_path / "out")
    first, second = (shard["cleaning"] for shard in manifest["splits"]["train"]["shards"])
    assert second["kept"] == 0
    assert second["dropped"]["duplicate"] == first["pairs"]
    assert manifest["splits"]["valid"]["shards"][0]["sentences"] == 4
    x = load_tokenizer(tmp_path / "out").encode("x")  # with </s>
    assert PackedDataset(tmp_path / "out", "valid", 40)[0] == {"input_ids": [SEP_ID, *x], "labels": [SEP_ID, *x]}


KILLED = """
import os, signal, sys
from pathlib import Path
from reluformer.data import arrays, files, prepare
from reluformer.data.documents import Languages
count, place = 0, {place!r}
def deadly(function):
    def wrapper(*args, **kwargs):
        global count
        count += 1
        if count == {calls}:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper
if place == "encode":
    arrays.ArrayFile.append = deadly(arrays.ArrayFile.append)
elif place == "clean":
    files.json.dumps = deadly(files.json.dumps)
else:
    prepare.train_tokenizer = deadly(prepare.train_tokenizer)
plan = prepare.Plan({inputs!r}, Languages("en", "de"), {valid!r}, vocab=400, lengths=(0, 40, 100))
if __name__ == "__main__":
    prepare.prepare(plan, Path({out!r}), 1)
"""


# Calls: documents of one input and a part of the second; arrays of two shards, 7 of each, and a part of the third.
@pytest.mark.parametrize(
    ("place", "calls", "clean", "shards"), [("clean", 70, 1, 0), ("learn", 1, 4, 0), ("encode", 24, 4, 2)]
)
def test_a_killed_run_is_resumed(plan: Plan, tmp_path: Path, place: str, calls: int, clean: int, shards: int) -> None:
    out = tmp_path / "out"
    program = KILLED.format(place=place, calls=calls, inputs=plan.inputs, valid=plan.valid, out=str(out))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataError, match="was not finished"):
        PackedDataset(out)
    finished = {path.parent: path.stat().st_mtime_ns for path in out.glob("shards/*/shard.json")}
    finished = {path: time for path, time in finished.items() if not path.name.endswith(".tmp")}
    assert (len(list(out.glob("clean/*[0-9a-f].json"))), len(finished)) == (clean, shards)
    _, steps = run(plan, out)
    assert sum(step.startswith("clean") for step in steps) == 4 - clean
    assert sum(step.startswith("encode") for step in steps) == 4 - shards
    assert all((path / "shard.json").stat().st_mtime_ns == time for path, time in finished.items())
    run(plan, tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


def test_damage_is_repaired(plan: Plan, tmp_path: Path) -> None:
    manifest, _ = run(plan, tmp_path / "out")
    whole = files(tmp_path / "out")
    broken = tmp_path / "out" / manifest["splits"]["train"]["shards"][1]["folder"]
    (broken / "source.tokens.bin").write_bytes(b"")
    (broken / "chunks-40-cut.bin").unlink()
    with pytest.raises(DataError, match=r"source\.tokens\.bin is missing or cut short: prepare"):
        PackedDataset(tmp_path / "out")
    assert run(plan, tmp_path / "out")[1] == {"encode train-1"}
    assert files(tmp_path / "out") == whole


@pytest.mark.parametrize("content", ["", '{"model": {"vo', "{}"])
def test_a_damaged_tokeniser_is_repaired(plan: Plan, tmp_path: Path, content: str) -> None:
    run(plan, tmp_path / "out")
    whole = files(tmp_path / "out")
    (tmp_path / "out" / "tokenizer" / "tokenizer.json").write_text(content)
    assert run(plan, tmp_path / "out")[1] == {f"learn the vocabulary train-{i}" for i in range(3)}
    assert files(tmp_path / "out") == whole


def test_an_error_spares_what_was_there(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "out")
    before = files(tmp_path / "out")
    Path(plan.inputs[1]).write_text("{\n")
    with pytest.raises(DataError, match=r"train-1\.jsonl, line 1: not JSON"):
        run(plan, tmp_path / "out")
    assert files(tmp_path / "out") == before


def test_other_peoples_folders_are_left_alone(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "home" / "tokenizer").mkdir(parents=True)
    with pytest.raises(DataError, match="holds other files: takes a new or empty folder"):
        run(plan, tmp_path / "home")
    with pytest.raises(DataError, match="is a file, takes a folder"):
        run(plan, Path(plan.inputs[0]))


def test_a_pipe_is_not_waited_for_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    plan = Plan((f"{tmp_path}/x.jsonl",), EN_DE)
    with pytest.raises(DataError, match=r"x\.jsonl is a pipe, takes a file"):
        prepare(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_no_tokeniser_could_be_saved_in(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="takes a name in UTF-8"):
        prepare(plan, tmp_path / "caf\udce9")


def test_no_pair_left(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"en": ["", ""], "de": ["", "x"]}')
    with pytest.raises(DataError, match="no pair of sentences is left of"):
        run(Plan((str(tmp_path / "x.jsonl"),), EN_DE), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": ()}, "at least one input"),
        ({"inputs": ("a", "a")}, "a is given twice"),
        ({"vocab": 10}, "vocab takes 261 tokens or more"),
        ({"vocab": 10**12}, "vocab takes .* at most 4194304, got 1000000000000"),
        ({"lengths": (5, 5)}, "lengths takes different numbers"),
        ({"lengths": (0, 2**31)}, r"lengths takes .*, 0 to 2147483647, got \[0, 2147483648\]"),
        ({"sample": 0}, "sample takes 1 byte or more"),
    ],
)
def test_plans_that_are_none(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Plan(**{"inputs": ("x",), "languages": EN_DE} | change)


def test_the_sample_is_bounded_and_fixed(plan: Plan, tmp_path: Path) -> None:
    small = replace(plan, sample=2000, vocab=2000)
    one, _ = run(small, tmp_path / "one")
    two, _ = run(small, tmp_path / "two")
    all_of_it, _ = run(replace(small, sample=10**400), tmp_path / "all")
    assert one["tokenizer"] == two["tokenizer"] != all_of_it["tokenizer"]
