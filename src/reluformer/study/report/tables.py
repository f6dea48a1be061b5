"""The tables of a report: every arm with the paper's figures beside ours, every claim with its verdict."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from reluformer.study.experiment import Column
from reluformer.study.report.blocks import Table, Text
from reluformer.study.report.figures import counted, reason, spread
from reluformer.study.report.sections import ArmCells, Section
from reluformer.study.report.verdicts import FAILS, HOLDS, OPEN, UNTRIED, verdict

UNKNOWN = Text("unknown", tone="quiet")
TONES = {HOLDS: "good", FAILS: "bad", OPEN: "open"}
ARROWS = {"higher": " ↑", "lower": " ↓"}


def arm_table(section: Section) -> Table:
    """Return a table with a row per arm that is in the paper, or that has run and has a figure or an error to show.

    Each column for which the paper has figures is followed by a column of these.
    """
    paper = section.experiment.paper
    head, columns = ["arm", "cells"], []
    for column in section.experiment.columns:
        columns.append((column, any(column.key in figures for figures in paper.values())))
        head.append(column.title + ARROWS.get(column.better, ""))
        head += ["paper"] if columns[-1][1] else []
    best = {column.key: _best(section, column) for column, _ in columns}
    rows = []
    for arm in section.arms:
        if arm.name not in paper and (not arm.cells or _is_silent(arm, section.experiment.columns)):
            continue
        row = [Text(arm.name), _status(arm)]
        for column, in_paper in columns:
            row.append(_ours(arm, column, arm.name in best[column.key]))
            if in_paper:
                known = paper.get(arm.name, {}).get(column.key)
                row.append(Text(str(known)) if known else UNKNOWN)
        rows.append(tuple(row))
    return Table(tuple(head), tuple(rows), numeric=len(head) - 2)


def claim_table(sections: Sequence[Section], with_experiment: bool) -> Table:
    """Return a table with a row per claim that was tried: the verdict, the claim, and the test behind the verdict."""
    head = ("verdict", "claim", *(["experiment"] if with_experiment else []), "test", "paper")
    rows = []
    for section in sections:
        for claim in section.claims:
            found = verdict(claim, section)
            if found.word == UNTRIED:
                continue
            measured = f"{claim.metric}: {claim.arm} {claim.relation} {claim.other}"
            if claim.margin:
                how = "±" if claim.relation == "=" else "by" if claim.margin > 0 else "less"
                measured += f" {how} {abs(claim.margin):g}"
            rows.append(
                (
                    Text(found.word, bold=True, tone=TONES[found.word]),
                    Text(claim.text),
                    *([Text(section.title, tone="quiet")] if with_experiment else []),
                    Text(f"{measured}; {found.reason}"),
                    Text(claim.paper) if claim.paper else UNKNOWN,
                )
            )
    return Table(head, tuple(rows))


def is_sweep(section: Section) -> bool:
    """Return whether several series run over x, so that only arms at the same x compete."""
    return len({arm.series for arm in section.arms if arm.x is not None}) > 1


def _best(section: Section, column: Column) -> set[str]:
    """Return the arms with the best mean, in a sweep those at each x; an arm alone or among equals is not best."""
    if column.better not in ("higher", "lower"):
        return set()
    sign = 1 if column.better == "higher" else -1
    sweep, groups = is_sweep(section), dict[float | None, dict[str, float]]()
    for arm in section.arms:
        if values := arm.values(column.key):
            groups.setdefault(arm.x if sweep else None, {})[arm.name] = sign * fmean(values)
    rivals = [group for group in groups.values() if len(set(group.values())) > 1]
    return {name for group in rivals for name, value in group.items() if value == max(group.values())}


def _is_silent(arm: ArmCells, columns: Sequence[Column]) -> bool:
    """Return whether all cells are done without a figure for any column, as with pictures alone."""
    done = len(arm.having("done")) == len(arm.cells)
    return done and bool(columns) and not any(arm.values(column.key) for column in columns)


def _status(arm: ArmCells) -> Text:
    counts = Counter(str(cell.get("status")) for cell in arm.cells)
    if set(counts) <= {"done"}:
        return Text(counted(counts), tone="" if counts else "quiet")
    reasons = dict.fromkeys(reason(cell.get("error")) for cell in arm.cells if cell.get("status") != "done")
    told = "; ".join(filter(None, reasons))
    return Text(counted(counts) + (f": {told}" if told else ""), tone="bad")


def _ours(arm: ArmCells, column: Column, best: bool) -> Text:
    values = arm.values(column.key)
    if not values:
        return Text("n/a", tone="quiet")
    text = spread([max(values)] if column.seeds == "largest" else values, column.digits)
    if len(values) < len(arm.having("done")):
        text += f" (n = {len(values)})"
    return Text(text, bold=best)
