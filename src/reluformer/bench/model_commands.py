"""The commands of ``reluformer bench`` for models, training and data: parse, measure, print, save."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from reluformer.bench.options import (
    Device,
    Dtype,
    Out,
    Quick,
    Report,
    device_of,
    dtype_of,
    numbers_of,
    size_of,
    words_of,
)
from reluformer.console import number, plain_table

Size = Annotated[str | None, typer.Option(help="preset: tiny, small or base; by default small")]
Lengths = Annotated[str | None, typer.Option(help="of source and target, e.g. 512,1024,2048")]
Without = Annotated[str, typer.Option(help="leave out contestants with these words in their names: marian,power")]

WAYS = {"plain": (False,), "compiled": (True,), "both": (False, True)}  # ways to run a model's layers


def training(
    device: Device = "auto",
    dtype: Dtype = None,
    size: Size = None,
    lengths: Lengths = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="target tokens per step")] = None,
    layers: Annotated[
        str | None, typer.Option(help="plain, compiled or both; by default both on a GPU, else plain")
    ] = None,
    without: Without = "",
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Time a training step of ReLUFormer, its softmax twin and a stock Marian of the same size."""
    where = device_of(device)
    gpu = where.type == "cuda"
    layers = layers or ("both" if gpu else "plain")
    if layers not in WAYS:
        raise typer.BadParameter(f"takes {', '.join(WAYS)}, got {layers!r}", param_hint="--layers")
    default = [16] if quick else [512, 1024, 2048, 8192] if gpu else [128]
    budget = tokens or (131072 if gpu and not quick else 256)  # enough that kernel launches do not dominate
    sizes = numbers_of("--lengths", lengths, default)
    _race_models("training", size, sizes, budget, where, dtype, without, out, quick, ways=WAYS[layers])


