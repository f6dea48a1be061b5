"""What is said on standard error about files that are translated."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reluformer.translation import progress
from reluformer.translation.outputs import STANDARD, Job
from reluformer.translation.progress import Account, sentences_done

FILE, PIPE = Job(Path("a.txt"), Path("a.de.txt")), Job(STANDARD, STANDARD)


@pytest.mark.parametrize(("counts", "total"), [([2, 3], 5), ([2, None], None), ([], 0)])
def test_a_total_is_known_if_all_can_be_counted(counts: list[int | None], total: int | None) -> None:
    assert Account([FILE] * len(counts), counts).total == total


def test_counting_hands_on_what_it_counts() -> None:
    told: list[float] = []
    account = Account([FILE], [3])
    count = account.counting(told.append)
    for part in (1, 0.5, 1.5):
        count(part)
    assert told == [1, 0.5, 1.5]
    assert account.done == 3


@pytest.mark.parametrize(("watched", "words"), [(True, "a.de.txt: 3 sentences in "), (False, "")])
def test_where_somebody_watches_files_are_named(capsys, monkeypatch, watched: bool, words: str) -> None:
    account = Account([FILE, PIPE], [3, None])
    account.begin()
    account.counting(lambda _: None)(3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    account.end()
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == watched


@pytest.mark.parametrize(("job", "typed", "lines"), [(PIPE, True, 1), (PIPE, False, 0), (FILE, True, 0)])
def test_a_person_at_the_keyboard_is_told(capsys, monkeypatch, job: Job, typed: bool, lines: int) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: typed, raising=False)
    Account([job], [None]).begin()
    err = capsys.readouterr().err
    assert err.count("\n") == lines
    assert ("Ctrl-D" in err) == bool(lines)


@pytest.mark.parametrize(
    ("total", "line"),
    [
        (4000, "translating: 1,000 of 4,000 sentences (25%), about 5 min left\n"),
        (None, "translating: 1,000 sentences\n"),
    ],
)
def test_a_log_gets_a_line_a_minute(capsys, monkeypatch, total: int | None, line: str) -> None:
    now = iter([0.0, 59.0, 100.0, 120.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))  # the clock of nobody else
    with sentences_done("translating", total) as done:
        for count in (500, 500, 10):
            done(count)
    assert capsys.readouterr().err == line


def test_a_log_of_one_long_line(capsys, monkeypatch) -> None:
    """No guess before anything is done; a part of a sentence is none yet, but a share of the work."""
    now = iter([0.0, 60.0, 120.0, 180.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))  # the clock of nobody else
    with sentences_done("translating", 1) as done:
        for count in (0.0, 0.2, 0.5):
            done(count)
    assert capsys.readouterr().err.splitlines() == [
        "translating: 0 of 1 sentences",
        "translating: 0 of 1 sentences (20%), about 8 min left",
        "translating: 0 of 1 sentences (70%), about 1 min left",
    ]


def test_a_log_on_a_full_disk_stops_nothing(monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        monkeypatch.setattr(progress, "EVERY", 0.0)
        with sentences_done("translating", 1) as done:
            done(1)
        Account([FILE], [1]).warn(FILE, "is strange")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):  # what is in the buffer
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
