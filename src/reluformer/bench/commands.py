"""The options of ``reluformer bench``: parse, measure, print, keep."""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from reluformer.bench import attention as attention_bench
from reluformer.bench import decode as decode_bench
from reluformer.bench import files, machine, tables
from reluformer.bench import forgetting as forgetting_bench
from reluformer.bench import memory as memory_bench

bench = typer.Typer(help="Speed and memory on this machine.", no_args_is_help=True, add_completion=False)

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Dtype = Annotated[str | None, typer.Option(help="float16, bfloat16 or float32; bfloat16 on a GPU, float32 on a CPU")]
Out = Annotated[Path | None, typer.Option(help="folder for the CSV and PNG files; without it, only the table")]
Quick = Annotated[bool, typer.Option("--quick", help="a few repeats of a small problem: does it run?")]


@bench.command()
def attention(
    device: Device = "auto",
    dtype: Dtype = None,
    head_dims: Annotated[str | None, typer.Option(help="e.g. 64,128")] = None,
    lengths: Annotated[str | None, typer.Option(help="e.g. 1024,4096,16384")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="tokens per call, over all its sequences")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="heads x head dim")] = None,
    causal: Annotated[str, typer.Option(help="both, yes or no")] = "both",
    without: Annotated[
        str, typer.Option(help="leave out contestants with these words in their names: eager,flex")
    ] = "",
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Forward, backward and both: this operator, eager ReLU, SDPA softmax, FlexAttention."""
    where = _device(device)
    gpu = where.type == "cuda"
    if causal not in _CAUSAL:
        raise typer.BadParameter(f"takes both, yes or no, got {causal!r}", param_hint="--causal")
    shapes = list(
        attention_bench.settings(
            head_dims=_numbers("--head-dims", head_dims, [64, 128] if gpu and not quick else [64]),
            causal=_CAUSAL[causal],
            lengths=_numbers(
                "--lengths", lengths, [256] if quick else [1024, 4096, 16384] if gpu else [512, 2048, 8192]
            ),
            tokens=tokens or (16384 if gpu and not quick else 1),
            width=width or (128 if quick else 2048 if gpu else 512),
            dtype=_dtype(dtype, where),
        )
    )
    words = [word.strip().lower() for word in without.split(",") if word.strip()]
    report = _Report("attention", where, out)
    rows: list[attention_bench.Row] = []
    for i, shape in enumerate(shapes):
        with report.console.status(f"length {shape.length}, head dim {shape.head_dim}, causal {shape.causal}"):
            seconds, fewest = (0.01, 1) if quick else (0.2, 10) if gpu else (1.0, 3)
            rows += attention_bench.measure(shape, where, seconds, fewest, quick, words)
        after = shapes[i + 1] if i + 1 < len(shapes) else None
        if after is None or (after.head_dim, after.causal) != (shape.head_dim, shape.causal):
            group = [r for r in rows if (r.setting.head_dim, r.setting.causal) == (shape.head_dim, shape.causal)]
            report.console.print(tables.attention_table(group))
            report.lines(tables.notes(group))
        report.keep(rows)  # after every setting, so that an interrupted run leaves what it has
    report.finish(rows)


@bench.command()
def forgetting(
    device: Device = "auto",
    dtype: Dtype = None,
    head_dims: Annotated[str | None, typer.Option(help="e.g. 64,128")] = None,
    lengths: Annotated[str | None, typer.Option(help="e.g. 1024,4096,16384")] = None,
    strengths: Annotated[str, typer.Option(help="mean -log of the gates, weakest first")] = "0.0001,0.1",
    tokens: Annotated[int | None, typer.Option(min=1, help="tokens per call, over all its sequences")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="heads x head dim")] = None,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Causal attention with forget gates: this operator, and softmax through FlexAttention and by the formula."""
    where = _device(device)
    gpu = where.type == "cuda"
    shapes = list(
        forgetting_bench.settings(
            head_dims=_numbers("--head-dims", head_dims, [64]),
            lengths=_numbers("--lengths", lengths, [256] if quick else [1024, 4096, 16384] if gpu else [512, 2048]),
            strengths=_positive("--strengths", strengths),
            tokens=tokens or (16384 if gpu and not quick else 1),
            width=width or (128 if quick else 2048 if gpu else 512),
            dtype=_dtype(dtype, where),
        )
    )
    report = _Report("forgetting", where, out)
    rows: list[forgetting_bench.Row] = []
    for shape in shapes:
        with report.console.status(f"length {shape.length}, strength {shape.strength:g}"):
            seconds, fewest = (0.01, 1) if quick else (0.2, 10) if gpu else (1.0, 3)
            rows += forgetting_bench.measure(shape, where, seconds, fewest, quick)
        forgetting_bench.compare(rows)
        report.keep(rows)
    cells = [
        (
            r.name,
            str(r.setting.head_dim),
            str(r.setting.length),
            f"{r.setting.strength:g}",
            *(tables.number(x.get(kind)) for kind in forgetting_bench.PASSES for x in (r.ms, r.vs_flex, r.vs_weakest)),
        )
        for r in rows
    ]
    passes = [cell for kind in ("forward", "fwd+bwd") for cell in (kind, "flex", "weak")]
    title = f"causal, forget gates, {rows[0].setting.dtype}"
    caption = "ms; how many times as fast as FlexAttention, and as with the weakest gates"
    columns = ["", "dim", "length", "-log f", *passes]
    report.console.print(tables.plain_table(title, columns, cells, caption))
    report.lines([f"{r.name}, length {r.setting.length}: {r.note}" for r in rows if r.note])
    report.finish(rows)


