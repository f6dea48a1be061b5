"""Results as figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reluformer.bench import attention, decode, forgetting, memory
from reluformer.bench.models import COMPILED
from reluformer.console import number
from reluformer.data.files import written_file
from reluformer.png import png_of

# Mostly blues for ours, warm colours for softmax, greys for other implementations of ReLU.
COLOURS = {
    "ReLU, this operator": "#1d4ed8",
    "ReLU, this operator, statistics": "#7aa5f5",
    "softmax, SDPA flash": "#f2b84b",
    "softmax, SDPA cuDNN": "#d9622b",
    "softmax, SDPA efficient": "#f3dcae",
    "softmax, SDPA": "#d9622b",
    "ReLU, this operator, no gates": "#7aa5f5",
    "softmax, FlexAttention": "#d9622b",
    "softmax, formula compiled": "#f2b84b",
    "ReLU, FlexAttention": "#5b6470",
    "ReLU, eager": "#9aa3ad",
    "ReLU, eager, statistics": "#ccd2d8",
    "copy, device to device": "#9aa3ad",
    "ReLUFormer": "#1d4ed8",
    "ReLUFormer, regulariser": "#7aa5f5",
    "ReLUFormer, regulariser on a quarter": "#4a7df0",
    "ReLUFormer, power 8": "#0e7490",
    "ReLUFormer, power 8, query-key norm": "#3f9c35",
    "softmax twin": "#d9622b",
    "softmax twin, query-key norm": "#f2b84b",
    "Marian, SDPA": "#9aa3ad",
}


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": "#e5e7eb",
            "axes.axisbelow": True,
            "figure.dpi": 150,
            "figure.constrained_layout.use": True,
        }
    )
    return pyplot


def _grouped(axes: Any, heights: Mapping[str, Sequence[float]], groups: Sequence[object]) -> list[Any]:
    """Draw a bar per contestant, whose ``heights`` are those in every one of the groups; return each one's bars."""
    width = 0.84 / len(heights)
    found = []
    for i, (name, own) in enumerate(heights.items()):
        places = [j + (i - (len(heights) - 1) / 2) * width for j in range(len(groups))]
        found.append(axes.bar(places, own, width * 0.92, color=COLOURS.get(name.removesuffix(COMPILED)), label=name))
    axes.set_xticks(range(len(groups)), [str(group) for group in groups])
    axes.tick_params(length=0)
    return found


def plot_attention(path: Path, rows: Sequence[attention.Row], caption: str) -> None:
    """Plot TFLOP/s by length: a column per head dimension and causality, a row per pass, a bar per contestant."""
    plt = _pyplot()
    columns = list(dict.fromkeys((r.setting.head_dim, r.setting.causal) for r in rows))
    lengths = sorted({r.setting.length for r in rows})
    names = [name for name in dict.fromkeys(r.name for r in rows) if any(r.ms for r in rows if r.name == name)]
    figure, grid = plt.subplots(
        3, len(columns), figsize=(max(6.5, 3.6 * len(columns)), 8), squeeze=False, sharex=True, sharey="row"
    )
    for x, (head_dim, causal) in enumerate(columns):
        for y, kind in enumerate(attention.PASSES):
            axes = grid[y][x]
            rates = {
                (r.name, r.setting.length): r.tflops(kind)
                for r in rows
                if (r.setting.head_dim, r.setting.causal) == (head_dim, causal)
            }
            _grouped(axes, {name: [rates.get((name, n)) or 0.0 for n in lengths] for name in names}, lengths)
            if y == 0:
                axes.set_title(f"head dim {head_dim}, {'causal' if causal else 'not causal'}")
            if x == 0:
                axes.set_ylabel({"both": "forward + backward"}.get(kind, kind) + "\nTFLOP/s")
            if y == 2:
                axes.set_xlabel("length")
    title = f"Attention, {rows[0].setting.dtype}: higher is faster"
    _finish(figure, path, title, caption, grid[0][0], 4 if len(columns) > 2 else 2)


def plot_forgetting(path: Path, rows: Sequence[forgetting.Row], caption: str) -> None:
    """Plot milliseconds of forward and backward by length: a column per strength of the gates, a bar per contestant."""
    plt = _pyplot()
    strengths = sorted({r.setting.strength for r in rows})
    shapes = sorted({(r.setting.head_dim, r.setting.length) for r in rows})
    names = [name for name in dict.fromkeys(r.name for r in rows) if any(r.ms for r in rows if r.name == name)]
    figure, grid = plt.subplots(1, len(strengths), figsize=(max(6.5, 3.6 * len(strengths)), 3.8), squeeze=False)
    for axes, strength in zip(grid[0], strengths, strict=True):
        found = {
            (r.name, r.setting.head_dim, r.setting.length): r.ms.get("both")
            for r in rows
            if r.setting.strength == strength
        }
        heights = {name: [found.get((name, *shape)) or 0.0 for shape in shapes] for name in names}
        _grouped(axes, heights, [f"{d} x {n}" for d, n in shapes])
        axes.set_title(f"mean -log f = {strength:g}")
        axes.set_xlabel("head dim x length")
    grid[0][0].set_ylabel("forward + backward, ms")
    title = f"Forget gates, causal, {rows[0].setting.dtype}: lower is faster"
    _finish(figure, path, title, caption, grid[0][0], 2)


