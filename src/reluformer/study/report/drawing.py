"""How plots look, and how they become pictures of the report."""

import re
from io import BytesIO
from typing import Any

from reluformer.study.report.blocks import Picture
from reluformer.study.report.colours import GRID, INK, in_page

LETTER, HANDLE = 0.075, 0.6  # inches that a letter of a legend takes, about, and what stands before each name
LINE, LINES = 0.21, 3  # inches of a line of it, and how many a plot has room for as it is


def pyplot() -> Any:
    """Matplotlib in the report's own style."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as library

    library.rcParams.update(
        {
            "font.size": 10,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": GRID,
            "axes.axisbelow": True,
            "figure.dpi": 150,
            "figure.constrained_layout.use": True,
            "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's own font
        }
    )
    return library


def picture_of(figure: Any, axes: Any, name: str, title: str, entries: int) -> Picture:
    """A legend above if there is anything to tell apart, then PNG and SVG; the title stands in the report's text."""
    library = pyplot()
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        room = figure.get_figwidth() / (LETTER * max(map(len, labels)) + HANDLE)
        columns = max(1, min(3 if entries > 4 else entries, int(room)))
        figure.set_figheight(figure.get_figheight() + LINE * max(0, -(-entries // columns) - LINES))
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
        for handle in legend.legend_handles:  # the first line of a series may be a pale one
            handle.set_alpha(1.0)
    library.rcParams["svg.hashsalt"] = name  # ids differ between the plots of a page, and a rewrite changes nothing
    files = {kind: BytesIO() for kind in ("png", "svg")}
    for kind, file in files.items():
        figure.savefig(file, format=kind, transparent=kind == "svg", metadata={"Date": None} if kind == "svg" else None)
        figure.set_layout_engine("none")  # everything has its place now, in the second as in the first
    library.close(figure)
    svg = files["svg"].getvalue().decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Picture(name, title, files["png"].getvalue(), in_page(svg), panels=len(figure.axes))
