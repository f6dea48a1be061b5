"""Results of ``reluformer bench attention`` as tables on the console."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from reluformer.bench.attention import PASSES, Row
from reluformer.console import number


def attention_table(rows: Sequence[Row]) -> Table:
    """Return a table of rows of one head dimension and causality, with a section per length."""
    first = rows[0].setting
    table = Table(
        title=f"head dim {first.head_dim} x {first.heads} heads, {'causal' if first.causal else 'not causal'}, "
        f"{first.dtype}",
        caption="ms, TFLOP/s, speed against the fastest softmax; extra: peak MiB beyond inputs, outputs and gradients",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for kind in PASSES:
        table.add_column({"both": "fwd+bwd"}.get(kind, kind), justify="right", no_wrap=True)
        table.add_column("TF/s", justify="right", no_wrap=True)
        table.add_column("x", justify="right", no_wrap=True)
    table.add_column("extra", justify="right", no_wrap=True)
    previous = None
    for row in rows:
        s = row.setting
        if previous not in (None, s.length):
            table.add_section()
        cells = [cell for kind in PASSES for cell in _cells(row, kind)]
        extra = number(row.extra_mib.get("both", row.extra_mib.get("forward")))
        ours = "this operator" in row.name
        table.add_row(
            "" if previous == s.length else str(s.length), row.name, *cells, extra, style="bold" if ours else ""
        )
        previous = s.length
    return table


def notes(rows: Sequence[Row]) -> list[str]:
    """Return one line for each reason why something did not run."""
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if row.note:
            reasons.setdefault(f"{row.name}: {row.note}", []).append(row.setting.length)
    return [f"{text} (length {', '.join(map(str, lengths))})" for text, lengths in reasons.items()]


def _cells(row: Row, kind: str) -> tuple[str, str, str]:
    if kind not in row.ms:
        return "n/a", "", ""
    ratio = row.vs_softmax.get(kind)
    return number(row.ms[kind]), number(row.tflops(kind)), f"{ratio:.2f}" if ratio else ""
