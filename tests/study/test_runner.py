import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from reluformer.study.bench import Bench
from reluformer.study.cells import FULL, Cell, grid
from reluformer.study.experiment import Arm, Experiment
from reluformer.study.runner import TimeIsUp, Todo, _Worker, run_cells, share_of
from reluformer.study.worker import STOPPED


def test_processes_share_the_cells(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Experiment("e", "E", "?", lambda scale: [Arm(str(i), {"i": i}) for i in range(5)], None, ())  # type: ignore[arg-type]
    cells = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)
    assert share_of(cells) == cells
    shares = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        shares += share_of(cells)
    assert sorted(cell.arm.name for cell in shares) == list("01234")


def test_a_cell_is_trained_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = _Worker(2, tmp_path / "log", lambda *_: None)._environment()
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} & environment.keys()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_processes_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what the user has chosen stays
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    shares = [_Worker(jobs, tmp_path / "log", lambda *_: None)._environment() for jobs in (4, 40)]
    assert [x["TORCHINDUCTOR_COMPILE_THREADS"] for x in shares] == ["4", "1"]
    assert [x["OMP_NUM_THREADS"] for x in shares] == ["3", "3"]


def test_a_process_stays_with_an_arm(bench: Bench, tmp_path: Path) -> None:
    made = Experiment("e", "E", "?", lambda scale: [Arm(name, {"is": name}) for name in "ab"], None, ())  # type: ignore[arg-type]
    todo = Todo(grid(made, "e.py", bench.scale, bench.corpus, 2, tmp_path))
    one = todo.take(None)
    other = todo.take(None)
    taken = [one, other, todo.take(other), todo.take(other), todo.take(one)]
    assert [cell and (cell.arm.name, cell.seed) for cell in taken] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), None]


def test_when_the_time_is_up_all_processes_are_told_before_any_is_waited_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Experiment("e", "E", "?", lambda scale: [Arm(name, {"is": name}) for name in "ab"], None, ())  # type: ignore[arg-type]
    told, order = threading.Event(), []
    monkeypatch.setattr(_Worker, "work", lambda self, todo: told.wait(60))
    monkeypatch.setattr(_Worker, "stop", lambda self: order.append("told"))
    monkeypatch.setattr(_Worker, "see_off", lambda self, until: (order.append("waited for"), told.set()))
    with pytest.raises(TimeIsUp):
        run_cells(grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path), 2, tmp_path, until=time.monotonic() + 0.1)
    assert order == ["told", "told", "waited for", "waited for"]


def test_an_error_ends_a_study_that_has_no_end_in_time(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Experiment("e", "E", "?", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]

    def fail(self: _Worker, todo: Todo) -> None:
        raise TimeoutError("the disk does not answer")

    monkeypatch.setattr(_Worker, "work", fail)
    with pytest.raises(TimeoutError, match="disk"):
        run_cells(grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path), 1, tmp_path)