def generation(
    device: Device = "auto",
    dtype: Dtype = None,
    size: Size = None,
    lengths: Lengths = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="sequences in the batch")] = None,
    beams: Annotated[int, typer.Option(min=1, help="1 for greedy decoding")] = 1,
    without: Without = "",
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Time decoding with ReLUFormer, its softmax twin and a stock Marian of the same size."""
    where = device_of(device)
    gpu = where.type == "cuda"
    sizes = numbers_of("--lengths", lengths, [8] if quick else [128, 512] if gpu else [32])
    _race_models("generation", size, sizes, sequences or (2 if quick else 32), where, dtype, without, out, quick, beams)


def translation(
    model: Annotated[Path | None, typer.Option(help="folder of a model; by default the one in the box")] = None,
    lengths: Annotated[str | None, typer.Option(help="of source and target, e.g. 32,384")] = None,
    beams: Annotated[str | None, typer.Option(help="e.g. 1,5; 1 is greedy")] = None,
    sequences: Annotated[str | None, typer.Option(help="in a batch, e.g. 1,16; by default 1 and 512 tokens")] = None,
    without: Annotated[str, typer.Option(help="leave out contestants with these words in their names: bf,twin")] = "",
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Time translation on a CPU, int8 to float32: this model, its twin, Hugging Face's generate, CTranslate2."""
    import tempfile

    from reluformer.bench import translation as race
    from reluformer.data.files import DataError
    from reluformer.pretrained import model_or_default, name_of

    words = words_of(without, race.NAMES)
    report = Report("translation", torch.device("cpu"), out)
    rows: list[race.Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = model_or_default(model)
            runners = race.Race.of(folder, Path(scratch), words)
        except DataError as error:
            raise typer.BadParameter(" ".join(str(error).split()), param_hint="--model") from None
        for length in numbers_of("--lengths", lengths, [8] if quick else [32, 384]):
            for batch in numbers_of("--sequences", sequences, [2] if quick else [1, max(4, 512 // length)]):
                for beam in numbers_of("--beams", beams, [1, 5]):
                    with report.console.status(f"length {length}, {batch} sequences, {beam} beams"):
                        rows += runners.run(race.Load(length, batch, beam), *((0.01, 1) if quick else (2.0, 3)))
                    report.keep(rows)
    cells = [
        (
            r.name,
            *map(str, (r.load.length, r.load.batch, r.load.beams)),
            *map(number, (r.tokens_per_s, r.vs_stock, r.vs_ctranslate2)),
        )
        for r in rows
    ]
    columns = ["", "length", "batch", "beams", "tokens/s", "against generate", "against CTranslate2"]
    shape = runners.shape
    size = f"{shape.encoder_layers} + {shape.decoder_layers} layers, {shape.width} wide, {shape.slots} slots"
    title = f"translation, {name_of(folder)}: {size}, vocabulary of {shape.vocabulary}"
    notes = sorted({f"{r.name}: {r.note}" for r in rows if r.note})
    report.finish(rows, plain_table(title, columns, cells), notes, figure=False)


def data(
    inputs: Annotated[list[str], typer.Argument(help="as reluformer data prepare takes them")],
    languages: Annotated[str, typer.Option(help="source and target, e.g. en-de")],
    lengths: Annotated[str, typer.Option(help="tokens to pack to, 0 for sentences")] = "0,512,1024",
    out: Out = None,
) -> None:
    """Measure the preparation of a corpus: seconds, pairs per second, memory."""
    import tempfile

    from reluformer.bench import preparation
    from reluformer.data.files import DataError

    report = Report("data", torch.device("cpu"), out)
    with tempfile.TemporaryDirectory() as folder, report.console.status("preparing"):
        try:
            row = preparation.measure(inputs, languages, ["--lengths", lengths], Path(folder) / "data")
        except DataError as error:
            raise typer.BadParameter(" ".join(str(error).split()), param_hint="INPUTS") from None
    cells = [(row.inputs, f"{row.pairs:,}", *map(number, (row.seconds, row.pairs_per_s, row.peak_mib)))]
    columns = ["inputs", "pairs", "seconds", "pairs/s", "peak MiB"]
    report.finish([row], plain_table("data preparation", columns, cells), figure=False)


def trainers(
    data: Annotated[Path, typer.Option(help="folder that reluformer data prepare wrote")],
    lengths: Lengths = None,
    size: Size = None,
    cost: Annotated[int | None, typer.Option(min=1, help="of a batch, as in a recipe")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="updates that are timed; by default 60")] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="also with updates recorded as CUDA graphs")] = False,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Time training on real data: ReLUFormer, its twin, and a stock Marian with Hugging Face's own trainer."""
    import tempfile

    from reluformer.bench import trainers
    from reluformer.data.files import DataError
    from reluformer.training.errors import TrainingError

    where = device_of("auto")
    preset = size_of(size, quick)
    gpu = where.type == "cuda"
    report = Report("trainers", where, out)
    rows: list[trainers.Row] = []
    steps = steps or (2 if quick else 60)
    # Lengths vary, so compiling takes several steps, and recording every shape of batch takes many.
    warmup = 1 if quick else (150 if graphs else 40) if gpu else 3
    for length in numbers_of("--lengths", lengths, [0] if quick else [0, 1024], least=0):
        budget = cost or (131072 if gpu else 512 if quick else 2048)
        run = trainers.Run(str(data), preset, length, budget, steps + warmup, warmup, gpu, graphs)
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in trainers.race(run, Path(folder)):
                    rows.append(row)
                    report.keep(rows)
            except (DataError, TrainingError) as error:
                raise typer.BadParameter(" ".join(str(error).split()), param_hint="--data") from None
    cells = [
        (
            r.name,
            str(r.run.length or "sentence"),
            *map(number, (r.tokens_per_step, r.tokens_per_s)),
            "n/a" if r.busy is None else f"{r.busy:.0%}",
            number(r.vs_marian),
        )
        for r in rows
    ]
    columns = ["", "length", "tokens/step", "tokens/s", "GPU busy", "against Marian"]
    report.finish(rows, plain_table(f"trainers, {preset}, {data.name}", columns, cells))


def _race_models(
    kind: str,
    size: str | None,
    lengths: list[int],
    amount: int,
    device: torch.device,
    dtype: str | None,
    without: str,
    out: Path | None,
    quick: bool,
    beams: int = 1,
    **more: Any,
) -> None:
    """Time the models at every length and report.

    ``amount`` is tokens per step in training and sequences per batch in generation; ``more`` is passed to the timing.
    """
    from reluformer.bench import models

    size = size_of(size, quick)
    words = words_of(without, [name for name in models.NAMES if kind == "training" or name not in models.TRAINED])
    report = Report(kind, device, out, "" if beams == 1 else f"-{beams}-beams")
    rows: list[models.Row] = []
    for length in lengths:
        batch = max(1, amount // length) if kind == "training" else amount
        load = models.Load(size, length, batch, 100 if quick else 16000, dtype_of(dtype, device), beams)
        with report.console.status(f"length {length}"):
            rows += getattr(models, kind)(load, device, *((0.01, 1) if quick else (2.0, 5)), words, **more)
        report.keep(rows)
    cells = [
        (
            r.name,
            str(r.load.length),
            str(r.load.batch),
            number(r.ms),
            number(r.tokens_per_s),
            number(r.vs_twin),
            number(r.vs_marian),
        )
        for r in rows
    ]
    columns = ["", "length", "batch", "ms", "tokens/s", "against the twin", "against Marian"]
    table = plain_table(f"{kind}, {size}, {rows[0].load.dtype}", columns, cells)
    report.finish(rows, table, [f"{r.name}, length {r.load.length}: {r.note}" for r in rows if r.note])
