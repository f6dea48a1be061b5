import pytest
import torch

from reluformer.bench import forgetting
from reluformer.bench.forgetting import FLEX, OURS, Row, Setting
from reluformer.cli import main

CPU = torch.device("cpu")
SMALL = Setting(head_dim=16, length=64, batch=2, heads=2, dtype="float32", strength=0.1)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_formula() -> None:
    """Uncompiled, as a CPU can; against weights that are multiplied gate by gate."""
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    log_forget = -torch.rand(1, 2, 40)
    blocks = forgetting.contestants.causal_blocks(40, CPU)
    left = torch.zeros(1, 2, 40, 40)
    for i in range(40):
        for j in range(i + 1):
            left[:, :, i, j] = log_forget[:, :, j + 1 : i + 1].exp().prod(-1)
    weights = (q @ k.mT / 4).exp() * left
    expected = (weights / weights.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(forgetting.softmax_formula(q, k, v, log_forget), expected)
    torch.testing.assert_close(forgetting.flex_softmax(q, k, v, log_forget.cumsum(-1), blocks), expected)


def test_measures_ours_and_says_why_not_the_others() -> None:
    rows = {r.name: r for r in forgetting.measure(SMALL, CPU, seconds=0.001, fewest=1, quick=True)}
    assert set(rows[OURS].ms) == set(forgetting.PASSES)
    assert rows[FLEX].ms == {}
    assert rows[FLEX].note == "skipped: it compiles for long"


def test_softmax_that_disagrees_loses_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    formula = forgetting.softmax_formula
    field = [
        forgetting.Contestant("formula", formula, softmax=True),
        forgetting.Contestant("the same", formula, softmax=True),
        forgetting.Contestant("twice", lambda *args: 2 * formula(*args), softmax=True),
    ]
    monkeypatch.setattr(forgetting, "FIELD", field)
    rows = {r.name: r for r in forgetting.measure(SMALL, CPU, seconds=0.001, fewest=1)}
    assert rows["the same"].note == ""
    assert rows["twice"].note == "disagrees with the other softmax by 1"
    assert rows["twice"].ms == {}


def test_ratios_are_to_flex_and_to_the_weakest_gates() -> None:
    weak, strong = (Setting(64, 1024, 1, 1, "bfloat16", x) for x in (0.001, 0.1))
    rows = [
        Row(weak, OURS, ms={"both": 2.0}),
        Row(weak, FLEX, ms={"both": 3.0}),
        Row(strong, OURS, ms={"both": 1.0}),
        Row(strong, FLEX, ms={"both": 3.3}),
    ]
    forgetting.compare(rows)
    assert [r.vs_flex["both"] for r in rows] == pytest.approx([1.5, 1.0, 3.3, 1.0])
    assert [r.vs_weakest["both"] for r in rows] == pytest.approx([1.0, 1.0, 2.0, 3 / 3.3])
    assert rows[2].record()["both_vs_weakest"] == 2.0


def test_command_prints_and_keeps(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "forgetting", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    assert OURS in capsys.readouterr().out
    assert sorted(x.suffix for x in tmp_path.iterdir()) == [".csv", ".png"]


def test_strengths_must_be_positive(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "forgetting", "--quick", "--device", "cpu", "--strengths", "0.1,-1"])
    assert "--strengths: takes positive numbers and commas, got '0.1,-1'" in capsys.readouterr().err
