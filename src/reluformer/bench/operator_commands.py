"""The commands of ``reluformer bench`` for the operator: parse, measure, print, save."""

from typing import Annotated

import typer

from reluformer.bench import attention as attention_bench
from reluformer.bench import decode as decode_bench
from reluformer.bench import forgetting as forgetting_bench
from reluformer.bench import memory as memory_bench
from reluformer.bench import tables
from reluformer.bench.contestants import contestants
from reluformer.bench.options import (
    Device,
    Dtype,
    Out,
    Quick,
    Report,
    check_width,
    device_of,
    dtype_of,
    numbers_of,
    positives_of,
    words_of,
)
from reluformer.console import number, plain_table

_CAUSAL = {"both": [False, True], "yes": [True], "no": [False]}


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
    """Time attention, forward, backward and both: this operator, eager ReLU, SDPA softmax, FlexAttention."""
    where = device_of(device)
    gpu = where.type == "cuda"
    if causal not in _CAUSAL:
        raise typer.BadParameter(f"takes both, yes or no, got {causal!r}", param_hint="--causal")
    dims = numbers_of("--head-dims", head_dims, [64, 128] if gpu and not quick else [64])
    check_width(width, dims)
    shapes = list(
        attention_bench.settings(
            head_dims=dims,
            causal=_CAUSAL[causal],
            lengths=numbers_of(
                "--lengths", lengths, [256] if quick else [1024, 4096, 16384] if gpu else [512, 2048, 8192]
            ),
            tokens=tokens or (16384 if gpu and not quick else 1),
            width=width or (128 if quick else 2048 if gpu else 512),
            dtype=dtype_of(dtype, where),
        )
    )
    words = words_of(without, [contestant.name for contestant in contestants(where)])
    report = Report("attention", where, out)
    rows: list[attention_bench.Row] = []
    for i, shape in enumerate(shapes):
        with report.console.status(f"length {shape.length}, head dim {shape.head_dim}, causal {shape.causal}"):
            seconds, fewest = (0.01, 1) if quick else (0.2, 10) if gpu else (1.0, 3)
            rows += attention_bench.measure(shape, where, seconds, fewest, quick, words)
        report.keep(rows)  # after every setting, so that an interrupted run keeps its results
        after = shapes[i + 1] if i + 1 < len(shapes) else None
        group = [r for r in rows if (r.setting.head_dim, r.setting.causal) == (shape.head_dim, shape.causal)]
        if after is None:
            report.finish(rows, tables.attention_table(group), tables.notes(group))
        elif (after.head_dim, after.causal) != (shape.head_dim, shape.causal):
            report.show(tables.attention_table(group), tables.notes(group))


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
    """Time causal attention with forget gates: this operator, and softmax by FlexAttention and by the formula."""
    where = device_of(device)
    gpu = where.type == "cuda"
    dims = numbers_of("--head-dims", head_dims, [64])
    check_width(width, dims)
    shapes = list(
        forgetting_bench.settings(
            head_dims=dims,
            lengths=numbers_of("--lengths", lengths, [256] if quick else [1024, 4096, 16384] if gpu else [512, 2048]),
            strengths=positives_of("--strengths", strengths),
            tokens=tokens or (16384 if gpu and not quick else 1),
            width=width or (128 if quick else 2048 if gpu else 512),
            dtype=dtype_of(dtype, where),
        )
    )
    report = Report("forgetting", where, out)
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
            *(number(x.get(kind)) for kind in forgetting_bench.PASSES for x in (r.ms, r.vs_flex, r.vs_weakest)),
        )
        for r in rows
    ]
    passes = [cell for kind in ("forward", "fwd+bwd") for cell in (kind, "flex", "weak")]
    title = f"causal, forget gates, {rows[0].setting.dtype}"
    caption = "ms; how many times as fast as FlexAttention, and as with the weakest gates"
    columns = ["", "dim", "length", "-log f", *passes]
    notes = [f"{r.name}, length {r.setting.length}: {r.note}" for r in rows if r.note]
    report.finish(rows, plain_table(title, columns, cells, caption), notes)


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
    """Time one query per sequence against a long cache, beside a plain copy of as many bytes."""
    where = device_of(device)
    gpu = where.type == "cuda"
    sequences = sequences or (32 if gpu and not quick else 4)
    keys = keys or (256 if quick else 32768 if gpu else 8192)
    caches = [
        decode_bench.Cache(sequences, keys, query_heads, key_heads, head_dim, dtype_of(dtype, where))
        for query_heads, key_heads, head_dim in _head_layouts(heads or "32/8x128,16/16x64")
    ]
    report = Report("decode", where, out)
    rows: list[decode_bench.Row] = []
    for i, cache in enumerate(caches, 1):
        with report.console.status(str(cache)):
            found = decode_bench.measure(cache, where, *((0.01, 1) if quick else (0.3, 10)))
        rows += found
        report.keep(rows)
        cells = [(r.name, number(r.ms), number(r.gb_per_s), f"{r.of_copy:.0%}" if r.of_copy else "n/a") for r in found]
        table = plain_table(str(cache), ["", "ms", "GB/s", "of copy"], cells)
        notes = [f"{r.name}: {r.note}" for r in found if r.note]
        if i == len(caches):
            report.finish(rows, table, notes)
        else:
            report.show(table, notes)


def memory(
    device: Device = "auto",
    dtype: Dtype = None,
    lengths: Annotated[str | None, typer.Option(help="e.g. 4096,16384,131072")] = None,
    heads: Annotated[int | None, typer.Option(min=1)] = None,
    head_dim: Annotated[int, typer.Option(min=1)] = 64,
    out: Out = None,
    quick: Quick = False,
) -> None:
    """Measure the peak memory of forward and backward, beyond inputs, outputs and gradients, by length."""
    where = device_of(device)
    gpu = where.type == "cuda"
    default = [256, 512] if quick else [2**i for i in range(12, 18)] if gpu else [1024, 2048, 4096, 8192]
    sizes = numbers_of("--lengths", lengths, default)
    heads = heads or (2 if quick else 16 if gpu else 8)
    report = Report("memory", where, out)
    rows: list[memory_bench.Row] = []
    for statistics in (False, True):
        for length in sizes:
            with report.console.status(f"length {length}"):
                rows.append(memory_bench.measure(length, heads, head_dim, dtype_of(dtype, where), statistics, where))
            report.keep(rows)
    cells = [
        (
            str(r.length),
            "yes" if r.statistics else "no",
            number(r.ms),
            number(r.extra_mib),
            number(r.bytes_per_token),
        )
        for r in rows
    ]
    title = f"forward + backward, causal, one sequence, {heads} heads x {head_dim}, {rows[0].dtype}"
    columns = ["length", "statistics", "ms", "extra MiB", "extra bytes per token"]
    notes = [f"length {r.length}: {r.note}" for r in rows if r.note]
    report.finish(rows, plain_table(title, columns, cells), notes)


def _head_layouts(text: str) -> list[tuple[int, int, int]]:
    """Parse ``32/8x128,16/16x64`` into triples of query heads, key heads and head dimension."""
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