def test_a_process_that_somebody_else_stops_ends_the_study(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would end as if it had run all cells."""

    def running(self: _Worker) -> "subprocess.Popen[str]":
        command, pipes = ["sh", "-c", f"exit {STOPPED}"], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)
        return self.process

    monkeypatch.setattr(_Worker, "_running", running)
    made = Experiment("e", "E", "?", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]
    cells = grid(made, "e.py", bench.scale, bench.corpus, 2, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, 1, tmp_path)
    assert not any(cell.record() for cell in cells)  # none has failed


def test_a_process_with_nothing_left_to_do_ends_and_leaves_the_gpu_to_others(tmp_path: Path) -> None:
    worker = _Worker(2, tmp_path / "log", lambda *_: None)
    worker.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker.work(Todo([]))
    assert worker.process.poll() == 0


def test_a_study_that_was_stopped_does_not_try_a_cell_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Experiment("e", "E", "?", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]
    asked: list[Cell] = []
    worker = _Worker(1, tmp_path / "log", lambda *_: None)
    monkeypatch.setattr(worker, "_ask", lambda cell: asked.append(cell) or FULL)
    monkeypatch.setattr(worker, "close", lambda: setattr(worker, "stopped", True))
    worker.work(Todo(grid(made, "e.py", bench.scale, bench.corpus, 2, tmp_path)))
    assert len(asked) == 1


def test_a_process_that_is_just_starting_is_told_to_stop(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would, and the study would go on until its cell has ended."""
    made = Experiment("e", "E", "?", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]
    (cell,) = grid(made, "e.py", bench.scale, bench.corpus, 1, tmp_path)
    starts, start = threading.Event(), subprocess.Popen

    def slowly(_: object, **options: object) -> "subprocess.Popen[str]":
        starts.set()
        time.sleep(0.5)
        return start(["sleep", "20"], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", slowly)
    worker = _Worker(1, tmp_path / "log", lambda *_: None)
    asking = threading.Thread(target=worker._ask, args=(cell,))
    asking.start()
    starts.wait()
    worker.stop()
    asking.join(10)
    assert not asking.is_alive()
    assert worker._ask(cell) == ""  # nor does another start


def test_processes_that_do_not_end_are_waited_for_together(tmp_path: Path) -> None:
    began = time.monotonic()
    workers = [_Worker(2, tmp_path / "log", lambda *_: None) for _ in range(3)]
    for worker in workers:
        worker.process = subprocess.Popen(["sleep", "60"], text=True)
    for worker in workers:
        worker.see_off(began + 0.5)
    assert 0.5 <= time.monotonic() - began < 1.4
    assert all(worker.process is not None and worker.process.wait(5) == -signal.SIGABRT for worker in workers)


STUCK = """
import time
from reluformer.study.experiment import Arm, Experiment

EXPERIMENT = Experiment("stuck", "", "", lambda scale: [Arm("a", {})], lambda *_: time.sleep(60), ())
"""


def test_a_process_that_is_stuck_tells_where(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "stuck.py"
    file.write_text(STUCK)
    experiment = Experiment("stuck", "", "", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]
    (cell,) = grid(experiment, str(file), bench.scale, bench.corpus, 1, tmp_path)
    worker = _Worker(1, tmp_path / "log", lambda *_: None)
    asking = threading.Thread(target=worker._ask, args=(cell,))
    asking.start()
    until = time.monotonic() + 60
    while not (worker.log.exists() and cell.label in worker.log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    worker.see_off(time.monotonic() + 0.5)
    asking.join()
    assert worker._exit_status() == -signal.SIGABRT
    assert f'File "{file}"' in worker.log.read_text()


def test_cells_whose_process_is_silent_for_long_fail(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talking, silent = "for i in $(seq 15); do sleep 0.1; echo >&2; done; exit 7", "exec sleep 60"

    def running(self: _Worker) -> "subprocess.Popen[str]":
        with self.log.open("ab") as log:
            command = ["sh", "-c", silent if ended else talking]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.process = subprocess.Popen(command, text=True, **pipes)
        return self.process

    monkeypatch.setattr("reluformer.study.runner.CHECK", 0.1)
    monkeypatch.setattr(_Worker, "_running", running)
    made = Experiment("e", "E", "?", lambda scale: [Arm("a", {})], None, ())  # type: ignore[arg-type]
    cells = grid(made, "e.py", bench.scale, bench.corpus, 2, tmp_path)
    ended: list[str] = []
    run_cells(cells, 1, tmp_path, lambda cell, status: ended.append(status) if status != "running" else None, silence=1)
    assert ended == ["failed", "failed"]
    first, second = ((cell.record() or {})["error"] for cell in cells)
    assert "exit status 7" in first  # it was heard of all the time, until its own end
    assert second == f"the process that ran it was silent for too long; {tmp_path}/worker-0-0.log says where it was"
