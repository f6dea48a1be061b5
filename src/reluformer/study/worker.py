"""A process that runs cells: for each, it reads one line of JSON and answers with one line, the status.

It serves many cells, since importing torch takes longer than running a small one. It exits as soon as its parent is
gone, so that a killed study leaves no process behind that still writes.
"""

import faulthandler
import gc
import os
import queue
import sys
import threading
from typing import IO

import reluformer.training.run  # noqa: F401  what nearly all cells import when they run
from reluformer.study.cells import Cell, run_cell
from reluformer.study.experiments import experiment_of

STOPPED = 130


def main() -> None:
    """Run the cells on standard input until it is closed."""
    faulthandler.enable()  # a process that is aborted because it is stuck tells where
    gc.freeze()  # imports leave half a million objects, which the trainer's collections would traverse in every run
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    lines: queue.Queue[str] = queue.Queue()
    questions = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # forks close sys.stdin, which no thread may be reading then
    threading.Thread(target=_read, args=(questions, lines), daemon=True).start()
    try:
        while True:
            cell = Cell.from_line(lines.get())
            print(f"--- {cell.label}", file=sys.stderr, flush=True)
            print(run_cell(cell, experiment_of(cell.study, cell.file)), file=answers, flush=True)
    except KeyboardInterrupt:
        os._exit(STOPPED)


def _read(source: IO[str], lines: "queue.Queue[str]") -> None:
    for line in source:
        lines.put(line)
    os._exit(0)
