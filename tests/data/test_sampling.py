"""A random sample of pairs."""

import json
from pathlib import Path

import pytest

from reluformer.data.documents import Languages
from reluformer.data.sampling import sample_pairs
from tests.data.test_commands import command, run  # noqa: F401

LANGUAGES = Languages("en", "de")


def write(path: Path, first: int, count: int) -> str:
    """Documents of two sentences."""
    lines = [
        json.dumps({"id": f"d{i}", "en": [f"cat {i}", f"dog {i}"], "de": [f"Katze {i}", f"Hund {i}"]})
        for i in range(first, first + count)
    ]
    path.write_text("\n".join(lines))
    return str(path)


def test_the_sample_is_of_its_size_and_does_not_depend_on_the_order_of_inputs(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.jsonl", 0, 300), write(tmp_path / "2.jsonl", 300, 200)
    drawn = sample_pairs([one, two], LANGUAGES, 100)
    assert len(drawn) == len({document.id for document in drawn}) == 100
    assert drawn == sample_pairs([two, one], LANGUAGES, 100)
    assert drawn != sample_pairs([one, two], LANGUAGES, 100, seed=1)
    numbers = [int(document.source[0].split()[1]) for document in drawn]
    assert all(document.target[0].endswith(f" {i}") for document, i in zip(drawn, numbers, strict=True))
    assert 200 < sum(numbers) / 100 < 300  # from all over: 250, give or take three deviations
    assert numbers != sorted(numbers)


def test_a_smaller_sample_is_part_of_a_larger_one_and_all_is_all(tmp_path: Path) -> None:
    item = write(tmp_path / "x.jsonl", 0, 20)
    assert sample_pairs([item], LANGUAGES, 10) == sample_pairs([item], LANGUAGES, 25)[:10]
    assert len(sample_pairs([item], LANGUAGES, 1000)) == 40


def test_a_pair_that_is_there_twice_is_drawn_once(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.jsonl", 0, 20), write(tmp_path / "2.jsonl", 0, 20)
    drawn = [document.source[0] for document in sample_pairs([one, two], LANGUAGES, 60)]
    assert len(drawn) == len(set(drawn)) == 40


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    item, out = write(tmp_path / "x.jsonl", 0, 20), tmp_path / "few" / "drawn.jsonl"
    options = ["--languages", "en-de", "--out", out]
    assert run(capsys, "sample", item, *options, "--pairs", 7) == (0, f"7 pairs: {out}\n", "")
    assert sample_pairs([str(out)], LANGUAGES, 7)[0].source == sample_pairs([item], LANGUAGES, 7)[0].source
    status, _, err = run(capsys, "sample", "none.jsonl", *options, "--pairs", 7)
    assert (status, err) == (2, "reluformer data sample: Invalid value for INPUTS: none.jsonl does not exist\n")
    (tmp_path / "empty.jsonl").touch()
    status, _, err = run(capsys, "sample", tmp_path / "empty.jsonl", *options, "--pairs", 7)
    assert status == 2
    assert "INPUTS: no pair of sentences is in " in err
    status, _, err = run(capsys, "sample", item, "--languages", "en-de", "--out", tmp_path, "--pairs", 7)
    assert status == 2
    assert "--out: takes a file, " in err