def _plot_models(path: Path, rows: Sequence[Any], caption: str, title: str) -> None:
    plt = _pyplot()
    lengths = sorted({r.load.length for r in rows})
    names = list(dict.fromkeys(r.name for r in rows))
    figure, axes = plt.subplots(figsize=(max(6.5, 2.2 * len(lengths)), 3.8))
    compiled = [name for name in names if name.endswith(COMPILED)]
    both = 0 < len(compiled) < len(names)
    found = {(r.name, r.load.length): r for r in rows if r.tokens_per_s}
    heights = {
        name: [found[name, n].tokens_per_s / 1000 if (name, n) in found else 0.0 for n in lengths] for name in names
    }
    for name, bars in zip(names, _grouped(axes, heights, lengths), strict=True):
        bars.set_label(name.removesuffix(COMPILED))
        if both and name in compiled:
            bars.set_label("_")  # not in the legend, where its plain twin is
            for bar in bars:
                bar.set(hatch="////", edgecolor="white")
        ratios = [found[name, n].vs_twin if (name, n) in found else None for n in lengths]
        axes.bar_label(bars, ["" if x is None else f"{x:.2f}" for x in ratios], fontsize=6, padding=1)
    striped = "; striped: layers compiled" if both else "; layers compiled" if compiled else ""
    compared = "; on the bars: times the twin's" if any(r.vs_twin for r in rows) else ""
    axes.set_xlabel(f"length{striped}{compared}")
    axes.set_ylabel("thousand tokens/s")
    _finish(figure, path, f"{title}, {rows[0].load.size}, {rows[0].load.dtype}", caption, axes, 3)


def plot_training(path: Path, rows: Sequence[Any], caption: str) -> None:
    """Plot tokens per second of a training step by length, with a bar per model."""
    _plot_models(path, rows, caption, "Training")


def plot_generation(path: Path, rows: Sequence[Any], caption: str) -> None:
    """Plot tokens per second of decoding by length, with a bar per model."""
    beams = rows[0].load.beams
    _plot_models(path, rows, caption, f"Generation, {beams} beams" if beams > 1 else "Greedy generation")


def plot_trainers(path: Path, rows: Sequence[Any], caption: str) -> None:
    """Plot tokens per second of whole training runs by length, with a bar per trainer."""
    plt = _pyplot()
    lengths, names = (list(dict.fromkeys(x)) for x in ([r.run.length for r in rows], [r.name for r in rows]))
    figure, axes = plt.subplots(figsize=(6.5, 3.8))
    speeds = {(r.name, r.run.length): r.tokens_per_s / 1000 for r in rows}
    heights = {name: [speeds[name, n] for n in lengths] for name in names}
    _grouped(axes, heights, [n or "sentences" for n in lengths])
    axes.set_xlabel("length")
    axes.set_ylabel("thousand target tokens/s")
    _finish(figure, path, f"Training on {Path(rows[0].run.data).name}, {rows[0].run.size}", caption, axes, 3)


def plot_decode(path: Path, rows: Sequence[decode.Row], caption: str) -> None:
    """Plot bytes per second of each contestant, with a group per cache."""
    plt = _pyplot()
    caches = list(dict.fromkeys(r.cache for r in rows))
    names = list(dict.fromkeys(r.name for r in rows))
    figure, axes = plt.subplots(figsize=(7.5, 1.6 + 1.1 * len(caches)))
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [next((r for r in rows if r.name == name and r.cache == c), None) for c in caches]
        values = [r.gb_per_s if r and r.gb_per_s else 0.0 for r in found]
        places = [j + (i - (len(names) - 1) / 2) * height for j in range(len(caches))]
        bars = axes.barh(places, values, height * 0.9, color=COLOURS.get(name), label=name)
        texts = [f"{number(r.gb_per_s)}  ({r.of_copy:.0%})" if r and r.gb_per_s and r.of_copy else "" for r in found]
        axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_yticks(range(len(caches)), [_in_two(str(c)) for c in caches])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(axis="x")
    axes.grid(axis="y", visible=False)
    axes.tick_params(length=0)
    axes.set_xlabel("GB/s (share of the copy's)")
    _finish(figure, path, "Decoding, one query per sequence: further right is faster", caption, axes, 3)


def plot_memory(path: Path, rows: Sequence[memory.Row], caption: str) -> None:
    """Plot extra memory by length, both logarithmic, beside what one score matrix would take."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.5, 4.6))
    for statistics, colour in ((False, "#1d4ed8"), (True, "#7aa5f5")):
        found = [(r.length, r.extra_mib) for r in rows if r.statistics == statistics and r.extra_mib]
        if found:
            label = "this operator, with statistics" if statistics else "this operator"
            axes.plot(*zip(*found, strict=True), "o-", color=colour, label=label)
    lengths = sorted({r.length for r in rows})
    size = {"float32": 4, "float64": 8}.get(rows[0].dtype, 2)
    quadratic = [rows[0].heads * n * n * size / 2**20 for n in lengths]
    axes.plot(lengths, quadratic, "--", color="#9aa3ad", label="one score matrix (computed)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}")
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("length")
    axes.set_ylabel("extra memory, MiB")
    title = f"Forward + backward, causal, {rows[0].heads} heads x {rows[0].head_dim}, {rows[0].dtype}"
    _finish(figure, path, title, caption, axes, 3)


def _in_two(text: str) -> str:
    """Break a label at the comma nearest to its middle."""
    commas = [i for i, c in enumerate(text) if c == ","]
    if not commas:
        return text
    middle = min(commas, key=lambda i: abs(i - len(text) / 2))
    return text[: middle + 1] + "\n" + text[middle + 2 :]


def _finish(figure: Any, path: Path, title: str, caption: str, axes: Any, columns: int) -> None:
    """Add title and legend above the axes and the machine below, and save."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        title=title,  # as the legend's title: the layout keeps legends clear of axes, but not of a figure's title
        title_fontproperties={"size": 11, "weight": "bold"},
        loc="outside upper center",
        ncols=columns,
        frameon=False,
    )
    figure.supxlabel(caption, fontsize=6.5, color="#6b7280")
    with written_file(path) as file:
        file.write(png_of(figure))
    figure.clf()
