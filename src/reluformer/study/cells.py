"""Cells: one arm with one seed, and the file that records what became of it."""

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from reluformer.data.files import DataError, hash_of, read_json, write_json
from reluformer.study.bench import Bench
from reluformer.study.corpus import Corpus
from reluformer.study.experiment import Arm, Diverged, Experiment, StudyError
from reluformer.study.scales import Scale

FULL = "full"  # instead of "failed": a cell that ran out of GPU memory, which other cells may release
LASTING = ("done", "diverged")  # need not be run again, whereas failed cells are retried when the study is rerun
OF_A_RECORD = {"status", "error", "result", "curve"}
PACKAGES = ("torch", "transformers", "accelerate", "sacrebleu", "tokenizers", "entmax")


@dataclass(frozen=True)
class Cell:
    """One arm with one seed, and all that its result depends on; ``file`` is empty for a built-in experiment."""

    study: str
    file: str
    arm: Arm
    seed: int
    scale: Scale
    corpus: Corpus
    out: str

    @property
    def path(self) -> Path:
        """File of the cell: a readable name, and a hash of everything the result depends on."""
        key = hash_of([self.study, self.arm.settings, self.seed, self.scale.key(), self.corpus.key])
        slug = re.sub(r"[^a-z0-9.]+", "-", self.arm.name.lower()).strip("-")
        return Path(self.out) / "cells" / self.study / f"{slug}-{self.seed}-{key}.json"

    @property
    def label(self) -> str:
        """Name of the cell in progress displays and logs."""
        return f"{self.study}: {self.arm.name}, seed {self.seed}"

    @property
    def data(self) -> str:
        """Name of the data it runs on: the corpus, unless the arm has data of its own."""
        return str(self.arm.settings.get("data", self.corpus.name))

    def record(self) -> dict[str, Any] | None:
        """Return the contents of the file, or None if it is missing or no record of a cell."""
        found = read_json(self.path)
        return found if isinstance(found, dict) and found.keys() >= OF_A_RECORD else None

    def to_line(self) -> str:
        """Serialise to one line of JSON, for another process."""
        return json.dumps({**asdict(self), "scale": self.scale.to_dict()})

    @classmethod
    def from_line(cls, line: str) -> "Cell":
        """Restore a cell from :meth:`to_line`."""
        values = json.loads(line)
        values["arm"] = Arm(**values["arm"])
        values["scale"] = Scale.from_dict(values["scale"])
        values["corpus"] = Corpus(**values["corpus"])
        return cls(**values)

    @classmethod
    def from_record(cls, record: dict[str, Any], out: Path, corpus: Corpus) -> "Cell":
        """Return the cell that a record describes, to be run again below another folder."""
        arm = Arm(record["arm"], record["settings"], record.get("x"), record.get("series"))
        scale = Scale.from_dict(record["scale_settings"])
        return cls(record["study"], record["file"], arm, record["seed"], scale, corpus, str(out))


def grid(experiment: Experiment, file: str, scale: Scale, corpus: Corpus, seeds: int | None, out: Path) -> list[Cell]:
    """Return all cells of an experiment: the first seed of every arm, then the second, and so on."""
    where = file or experiment.name
    try:
        arms = experiment.arms(scale)
        cells = [
            Cell(experiment.name, file, arm, seed, scale, corpus, str(out))
            for seed in range(scale.seeds if seeds is None else seeds)
            for arm in arms
            if arm.seeds is None or seed < arm.seeds
        ]
        names = Counter(arm.name for arm in arms)
        paths = Counter(cell.path for cell in cells)
    except (StudyError, DataError):
        raise
    except Exception as error:  # a user's own experiment may raise anything
        raise StudyError(f"{where} cannot tell its arms: {one_line(error)}") from error
    if name := next((name for name, count in names.items() if count > 1), None):
        raise StudyError(f"{where} has two arms called {name!r}")
    if alike := [cell.arm.name for cell in cells if paths[cell.path] > 1]:
        raise StudyError(f"{where}: the arms {alike[0]!r} and {alike[1]!r} are too much alike to have a file each")
    return cells