@bench.command()
def decode(
    device: Device = "auto",
    dtype: Dtype = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="sequences in the batch")] = None,
    keys: Annotated[int | None, typer.Option(min=1, help="keys in each cache")] = None,
    heads: Annotated[
        str | None, typer.Option(help="query heads/key heads x head dim, e.g. 32/8x128,16/16x64 (the default)")
    ] = None,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """One query per sequence against a long cache, beside a plain copy of as many bytes."""
    where = _device(device)
    gpu = where.type == "cuda"
    sequences = sequences or (32 if gpu and not quick else 4)
    keys = keys or (256 if quick else 32768 if gpu else 8192)
    caches = [
        decode_bench.Cache(sequences, keys, query_heads, key_heads, head_dim, _dtype(dtype, where))
        for query_heads, key_heads, head_dim in _head_layouts(heads or "32/8x128,16/16x64")
    ]
    report = _Report("decode", where, out)
    rows: list[decode_bench.Row] = []
    for cache in caches:
        with report.console.status(str(cache)):
            found = decode_bench.measure(cache, where, *((0.01, 1) if quick else (0.3, 10)))
        rows += found
        cells = [
            (r.name, tables.number(r.ms), tables.number(r.gb_per_s), f"{r.of_copy:.0%}" if r.of_copy else "n/a")
            for r in found
        ]
        report.console.print(tables.plain_table(str(cache), ["", "ms", "GB/s", "of copy"], cells))
        report.lines([f"{r.name}: {r.note}" for r in found if r.note])
    report.finish(rows)


