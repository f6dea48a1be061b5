import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reluformer
from reluformer.machine import at_work, describe, one_line


def test_says_where_a_number_comes_from() -> None:
    place = describe(torch.device("cpu"))
    assert place["reluformer"] == reluformer.__version__
    assert "cores" in place["machine"]
    line = one_line(place)
    assert line.startswith(place["machine"])
    assert place["date"] in line


@pytest.mark.parametrize(("threads", "words"), [(1, ", 1 thread"), (3, ", 3 threads")])
def test_a_processor_works_with_the_threads_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, threads: int, words: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert at_work(torch.device("cpu")).endswith(words)
    assert at_work(torch.device("cpu"), fewest=threads).endswith(words)


def test_a_processor_that_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert at_work(torch.device("cpu"), fewest=1).endswith(", 1 to 4 threads")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("given", ["", "0123abc"])
def test_a_copy_without_history_takes_the_commit_from_the_environment(tmp_path: Path, given: str) -> None:
    shutil.copytree(
        Path(reluformer.__file__).parent, tmp_path / "reluformer", ignore=shutil.ignore_patterns("pretrained")
    )
    code = "import torch; from reluformer.machine import describe; print(describe(torch.device('cpu'))['commit'])"
    environment = {"PYTHONPATH": str(tmp_path), "RELUFORMER_COMMIT": given, "PATH": "/usr/bin:/bin"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.strip() == given
