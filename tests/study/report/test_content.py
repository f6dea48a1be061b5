from pathlib import Path

from reluformer.study.experiment import Claim
from reluformer.study.report.blocks import Heading, Image, Paragraph, Recipes, Table, Text
from reluformer.study.report.content import content as content_of
from tests.study.report.samples import cell, cells, experiment


def content(experiments, found, out=Path("nowhere")):
    return content_of(experiments, found, out)


def texts(blocks):
    return [block.text for block in blocks if isinstance(block, Heading | Paragraph)]


def facts(blocks):
    table = next(block for block in blocks if isinstance(block, Table))
    return {row[0].text: row[1].text for row in table.rows}


def test_the_header_says_what_was_run():
    found = facts(content([experiment()], [*cells("ReLU", 1, 2), cell("softmax", 0, "diverged", corpus="europarl")]))
    assert found["scale"] == "smoke"
    assert found["corpus"] == "bible (2 cells); europarl (1 cells)"
    assert found["machine"] == "gpu H200"
    assert found["versions"] == "torch 2.8"
    assert found["cells"] == "2 done, 0 failed, 1 diverged"
    assert found["time"].startswith("6.0 s")


def test_the_summary_counts_the_verdicts_and_leaves_out_what_was_not_tried():
    claims = (Claim("a", "bleu", "ReLU", "softmax"), Claim("b", "bleu", "ReLU", "late"))
    found = content([experiment(*claims)], cells("ReLU", 2, 2.1) + cells("softmax", 1, 1.1))
    assert "2 claims: 1 holds, 0 do not hold, 0 not decided, 1 not tried, for want of cells." in texts(found)
    judged = [block for block in found if isinstance(block, Table) and "verdict" in block.head]
    assert [[row[1].text for row in table.rows] for table in judged] == [["a"], ["a"]]  # the summary, the experiment


def test_arms_that_did_not_run_are_named():
    found = texts(content([experiment()], cells("ReLU", 1)))
    assert any("not run: softmax | late" in text for text in found)


def test_every_arm_can_be_made_again():
    (block,) = [block for block in content([experiment()], cells("ReLU", 1, 2)) if isinstance(block, Recipes)]
    assert block.recipes[0].cells == ("cells/ReLU-0.json", "cells/ReLU-1.json")
    assert block.recipes[0].commands[1] == "reluformer study --cell cells/ReLU-1.json"


def test_studies_in_part():
    claim = Claim("a", "bleu", "ReLU", "softmax")
    assert "No cells yet." in texts(content([experiment(claim)], []))
    assert facts(content([], []))["scale"] == "unknown"
    assert "Cells of experiments that this report does not know: gone." in texts(content([], [cell("a", study="gone")]))
    bare = experiment(claim, columns=(), paper={})
    assert "The FFN" in texts(content([bare], [{"study": "ffn", "arm": "ReLU", "status": "failed"}]))


def test_pictures_of_cells_below_the_folder(tmp_path):
    out = tmp_path / "study"
    (out / "maps").mkdir(parents=True)
    for path in (out / "maps" / "a.png", out / "b.txt", tmp_path / "outside.png"):
        path.write_bytes(b"png")
    names = ["maps/a.png", "b.txt", "../outside.png", "gone.png"]
    blocks = content([experiment()], [cell("ReLU", pictures=names), cell("softmax", pictures=None)], out)
    assert [block for block in blocks if isinstance(block, Image)] == [Image("maps/a.png", "ReLU, seed 0", b"png")]


def test_tables_of_cells_are_shown_as_they_are():
    table = {"title": "Heads", "head": ["model", "layer", "far"], "rows": [["a", 0, "0.5"]], "names": 2}
    blocks = content([experiment()], [cell("ReLU", 3, tables=[table]), cell("softmax", tables=None)])
    place = blocks.index(Heading("Heads, seed 3", 3))
    assert blocks[place + 1] == Table(("model", "layer", "far"), ((Text("a"), Text("0"), Text("0.5")),), numeric=1)
