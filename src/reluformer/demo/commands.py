"""Command line of ``reluformer demo``: parse options, run the demo, show the result."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from reluformer.data.documents import check_output
from reluformer.data.files import DataError, written_file
from reluformer.data.language import doubt
from reluformer.pretrained import has_model, languages_of, model_or_default

DEMOS = ("translation", "operator")
PAGE = Path("reluformer-demo.html")


def demo(
    what: Annotated[
        str, typer.Argument(help="translation, of a speech by a model, or operator, ReLU attention alone")
    ] = "translation",
    out: Annotated[
        Path | None, typer.Option(help=f"file for the page, which needs nothing else; by default {PAGE}")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="folder of a model that translates English; by default the one in the box")
    ] = None,
) -> None:
    """Translate a document that ships with the package, offline, and show what the model's memories did."""
    if what not in DEMOS:
        raise typer.BadParameter(f"takes {' or '.join(DEMOS)}, got {what!r}", param_hint="WHAT")
    for option, value in (("--out", out), ("--model", model)):
        if what == "operator" and value is not None:
            raise typer.BadParameter("is of the translation: the operator has no page and no model", param_hint=option)
    if what == "translation" and (model or out or has_model()):
        _translate(model, out or PAGE)
        return
    if what == "translation":
        print("This installation has no model in the box: here is the operator instead.\n")
    from reluformer.demo.operator import show_operator

    show_operator()


def _translate(model: Path | None, out: Path) -> None:
    try:
        check_output(out, ())
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None
    import matplotlib  # noqa: F401  # missing? Better said before the work than after

    from reluformer.console import console
    from reluformer.data.speech import speech
    from reluformer.demo.page import page
    from reluformer.demo.run import Demonstration
    from reluformer.demo.screen import goodbye, side_by_side, summary

    screen = console()
    try:
        folder = model_or_default(model)
        if what := doubt(speech(), languages_of(folder)):
            print(f"reluformer demo: the speech {what}", file=sys.stderr)
        found = Demonstration.of(folder)
    except DataError as error:
        raise typer.BadParameter(" ".join(str(error).split())) from None
    try:  # the page is written first: whoever reads the output below may stop reading at any time
        with written_file(out) as file:
            file.write(page(found).encode())
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from None
    finally:
        screen.print(side_by_side(found))
        screen.print(summary(found), highlight=False)
    screen.print(goodbye(out), highlight=False, soft_wrap=True)
