import pytest

from reluformer.study.report.drawing import picture_of, pyplot


@pytest.mark.parametrize(("name", "columns"), [("ReLU", 3), ("ReLU, scaled by n, rotary", 2), ("x" * 200, 1)])
def test_a_legend_has_as_many_columns_as_have_room(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, axes = pyplot().subplots(figsize=(6.8, 4.0))
    for i in range(6):
        axes.plot([0, 1], [i, i], label=name)
    seen = []
    legend = figure.legend
    monkeypatch.setattr(figure, "legend", lambda *args, **more: seen.append(more["ncols"]) or legend(*args, **more))
    assert picture_of(figure, axes, "plot", "A plot", 6).title == "A plot"
    assert seen == [columns]
