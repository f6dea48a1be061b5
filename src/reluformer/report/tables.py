"""Reports as tables on the console."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from reluformer.console import number
from reluformer.report.records import HeadReport, MemoryReport, SiteReport, pooled

MEASURES = ("mass", "entropy", "keys", "zeros", "dead", "0.2%", "1%", "10%")
CAPTION = (
    "mean over live rows; keys: effective keys; zeros: percent of keys; dead: percent of rows; 0.2%, 1%, 10%: percent "
    "of the mass in that share of keys; var: of output over residual; aniso: mean cosine of outputs"
)


def site_table(report: MemoryReport, heads: bool = False) -> Table:
    """One row per memory, or per head; the sites are sections, with their activation below the name."""
    table = _table("What the memories did", ["layer", *(["head"] if heads else []), *MEASURES, "var", "aniso"], CAPTION)
    for sites in _by_site(report.sites):
        table.add_section()
        rows = [row for site in sites for row in (_head_rows(site) if heads else [_row(site)])]
        names = [sites[0].site, f"  {sites[0].activation}"]
        if len(rows) == 1:
            names = ["\n".join(names)]
        for i, row in enumerate(rows):
            table.add_row(names[i] if i < len(names) else "", *row)
    return table


def _row(site: SiteReport) -> list[str]:
    return [str(site.layer), *_cells(site.mean), _signed(site.variance_ratio), _signed(site.anisotropy)]


def _head_rows(site: SiteReport) -> list[list[str]]:
    """One row per head; what belongs to the layer is in the first."""
    layer, *_, variance, anisotropy = _row(site)
    return [
        ["" if h else layer, str(h), *_cells(head), "" if h else variance, "" if h else anisotropy]
        for h, head in enumerate(site.heads)
    ]


def length_table(report: MemoryReport) -> Table:
    """The attention sites, one row per span of lengths."""
    columns = ["keys seen", "rows", "mass", "entropy", "effective keys"]
    table = _table("By the number of keys that a row sees", columns, "mean over layers, heads and live rows")
    for sites in _by_site([site for site in report.sites if site.kind == "attention"]):
        table.add_section()
        for i, x in enumerate(pooled([head for site in sites for head in site.heads]).by_length):
            measures = (_signed(value) for value in (x.mass, x.entropy, x.effective_keys))
            table.add_row("" if i else sites[0].site, f"{x.fewest}-{x.most}", str(x.rows), *measures)
    return table


def _table(title: str, numbers: Sequence[str], caption: str) -> Table:
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
        collapse_padding=True, pad_edge=False, padding=0,
    )  # fmt: skip
    table.add_column("site", overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _by_site(sites: Sequence[SiteReport]) -> list[list[SiteReport]]:
    groups: dict[str, list[SiteReport]] = {}
    for site in sites:
        groups.setdefault(site.site, []).append(site)
    return list(groups.values())


def _cells(head: HeadReport) -> list[str]:
    shares = (head.zeros, head.dead, head.top_0_2_percent, head.top_1_percent, head.top_10_percent)
    return [
        *(_signed(x) for x in (head.mass, head.entropy, head.effective_keys)),
        *("n/a" if x is None else f"{100 * x:.{0 if x >= 0.0995 else 1}f}" for x in shares),
    ]


def _signed(x: float | None) -> str:
    """Format a number of either sign; None is n/a."""
    if x is None:
        return "n/a"
    return f"-{number(-x)}" if x < 0 else number(x)
