from reluformer.study.report.blocks import Heading, Paragraph, Picture, Recipe, Recipes, Table, Text
from reluformer.study.report.markdown import escaped, markdown


def test_text_is_taken_literally():
    assert escaped("a|b *c* <d> snake_case _e_") == r"a\|b \*c\* \<d\> snake_case \_e\_"
    assert escaped("two\nlines") == "two lines"
    assert escaped("- x") == r"\- x"


def test_blocks():
    table = Table(("arm", "BLEU"), ((Text("a|b"), Text("1.0", bold=True)),), numeric=1)
    recipes = Recipes((Recipe("ReLU", ("cells/a.json",), ("run `it`",)),))
    found = markdown([Heading("Title", 2), Paragraph("Prose."), table, Picture("x", "Plot", b"", ""), recipes])
    assert "## Title\n\nProse.\n\n| arm | BLEU |\n| --- | ---: |\n| a\\|b | **1.0** |\n\n" in found
    assert "![Plot](plots/x.png)" in found
    assert "- ReLU: `cells/a.json`\n  - `` run `it` ``" in found
