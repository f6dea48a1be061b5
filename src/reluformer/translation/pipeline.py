"""Translation of files: all of them as one stream, so that short ones share batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

from reluformer.data.files import DataError
from reluformer.data.language import SAMPLE
from reluformer.translation.formats import Page, decoded_lines, format_of, read_pages
from reluformer.translation.outputs import STANDARD, Job
from reluformer.translation.translator import Translator, Written


@dataclass(frozen=True)
class Reader:
    """How files are read.

    Attributes:
        form: Format of the files, one of :data:`~reluformer.translation.formats.FORMATS`.
        source: Key of the sentences in JSONL; None for the only list of strings.
        target: Key of the translations in JSONL.
    """

    form: str
    source: str | None
    target: str

    def form_of(self, job: Job) -> str:
        """Return the format of a file: ``text``, ``markdown`` or ``jsonl``."""
        return format_of(None if job.input == STANDARD else job.input, self.form)

    def pages(self, job: Job) -> Iterator[Page]:
        """Iterate over the pages of a file."""
        with job.reading() as file:
            lines = decoded_lines(file, job.name)
            yield from read_pages(lines, self.form_of(job), job.name, self.source, self.target)

    def counts(self, jobs: Sequence[Job]) -> list[int | None]:
        """Count the sentences of each file, None if it can be read only once; finds errors before work begins."""
        return [
            sum(len(page.sentences) for page in self.pages(job))
            if job.input != STANDARD and job.input.is_file()
            else None
            for job in jobs
        ]


def translate_jobs(
    translator: Translator,
    jobs: Sequence[Job],
    reader: Reader,
    watch: Callable[[float], None] | None = None,
    written: Callable[[Job, Written], None] | None = None,
    heard: Callable[[Job, list[str]], None] = lambda job, sentences: None,
) -> None:
    """Translate files; each appears when it is complete, and if one cannot be written, those before it stay.

    Args:
        translator: Translator to use.
        jobs: What to read and where to write.
        reader: Reader that knows the format.
        watch: Called with the number of sentences done since the last call.
        written: Called with every translated window and the job it belongs to.
        heard: Called with the first sentences of each file, enough to tell its language, before they are translated.
    """
    waiting: deque[tuple[int, Page]] = deque()  # pages read but not yet written
    owners: list[int] = []  # the job of every page

    def sentences() -> Iterator[list[str]]:
        for number, job in enumerate(jobs):
            for page in _overheard(reader.pages(job), partial(heard, job)):
                waiting.append((number, page))
                owners.append(number)
                yield page.sentences

    def pages() -> Iterator[tuple[int, str]]:
        shown = None if written is None else lambda window: written(jobs[owners[window.document]], window)
        for translations in translator.translate(sentences(), watch=watch, written=shown):
            number, page = waiting.popleft()
            yield number, page.render(translations)

    for number, texts in groupby(pages(), itemgetter(0)):
        with jobs[number].writing() as file:
            for _, text in texts:
                try:
                    file.write(text.encode("utf-8"))
                except UnicodeEncodeError as error:  # half a surrogate pair in a JSON record
                    raise DataError(f"{jobs[number].name}: not Unicode text: {error.reason}") from None


def _overheard(pages: Iterable[Page], tell: Callable[[list[str]], None]) -> Iterator[Page]:
    """Pass pages through; ``tell`` gets the sentences at their beginning as soon as there are enough of them."""
    begin: list[str] = []
    missing = SAMPLE
    for page in pages:
        if missing > 0:
            begin += page.sentences
            missing -= sum(map(len, page.sentences))
            if missing <= 0:
                tell(begin)
        yield page
    if missing > 0:
        tell(begin)
