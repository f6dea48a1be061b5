from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reluformer.data.files import DataError
from reluformer.data.language import SAMPLE
from reluformer.translation.formats import LinePage, Page
from reluformer.translation.outputs import STANDARD, Job
from reluformer.translation.pipeline import Reader, translate_jobs
from reluformer.translation.translator import Translator
from tests.translation.stubs import Copier


def jobs_in(folder: Path, **texts: bytes) -> list[Job]:
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return [Job(folder / name, folder / f"{name}.out") for name in texts]


def test_counts_read_everything_that_can_be_read_twice(tmp_path: Path) -> None:
    reader = Reader("text", None, "de")
    jobs = jobs_in(tmp_path, a=b"x\n\ny\n***\n", b=b"z")
    assert reader.counts([*jobs, Job(STANDARD, STANDARD)]) == [2, 1, None]
    with pytest.raises(DataError, match="c, line 1: not UTF-8"):
        reader.counts([*jobs_in(tmp_path, c=b"\xff"), Job(STANDARD, STANDARD)])


def test_files_before_a_failure_stay_and_windows_know_their_file(tmp_path: Path, tokenizer) -> None:
    seen, done = [], []
    jobs = jobs_in(tmp_path, a=b"x\n\ny\n", b=b"z\n" * 9)
    jobs.append(Job(jobs[0].input, Path("/dev/full")))
    translator = Translator(Copier(), tokenizer, length=16, cost=1)
    collect = lambda job, window: seen.append((job.input.name, len(window.source)))  # noqa: E731
    with pytest.raises(DataError, match="cannot write /dev/full"):
        translate_jobs(translator, jobs, Reader("text", None, "de"), done.append, collect)
    assert (tmp_path / "a.out").read_bytes() == b"x\n\ny\n"
    assert (tmp_path / "b.out").read_bytes() == b"z\n" * 9
    assert {name for name, _ in seen} == {"a", "b"}
    assert sum(name == "a" for name, _ in seen) == 4  # two documents, twice
    assert sum(done) == 13


def test_a_long_file_is_never_held_whole(tmp_path: Path, tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    read = rendered = most = 0
    render = LinePage.render

    class Watched(Reader):
        def pages(self, job: Job) -> Iterator[Page]:
            nonlocal read
            for page in super().pages(job):
                read += 1
                yield page

    def counted(page: LinePage, translations: Sequence[str]) -> str:
        nonlocal rendered, most
        most = max(most, read - rendered)
        rendered += 1
        return render(page, translations)

    monkeypatch.setattr(LinePage, "render", counted)
    (job,) = jobs_in(tmp_path, a=(b"light " * 20 + b"\n\n") * 2000)  # documents of a sentence, 244 KB
    translate_jobs(Translator(Copier(), tokenizer, length=64, cost=256, beam=1), [job], Watched("text", None, "de"))
    assert job.output.read_bytes() == job.input.read_bytes()
    assert rendered == read > 2000
    assert most < 300


def test_how_a_file_begins_is_told_before_it_is_translated(tmp_path: Path, tokenizer) -> None:
    model, told = Copier(), []
    jobs = jobs_in(tmp_path, long=b"a light\n\n" * 9000, short=b"x\n\n1\n\ny\n", empty=b"")

    def heard(job: Job, sentences: list[str]) -> None:
        told.append((job.input.name, len(model.calls), sentences))

    translate_jobs(Translator(model, tokenizer, length=64), jobs, Reader("text", None, "de"), heard=heard)
    assert [name for name, _, _ in told] == ["long", "short", "empty"]
    (_, before, begin), (_, _, whole), (_, _, nothing) = told
    assert before == 0
    assert SAMPLE <= len("".join(begin)) < SAMPLE + 10
    assert (whole, nothing) == (["x", "y"], [])
