"""The command ``reluformer study``: chooses experiments and a scale, runs the cells and writes the report."""

import dataclasses
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from reluformer.training.commands import Refusal

if TYPE_CHECKING:
    from reluformer.study.cells import Cell
    from reluformer.study.corpus import Corpus
    from reluformer.study.experiment import Experiment

OF_A_CELL = {"study", "file", "arm", "settings", "seed", "scale_settings", "corpus_settings"}  # needed to rerun it
WITH_A_CELL = {"cell", "corpus", "test", "out"}  # options allowed beside --cell
TIME_IS_UP = 75  # the exit status that means "try again later" (EX_TEMPFAIL)
SIDE_BY_SIDE = 4  # cells on one GPU: small models leave most of it idle


def study(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="experiments; by default all")] = None,
    scale: Annotated[str, typer.Option(help="smoke, laptop or gpu")] = "smoke",
    corpus: Annotated[
        Path | None, typer.Option(help="folder of reluformer data prepare; by default the embedded corpus")
    ] = None,
    test: Annotated[
        str, typer.Option(help="test documents for --corpus, as evaluate takes them; by default its validation data")
    ] = "",
    text: Annotated[Path | None, typer.Option(help="a text file for the experiment language")] = None,
    images: Annotated[
        str, typer.Option(help="a folder of classes, or hf:NAME?split=train, for the experiment vision")
    ] = "",
    arm: Annotated[
        list[str] | None,
        typer.Option(help="run these arms alone, in this order, e.g. '*, 4096'; the report has all; may be repeated"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="runs of every arm; by default the scale's")] = None,
    out: Annotated[Path, typer.Option(help="folder for cells, models and the report")] = Path("study"),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="cells at a time; by default as many as there are cores, or 4 on a GPU")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop after so long, with a report; the same command goes on")
    ] = None,
    silence: Annotated[
        float | None,
        typer.Option(min=0, help="minutes after which a process whose log is silent is stuck, and is ended"),
    ] = None,
    add: Annotated[
        list[Path] | None, typer.Option(help="a file with an experiment of your own; may be repeated")
    ] = None,
    cell: Annotated[Path | None, typer.Option(help="run the cell of this file again, below --out")] = None,
) -> None:
    """Run the paper's experiments, keep every result and write one report. To resume, repeat the command."""
    from reluformer.data.files import DataError
    from reluformer.study.experiment import StudyError

    try:
        if cell is not None:
            _refuse_others(context)
            _again(cell, corpus, test, out)
        else:
            until = math.inf if minutes is None else time.monotonic() + 60 * minutes
            seconds = math.inf if silence is None else 60 * silence
            _study(
                names or [], scale, corpus, test, text, images, arm or [], seeds, out, jobs, until, seconds, add or []
            )
    except (StudyError, DataError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"cannot use {error.filename or out}: {error.strerror or error}")


def _study(
    names: list[str], scale: str, folder: Path | None, test: str, text: Path | None, images: str, arms: list[str],
    seeds: int | None, out: Path, jobs: int | None, until: float, silence: float, add: list[Path],
) -> None:  # fmt: skip
    from reluformer.study.cells import grid, kept_cells, waits
    from reluformer.study.corpus import embedded_corpus, open_corpus
    from reluformer.study.experiments import choose, find_experiments
    from reluformer.study.locks import locked
    from reluformer.study.progress import StudyProgress
    from reluformer.study.runner import TimeIsUp, run_cells, share_of, unfinished
    from reluformer.study.scales import SCALES

    found = find_experiments(add)
    chosen = choose("experiment", found, names)
    for name, experiment in _on_own_data(text, images).items():
        if name not in chosen:
            option = {"language": "--text", "vision": "--images"}[name]
            _refuse(f"{option} is for the experiment {name}, which is not asked for")
        found[name] = experiment, ""  # no file: the cells themselves say where their data is
    if scale not in SCALES:
        _refuse(f"--scale takes {', '.join(SCALES)}, got {scale!r}")
    if folder is None and test:
        _refuse("--test needs --corpus: the embedded corpus has a test set of its own")
    out.mkdir(parents=True, exist_ok=True)
    size = SCALES[scale]
    data: Corpus = embedded_corpus(out, size) if folder is None else open_corpus(folder, test)
    cells = [c for name in chosen for c in grid(*found[name], size, data, seeds, out)]
    if arms:
        wanted = choose("arm", dict.fromkeys(cell.arm.name for cell in cells), arms)
        asked = [cell for name in wanted for cell in cells if cell.arm.name == name]
    else:
        asked = cells
    mine = share_of(asked)
    todo = unfinished(mine)
    count, logs = jobs or _default_jobs(), out / "work" / "logs"
    late = False
    try:
        with StudyProgress(len(mine), len(mine) - len(todo), count) as progress:
            run_cells(todo, count, logs, progress, until, silence)
        left = [cell for cell in mine if waits(cell, found[cell.study][0])]
        if left:
            with locked(out / "alone.lock"), StudyProgress(len(left), 0, 1, how="alone, ") as progress:
                run_cells(left, 1, logs, progress, until, silence)
    except TimeIsUp:
        late = True
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
    kept = {name: kept_cells(*found[name], size, data, out) for name in found}
    shown = [name for name in found if name in chosen or kept[name]]
    _report([found[name][0] for name in shown], cells, [cell for name in shown for cell in kept[name]], out)
    if late:
        print("--minutes are over; the same command goes on", file=sys.stderr)
        raise typer.Exit(TIME_IS_UP)


