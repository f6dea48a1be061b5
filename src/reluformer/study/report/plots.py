"""The plots of one experiment: figures over x, profiles, and NLL over updates and over time."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from reluformer.study.experiment import Plot
from reluformer.study.report.blocks import Picture
from reluformer.study.report.colours import INK, colours
from reluformer.study.report.drawing import picture_of, pyplot
from reluformer.study.report.formulas import value_of
from reluformer.study.report.profiles import profile
from reluformer.study.report.sections import ArmCells, Cell, Section, number


def pictures(section: Section) -> list[Picture]:
    """Return all plots of a section for which its cells have data."""
    found = [_sweep(section, plot, i) for i, plot in enumerate(section.experiment.plots)]
    found += [profile(section, plot, i) for i, plot in enumerate(section.experiment.profiles)]
    return [picture for picture in (*found, _curves(section)) if picture]


def _sweep(section: Section, plot: Plot, index: int) -> Picture | None:
    """Plot the mean over seeds against x, one line per series, with the standard deviation as error bars."""
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for arm in section.arms:
        if arm.x is not None and (values := arm.values(plot.metric)):
            lines.setdefault(arm.series or "", []).append((arm.x, values))
    if not lines:
        return None
    places = sorted({x for line in lines.values() for x, _ in line})
    # There is no logarithm of zero, and a single x has no scale at all.
    logarithmic = plot.log_x and places[0] > 0 and len(places) > 1
    figure, axes = pyplot().subplots(figsize=(6.8, 4.0))
    for (name, line), colour in zip(lines.items(), colours(lines), strict=True):
        line.sort()
        bars = [stdev(values) if len(values) > 1 else 0.0 for _, values in line]
        axes.errorbar(
            [x for x, _ in line], [fmean(values) for _, values in line], yerr=bars, fmt="o-", ms=4, lw=1.8, capsize=3,
            elinewidth=1, color=colour, label=name or plot.metric,
        )  # fmt: skip
    limits = axes.get_ylim()
    for (name, formula), style in zip(plot.reference.items(), ("--", ":", "-.") * len(plot.reference), strict=False):
        points = [(x, y) for x in _between(places, logarithmic) if (y := value_of(formula, x)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, lw=1.3, color=INK, zorder=4, label=name)
    _tame(axes, limits)
    if logarithmic:
        axes.set_xscale("log", base=2)
    if len(places) <= 12:
        axes.set_xticks(places, [f"{x:g}" for x in places])
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    return picture_of(figure, axes, f"{section.name}-{index + 1}", plot.title, len(lines) + len(plot.reference))


def _curves(section: Section) -> Picture | None:
    """Plot NLL against updates, and against time where a pace is known: one colour per arm, one line per seed.

    Time is in updates of softmax, since seconds would depend on how many other cells ran beside a cell. In a sweep
    there is one colour per series.
    """
    arms = [(arm, [(cell, points) for cell in arm.cells if (points := _points(cell))]) for arm in section.arms]
    arms = [(arm, cells) for arm, cells in arms if cells]
    if not arms:
        return None
    named = {arm.name: str(arm.series if _by_series(arms) else arm.name) for arm, _ in arms}
    looks = _looks(list(dict.fromkeys(named.values())))
    paced = sum(any(_pace(cell) for cell, _ in cells) for _, cells in arms) > 1
    labels = ["updates", "updates of softmax in the same time"][: 1 + paced]
    figure, grid = pyplot().subplots(1, len(labels), figsize=(9.2, 4.2), sharey=True, squeeze=False)
    panels = grid[0]
    limits = _window([points for _, cells in arms for _, points in cells])
    for axes, label in zip(panels, labels, strict=True):
        shown: set[str] = set()
        for arm, cells in arms:
            for cell, points in cells:
                pace = _pace(cell) if axes is not panels[0] else 1.0
                line = [(x / pace, p["nll"]) for p in points if (x := number(p.get("step"))) is not None and pace]
                if not line:
                    continue
                name = named[arm.name]
                xs, ys = zip(*line, strict=True)
                axes.plot(
                    xs, ys, lw=1.3, marker="." if len(line) < 3 else "", alpha=_strength(arm, arms), **looks[name],
                    label=name if name not in shown else None,
                )  # fmt: skip
                if cell.get("status") == "diverged":
                    # Mark where it blew up, or where it left the plot.
                    x, y, colour = xs[-1], min(ys[-1], limits[1]), looks[name]["color"]
                    axes.plot(x, y, "x", ms=7, mew=2, color=colour, clip_on=False)
                shown.add(name)
        axes.set_xlabel(label)
    panels[0].set_ylabel("NLL per token")
    panels[0].set_ylim(*limits)
    notes = [f"paler: smaller {section.experiment.plots[0].x if section.experiment.plots else 'x'}"] * _by_series(arms)
    if any(cell.get("status") == "diverged" for _, cells in arms for cell, _ in cells):
        notes.append("a cross: diverged")
    title = "NLL at equal steps" + " and at equal time" * paced + (f" ({'; '.join(notes)})" if notes else "")
    return picture_of(figure, panels[0], f"{section.name}-curves", title, len(looks))


def _looks(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return a colour for each line, with dashes where a colour repeats."""
    chosen = colours(names)
    dashes = ("-", "--", ":", "-.")
    return {
        name: {"color": colour, "linestyle": dashes[chosen[:i].count(colour) % len(dashes)]}
        for i, (name, colour) in enumerate(zip(names, chosen, strict=True))
    }


