"""Whether a claim holds, and the test behind the verdict.

Every claim compares the means of one figure in two arms. ``>`` and ``<`` are judged by Welch's two-sided t-test at 5 %:
a claim holds if the difference is significant on the claimed side, does not hold if it is significant on the other
side, and is not decided otherwise. ``=`` holds by two one-sided tests (TOST) against the claim's margin, and does not
hold if the difference is significantly larger than the margin. A claim about an arm without cells is not tried. Where
an arm may fall behind by as much as the figure itself, as where nobody translates a word, nothing is decided.

A run that diverged has no figure, yet says a lot. An arm whose runs all diverged is worse than any that finished. If
only some diverged, the test takes the runs that finished, and its verdict stands only if the missing ones would have
pushed the same way.
"""

from dataclasses import dataclass
from statistics import fmean

from reluformer.study.experiment import Claim
from reluformer.study.report.sections import ArmCells, Section
from reluformer.study.report.student import Difference, welch

HOLDS, FAILS, OPEN, UNTRIED = "holds", "does not hold", "not decided", "not tried"
LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, as a word, and the reason for it, with its numbers."""

    word: str
    reason: str


def verdict(claim: Claim, section: Section) -> Verdict:
    """Judge one claim by the cells of its experiment."""
    arm, other = section.arm(claim.arm), section.arm(claim.other)
    for side in (arm, other):
        if not side.cells:
            return Verdict(UNTRIED, f"no cells: {side.name}")
    lost = [side for side in (arm, other) if not side.having("done") and side.having("diverged")]
    if lost:
        return _diverged(claim, lost, section)
    first, second = arm.values(claim.metric), other.values(claim.metric)
    for side, values in ((arm, first), (other, second)):
        if not values:
            finished = f"no {claim.metric} in its cells" if side.having("done") else "every run failed"
            return Verdict(OPEN, f"{finished}: {side.name}")
    sizes = f"n = {len(first)} and {len(second)}"
    few = min(len(first), len(second)) < 2
    allowed = claim.margin if claim.relation == "=" else -claim.margin  # by how much ``arm`` may be behind
    if few or 0 < allowed >= abs(fmean(second)):
        why = "one seed" if few else "the margin is as large as the figures"
        found = Verdict(OPEN, f"{why}; difference {_signed(fmean(first) - fmean(second))}, {sizes}")
    else:
        found = _tested(claim, welch(first, second), sizes)
    return _unless_flattered(found, claim, arm, other, section.better(claim.metric))


def _tested(claim: Claim, difference: Difference, sizes: str) -> Verdict:
    numbers = f"difference {_signed(difference.mean)}"
    if difference.error == 0:
        sizes += ", no spread between seeds"
    if claim.relation == "=":
        inside, outside = difference.within(claim.margin), min(_beyond(difference, claim.margin), 1.0)
        word = HOLDS if inside < LEVEL else FAILS if outside < LEVEL else OPEN
        test = (
            f"Welch beyond the margin {_p(outside)}" if word == FAILS else f"TOST within ±{claim.margin:g} {_p(inside)}"
        )
        return Verdict(word, f"{numbers}, {test}, {sizes}")
    if claim.relation not in (">", "<"):
        return Verdict(OPEN, f"unknown relation {claim.relation!r}; {numbers}, {sizes}")
    threshold = claim.margin if claim.relation == ">" else -claim.margin
    p = difference.either(threshold)
    as_claimed = difference.mean > threshold if claim.relation == ">" else difference.mean < threshold
    word = OPEN if p >= LEVEL else HOLDS if as_claimed else FAILS
    against = f" against {_signed(threshold)}" if threshold else ""
    return Verdict(word, f"{numbers}, Welch{against} {_p(p)}, {sizes}")


def _beyond(difference: Difference, margin: float) -> float:
    """Return the two-sided p-value against "the difference is no larger than the margin, either way"."""
    return 2 * min(difference.above(margin), difference.below(-margin))


def _diverged(claim: Claim, lost: list[ArmCells], section: Section) -> Verdict:
    """Judge a claim when all runs of at least one arm diverged."""
    told = ", ".join(f"{arm.name} diverged ({_share(arm)})" for arm in lost)
    finished = [name for name in (claim.arm, claim.other) if name not in [arm.name for arm in lost]]
    if not finished:
        return Verdict(OPEN, told)
    if not section.arm(finished[0]).values(claim.metric):
        return Verdict(OPEN, f"{told}, and {finished[0]} has no {claim.metric}")
    better = section.better(claim.metric)
    if claim.relation == "=":
        return Verdict(FAILS, f"{told}, {finished[0]} did not")
    if not better:
        return Verdict(OPEN, f"{told}, and no column says which way {claim.metric} is better")
    word = HOLDS if _favoured(claim, better) != lost[0].name else FAILS
    return Verdict(word, f"{told}: worse than any run that finished")


def _unless_flattered(found: Verdict, claim: Claim, arm: ArmCells, other: ArmCells, better: str) -> Verdict:
    """Withdraw a verdict that rests on leaving out the runs that diverged."""
    partly = [side for side in (arm, other) if side.having("diverged")]
    if not partly:
        return found
    told = ", ".join(f"{side.name} diverged in part ({_share(side)})" for side in partly)
    winner = _favoured(claim, better)
    loser = {HOLDS: claim.other if winner == claim.arm else claim.arm, FAILS: winner}.get(found.word)
    stands = winner != "" and [side.name for side in partly] == [loser]
    return Verdict(found.word if stands else OPEN, f"{told}; of the rest: {found.reason}")


def _favoured(claim: Claim, better: str) -> str:
    """Return the arm that is better if the claim is true; "" if that cannot be told."""
    if claim.relation == "=" or not better:
        return ""
    return claim.arm if (claim.relation == ">") == (better == "higher") else claim.other


def _share(arm: ArmCells) -> str:
    return f"{len(arm.having('diverged'))} of {len(arm.cells)} seeds"


def _signed(x: float) -> str:
    return f"{x:+.3g}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
