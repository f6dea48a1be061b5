import warnings
from xml.etree import ElementTree

from reluformer.study.experiment import Arm
from reluformer.study.report.plots import _looks, pictures
from reluformer.study.report.sections import sections
from tests.study.report.samples import cell, cells, curve, experiment, sweep


def drawn(found, measured):
    return pictures(sections([found], measured)[0])


def test_a_sweep_and_its_curves():
    plots = drawn(*sweep())
    assert [plot.name for plot in plots] == ["slots-1", "slots-curves"]
    for plot in plots:
        assert plot.png.startswith(b"\x89PNG")
        ElementTree.fromstring(plot.svg)
        assert "ReLU" in plot.svg
        assert "softmax" in plot.svg
    assert "half" in plots[0].svg
    assert plots[1].panels == 1
    assert plots[1].title.startswith("NLL at equal steps (")
    assert ">updates<" in plots[1].svg


def test_curves_over_time_where_a_pace_is_known():
    measured = [
        cell("ReLU", curve=curve(5, 3), pace=0.5),
        cell("softmax", curve=curve(5, 3), pace=1.0),
        cell("late", curve=curve(4)),
    ]
    (plot,) = drawn(experiment(), measured)
    assert plot.panels == 2
    assert plot.title == "NLL at equal steps and at equal time"
    assert "in the same time" in plot.svg


def test_ids_differ_between_plots_and_stay_between_runs():
    first, second = drawn(*sweep()), drawn(*sweep())
    assert first == second
    clips = [set(part.split('"')[0] for part in plot.svg.split('<clipPath id="')[1:]) for plot in first]
    assert clips[0]
    assert not clips[0] & clips[1]


def test_nothing_to_draw():
    found, _ = sweep()
    assert drawn(found, []) == []
    assert drawn(experiment(), cells("ReLU", 1)) == []


def test_odd_curves_are_drawn_as_far_as_they_go():
    nan = float("nan")
    measured = [
        cell("ReLU", 0, "diverged", curve=curve(5, 9, 1e9, nan)),
        cell("ReLU", 1, curve=curve(nan)),
        cell("softmax", 0, curve=[{"step": 1, "nll": 3.0}, {"nll": 2.0}, {}]),
    ]
    (plot,) = drawn(experiment(), measured)
    assert "a cross: diverged" in plot.title


def test_a_long_legend_has_room_and_no_two_lines_look_alike():
    names = [f"a rather long name of an arm, number {i}" for i in range(24)]
    found = experiment(arms=lambda scale: [Arm(name, {}) for name in names])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Matplotlib warns where a legend leaves no room for the plot
        (plot,) = drawn(found, [cell(name, curve=curve(5, 3, 2)) for name in names])
    assert all(name in plot.svg for name in names)
    assert len({tuple(look.items()) for look in _looks(names).values()}) == len(names)
