"""An experiment of a user's own, in a file of its own, that fails in every way there is."""

import json
from pathlib import Path
from typing import Any

EXPERIMENT = """
import multiprocessing, os, signal, time
import torch
from reluformer.study.experiment import Arm, Column, Diverged, Experiment

ARMS = {arms!r}

def run(arm, seed, bench):
    with open({log!r}, "a") as log:
        print(arm.name, seed, file=log)
    does = arm.settings["does"]
    if does == "fail":
        raise ValueError("no such\\nthing")
    if does == "diverge":
        raise Diverged("the loss is not a number", {{"nll": 9.0}})
    if does == "fork":
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join(20)
        assert child.exitcode == 0
    first = open({log!r}).read().splitlines().count(f"{{arm.name}} {{seed}}") == 1
    if does == "full" and first:
        try:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        except torch.OutOfMemoryError:
            raise RuntimeError("lower the cost") from None
    if does == "die" or (does == "die once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(arm.settings.get("seconds", 0))
    return {{"nll": 1.0 + seed, "curve": [{{"step": 1, "nll": 2.0, "seconds": 0.1}}]}}

EXPERIMENT = Experiment(
    name="own", title="Own", question="Does it run?", run=run, columns=(Column("NLL", "nll"),),
    arms=lambda scale: [Arm(name, {{"does": name, **more}}) for name, more in ARMS.items()],
)
"""


def write_experiment(folder: Path, arms: dict[str, dict[str, Any]]) -> tuple[Path, Path]:
    """The file of an experiment with these arms, and that of the log of its runs."""
    path, log = folder / "own.py", folder / "runs.txt"
    path.write_text(EXPERIMENT.format(arms=arms, log=str(log)))
    return path, log


def records(out: Path, study: str = "own") -> dict[str, dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in sorted((out / "cells" / study).glob("*.json"))]
    return {f"{record['arm']} {record['seed']}": record for record in found}
