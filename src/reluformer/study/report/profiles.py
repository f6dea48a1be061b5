"""Profiles: a figure that every cell has at several positions, such as the loss by token position."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from reluformer.study.experiment import Profile
from reluformer.study.report.blocks import Picture
from reluformer.study.report.colours import colours
from reluformer.study.report.drawing import picture_of, pyplot
from reluformer.study.report.sections import ArmCells, Section, number

COLUMNS = 2  # panels side by side


def profile(section: Section, plot: Profile, index: int) -> Picture | None:
    """Plot a panel for every x, with a line per series: the mean over seeds at each position."""
    lines = {(arm.x, arm.series or ""): line for arm in section.arms if (line := _line(arm, plot.metric))}
    places = sorted({x for x, _ in lines if x is not None})
    if not places:
        return None
    names = list(dict.fromkeys(series for _, series in lines))
    palette = dict(zip(names, colours(names), strict=True))
    columns = min(COLUMNS, len(places))
    rows = -(-len(places) // columns)
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(max(6.9, 4.6 * columns), 3.4 * rows), sharex=True, sharey=True, squeeze=False
    )
    panels = grid.flatten()
    for axes, x in zip(panels, places, strict=False):
        for name in names:
            # A line is plotted even without points, so that it is in the legend.
            points = lines.get((x, name), {})
            axes.plot(list(points), list(points.values()), "o-", ms=3.5, lw=1.6, color=palette[name], label=name)
        axes.set_title(f"{x:g} {plot.unit}", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.tick_params(which="minor", length=0)
        axes.tick_params(labelbottom=True)  # there may be no panel below
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
    for axes in panels[len(places) :]:
        axes.remove()
    ticks = sorted({place for line in lines.values() for place in line})
    panels[0].set_xticks(ticks, [f"{place:g}" for place in ticks])
    return picture_of(figure, panels[0], f"{section.name}-profile-{index + 1}", plot.title, len(names))


def _line(arm: ArmCells, metric: str) -> dict[float, float]:
    """Return the mean at each position, in order; those that are no positive integer or have no value are left out."""
    found: dict[float, list[float]] = {}
    for cell in arm.having("done"):
        result: Any = cell.get("result")
        values = result.get(metric) if isinstance(result, Mapping) else None
        for place, value in values.items() if isinstance(values, Mapping) else ():
            if str(place).isdecimal() and (y := number(value)) is not None:
                found.setdefault(float(place), []).append(y)
    return {place: fmean(found[place]) for place in sorted(found) if place > 0}
