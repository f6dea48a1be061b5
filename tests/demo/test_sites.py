import re

from reluformer.demo.run import Demonstration
from reluformer.demo.sites import site_grids, site_rows


def test_a_cell_for_every_head_and_a_row_for_every_memory(found: Demonstration) -> None:
    cells = re.findall(r'<td style="--heat:(\d+)%">(\d+)</td>', site_grids(found.report))
    zeros = [f"{100 * head.zeros:.0f}" for site in _in_order(found) for head in site.heads]
    assert cells == [(zero, zero) for zero in zeros]
    rows = re.findall(r"<tr>(.*?)</tr>", site_rows(found.report))[1:]
    assert len(rows) == len(found.report.sites)
    for row, site in zip(rows, _in_order(found), strict=True):
        assert f">{site.layer}</td>" in row
        assert f">{100 * site.mean.zeros:.0f}</td>" in row


def _in_order(found: Demonstration):
    names = list(dict.fromkeys(site.site for site in found.report.sites))
    return sorted(found.report.sites, key=lambda site: (names.index(site.site), site.layer))
