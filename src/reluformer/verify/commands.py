"""The command ``reluformer verify``: parse the options, train, certify, print."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from reluformer.data.files import DataError, check_writable, written_folder
from reluformer.verify.images import DIGITS, Images, read_images, split
from reluformer.verify.kinds import KINDS

if TYPE_CHECKING:  # these need transformers, which takes seconds to import
    from reluformer.verify.certify import Certificate
    from reluformer.verify.classifier import RowClassifier


def verify(
    context: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(help="folders of classifiers that --train made")] = None,
    data: Annotated[str, typer.Option(help="digits, or a .npz file with pixels and labels")] = DIGITS,
    radius: Annotated[
        str, typer.Option(help="of the balls around the images, L-infinity; several with commas")
    ] = "0.01",
    limit: Annotated[int | None, typer.Option(min=1, help="so many test images; by default all")] = None,
    train: Annotated[str | None, typer.Option(help=f"first train one whose attention is {', '.join(KINDS)}")] = None,
    ffn: Annotated[str, typer.Option(help=f"what the FFN of that one is: {', '.join(KINDS)}")] = "relu",
    train_radius: Annotated[float, typer.Option(help="of certified training; 0 for plain training")] = 0.0,
    epochs: Annotated[int, typer.Option(min=1, help="of training")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="of training")] = 0,
    out: Annotated[Path | None, typer.Option(help="folder for the trained classifier")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the certificates as JSON, and nothing else")] = False,
) -> None:
    """Certify the answers of small classifiers for every input in a ball, and compare ReLU with softmax.

    reluformer verify --train relu --train-radius 0.02 --out runs/relu
    reluformer verify runs/relu runs/softmax --radius 0.01,0.02
    """
    radii = _radii(radius)
    for name in ("ffn", "train_radius", "epochs", "seed"):
        given = getattr(context.get_parameter_source(name), "name", "DEFAULT") != "DEFAULT"
        if given and train is None:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("is of what --train makes: give --train too", param_hint=option)
    _check_training(models, train, ffn, train_radius, out)
    try:
        for_training, for_test = split(read_images(data))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    if train is not None and not len(for_training.labels):
        raise typer.BadParameter("takes at least two images where one is to be trained on", param_hint="--data")
    for_test = Images(*(x[:limit] for x in for_test))
    from reluformer.verify.certify import certify

    classifiers = {name: _load(name) for name in models or ()}
    if train is not None:
        from reluformer.verify.training import train_classifier

        made = train_classifier(for_training, train, ffn=ffn, radius=train_radius, epochs=epochs, seed=seed)
        if out is not None:
            _save(made, out)
        classifiers[str(out or train)] = made
    for name, classifier in classifiers.items():
        _check_fit(name, classifier, for_test)
    certificates = {name: [certify(x, for_test, r) for r in radii] for name, x in classifiers.items()}
    _show(certificates, data, as_json)


def _show(certificates: "dict[str, list[Certificate]]", data: str, as_json: bool) -> None:
    from reluformer.machine import describe, one_line

    place = describe(torch.device("cpu"))
    if as_json:
        results = [{"model": name} | x.to_dict() for name, several in certificates.items() for x in several]
        command = shlex.join(["reluformer", *sys.argv[1:]])
        print(json.dumps({"command": command, "data": data, "machine": place, "results": results}, indent=1))
        return
    from reluformer.console import console
    from reluformer.verify.tables import certificate_table

    screen = console()
    screen.print(certificate_table(certificates))
    screen.print(one_line(place), style="dim", highlight=False, markup=False, soft_wrap=True)


def _radii(text: str) -> list[float]:
    try:
        radii = [float(part) for part in text.split(",")]
    except ValueError:
        radii = [-1.0]
    if not all(0 <= r < float("inf") for r in radii):
        raise typer.BadParameter(f"takes numbers from 0 on and commas, got {text!r}", param_hint="--radius")
    return radii


def _check_training(models: list[str] | None, train: str | None, ffn: str, radius: float, out: Path | None) -> None:
    if train is None and not models:
        raise typer.BadParameter("takes folders of classifiers, or --train to make one", param_hint="MODELS")
    for option, value in (("--train", train), ("--ffn", ffn)):
        if value is not None and value not in KINDS:
            raise typer.BadParameter(f"takes {', '.join(KINDS)}, got {value!r}", param_hint=option)
    if not 0 <= radius < float("inf"):
        raise typer.BadParameter(f"takes a number from 0 on, got {radius}", param_hint="--train-radius")
    if out is not None and train is None:
        raise typer.BadParameter("keeps what --train makes: give --train too", param_hint="--out")
    if out is not None and out.exists() and not out.is_dir():
        raise typer.BadParameter(f"takes a folder, {out} is a file", param_hint="--out")
    if out is not None and out.exists() and any(out.iterdir()) and not (out / "config.json").exists():
        raise typer.BadParameter(
            f"takes a new folder, or that of a model to replace: {out} holds others", param_hint="--out"
        )
    if out is not None:
        try:
            check_writable(out)
        except DataError as error:
            raise typer.BadParameter(str(error), param_hint="--out") from None


def _load(name: str) -> "RowClassifier":
    from safetensors import SafetensorError
    from transformers import AutoModelForImageClassification
    from transformers.utils import logging

    from reluformer.verify.classifier import RowClassifier

    if not os.path.isdir(name):  # do not ask the hub for it
        raise typer.BadParameter(f"takes folders of classifiers, there is no folder {name!r}", param_hint="MODELS")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForImageClassification.from_pretrained(name)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise typer.BadParameter(f"cannot load {name!r}: {reason}", param_hint="MODELS") from None
    if not isinstance(model, RowClassifier):
        what = type(model).__name__
        raise typer.BadParameter(f"takes classifiers that --train made, {name!r} is a {what}", param_hint="MODELS")
    return model


def _save(model: "RowClassifier", out: Path) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with written_folder(out.resolve()) as folder:
            model.save_pretrained(folder)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {out}: {error.strerror or error}", param_hint="--out") from None


def _check_fit(name: str, model: "RowClassifier", images: Images) -> None:
    config = model.config
    if images.pixels.shape[1:] != (config.rows, config.columns) or int(images.labels.max()) >= config.classes:
        takes = f"{config.rows} x {config.columns} images of {config.classes} classes"
        got = f"{images.pixels.shape[1]} x {images.pixels.shape[2]} and label {int(images.labels.max())}"
        raise typer.BadParameter(f"{name!r} takes {takes}, the data has {got}", param_hint="--data")
