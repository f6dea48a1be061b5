"""Command line of ``reluformer train``: read the recipe, train, report the outcome."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from reluformer.data.files import DataError
from reluformer.training.errors import TrainingError

STOPPED = 130  # exit status of a shell for Ctrl-C


class Refusal(typer.BadParameter):
    """An error of the command line that concerns no single parameter."""

    def format_message(self) -> str:
        """Return the message on one line."""
        return " ".join(self.message.split())


def train(
    recipe: Annotated[Path, typer.Argument(help="YAML file that says what to do, see the folder recipes")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="what to change of it: optimiser.lr=3e-4")
    ] = None,
) -> None:
    """Train a model by a recipe. The same command resumes a run that was stopped or killed."""
    from reluformer.training.recipe import read_recipe
    from reluformer.training.run import train as run

    try:
        plan = read_recipe(recipe, changes or ())
    except UnicodeDecodeError:
        _refuse(f"{recipe} is not UTF-8")
    except ValueError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"cannot read {recipe}: {error.strerror}")
    try:
        outcome = run(plan)
    except (TrainingError, DataError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"cannot use {error.filename or plan.out}: {error.strerror or error}")
    if not _speaks():
        raise typer.Exit(STOPPED if outcome.model is None else 0)
    if outcome.model is None:
        print(f"stopped at step {outcome.step}; the same command goes on", file=sys.stderr)
        raise typer.Exit(STOPPED)
    if not outcome.averaged:
        print(f"Nothing to do: {outcome.model} is trained.")
        return
    count = len(outcome.averaged)
    which = f"the mean of the last {count} checkpoints" if count > 1 else "that of the last checkpoint"
    print(f"Trained {outcome.step:,} steps: {outcome.model}, {which}")
    if outcome.best:
        print(f"Best on its own: {outcome.best}")


def _speaks() -> bool:
    """Return whether this process prints: of several, which launchers number, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def _refuse(message: str) -> NoReturn:
    if not _speaks():
        raise typer.Exit(2)
    raise Refusal(message)