def _pace(cell: Cell) -> float | None:
    return number((cell.get("result") or {}).get("pace"))


def _points(cell: Cell) -> list[dict[str, Any]]:
    """Return the points of a curve that can be drawn, which excludes losses that are not finite."""
    curve = cell.get("curve")
    return [p for p in curve if isinstance(p, dict) and number(p.get("nll")) is not None] if curve else []


def _by_series(arms: Sequence[tuple[ArmCells, Any]]) -> bool:
    """Return whether to colour by series: a sweep has too many arms for a colour each."""
    return all(arm.series and arm.x is not None for arm, _ in arms)


def _strength(arm: ArmCells, arms: Sequence[tuple[ArmCells, Any]]) -> float:
    if not _by_series(arms):
        return 0.9
    places = sorted({other.x for other, _ in arms if other.x is not None})
    return 0.3 + 0.7 * (places.index(arm.x) + 1 if arm.x is not None else 1) / len(places)


def _window(curves: Sequence[list[dict[str, Any]]]) -> tuple[float, float]:
    """Return limits that show how the runs end; the first steps and runs that explode are cut off at the top."""
    last = max(number(p.get("step")) or 0.0 for points in curves for p in points)
    ends = sorted(points[-1]["nll"] for points in curves)
    later = [p["nll"] for points in curves for p in points if (number(p.get("step")) or 0.0) >= 0.1 * last] or ends
    low, high = min(later), min(max(later), max(2 * ends[len(ends) // 2], ends[0] + 1e-3))
    room = 0.05 * (high - low) or 0.05
    return low - room, high + room


def _between(places: Sequence[float], logarithmic: bool, steps: int = 60) -> list[float]:
    """Return values of x close enough together for a smooth curve."""
    low, high = places[0], places[-1]
    if logarithmic:
        return [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    return [low + (high - low) * i / steps for i in range(steps + 1)]


def _tame(axes: Any, measured: tuple[float, float]) -> None:
    """Use a log scale if values span decades; otherwise keep distant references from flattening the measurements."""
    low, high = axes.dataLim.intervaly
    if low > 0 and high / low > 50:
        axes.set_yscale("log")
    else:
        room = measured[1] - measured[0]
        axes.set_ylim(max(axes.get_ylim()[0], measured[0] - room), min(axes.get_ylim()[1], measured[1] + room))
