"""A process that runs cells: one line of JSON in for each, one line with its status out.

It stays for many cells, since importing torch takes longer than a small one. It ends at once when whoever feeds it is
gone, so that a study that was killed leaves nobody behind who still writes.
"""

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
    """Serve standard input until it ends."""
    gc.freeze()  # what is imported stays: half a million objects, which the trainer's every run would look through
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    lines: queue.Queue[str] = queue.Queue()
    questions = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what is forked closes sys.stdin: nobody may be reading from it then
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


if __name__ == "__main__":
    main()
