"""Command line of ``reluformer data``: parse options, prepare data, show the result."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from reluformer.data.cleaning import Cleaning
from reluformer.data.documents import Document, Languages, check_output, input_files, to_line
from reluformer.data.files import DataError
from reluformer.data.prepare import Plan, Watch, check_folder
from reluformer.data.prepare import prepare as prepare_data

data = typer.Typer(help="Corpora: clean, tokenise, pack, look inside.", no_args_is_help=True, add_completion=False)

Made = TypeVar("Made")
EVERY = 60.0  # seconds between two lines of progress in a log
STOPPED = 130  # exit status of a shell for Ctrl-C


@data.command()
def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(help=".jsonl or .tmx (.gz, .xz), text files as source,target, hf:NAME, or bible:train|dev|test"),
    ],
    languages: Annotated[str, typer.Option(help="source and target, as the inputs name them, e.g. en-de")],
    out: Annotated[Path, typer.Option(help="folder for the tokeniser and the packed tokens")],
    valid: Annotated[list[str] | None, typer.Option(help="validation data, kept as it is; may be repeated")] = None,
    vocab: Annotated[int, typer.Option(help="tokens of the vocabulary, shared by both languages")] = 16000,
    lengths: Annotated[str, typer.Option(help="tokens to pack to, 0 for sentences")] = "0,512,1024",
    overlong: Annotated[str, typer.Option(help="sentences longer than a length: cut or drop")] = "cut",
    longest: Annotated[int, typer.Option(help="drop pairs with more characters on a side; 0 keeps them")] = 2000,
    ratio: Annotated[float, typer.Option(help="drop pairs with a side so many times longer; 0 keeps them")] = 3.0,
    script: Annotated[float, typer.Option(help="least share of letters in the language's script; 0 for any")] = 0.5,
    phrase: Annotated[int, typer.Option(help="drop repeated pairs of so many characters or more")] = 40,
    sample: Annotated[int, typer.Option(help="bytes of text to learn the vocabulary from")] = 20_000_000,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one per core, 8 at most")] = None,
) -> None:
    """Read, clean, learn a vocabulary, encode and pack. Finished steps are kept: an interrupted run can be resumed."""
    plan = _checked(
        None,
        lambda: Plan(
            inputs=tuple(inputs),
            languages=_checked("--languages", lambda: Languages.parse(languages)),
            valid=tuple(valid or ()),
            vocab=vocab,
            lengths=_lengths(lengths),
            overlong=_overlong(overlong),
            cleaning=_checked(None, lambda: Cleaning(longest, ratio, script, phrase)),
            sample=sample,
        ),
    )
    _checked("--out", lambda: check_folder(out))
    from reluformer.console import console
    from reluformer.data.tables import packed_table, split_table

    with _stopping("the same command goes on with the step that it was in"), _progress() as watch:
        count = workers or min(os.cpu_count() or 1, 8)
        manifest, done = _checked("INPUTS", lambda: prepare_data(plan, out, count, watch))
    screen = console()
    if not done:
        screen.print(f"Nothing to do: {out} holds this already.", highlight=False, markup=False, soft_wrap=True)
        return
    screen.print(split_table(manifest))
    screen.print(packed_table(manifest))
    screen.print(f"Kept: {out}", style="dim", highlight=False, markup=False, soft_wrap=True)


@data.command()
def sample(
    inputs: Annotated[list[str], typer.Argument(help="as prepare takes them")],
    languages: Annotated[str, typer.Option(help="source and target, as the inputs name them, e.g. en-de")],
    out: Annotated[Path, typer.Option(help="JSONL file, a document of one sentence per line")],
    pairs: Annotated[int, typer.Option(min=1, help="how many")],
    seed: Annotated[int, typer.Option(help="another seed, another sample")] = 0,
) -> None:
    """Draw sentence pairs at random from a whole corpus, the same ones whatever the order of its files."""
    from reluformer.data.files import written_file
    from reluformer.data.sampling import sample_pairs

    spoken = _checked("--languages", lambda: Languages.parse(languages))
    _checked("INPUTS", lambda: [input_files(item) for item in inputs])
    _checked("--out", lambda: check_output(out, inputs))
    if out.suffix.lower() in (".gz", ".xz"):
        raise typer.BadParameter(f"takes a file that is not compressed, got {out}", param_hint="--out")
    with _stopping(f"{out} is not written"), _progress() as watch:

        def draw() -> list[Document]:
            return sample_pairs(inputs, spoken, pairs, seed, lambda done: watch("draw", str(out), done, None))

        drawn = _checked("INPUTS", draw)
    if not drawn:
        raise typer.BadParameter(f"no pair of sentences is in {', '.join(inputs)}", param_hint="INPUTS")

    def write() -> None:
        with written_file(out) as file:
            for document in drawn:
                file.write(to_line(document, spoken))

    _checked(None, write)
    print(f"{len(drawn):,} pairs: {out}")


@data.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="what reluformer data prepare wrote")],
    split: Annotated[str, typer.Option(help="train or valid")] = "train",
    length: Annotated[int | None, typer.Option(help="one it was packed to; by default the longest")] = None,
    examples: Annotated[int, typer.Option(min=0, help="how many to show, from all over the split")] = 3,
) -> None:
    """Show the counts of a prepared folder, what was dropped and why, and a few examples as text."""
    from reluformer.console import console
    from reluformer.data.dataset import PackedDataset, load_tokenizer, read_manifest
    from reluformer.data.tables import dropped_lines, example_lines, packed_table, split_table

    manifest = _checked("FOLDER", lambda: read_manifest(folder))
    chosen = max(manifest["lengths"]) if length is None else length
    packed = _checked(None, lambda: PackedDataset(folder, split, chosen))
    tokenizer = _checked(None, lambda: load_tokenizer(folder))
    screen = console()
    screen.print(split_table(manifest))
    screen.print(packed_table(manifest))
    for line in dropped_lines(manifest):
        screen.print(line, highlight=False, markup=False)
    shown = min(examples, len(packed))
    for i in range(shown):
        for line in example_lines(packed, i * len(packed) // shown, tokenizer):
            screen.print(line, highlight=False, markup=False)


def _checked(hint: str | None, make: Callable[[], Made]) -> Made:
    """Return what ``make`` returns, and turn its errors about data or files into errors of the command line."""
    try:
        return make()
    except DataError as error:
        raise typer.BadParameter(" ".join(str(error).split()), param_hint=hint) from None
    except OSError as error:
        raise typer.BadParameter(f"cannot use {error.filename or 'the folder'}: {error.strerror}") from None


def _lengths(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"takes numbers and commas, e.g. 0,512,1024, got {text!r}", param_hint="--lengths")
    return tuple(int(part) for part in parts)


def _overlong(text: str) -> Any:
    if text not in ("cut", "drop"):
        raise typer.BadParameter(f"takes cut or drop, got {text!r}", param_hint="--overlong")
    return text


@contextmanager
def _stopping(what: str) -> Iterator[None]:
    """Turn Ctrl-C into a line that says what became of the work."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {what}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show progress on standard error: in a terminal a bar for every step and input, elsewhere a line a minute."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    tasks: dict[tuple[str, str], TaskID] = {}
    said = time.monotonic()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:

        def watch(step: str, item: str, done: int, total: int | None) -> None:
            nonlocal said
            name = step, item
            if name not in tasks:
                for earlier in tasks.values():
                    progress.stop_task(earlier)
                tasks[name] = progress.add_task(f"{step} {Path(item).name}", total=total, amount="")
            amount = f"{done:,} pairs" if total is None else f"{done / total:.0%}"
            progress.update(tasks[name], completed=done, amount=amount)
            if not screen.is_terminal and time.monotonic() - said >= EVERY:
                said = time.monotonic()
                print(f"{step} {Path(item).name}: {amount}", file=sys.stderr, flush=True)

        yield watch