def kept_cells(experiment: Experiment, file: str, scale: Scale, corpus: Corpus, out: Path) -> list[Cell]:
    """Return the cells of an experiment that are in the folder, whatever their seeds."""
    names = [path.stem for path in (out / "cells" / experiment.name).glob("*.json")]
    seeds = [int(found[1]) for name in names if (found := re.search(r"-(\d+)-[0-9a-f]+$", name))]
    cells = grid(experiment, file, scale, corpus, max(seeds) + 1, out) if seeds else []
    return [cell for cell in cells if cell.path.exists()]


def waits(cell: Cell, experiment: Experiment) -> bool:
    """Return whether a cell is done except for what must be measured alone."""
    record = cell.record() or {}
    return experiment.alone is not None and record.get("status") == "done" and not record.get("alone")


def run_cell(cell: Cell, experiment: Experiment) -> str:
    """Run a cell, or what is left of it, write its file and return its status, or ``FULL``.

    Errors are recorded in the file; only an interruption is raised.
    """
    if waits(cell, experiment):
        return _measure_alone(cell, experiment)
    began = time.monotonic()
    result: dict[str, Any] = {}
    status, error, full = "done", None, False
    try:
        result = _as_json(experiment.run(cell.arm, cell.seed, _bench(cell)))
    except Diverged as reason:
        status, error, result = "diverged", one_line(reason), reason.result
    except Exception as reason:
        status, error, full = "failed", one_line(reason), _lacked_memory(reason)
    write_cell(cell, status, error, result, time.monotonic() - began)
    return FULL if full else status


def _lacked_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised in place of, was that the GPU's memory was full."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or _lacked_memory(error.__context__))


def _measure_alone(cell: Cell, experiment: Experiment) -> str:
    """Add what is measured alone to the file of a cell; if it fails, it is retried when the study is rerun."""
    record = cell.record()
    assert record is not None
    assert experiment.alone is not None
    try:
        result = record["result"] | {"curve": record["curve"]}
        found = _as_json(experiment.alone(cell.arm, cell.seed, _bench(cell), result))
        changed = {"result": record["result"] | found, "error": None, "alone": _circumstances()}
    except Exception as reason:
        changed = {"error": one_line(reason)}
    write_json(cell.path, record | changed)
    return "failed" if changed["error"] else "done"


def write_obituary(cell: Cell, reason: str, seconds: float) -> None:
    """Record that the process of a cell died; a lasting result from before is kept."""
    record = cell.record()
    if record is not None and record["status"] in LASTING:
        write_json(cell.path, record | {"error": reason})
    else:
        write_cell(cell, "failed", reason, {}, seconds)


def _as_json(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the result; one that JSON cannot hold is an error of the experiment."""
    json.dumps(result)
    return dict(result)


def _bench(cell: Cell) -> Bench:
    return Bench(cell.scale, cell.corpus, Path(cell.out) / "work")


def write_cell(cell: Cell, status: str, error: str | None, result: dict[str, Any], seconds: float) -> None:
    """Write the file of a cell, completely or not at all."""
    result = dict(result)
    write_json(
        cell.path,
        {
            "study": cell.study,
            "arm": cell.arm.name,
            "seed": cell.seed,
            "scale": cell.scale.name,
            "settings": cell.arm.settings,
            "x": cell.arm.x,
            "series": cell.arm.series,
            "status": status,
            "error": error,
            "curve": result.pop("curve", []),
            "result": result,
            "seconds": seconds,
            **_circumstances(),
            "corpus": cell.data,
            "corpus_settings": cell.corpus.to_dict(),
            "scale_settings": cell.scale.to_dict(),
            "file": cell.file,
            "command": shlex.join(["reluformer", "study", "--cell", str(cell.path), "--out", "AGAIN"]),
        },
    )


def _circumstances() -> dict[str, Any]:
    """Return the date, the versions and the machine of a measurement."""
    from reluformer.machine import describe

    place = describe(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "date": place["date"],
        "versions": {name: place[name] for name in ("python", "reluformer", "commit")} | dict(_versions()),
        "machine": {name: place[name] for name in ("machine", "gpu", "threads")},
    }


def one_line(error: BaseException) -> str:
    """Return an error as one line: its message, after its type unless messages of that type stand on their own."""
    text = " ".join(str(error).split())
    known = type(error).__name__ in ("Diverged", "DataError", "TrainingError", "ModuleNotFoundError")
    return text if known and text else f"{type(error).__name__}: {text}"


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
