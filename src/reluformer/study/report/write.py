"""Writing the report: Markdown with its plots beside it, and one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from reluformer.data.files import written_file
from reluformer.study.experiment import Experiment
from reluformer.study.report.blocks import Picture
from reluformer.study.report.content import content
from reluformer.study.report.markdown import PLOTS, markdown
from reluformer.study.report.page import page
from reluformer.study.report.sections import Cell


def write_report(out: Path, experiments: Sequence[Experiment], cells: Sequence[Cell]) -> list[Path]:
    """Write ``report.md``, ``report.html`` and ``plots/*.png`` from whatever cells there are.

    Args:
        out: Folder for the files.
        experiments: Experiments to show, in this order; those without cells are shown as such.
        cells: Records of cells, whether finished, failed or diverged.

    Returns:
        The files written, the page and the Markdown first.
    """
    blocks = content(experiments, cells, out)
    files = {out / "report.html": page(blocks).encode(), out / "report.md": markdown(blocks).encode()}
    files |= {out / PLOTS / f"{block.name}.png": block.png for block in blocks if isinstance(block, Picture)}
    for path, written in files.items():
        with written_file(path) as file:
            file.write(written)
    return list(files)
