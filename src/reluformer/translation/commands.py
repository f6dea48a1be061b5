"""Command line of ``reluformer translate``, ``compress`` and ``evaluate``: parse options, run, show the result."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from reluformer.data.documents import Document, Languages, check_output
from reluformer.data.files import DataError, check_writable, write_json
from reluformer.pretrained import LANGUAGES, check_languages, model_or_default, name_of
from reluformer.translation.outputs import STANDARD, Job, plan_jobs

Model = Annotated[Path | None, typer.Option(help="folder of a model; by default the one in the box, en to de")]
Beam = Annotated[int, typer.Option(min=1, help="hypotheses that the search keeps; 1 is greedy")]
Penalty = Annotated[float, typer.Option(help="above 0 prefers longer translations, below 0 shorter ones")]
Length = Annotated[
    int | None, typer.Option(help="most tokens of a window, 0 for single sentences; by default as in training")
]
Context = Annotated[float, typer.Option(help="share of a window for the sentences before it")]
Cost = Annotated[int | None, typer.Option(min=1, help="most tokens times beams of a batch; by default by device")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Precision = Annotated[
    str, typer.Option(help="int8 (CPU), bf16, fp32, or auto: int8 if the weights are, or bf16 if native")
]


def translate(
    files: Annotated[list[Path] | None, typer.Argument(help="text, Markdown or JSONL; none or - for stdin")] = None,
    model: Model = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="file, folder/, or - for stdout; by default beside each file"),
    ] = None,
    beam: Beam = 5,
    length_penalty: Penalty = 1.0,
    length: Length = None,
    context: Context = 0.2,
    cost: Cost = None,
    device: Device = "auto",
    precision: Precision = "auto",
    form: Annotated[str, typer.Option("--format", help="auto (by the name), text, markdown or jsonl")] = "auto",
    source: Annotated[str | None, typer.Option(help="JSONL: key of the sentences; default: the only list")] = None,
    target: Annotated[str | None, typer.Option(help="JSONL: key of the translations; also names files")] = None,
    attention: Annotated[Path | None, typer.Option(help="folder for maps of the first windows of each file")] = None,
    heads: Annotated[str | None, typer.Option(help="heads to draw, site:layer:head, * for all")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace files that are there already")] = False,
) -> None:
    """Translate files line by line: documents of any length, with context across sentences."""
    from reluformer.translation.pipeline import Reader, translate_jobs
    from reluformer.translation.progress import Account, sentences_done
    from reluformer.translation.translator import Translator

    with _refusals():
        folder = model_or_default(model)
        if model is None:
            check_languages(source, target)
            target = target or LANGUAGES.target
    target = target or "translated"
    with _refusals("FILES"):
        jobs = plan_jobs(files or [], output, target, force)
    drawing = _Drawing(attention, heads, jobs)
    with _refusals():
        reader = Reader(form, source, target)
        if model is None:
            check_languages(source, target, keyed=any(reader.form_of(job) == "jsonl" for job in jobs))
        account = Account(jobs, reader.counts(jobs))
    options: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "context": context, "cost": cost}
    options["precision"] = precision
    with _refusals():
        translator = Translator.load(folder, device, length, **options)
    drawing.check(translator.model)
    account.begin()
    with _refusals(), sentences_done("translating", account.total) as watch:
        translate_jobs(
            translator,
            jobs,
            reader,
            account.counting(watch),
            written=drawing.collect if attention else None,
            heard=lambda job, sentences: account.warn(job, translator.doubt(sentences)),
        )
        drawing.draw(translator)
    account.end()


def compress(
    model: Annotated[Path, typer.Argument(help="folder of a model, as reluformer train writes it")],
    out: Annotated[Path, typer.Argument(help="folder to write")],
) -> None:
    """Compress a model to a quarter of its size: matrices as int8, with a scale for each row."""
    from reluformer.console import console
    from reluformer.models.compressing import WEIGHTS
    from reluformer.translation.compression import compress_folder
    from reluformer.translation.tables import compression_table

    with _refusals():
        report = compress_folder(model, out)
    before, after = ((folder / WEIGHTS).stat().st_size for folder in (model, out))
    screen = console()
    screen.print(compression_table(report))
    megabytes = f"{before / 1e6:.2f} MB became {after / 1e6:.2f} MB, {before / after:.2f} times less"
    screen.print(f"{megabytes}: {out}", highlight=False, markup=False, soft_wrap=True)


class _Drawing:
    """Collects the first windows of every file, and draws them."""

    def __init__(self, folder: Path | None, heads: str | None, jobs: Sequence[Job]) -> None:
        from reluformer.report.maps import HeadChoice

        if heads and folder is None:
            raise typer.BadParameter("draws into a folder: give --attention too", param_hint="--heads")
        if folder is not None:
            import matplotlib  # noqa: F401  # missing? Better said before the work than after

            if folder.exists() and not folder.is_dir():
                raise typer.BadParameter(f"takes a folder, {folder} is a file", param_hint="--attention")
            with _refusals("--attention"):
                check_writable(folder)
        self.folder = folder
        names = Counter(job.input.name for job in jobs)
        if folder is not None and (twice := [name for name, count in names.items() if count > 1]):
            raise typer.BadParameter(
                f"has a folder for each file: takes files of different names, got {twice[0]} twice",
                param_hint="--attention",
            )
        self.windows: dict[Job, list[Any]] = {}
        try:
            self.heads = [HeadChoice.parse(part) for part in heads.split(",")] if heads else None
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--heads") from None

    def check(self, model: Any) -> None:
        """Refuse heads that the model does not have, before the work."""
        from reluformer.report.maps import chosen_heads

        if self.heads is None:
            return
        try:
            chosen_heads(model, self.heads)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--heads") from None

    def collect(self, job: Job, window: Any) -> None:
        """Keep a window if it is one of the first of its file; windows come in any order."""
        from reluformer.translation.attention import MOST_WINDOWS

        kept = [*self.windows.get(job, []), window]
        self.windows[job] = sorted(kept, key=lambda x: (x.document, x.window))[:MOST_WINDOWS]

    def draw(self, translator: Any) -> None:
        """Draw the windows, into a folder for every file with a folder for every window."""
        if self.folder is None:
            return
        from reluformer.report.commands import usual_choices
        from reluformer.translation.attention import draw_window

        heads = usual_choices(translator.model, 0) if self.heads is None else self.heads
        for job, windows in self.windows.items():
            name = "stdin" if job.input == STANDARD else job.input.name
            for number, window in enumerate(windows):
                draw_window(self.folder / name / f"window-{number}", translator, window, heads)


def evaluate(
    data: Annotated[list[str], typer.Argument(help="documents with references, as reluformer data reads them")],
    source: Annotated[str, typer.Option(help="language to translate from, as the data names it")],
    target: Annotated[str, typer.Option(help="language to translate into")],
    model: Model = None,
    hypotheses: Annotated[
        Path | None,
        typer.Option(help="translations to score instead of a model's: what --keep wrote, or text, a sentence a line"),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="a second system, model or file: paired bootstrap against the first")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many documents")] = None,
    out: Annotated[Path | None, typer.Option(help="file for the results as JSON")] = None,
    keep: Annotated[Path | None, typer.Option(help="file for the translations as JSONL")] = None,
    tokenize: Annotated[str | None, typer.Option(help="words of BLEU, e.g. zh; by default sacreBLEU's 13a")] = None,
    samples: Annotated[int, typer.Option(min=1, help="of the bootstrap")] = 1000,
    beam: Beam = 5,
    length_penalty: Penalty = 1.0,
    length: Length = None,
    context: Context = 0.2,
    cost: Cost = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Score translations by sentence and document BLEU and chrF, by document length; compare two by bootstrap."""
    if model is not None and hypotheses is not None:
        raise typer.BadParameter("takes one of --model and --hypotheses, got both", param_hint="--model")
    from reluformer.console import console
    from reluformer.translation import evaluation, scores, tables

    options: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "context": context, "cost": cost}
    options["precision"] = precision
    with _refusals():
        first = hypotheses or model_or_default(model)
        if model is None and hypotheses is None:
            check_languages(source, target)
    with _refusals("DATA"):
        languages = Languages.parse(f"{source}-{target}")
        documents = evaluation.read_references(data, languages, limit)
    for option, path in (("--out", out), ("--keep", keep)):
        with _refusals(option):
            if path:
                check_output(path, data, [other for other in (hypotheses, compare) if other])
    if out and keep and out.resolve() == keep.resolve():
        raise typer.BadParameter("takes another file than --out", param_hint="--keep")
    if hypotheses and hypotheses.is_dir():
        raise typer.BadParameter(f"takes a file, {hypotheses} is a folder", param_hint="--hypotheses")
    if hypotheses and not hypotheses.is_file():
        raise typer.BadParameter(f"takes a file, there is none at {hypotheses}", param_hint="--hypotheses")
    with _refusals("--tokenize"):
        scores.check_tokenizer(tokenize)
    if compare is not None and not compare.exists():
        raise typer.BadParameter(f"takes a model or a file, there is none at {compare}", param_hint="--compare")
    systems = {
        name_of(path): _System(option, path, documents, target, device, length, options)
        for option, path in (("--hypotheses", first), ("--compare", compare))
        if path
    }
    if compare is not None and len(systems) == 1:
        raise typer.BadParameter("takes another system than the first", param_hint="--compare")
    references = [document.target for document in documents]
    texts = [system.translate(documents) for system in systems.values()]
    with _refusals():
        found = {name: scores.score(x, references, tokenize=tokenize) for name, x in zip(systems, texts, strict=True)}
        paired = scores.compare(texts[0], texts[1], references, samples=samples, tokenize=tokenize) if compare else []
    screen = console()
    try:
        with _refusals():
            if keep:
                evaluation.keep(keep, documents, languages, texts)
            if out:
                about = [system.about | {"scores": found[name].to_dict()} for name, system in systems.items()]
                write_json(out, {"data": data, "languages": [source, target], "limit": limit, "systems": about,
                                 "compared": [x.to_dict() for x in paired], **_circumstances()})  # fmt: skip
    finally:  # what took long to compute is shown even if the disk is full
        screen.print(tables.score_table(found))
        screen.print(tables.length_table(found))
        if paired:
            screen.print(tables.difference_table(list(systems), paired))
    if out or keep:
        kept = ", ".join(str(path) for path in (out, keep) if path)
        screen.print(f"Kept: {kept}", style="dim", highlight=False, markup=False, soft_wrap=True)


