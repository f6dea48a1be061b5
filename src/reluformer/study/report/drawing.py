"""The style of plots, and their conversion to pictures of the report."""

import re
from io import BytesIO
from typing import Any

from reluformer.png import png_of
from reluformer.study.report.blocks import Picture
from reluformer.study.report.colours import GRID, INK, in_page

LETTER, HANDLE = 0.075, 0.6  # approximate inches per letter of a legend, and of the handle before each name
LINE, LINES = 0.21, 3  # inches per line of a legend, and the number of lines that a plot has room for as it is


def pyplot() -> Any:
    """Return Matplotlib's pyplot, in the report's own style."""
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
    """Render a figure as PNG and SVG, with a legend above if it has several entries; the title goes into the report."""
    library = pyplot()
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        room = figure.get_figwidth() / (LETTER * max(map(len, labels)) + HANDLE)
        columns = max(1, min(3 if entries > 4 else entries, int(room)))
        figure.set_figheight(figure.get_figheight() + LINE * max(0, -(-entries // columns) - LINES))
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
        for handle in legend.legend_handles:  # the first line of a series may be pale
            handle.set_alpha(1.0)
    library.rcParams["svg.hashsalt"] = name  # ids differ between the plots of a page, but not between rewrites
    png = png_of(figure)
    figure.set_layout_engine("none")  # the second file keeps the layout of the first
    file = BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    library.close(figure)
    svg = file.getvalue().decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Picture(name, title, png, in_page(svg), panels=len(figure.axes))
