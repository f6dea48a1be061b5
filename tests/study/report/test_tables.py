from reluformer.study.experiment import Claim, Column
from reluformer.study.report.sections import sections
from reluformer.study.report.tables import arm_table, claim_table
from tests.study.report.samples import cell, cells, experiment, sweep


def rows(table):
    return {row[0].text: [text.text for text in row[1:]] for row in table.rows}


def bold(table):
    return {row[0].text for row in table.rows if any(text.bold for text in row)}


def test_numbers_with_the_papers_beside_them():
    table = arm_table(sections([experiment()], cells("ReLU", 1, 2, 3, nll=2.0) + cells("softmax", 1, 1.5))[0])
    assert table.head == ("arm", "cells", "BLEU ↑", "paper", "NLL ↓", "plain")
    assert rows(table) == {
        "ReLU": ["3 done", "2.00 ± 1.00", "34.22", "2.000 ± 0.000", "n/a"],
        "softmax": ["2 done", "1.25 ± 0.35", "unknown", "n/a", "n/a"],
    }
    papers = {"ReLU": {"bleu": "34.22"}, "late": {"bleu": "33.08"}}
    table = arm_table(sections([experiment(paper=papers)], cells("ReLU", 1))[0])
    assert rows(table)["late"] == ["no cells", "n/a", "33.08", "n/a", "n/a"]


def test_the_best_is_bold():
    assert bold(arm_table(sections([experiment()], cells("ReLU", 1, 2, 3) + cells("softmax", 1))[0])) == {"ReLU"}


def test_lower_is_better_where_a_column_says_so():
    table = arm_table(sections([experiment()], [cell("ReLU", nll=2.0), cell("softmax", nll=3.0)])[0])
    assert bold(table) == {"ReLU"}


def test_nobody_is_best_alone_or_among_equals():
    assert bold(arm_table(sections([experiment()], cells("ReLU", 1))[0])) == set()
    assert bold(arm_table(sections([experiment()], cells("ReLU", 1) + cells("softmax", 1))[0])) == set()


def test_in_a_sweep_the_best_at_each_x():
    found, measured = sweep()
    assert bold(arm_table(sections([found], measured)[0])) == {"ReLU, 4", "ReLU, 8", "ReLU, 16"}


def test_what_went_wrong_is_shown_with_its_reason():
    lost = [cell("ReLU", 2, "diverged", error="loss is not a number"), cell("softmax", 0, "failed", error="no memory")]
    done = [cell("ReLU", 0, bleu=1.0), cell("ReLU", 1, error="was not measured alone", bleu=2.0)]
    table = arm_table(sections([experiment()], done + lost)[0])
    assert rows(table)["ReLU"][0] == "2 done, 1 diverged: loss is not a number"
    assert rows(table)["softmax"][:2] == ["1 failed: no memory", "n/a"]


def test_a_figure_that_some_seeds_lack_says_how_many_have_it():
    table = arm_table(sections([experiment()], [*cells("ReLU", 1, 2), cell("ReLU", 2)])[0])
    assert rows(table)["ReLU"][1] == "1.50 ± 0.71 (n = 2)"


def test_the_largest_of_all_seeds_where_a_column_says_so():
    found = experiment(columns=(Column("p", "p", 3, seeds="largest"),), paper={})
    table = arm_table(sections([found], [cell("ReLU", seed, p=p) for seed, p in enumerate((0.01, 0.2, 0.04))])[0])
    assert rows(table) == {"ReLU": ["3 done", "0.200"]}


def test_an_arm_without_figures_has_no_row_unless_something_went_wrong():
    found = [cell("ReLU", bleu=1.0), cell("softmax", pictures=["a.png"]), cell("late", status="failed")]
    assert list(rows(arm_table(sections([experiment()], found)[0]))) == ["ReLU", "late"]


def test_claims_with_verdict_and_test():
    claim = Claim("they are equal", "bleu", "ReLU", "softmax", "=", 0.5)
    part = sections([experiment(claim)], cells("ReLU", 1, 1.01) + cells("softmax", 1, 1.01))[0]
    (row,) = claim_table([part], with_experiment=True).rows
    assert [text.text for text in row[:3]] == ["holds", "they are equal", "The FFN"]
    assert (row[0].bold, row[0].tone) == (True, "good")
    assert row[3].text.startswith("bleu: ReLU = softmax ± 0.5; difference +0, TOST within ±0.5 p ")
    assert row[4].text == "unknown"