class _System:
    """A model that translates the documents, or a file with their translations; loaded before any work is done."""

    def __init__(
        self,
        option: str,
        path: Path,
        documents: Sequence[Document],
        target: str,
        device: str,
        length: int | None,
        options: dict[str, Any],
    ) -> None:
        from reluformer.translation.evaluation import read_hypotheses
        from reluformer.translation.translator import Translator

        self.path = path
        self.about: dict[str, Any] = {"system": name_of(path)}
        self.translator: Any = None
        if path.is_file():
            with _refusals(option):
                self.texts = read_hypotheses(path, documents, target)
        else:
            with _refusals():
                self.translator = Translator.load(path, device, length, **options)

    def translate(self, documents: Sequence[Document]) -> list[list[str]]:
        """Return the translations of the documents."""
        from reluformer.translation.progress import sentences_done

        if self.translator is None:
            return self.texts
        doubt = self.translator.doubt(sentence for document in documents for sentence in document.source)
        if doubt:
            print(f"reluformer evaluate: the source {doubt}", file=sys.stderr)
        total = sum(len(document.source) for document in documents)
        began = time.perf_counter()
        with _refusals(), sentences_done(self.path.name, total) as watch:
            texts = list(self.translator.translate((document.source for document in documents), watch=watch))
        self.about |= {"settings": self.translator.settings(), "seconds": round(time.perf_counter() - began, 2)}
        return texts


def _circumstances() -> dict[str, Any]:
    """Describe the circumstances of a result: command, date, machine, and versions of libraries."""
    import sacrebleu
    import torch
    import transformers

    from reluformer.machine import describe

    place = describe(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    versions = {"transformers": transformers.__version__, "sacrebleu": sacrebleu.__version__}
    return {"command": shlex.join(["reluformer", *sys.argv[1:]]), "place": place | versions}


@contextmanager
def _refusals(hint: str | None = None) -> Iterator[None]:
    """Turn errors about data, files or a model into errors of the command line."""
    try:
        yield
    except DataError as error:
        raise typer.BadParameter(" ".join(str(error).split()), param_hint=hint) from None
    except OSError as error:
        raise typer.BadParameter(f"cannot use {error.filename or 'a file'}: {error.strerror or error}") from None
