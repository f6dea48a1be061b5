"""Running a grid of cells, several at a time, each in a process that may die without harming the others."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from reluformer.study.cells import FULL, LASTING, Cell, write_obituary
from reluformer.study.worker import STOPPED

# Variables that tell a process it is one of several. Workers do not get them: one process trains a cell.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
CORES = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")  # by default each process would take all of them for both
CHECK = 1  # seconds between two looks at logs that must not be silent
LAST_WORDS = 2  # seconds for an aborted process to write where it was
TRIES = 2  # times that a cell is run whose process ends, is silent, or runs out of GPU memory
# Not by -m: then the processes that prepare batches would import this again, and all that it imports.
WORKER = "from reluformer.study.worker import main; main()"
PATIENCE = 60  # seconds for all processes to finish their updates and write checkpoints, once told to stop

# Called with a cell and "running" when it starts, and with its status when it ends.
Watch = Callable[[Cell, str], None]


class TimeIsUp(Exception):
    """A study was told to stop by now."""


def share_of(cells: Sequence[Cell]) -> list[Cell]:
    """Return this process's share of the cells: all, unless ``accelerate launch`` started several processes."""
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return list(cells)[rank::world]


def unfinished(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without a lasting result."""
    return [cell for cell in cells if (cell.record() or {}).get("status") not in LASTING]


class Todo:
    """Cells that no worker has taken yet."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = list(cells)
        self.lock = threading.Lock()

    def take(self, last: Cell | None) -> Cell | None:
        """Take the next cell, preferably of the same arm as ``last``, whose model the worker has already compiled."""
        with self.lock:
            same = (cell for cell in self.cells if last and (cell.study, cell.arm.name) == (last.study, last.arm.name))
            cell = next(same, self.cells[0] if self.cells else None)
            if cell is not None:
                self.cells.remove(cell)
            return cell

    def clear(self) -> None:
        """Drop all remaining cells."""
        with self.lock:
            self.cells.clear()


def run_cells(
    cells: Sequence[Cell],
    jobs: int,
    log: Path,
    watch: Watch = lambda *_: None,
    until: float = math.inf,
    silence: float = math.inf,
) -> None:
    """Run cells, ``jobs`` at a time; the result of each is in its file.

    Args:
        cells: Cells, started in this order, except that a worker goes on with further cells of its arm.
        jobs: Number of processes.
        log: Folder for the logs of the processes.
        watch: Callback for the progress, called from several threads.
        until: Time at which to stop, on the monotonic clock.
        silence: Seconds after which a process that has written nothing into its log is stuck, and is ended.

    Raises:
        TimeIsUp: Cells that were running have written checkpoints.
        KeyboardInterrupt: So they have where this process, or one of those that run cells, was told to stop.
    """
    todo = Todo(cells)
    rank = os.environ.get("RANK", "0")
    workers = [_Worker(jobs, log / f"worker-{rank}-{i}.log", watch) for i in range(min(jobs, len(cells)))]
    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        futures = [pool.submit(worker.work, todo) for worker in workers]
        try:
            running = set(futures)
            while running:
                left = min(until - time.monotonic(), CHECK if silence < math.inf else math.inf)
                ended, running = wait(futures, None if left == math.inf else max(0.0, left), FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                if running and time.monotonic() >= until:
                    raise TimeIsUp
                for worker in workers:
                    worker.end_silence(silence)
        except BaseException:
            todo.clear()
            for worker in workers:
                worker.stopped = True
            for worker in workers:
                worker.stop()
            patience_ends = time.monotonic() + PATIENCE
            for worker in workers:
                worker.see_off(patience_ends)
            raise


class _Worker:
    """A process that runs cells and is restarted if it dies."""

    def __init__(self, jobs: int, log: Path, watch: Watch) -> None:
        self.jobs, self.log, self.watch = jobs, log, watch
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.starting = threading.Lock()  # held while a process starts, which could not be told to stop
        self.asked: float | None = None  # time at which the cell that is running was given to the process
        self.silent = False  # whether the process was aborted because nothing was heard of it

    def work(self, todo: Todo) -> None:
        """Take cells until there are none."""
        cell: Cell | None = None
        while not self.stopped:
            cell = todo.take(cell)
            if cell is None:
                self.close()  # an idle process would withhold GPU memory from those still at work
                return
            self.watch(cell, "running")
            status = self._run(cell)
            if self.stopped:
                return
            self.watch(cell, status)

    def _run(self, cell: Cell) -> str:
        """Return the status of a cell; where other cells may be to blame, it is run again, in a new process."""
        for _ in range(TRIES):
            if self.stopped:  # between two tries
                break
            began = time.monotonic()
            status = self._ask(cell)
            if not status and not self.stopped and self._exit_status() == STOPPED:
                raise KeyboardInterrupt  # the signal was for the process, and may not have reached this one
            if self.stopped or status not in ("", FULL):
                return status
            if status == FULL:
                self.close()
            else:
                write_obituary(cell, self._obituary(), time.monotonic() - began)
        return "failed"

    def _ask(self, cell: Cell) -> str:
        process = self._running()
        if process is None:
            return ""
        assert process.stdin is not None
        assert process.stdout is not None
        self.asked, self.silent = time.time(), False
        try:
            process.stdin.write(cell.to_line() + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()
        except OSError:
            return ""
        finally:
            self.asked = None

    def end_silence(self, seconds: float) -> None:
        """Abort the process if it has a cell and has written nothing into its log for so long."""
        asked = self.asked
        if asked is not None and self.process is not None:
            heard = max(asked, self.log.stat().st_mtime)
            if time.time() - heard > seconds:
                self.silent = True
                self.process.send_signal(signal.SIGABRT)

    def _running(self) -> "subprocess.Popen[str] | None":
        """Return the process, which is started if there is none; None once it was told to stop."""
        with self.starting:
            if self.stopped:
                return None
            if self.process is None or self.process.poll() is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with self.log.open("ab") as log:
                    self.process = subprocess.Popen(
                        [sys.executable, "-c", WORKER],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment(),
                    )  # fmt: skip
            return self.process

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        share = str(max(1, (os.cpu_count() or 1) // self.jobs))
        for name in CORES:
            environment.setdefault(name, share)
        if "LOCAL_RANK" in os.environ and "CUDA_VISIBLE_DEVICES" not in os.environ:
            environment["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
        return environment

    def _obituary(self) -> str:
        code = self._exit_status()
        if self.silent:
            return f"the process that ran it was silent for too long; {self.log} says where it was"
        cause = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        return f"the process that ran it ended with {cause}; see {self.log}"

    def _exit_status(self) -> int | None:
        return self.process.wait() if self.process is not None else None

    def stop(self) -> None:
        """Tell the process to write a checkpoint and end."""
        with self.starting:
            self.stopped = True
            if self.process is not None and self.process.poll() is None:
                self.process.terminate()

    def see_off(self, until: float) -> None:
        """Wait until the process has ended, and abort it at that time, on the monotonic clock.

        It may be stuck; an aborted process writes into its log where it was.
        """
        for end, patience in ((signal.SIGABRT, until - time.monotonic()), (signal.SIGKILL, LAST_WORDS)):
            if self.process is None:
                return
            try:
                self.process.wait(max(0.0, patience))
            except subprocess.TimeoutExpired:
                self.process.send_signal(end)

    def close(self) -> None:
        """Let the process end, as there is nothing left to do."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
