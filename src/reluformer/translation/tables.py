"""Tables of scores, and of compression, for the console."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from reluformer.console import plain_table
from reluformer.models.compressing import Kept
from reluformer.translation.scores import Difference, Scores

P_VALUE = 0.05  # below this a difference is marked


def score_table(systems: Mapping[str, Scores]) -> Table:
    """Tabulate scores with a row for each system, levels in the headings and signatures below."""
    first = next(iter(systems.values()))
    scores = first.s_bleu, first.d_bleu, first.chrf
    title = f"{first.documents:,} documents, {first.sentences:,} sentences, {first.words:,} words"
    columns = ["", *(f"{x.name} ({x.level})" for x in scores)]
    rows = [[name, *(f"{x.value:.2f}" for x in (s.s_bleu, s.d_bleu, s.chrf))] for name, s in systems.items()]
    return plain_table(title, columns, rows, "\n".join(f"{x.name}: {x.signature}" for x in scores))


def length_table(systems: Mapping[str, Scores]) -> Table:
    """Tabulate the scores of every system by the length of documents."""
    rows = []
    for name, scores in systems.items():
        for bucket in scores.by_length:
            span = f"{bucket.fewest}-{bucket.most}" if bucket.most else f"{bucket.fewest}+"
            numbers = f"{bucket.s_bleu:.2f}", f"{bucket.d_bleu:.2f}", f"{bucket.chrf:.2f}"
            rows.append([name, span, f"{bucket.documents:,}", f"{bucket.sentences:,}", *numbers])
    columns = ["", "words", "documents", "sentences", "s-BLEU", "d-BLEU", "chrF"]
    return plain_table("by words of the reference document", columns, rows)


def difference_table(names: Sequence[str], differences: Sequence[Difference]) -> Table:
    """Tabulate the comparison of two systems, score by score."""
    rows = []
    for x in differences:
        values = [f"{e.value:.2f} ({e.mean:.2f} ± {e.interval:.2f})" for e in (x.first, x.second)]
        mark = " *" if x.p_value < P_VALUE else ""
        change = x.second.value - x.first.value
        rows.append([f"{x.name} ({x.level})", *values, f"{change:+.2f}", f"{x.p_value:.4f}{mark}"])
    caption = f"paired bootstrap, mean ± 95 % interval; * p < {P_VALUE}\n{differences[0].signature}"
    return plain_table("compared", ["", *names, "difference", "p"], rows, caption)


def compression_table(report: Sequence[Kept]) -> Table:
    """Tabulate the result of compression, tensor by tensor."""
    rows = [
        [x.name, " x ".join(map(str, x.shape)), x.kind, f"{x.bytes:,}", f"{x.error:.4f}" if x.error else "0"]
        for x in report
    ]
    caption = "error: the norm of the difference over that of the tensor"
    return plain_table("compressed", ["", "shape", "kept as", "bytes", "error"], rows, caption)