@bench.command()
def memory(
    device: Device = "auto",
    dtype: Dtype = None,
    lengths: Annotated[str | None, typer.Option(help="e.g. 4096,16384,131072")] = None,
    heads: Annotated[int | None, typer.Option(min=1)] = None,
    head_dim: Annotated[int, typer.Option(min=1)] = 64,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Peak memory of forward and backward beyond inputs, outputs and gradients, by length."""
    where = _device(device)
    gpu = where.type == "cuda"
    default = [256, 512] if quick else [2**i for i in range(12, 18)] if gpu else [1024, 2048, 4096, 8192]
    sizes = _numbers("--lengths", lengths, default)
    heads = heads or (2 if quick else 16 if gpu else 8)
    report = _Report("memory", where, out)
    rows: list[memory_bench.Row] = []
    for statistics in (False, True):
        for length in sizes:
            with report.console.status(f"length {length}"):
                rows.append(memory_bench.measure(length, heads, head_dim, _dtype(dtype, where), statistics, where))
    cells = [
        (
            str(r.length),
            "yes" if r.statistics else "no",
            tables.number(r.ms),
            tables.number(r.extra_mib),
            tables.number(r.bytes_per_token),
        )
        for r in rows
    ]
    title = f"forward + backward, causal, one sequence, {heads} heads x {head_dim}, {rows[0].dtype}"
    columns = ["length", "statistics", "ms", "extra MiB", "extra bytes per token"]
    report.console.print(tables.plain_table(title, columns, cells))
    report.lines([f"length {r.length}: {r.note}" for r in rows if r.note])
    report.finish(rows)


Size = Annotated[str, typer.Option(help="preset: tiny, small or base")]
Lengths = Annotated[str | None, typer.Option(help="of source and target, e.g. 512,1024,2048")]


@bench.command()
def training(
    device: Device = "auto",
    dtype: Dtype = None,
    size: Size = "small",
    lengths: Lengths = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="target tokens per step")] = None,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """A training step of ReLUFormer, its softmax twin and a stock Marian of the same size."""
    where = _device(device)
    gpu = where.type == "cuda"
    default = [16] if quick else [512, 1024, 2048, 8192] if gpu else [128]
    budget = tokens or (131072 if gpu and not quick else 256)  # enough that launches do not take the time
    _race_models("training", size, _numbers("--lengths", lengths, default), budget, where, dtype, out, quick)


@bench.command()
def generation(
    device: Device = "auto",
    dtype: Dtype = None,
    size: Size = "small",
    lengths: Lengths = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="sequences in the batch")] = None,
    beams: Annotated[int, typer.Option(min=1, help="1 for greedy decoding")] = 1,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Decoding with ReLUFormer, its softmax twin and a stock Marian of the same size."""
    where = _device(device)
    gpu = where.type == "cuda"
    sizes = _numbers("--lengths", lengths, [8] if quick else [128, 512] if gpu else [32])
    _race_models("generation", size, sizes, sequences or (2 if quick else 32), where, dtype, out, quick, beams)


@bench.command()
def translation(
    lengths: Annotated[str | None, typer.Option(help="of source and target, e.g. 32,384")] = None,
    beams: Annotated[str | None, typer.Option(help="e.g. 1,5; 1 is greedy")] = None,
    sequences: Annotated[str | None, typer.Option(help="in a batch, e.g. 1,16; by default 1 and 512 tokens")] = None,
    layers: Annotated[str, typer.Option(help="of encoder and decoder")] = "6,2",
    slots: Annotated[int, typer.Option(min=1, help="of the FFN")] = 1024,
    vocabulary: Annotated[int, typer.Option(min=16, help="tokens")] = 8000,
    without: Annotated[str, typer.Option(help="leave out contestants with these words in their names: bf,twin")] = "",
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Translation on a CPU, int8 and float32: this model, its twin, Hugging Face's generate, CTranslate2."""
    import tempfile

    from reluformer.bench import translation as race

    depth = _numbers("--layers", layers, [])
    if len(depth) != 2:
        raise typer.BadParameter(f"takes two numbers, got {layers!r}", param_hint="--layers")
    width, heads = (32, 2) if quick else (512, 8)
    shape = race.Shape(depth[0], depth[1], width, heads, 64 if quick else slots, 100 if quick else vocabulary)
    words = [word.strip().lower() for word in without.split(",") if word.strip()]
    report = _Report("translation", torch.device("cpu"), out)
    rows: list[race.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        writers = race.contestants(shape, Path(folder))
        writers = {name: write for name, write in writers.items() if not any(word in name.lower() for word in words)}
        for length in _numbers("--lengths", lengths, [8] if quick else [32, 384]):
            for batch in _numbers("--sequences", sequences, [2] if quick else [1, max(4, 512 // length)]):
                for beam in _numbers("--beams", beams, [1, 5]):
                    with report.console.status(f"length {length}, {batch} sequences, {beam} beams"):
                        load = race.Load(length, batch, beam)
                        rows += race.race(shape, writers, load, *((0.01, 1) if quick else (2.0, 3)))
                    report.keep(rows)
    cells = [
        (
            r.name,
            *map(str, (r.load.length, r.load.batch, r.load.beams)),
            *map(tables.number, (r.tokens_per_s, r.vs_stock, r.vs_ctranslate2)),
        )
        for r in rows
    ]
    columns = ["", "length", "batch", "beams", "tokens/s", "against generate", "against CTranslate2"]
    title = f"translation, {layers} layers, {width} wide, {shape.slots} slots, vocabulary of {shape.vocabulary}"
    report.console.print(tables.plain_table(title, columns, cells))
    report.lines(sorted({f"{r.name}: {r.note}" for r in rows if r.note}))
    report.finish(rows, figure=False)


@bench.command()
def data(
    inputs: Annotated[list[str], typer.Argument(help="as reluformer data prepare takes them")],
    languages: Annotated[str, typer.Option(help="source and target, e.g. en-de")],
    lengths: Annotated[str, typer.Option(help="tokens to pack to, 0 for sentences")] = "0,512,1024",
    out: Out = None,
) -> None:
    """Preparing a corpus: seconds, pairs per second, memory."""
    import tempfile

    from reluformer.bench import preparation
    from reluformer.data.files import DataError

    report = _Report("data", torch.device("cpu"), out)
    with tempfile.TemporaryDirectory() as folder, report.console.status("preparing"):
        try:
            row = preparation.measure(inputs, languages, ["--lengths", lengths], Path(folder) / "data")
        except DataError as error:
            raise typer.BadParameter(" ".join(str(error).split()), param_hint="INPUTS") from None
    cells = [(row.inputs, f"{row.pairs:,}", *map(tables.number, (row.seconds, row.pairs_per_s, row.peak_mib)))]
    columns = ["inputs", "pairs", "seconds", "pairs/s", "peak MiB"]
    report.console.print(tables.plain_table("data preparation", columns, cells))
    report.finish([row], figure=False)


@bench.command()
def trainers(
    data: Annotated[Path, typer.Option(help="folder that reluformer data prepare wrote")],
    lengths: Lengths = None,
    size: Size = "small",
    cost: Annotated[int | None, typer.Option(min=1, help="of a batch, as in a recipe")] = None,
    steps: Annotated[int, typer.Option(min=1, help="updates that are timed")] = 60,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Training runs on real data: ours and its twin, and a stock Marian with Hugging Face's own trainer."""
    import tempfile

    from reluformer.bench import trainers
    from reluformer.data.files import DataError

    where = _device("auto")
    gpu = where.type == "cuda"
    report = _Report("trainers", where, out)
    rows: list[trainers.Row] = []
    steps, warmup = (2, 1) if quick else (steps, 40 if gpu else 3)  # lengths vary: compiling takes several steps
    for length in _numbers("--lengths", lengths, [0] if quick else [0, 1024], least=0):
        budget = cost or (131072 if gpu else 512 if quick else 2048)
        run = trainers.Run(str(data), "tiny" if quick else size, length, budget, steps + warmup, warmup, gpu)
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in trainers.race(run, Path(folder)):
                    rows.append(row)
                    report.keep(rows)
            except DataError as error:
                raise typer.BadParameter(str(error), param_hint="--data") from None
    cells = [
        (
            r.name,
            str(r.run.length or "sentence"),
            *map(tables.number, (r.tokens_per_step, r.tokens_per_s)),
            "n/a" if r.busy is None else f"{r.busy:.0%}",
            tables.number(r.vs_marian),
        )
        for r in rows
    ]
    columns = ["", "length", "tokens/step", "tokens/s", "GPU busy", "against Marian"]
    report.console.print(tables.plain_table(f"trainers, {rows[0].run.size}, {data.name}", columns, cells))
    report.finish(rows)


def _race_models(
    kind: str,
    size: str,
    lengths: list[int],
    amount: int,
    device: torch.device,
    dtype: str | None,
    out: Path | None,
    quick: bool,
    beams: int = 1,
) -> None:
    """``amount`` is tokens per step in training, sequences per batch in generation."""
    from reluformer.bench import models
    from reluformer.models.configuration import SIZES

    size = "tiny" if quick else size
    if size not in SIZES:
        raise typer.BadParameter(f"takes {', '.join(SIZES)}, got {size!r}", param_hint="--size")
    report = _Report(kind, device, out, "" if beams == 1 else f"-{beams}-beams")
    rows: list[models.Row] = []
    for length in lengths:
        batch = max(1, amount // length) if kind == "training" else amount
        load = models.Load(size, length, batch, 100 if quick else 16000, _dtype(dtype, device), beams)
        with report.console.status(f"length {length}"):
            rows += getattr(models, kind)(load, device, *((0.01, 1) if quick else (2.0, 5)))
        report.keep(rows)
    cells = [
        (
            r.name,
            str(r.load.length),
            str(r.load.batch),
            tables.number(r.ms),
            tables.number(r.tokens_per_s),
            tables.number(r.vs_twin),
            tables.number(r.vs_marian),
        )
        for r in rows
    ]
    columns = ["", "length", "batch", "ms", "tokens/s", "against the twin", "against Marian"]
    report.console.print(tables.plain_table(f"{kind}, {size}, {rows[0].load.dtype}", columns, cells))
    report.lines([f"{r.name}, length {r.load.length}: {r.note}" for r in rows if r.note])
    report.finish(rows)


_CAUSAL = {"both": [False, True], "yes": [True], "no": [False]}
_DTYPES = ("float16", "bfloat16", "float32")


class _Report:
    """Where results go: the console, and the folder if there is one."""

    def __init__(self, name: str, device: torch.device, out: Path | None, variant: str = "") -> None:
        self.name, self.out = name, out
        self.place = machine.describe(device)
        self.console = tables.console()
        self.stem = f"{name}{variant}-{self.place['gpu'].removeprefix('NVIDIA ') or 'cpu'}".lower().replace(" ", "-")
        if out is not None:
            import matplotlib  # noqa: F401  # missing? Better said before the measuring than after

            if out.exists() and not out.is_dir():
                raise typer.BadParameter(f"takes a folder, {out} is a file", param_hint="--out")

    def lines(self, lines: list[str]) -> None:
        for line in lines:
            self.console.print(f"  n/a  {line}", style="dim", highlight=False, markup=False)

    def keep(self, rows: list[Any]) -> None:
        if self.out is not None:
            files.write_csv(self.out / f"{self.stem}.csv", [r.record() for r in rows], self.place)

    def finish(self, rows: list[Any], figure: bool = True) -> None:
        caption = machine.one_line(self.place)
        self.console.print(caption, style="dim", highlight=False)
        if self.out is None:
            self.console.print(f"Not kept; --out DIR writes CSV{' and PNG' * figure} files.", style="dim")
            return
        self.keep(rows)
        if figure:
            from reluformer.bench import figures

            getattr(figures, f"plot_{self.name}")(self.out / f"{self.stem}.png", rows, caption)
        self.console.print(f"Kept: {self.out / self.stem}.csv{', .png' * figure}", highlight=False)


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"takes auto, cpu or cuda, got {name!r}", param_hint="--device")
    if name == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("cuda asked for, and PyTorch sees no GPU here", param_hint="--device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _dtype(name: str | None, device: torch.device) -> str:
    if name is None:
        return "bfloat16" if device.type == "cuda" else "float32"
    if name not in _DTYPES:
        raise typer.BadParameter(f"takes {', '.join(_DTYPES)}, got {name!r}", param_hint="--dtype")
    return name


def _positive(option: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < x < math.inf for x in found):
        raise typer.BadParameter(f"takes positive numbers and commas, got {text!r}", param_hint=option)
    return found


def _numbers(option: str, text: str | None, default: list[int], least: int = 1) -> list[int]:
    if text is None:
        return default
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= least for part in parts):
        raise typer.BadParameter(f"takes integers from {least} on and commas, got {text!r}", param_hint=option)
    return [int(part) for part in parts]


def _head_layouts(text: str) -> list[tuple[int, int, int]]:
    """``32/8x128,16/16x64`` as triples."""
    found = []
    for part in text.split(","):
        numbers = part.replace("/", "x").split("x")
        if part.count("/") != 1 or len(numbers) != 3 or not all(n.strip().isdecimal() and int(n) > 0 for n in numbers):
            raise typer.BadParameter(f"takes e.g. 32/8x128,16/16x64, got {text!r}", param_hint="--heads")
        query_heads, key_heads, head_dim = map(int, numbers)
        if query_heads % key_heads:
            raise typer.BadParameter(f"query heads must be a multiple of key heads, got {part!r}", param_hint="--heads")
        found.append((query_heads, key_heads, head_dim))
    return found
