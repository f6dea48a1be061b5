from reluformer.study.report.sections import number, sections, short
from tests.study.report.samples import cell, cells, experiment


def test_scales_and_corpora_are_never_pooled():
    found = cells("ReLU", 1, 2) + cells("ReLU", 9, scale="gpu") + cells("ReLU", 5, scale="gpu", corpus="europarl")
    parts = sections([experiment()], found)
    assert [part.arm("ReLU").values("bleu") for part in parts] == [[1, 2], [9], [5]]
    assert [part.label for part in parts] == ["smoke, bible", "gpu, bible", "gpu, europarl"]
    assert len({part.name for part in parts}) == 3


def test_arms_come_in_the_order_of_the_experiment_with_those_that_have_not_run():
    part = sections([experiment()], cells("own", 1) + cells("softmax", 1) + cells("ReLU", 1))[0]
    assert [arm.name for arm in part.arms] == ["ReLU", "softmax", "late", "own"]
    assert part.label == ""


def test_an_experiment_that_broke_still_shows_its_cells():
    part = sections([experiment(arms=lambda scale: 1 / 0)], cells("ReLU", 1))[0]
    assert [arm.name for arm in part.arms] == ["ReLU"]


def test_the_last_of_two_cells_with_one_seed_counts():
    part = sections([experiment()], [cell("ReLU", bleu=1.0), cell("ReLU", bleu=2.0)])[0]
    assert part.arm("ReLU").values("bleu") == [2.0]
    assert part.doubles == 1


def test_values_leave_out_what_is_no_number_and_what_did_not_finish():
    odd = [cell("ReLU", i, bleu=value) for i, value in enumerate((1.5, None, float("nan"), float("inf"), "x"))]
    lost = [cell("ReLU", 7, "diverged", bleu=3.0), {"study": "ffn", "arm": "ReLU", "seed": 8, "status": "done"}]
    assert sections([experiment()], [*odd, *lost])[0].arms[0].values("bleu") == [1.5]
    assert number(True) == 1.0


def test_short_names():
    assert short({"name": "gpu", "steps": 3}) == "gpu"
    assert short({"gpu": "H200", "threads": 2, "note": None}) == "gpu H200, threads 2"
    assert short(None) == ""
