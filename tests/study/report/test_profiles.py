from xml.etree import ElementTree

from reluformer.study.experiment import Profile
from reluformer.study.report.plots import pictures
from reluformer.study.report.profiles import _line, profile
from reluformer.study.report.sections import ArmCells, sections
from tests.study.report.samples import cell, experiment

PLOT = Profile("Loss by position", "by_position", "position", "NLL", "tokens")


def measured(*lengths: int) -> list[dict]:
    return [
        cell(f"{series}, {x}", seed, x=x, series=series, by_position={"32": 3.0 + seed, "64": 2.0, "128": None})
        for series in ("ReLU", "softmax")
        for x in lengths
        for seed in range(2)
    ]


def drawn(*lengths: int):
    found = experiment(arms=lambda scale: [], profiles=(PLOT,), paper={})
    return pictures(sections([found], measured(*lengths))[0])


def test_a_panel_for_every_x_and_a_line_per_series() -> None:
    (picture,) = drawn(128, 512, 1024)
    assert (picture.name, picture.title, picture.panels) == ("ffn-profile-1", "Loss by position", 3)
    ElementTree.fromstring(picture.svg)
    for text in ("128 tokens", "512 tokens", "1024 tokens", "ReLU", "softmax"):
        assert text in picture.svg


def test_lines_are_means_over_seeds_at_places_that_have_numbers() -> None:
    arm = ArmCells("a", (*measured(128)[:2], cell("a", 2, by_position={"16": 1.0, "x": 2.0}), cell("a", 3, "failed")))
    assert _line(arm, "by_position") == {16.0: 1.0, 32.0: 3.5, 64.0: 2.0}


def test_nothing_to_draw() -> None:
    found = experiment(profiles=(PLOT,))
    for cells in ([], [cell("ReLU", x=1, series="s")], [cell("ReLU", x=1, series="s", by_position=[1, 2])]):
        assert profile(sections([found], cells)[0], PLOT, 0) is None
