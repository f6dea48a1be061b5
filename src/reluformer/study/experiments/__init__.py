"""The experiments: every file here that defines an ``EXPERIMENT`` is one. It need not be registered anywhere else."""

import difflib
import fnmatch
import importlib.util
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from reluformer.study.experiment import Experiment, StudyError

HERE = Path(__file__).parent


def find_experiments(added: Sequence[Path] = ()) -> dict[str, tuple[Experiment, str]]:
    """Return all experiments by name, including the user's own, each with its file; "" for a built-in one."""
    found: dict[str, tuple[Experiment, str]] = {}
    for path in [*sorted(HERE.glob("[!_]*.py")), *added]:
        experiment = load_experiment(path)
        if experiment is None:
            continue
        if experiment.name in found:
            raise StudyError(f"{path}: there is an experiment {experiment.name} already")
        found[experiment.name] = experiment, "" if path.parent == HERE else str(path.resolve())
    return found


def experiment_of(name: str, file: str) -> Experiment:
    """Return the experiment of a cell: a built-in one by its name, so that it works on any machine, else the file's."""
    experiment = load_experiment(Path(file)) if file else find_experiments().get(name, (None, ""))[0]
    if experiment is None:
        raise StudyError(f"there is no experiment {name!r}")
    return experiment


def load_experiment(path: Path) -> Experiment | None:
    """Return the experiment of a file; None for a built-in file that only helps the others."""
    if not path.exists():
        raise StudyError(f"{path} does not exist")
    name = f"{__name__}.{path.stem}" if path.parent == HERE else f"reluformer_study_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise StudyError(f"{path} is no Python file")
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise StudyError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    experiment = getattr(module, "EXPERIMENT", None)
    if isinstance(experiment, Experiment):
        return experiment
    if path.parent == HERE:
        return None
    raise StudyError(f"{path} has no EXPERIMENT = Experiment(...)")


def choose(kind: str, known: Collection[str], names: Sequence[str]) -> list[str]:
    """Return the known names that were asked for, by name or by a shell-style pattern (``*, 4096``); all if none was.

    A name or pattern that matches nothing is an error that suggests the nearest name.
    """
    chosen: list[str] = []
    for name in names:
        matching = [name] if name in known else fnmatch.filter(known, name)
        if not matching:
            near = difflib.get_close_matches(name, known, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise StudyError(f"there is no {kind} {name!r}; {hint}")
        chosen += matching
    return list(dict.fromkeys(chosen)) or list(known)
