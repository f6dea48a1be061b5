"""The memory report as HTML tables: the zeros of every head as a heat map, and the means of every memory."""

import html
from collections.abc import Sequence

from reluformer.console import number
from reluformer.report.records import MemoryReport, SiteReport

COLUMNS = {
    "zeros": "percent of keys with weight 0",
    "dead": "percent of rows without any weight",
    "mass": "sum of a row's weights",
    "keys": "effective keys of a row",
    "top 1 %": "percent of the mass in the largest 1 % of keys",
    "var": "variance of the output over that of the residual stream",
}


def site_grids(report: MemoryReport) -> str:
    """Return a grid of zeros for every site: layers from top to bottom, heads from left to right."""
    grids = []
    for name, sites in _by_site(report).items():
        rows = "".join(
            f"<tr><th>{site.layer}</th>{''.join(_heat(head.zeros) for head in site.heads)}</tr>" for site in sites
        )
        caption = f"<caption>{html.escape(name)}<br><small>{html.escape(sites[0].activation)}</small></caption>"
        grids.append(f'<table class="grid">{caption}<tbody>{rows}</tbody></table>')
    return "".join(grids)


def site_rows(report: MemoryReport) -> str:
    """Return a table with a row for every memory, its heads pooled."""
    head = "".join(f'<th class="number" title="{html.escape(what)}">{name}</th>' for name, what in COLUMNS.items())
    rows = []
    for name, sites in _by_site(report).items():
        for i, site in enumerate(sites):
            mean = site.mean
            cells = [_percent(mean.zeros), _percent(mean.dead), _number(mean.mass), _number(mean.effective_keys)]
            cells += [_percent(mean.top_1_percent), _number(site.variance_ratio)]
            first = f'<th rowspan="{len(sites)}">{html.escape(name)}</th>' if i == 0 else ""
            numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
            rows.append(f'<tr>{first}<td class="number">{site.layer}</td>{numbers}</tr>')
    legend = "; ".join(f"{name}: {what}" for name, what in COLUMNS.items())
    return (
        f'<table class="sites"><thead><tr><th>memory</th><th class="number">layer</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        f'<p class="quiet">Means over rows with a weight. {html.escape(legend)}.</p>'
    )


def _by_site(report: MemoryReport) -> dict[str, Sequence[SiteReport]]:
    groups: dict[str, list[SiteReport]] = {}
    for site in report.sites:
        groups.setdefault(site.site, []).append(site)
    return {name: sorted(sites, key=lambda site: site.layer) for name, sites in groups.items()}


def _heat(share: float | None) -> str:
    return f'<td style="--heat:{100 * (share or 0.0):.0f}%">{_percent(share)}</td>'


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


def _number(x: float | None) -> str:
    return "–" if x is None else f"-{number(-x)}" if x < 0 else number(x)
