import io
from pathlib import Path

from rich.console import Console

from reluformer.study.bench import Bench
from reluformer.study.cells import Cell
from reluformer.study.experiment import Arm
from reluformer.study.progress import StudyProgress


def test_lines_where_nobody_watches(bench: Bench, tmp_path: Path) -> None:
    text = io.StringIO()
    cells = [Cell("e", "", Arm(name, {}), 0, bench.scale, bench.corpus, str(tmp_path)) for name in "ab"]
    with StudyProgress(5, 3, 2, Console(file=text)) as progress:
        progress(cells[0], "running")
        assert progress.about() == "e: a, seed 0"
        progress(cells[0], "diverged")
        progress(cells[1], "running")
        assert progress.about() == "0:00 left  e: b, seed 0"
    assert text.getvalue() == "4/5  e: a, seed 0: diverged, 0.0 s\n"
