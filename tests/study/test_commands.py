"""``reluformer study``: what it refuses, what it records, and that it goes on where it was killed."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reluformer.study.commands import TIME_IS_UP
from tests.study.own import records, write_experiment
from tests.study.vision.pictures import write_folder
from tests.test_cli import run

REFUSED = {
    "unknown experiment": (["atention"], "there is no experiment 'atention'; did you mean attention?"),
    "nothing near": (["zzz"], "there is no experiment 'zzz'; there are approximation, attempts, attention,"),
    "unknown arm": (["ffn", "--arm", "softmaxx"], "there is no arm 'softmaxx'; did you mean softmax?"),
    "unknown scale": (["--scale", "huge"], "--scale takes smoke, laptop, gpu, got 'huge'"),
    "no corpus": (["--corpus", "/nowhere"], "/nowhere is no folder of reluformer data prepare"),
    "test set without corpus": (["--test", "x.jsonl"], "--test needs --corpus"),
    "no file to add": (["--add", "/nowhere.py"], "/nowhere.py does not exist"),
    "no experiment in it": (["--add", __file__], "test_commands.py has no EXPERIMENT = Experiment(...)"),
    "text for nobody": (["ffn", "--text", __file__], "--text is for the experiment language, which is not asked for"),
    "no text": (["language", "--text", "/nowhere.txt"], "--text: /nowhere.txt is no file"),
    "no images": (["vision", "--images", "/nowhere"], "--images: /nowhere is no folder"),
    "no cell": (["--cell", __file__], "test_commands.py is no cell of a study"),
    "a cell and a scale": (
        ["--cell", "x.json", "--scale", "smoke"],
        "--cell takes --corpus, --test and --out beside it",
    ),
    "a cell and a name": (["ffn", "--cell", "x.json"], "--out beside it, not NAME..."),
    "no seeds": (["--seeds", "0"], "--seeds"),
    "no such arms": (["ffn", "--arm", "*, 4096"], "there is no arm '*, 4096'; there are ReLU, softmax"),
    "less than no time": (["--minutes", "-1"], "--minutes"),
    "a file for a folder": (["--out", __file__], "test_commands.py: File exists"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_argument_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    place = [] if "--out" in arguments else ["--out", str(tmp_path)]
    status, out, err = run(capsys, "study", *arguments, *place)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_own_text_and_images(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    text = tmp_path / "novel.txt"
    text.write_text("".join(f"It was the year {i}, and nothing had happened yet.\n" for i in range(500)))
    images = write_folder(tmp_path / "photos")
    arms = ["--arm", "relu, gate, 1x", "--arm", "relu, alpha 1"]
    command = ["study", "language", "vision", "--text", str(text), "--images", str(images), *arms, "--out", str(out)]
    assert run(capsys, *command, "--jobs", "1")[0] == 0
    (cell,), (other,) = records(out, "language").values(), records(out, "vision").values()
    assert (cell["status"], other["status"]) == ("done", "done")
    assert (cell["settings"]["data"], other["settings"]["data"]) == (str(text), str(images))
    (path,) = (out / "cells" / "language").glob("*.json")
    assert run(capsys, "study", "--cell", str(path), "--out", str(tmp_path / "again"))[0] == 0
    (again,) = records(tmp_path / "again", "language").values()
    assert again["result"]["nll"] == cell["result"]["nll"]

    (path,) = (out / "cells" / "vision").glob("*.json")
    next(images.rglob("*.png")).unlink()
    status, _, err = run(capsys, "study", "--cell", str(path), "--out", str(tmp_path / "again"))
    assert status == 1
    assert "has not the images that the cell was made of: they have changed" in err
    assert run(capsys, *command, "--jobs", "1")[0] == 0
    assert len(list((out / "cells" / "vision").glob("*.json"))) == 2  # other images, another cell


def test_own_experiment_with_cells_that_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    arms = {"work": {}, "fail": {}, "diverge": {}, "die": {}}
    file, log = write_experiment(tmp_path, arms)
    command = ["study", "own", "--add", str(file), "--out", str(out), "--jobs", "2"]
    status, said, err = run(capsys, *command)
    assert status == 1  # the report is there all the same
    assert str(out / "report.md") in said
    assert "2 of 4 cells failed" in err
    assert "1 x ValueError: no such thing" in err
    assert "1 of 4 cells diverged" in err
    found = records(out)
    assert len(found) == 4
    work = found["work 0"]
    assert (work["status"], work["error"], work["result"]) == ("done", None, {"nll": 1.0})
    assert work["curve"] == [{"step": 1, "nll": 2.0, "seconds": 0.1}]
    assert work["scale"] == "smoke"
    assert work["versions"]["torch"]
    assert (found["fail 0"]["status"], found["fail 0"]["error"]) == ("failed", "ValueError: no such thing")
    assert (found["diverge 0"]["status"], found["diverge 0"]["result"]) == ("diverged", {"nll": 9.0})
    assert found["die 0"]["status"] == "failed"
    assert "ended with signal 9" in found["die 0"]["error"]

    before = log.read_text().splitlines()
    run(capsys, *command)  # what lasts is kept; a failure may have been mended
    again = log.read_text().splitlines()[len(before) :]
    assert sorted(again) == ["die 0", "die 0", "fail 0"]
    shutil.rmtree(out / "cells" / "own")


def test_cells_that_others_may_have_harmed_are_run_once_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path
) -> None:
    file, log = write_experiment(tmp_path, {"full": {}, "die once": {}, "work": {}})
    assert run(capsys, "study", "own", "--add", str(file), "--out", str(out), "--jobs", "2")[0] == 0
    assert sorted(log.read_text().splitlines()) == ["die once 0", "die once 0", "full 0", "full 0", "work 0"]
    assert all((x["status"], x["error"]) == ("done", None) for x in records(out).values())
    shutil.rmtree(out / "cells" / "own")


def test_cell_may_fork(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    """As loaders of data do, on a GPU."""
    file, _ = write_experiment(tmp_path, {"fork": {}})
    assert run(capsys, "study", "own", "--add", str(file), "--out", str(out))[0] == 0
    assert records(out)["fork 0"]["status"] == "done"


def test_some_arms_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    file, log = write_experiment(tmp_path, {"work": {"seconds": 0.01}, "fail": {"why": "nobody asked"}})
    command = ["study", "own", "--add", str(file), "--out", str(out), "--seeds", "2"]
    assert run(capsys, *command, "--arm", "work")[0] == 0
    assert sorted(log.read_text().splitlines()) == ["work 0", "work 1"]


def test_the_report_covers_what_is_in_the_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    file, _ = write_experiment(tmp_path, {"work": {}})
    other = tmp_path / "other.py"
    other.write_text(file.read_text().replace('name="own", title="Own"', 'name="other", title="Other"'))
    add = ["--add", str(file), "--add", str(other), "--out", str(out)]
    assert run(capsys, "study", "own", *add, "--seeds", "2")[0] == 0
    assert run(capsys, "study", "other", *add, "--seeds", "1")[0] == 0
    report = (out / "report.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("## O")] == ["## Own", "## Other"]
    assert "| 3 done, 0 failed, 0 diverged |" in report
    assert "| work | 2 done |" in report
    for name in ("own", "other"):
        shutil.rmtree(out / "cells" / name)


def test_arms_by_a_pattern_and_in_the_order_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path
) -> None:
    file, log = write_experiment(tmp_path, {"a, 8": {}, "a, 32": {}, "a, 4096": {}, "b, 4096": {}})
    command = ["study", "own", "--add", str(file), "--out", str(out), "--jobs", "1"]
    assert run(capsys, *command, "--arm", "*, 4096", "--arm", "a, 8")[0] == 0
    assert log.read_text().splitlines() == ["a, 4096 0", "b, 4096 0", "a, 8 0"]


def test_study_stops_when_its_time_is_over_with_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path
) -> None:
    shutil.rmtree(out / "cells" / "own", ignore_errors=True)  # of other tests
    file, _ = write_experiment(tmp_path, {"quick": {}, "slow": {"seconds": 600}})
    command = ["study", "own", "--add", str(file), "--out", str(out), "--jobs", "1"]
    assert run(capsys, *command, "--arm", "quick")[0] == 0
    status, said, err = run(capsys, *command, "--minutes", "0.02")
    assert (status, list(records(out))) == (TIME_IS_UP, ["quick 0"])
    assert "report.md" in said
    assert err.splitlines()[-1] == "--minutes are over; the same command goes on"
    shutil.rmtree(out / "cells" / "own")


def test_cell_is_run_again_from_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    file, _ = write_experiment(tmp_path, {"work": {}})
    out = out / "a place with spaces"
    assert run(capsys, "study", "own", "--add", str(file), "--out", str(out), "--seeds", "2", "--jobs", "1")[0] == 0
    record = records(out)["work 1"]
    command = shlex.split(record["command"].replace("AGAIN", str(tmp_path / "again")))
    status, said, _ = run(capsys, *command[1:])
    assert status == 0
    again = records(tmp_path / "again")["work 1"]
    assert said.startswith(f"done: {tmp_path / 'again' / 'cells' / 'own'}")
    changing = ("seconds", "date", "command", "corpus_settings")
    assert {k: x for k, x in again.items() if k not in changing} == {
        k: x for k, x in record.items() if k not in changing
    }


def test_edited_cells_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    shutil.rmtree(out / "cells" / "own", ignore_errors=True)  # of other tests
    file, _ = write_experiment(tmp_path, {"work": {}})
    assert run(capsys, "study", "own", "--add", str(file), "--out", str(out))[0] == 0
    (path,) = (out / "cells" / "own").glob("*.json")
    record = json.loads(path.read_bytes())
    edited = tmp_path / "edited.json"
    for name, value in {"corpus_settings": {}, "scale_settings": {"name": "x"}, "arm": None}.items():
        edited.write_text(json.dumps(record | {name: value}))
        status, said, err = run(capsys, "study", "--cell", str(edited), "--out", str(tmp_path / "again"))
        assert (status, said, err.count("\n")) == (2, "", 1)
        assert f"{edited} is no cell of a study" in err
    path.write_text("{}")  # no result: it is run again
    assert run(capsys, "study", "own", "--add", str(file), "--out", str(out))[0] == 0
    assert json.loads(path.read_bytes())["status"] == "done"
    shutil.rmtree(out / "cells" / "own")


ODD = {
    "leaves": ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    "no arms": ("ARMS = None", "cannot tell its arms: AttributeError"),
    "what JSON cannot hold": ("ARMS = {'work': {'x': {1, 2}}}", "cannot tell its arms: TypeError"),
    "one name": ("ARMS = NAMESAKES()", "has two arms called 'a'"),
    "one file": ("ARMS = NAMESAKES('a b', 'a-b')", "the arms 'a b' and 'a-b' are too much alike to have a file each"),
}
NAMESAKES = """
class NAMESAKES:
    def __init__(self, *names): self.names = names or ("a", "a")
    def items(self): return [(name, {"does": ""}) for name in self.names]
