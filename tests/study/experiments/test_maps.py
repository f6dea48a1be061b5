import dataclasses

import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiments import maps

ARMS = ("Transformer", "ReLUFormer", "side by side")


@pytest.fixture(scope="module")
def results(bench: Bench) -> dict[str, dict]:
    return {arm.name: maps.run(arm, 0, bench) for arm in maps.arms(bench.scale)}


def test_numbers_of_each_model(results: dict[str, dict]) -> None:
    assert tuple(results) == ARMS
    for name in ARMS[:2]:
        result = results[name]
        assert {column.key for column in maps.EXPERIMENT.columns} <= result.keys()
        for share in ("far", "far_best", "beyond", "marks", "stops", "marks_share", "stops_share"):
            assert 0 <= result[share] <= 1
        assert 0 < result["distance"] < result["tokens"]
        assert len(result["pairs"]) == maps.PAIRS
    assert results["Transformer"]["marks_share"] == results["ReLUFormer"]["marks_share"]


def test_heads_that_differ_most_are_listed_and_drawn(results: dict[str, dict], bench: Bench) -> None:
    (table,) = results["side by side"]["tables"]
    assert all(len(row) == len(table["head"]) for row in table["rows"])
    assert [row[0] for row in table["rows"]] == ["Transformer"] * 2 + ["ReLUFormer"] * 2  # all heads that there are
    for rows in (table["rows"][:2], table["rows"][2:]):
        assert float(rows[0][3]) >= float(rows[1][3])
        name = rows[0][0]
        # The mean over its heads is what the model's own row says.
        for place, key in ((4, "far"), (6, "marks"), (7, "stops")):
            mean = sum(float(row[place]) for row in rows) / 2
            assert mean == pytest.approx(results[name][key], abs=6e-4)
    picture = bench.work.parent / results["side by side"]["pictures"][0]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_another_corpus_has_a_picture_of_its_own(results: dict[str, dict], bench: Bench) -> None:
    arm = maps.arms(bench.scale)[-1]
    other = dataclasses.replace(bench, corpus=dataclasses.replace(bench.corpus, key="other"))
    assert maps.run(arm, 0, other)["pictures"] != results["side by side"]["pictures"]
    assert maps.run(arm, 0, bench)["pictures"] == results["side by side"]["pictures"]