def _on_own_data(text: Path | None, images: str) -> "dict[str, Experiment]":
    """Return the experiments that take data of the user's own, set up with the data that was given."""
    from reluformer.study.experiments.language import language
    from reluformer.study.experiments.vision import vision

    found = {}
    if text is not None:
        if not text.is_file():
            _refuse(f"--text: {text} is no file")
        found["language"] = language(str(text))
    if images:
        if not images.startswith("hf:") and not Path(images).is_dir():
            _refuse(f"--images: {images} is no folder")
        found["vision"] = vision(images)
    return found


def _report(experiments: "list[Experiment]", cells: "list[Cell]", kept: "list[Cell]", out: Path) -> None:
    """Write the report of all cells in the folder, and say what failed of those that were asked for.

    Of several processes, the last to finish thus reports on all.
    """
    from reluformer.study.locks import locked
    from reluformer.study.report import write_report

    with locked(out / "report.lock"):
        records, shown = ([x for cell in several if (x := cell.record()) is not None] for several in (cells, kept))
        paths = write_report(out, experiments, shown)
    for status in ("failed", "diverged"):
        count = sum(record["status"] == status for record in records)
        if count:
            print(f"{count} of {len(cells)} cells {status}", file=sys.stderr)
    for path in paths:
        print(path)
    reasons = Counter(x["error"] for x in records if x.get("error") and x["status"] != "diverged")
    for reason, count in reasons.most_common():
        print(f"{count} x {reason}", file=sys.stderr)
    if reasons:
        raise typer.Exit(1)


def _refuse_others(context: typer.Context) -> None:
    """Refuse options that would change a cell's settings, which are in its file."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name not in WITH_A_CELL and source is not None and source.name == "COMMANDLINE":
            called = parameter.opts[0] if parameter.param_type_name == "option" else "NAME..."
            _refuse(f"--cell takes --corpus, --test and --out beside it, not {called}")


def _again(path: Path, folder: Path | None, test: str, out: Path) -> None:
    """Run the cell of a file again, so that the old file can be compared with the new one."""
    from reluformer.data.files import read_json
    from reluformer.study.cells import LASTING, Cell, run_cell, waits
    from reluformer.study.corpus import EMBEDDED, Corpus, embedded_corpus, open_corpus
    from reluformer.study.experiment import StudyError
    from reluformer.study.experiments import experiment_of

    record = read_json(path)
    if not isinstance(record, dict) or not record.keys() >= OF_A_CELL:
        raise StudyError(f"{path} is no cell of a study")
    try:
        about = Corpus(**record["corpus_settings"])
        kept = Cell.from_record(record, out, about)
        _ = kept.path
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StudyError(f"{path} is no cell of a study: {type(error).__name__}: {error}") from None
    if folder is None and about.name == EMBEDDED:
        data = embedded_corpus(out, kept.scale)
    else:
        data = open_corpus(folder or Path(about.folder), test or about.test)
    if data.key != about.key:
        raise StudyError(f"{data.folder} does not hold the data of {path}")
    again = dataclasses.replace(kept, corpus=data)
    experiment = experiment_of(again.study, again.file)
    status = run_cell(again, experiment)
    if waits(again, experiment):
        status = run_cell(again, experiment)
    failed = status not in LASTING
    print(f"{'failed' if failed else status}: {again.path}")
    if failed:
        print((again.record() or {}).get("error"), file=sys.stderr)
        raise typer.Exit(1)


def _default_jobs() -> int:
    import torch

    return SIDE_BY_SIDE if torch.cuda.is_available() else os.cpu_count() or 1


def _refuse(message: str) -> NoReturn:
    raise Refusal(message)