"""


@pytest.mark.parametrize(("line", "words"), ODD.values(), ids=ODD)
def test_odd_experiment_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path, line: str, words: str
) -> None:
    file, _ = write_experiment(tmp_path, {})
    file.write_text(NAMESAKES + file.read_text().replace("ARMS = {}", line))
    status, said, err = run(capsys, "study", "own", "--add", str(file), "--out", str(out))
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert words in err


def test_killed_study_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path, out: Path) -> None:
    shutil.rmtree(out / "cells" / "own", ignore_errors=True)  # of other tests
    arms = {f"work {i}": {"seconds": 0.5} for i in range(8)}
    file, log = write_experiment(tmp_path, arms)
    command = ["study", "own", "--add", str(file), "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "reluformer", *command], stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"}
    )
    deadline = time.monotonic() + 60
    while len(records(out)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # nobody is left who would finish a cell
    kept = records(out)
    assert 2 <= len(kept) < 8
    runs = log.read_text().splitlines()

    assert run(capsys, *command)[0] == 0
    found = records(out)
    assert len(found) == 8
    assert all(found[name] == record for name, record in kept.items())
    again = log.read_text().splitlines()[len(runs) :]
    assert len(again) == 8 - len(kept)
    shutil.rmtree(out / "cells" / "own")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whole_study_at_the_smallest_scale(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    began = time.monotonic()
    status, _, err = run(capsys, "study", "--scale", "smoke", "--out", str(tmp_path))
    seconds = time.monotonic() - began
    assert status == 0
    assert "failed" not in err
    names = {path.name for path in (tmp_path / "cells").iterdir()}
    assert names == {
        "approximation", "attempts", "attention", "centralisation", "documents", "extrapolation", "ffn", "language",
        "maps", "retrieval", "slots", "variance", "vision",
    }  # fmt: skip
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert len(list((tmp_path / "maps").glob("*.png"))) == 1
    assert seconds < 120
