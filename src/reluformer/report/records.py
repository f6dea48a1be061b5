"""Records of a report: plain numbers, per site, layer and head. None stands for a measure without any row."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reluformer.data.files import write_json

if TYPE_CHECKING:
    from rich.table import Table

    from reluformer.report.maps import AttentionMap


@dataclass(frozen=True)
class LengthReport:
    """Means over the live rows that see ``fewest`` to ``most`` keys; measures as in :class:`HeadReport`."""

    fewest: int
    most: int
    rows: int
    mass: float
    entropy: float
    effective_keys: float


@dataclass(frozen=True)
class HeadReport:
    """Means over the live rows of one head.

    A row is live if it has a positive weight. Where weights may be negative (identity, gelu), entropy, effective keys
    and top shares are those of the positive part; mass and zeros are those of all weights.

    Attributes:
        rows: Number of rows measured, without padding.
        live: Number of live rows.
        dead: Share of the rows that are not live.
        mass: ``sum_j w_ij``.
        entropy: Entropy of the normalised row, in nats.
        effective_keys: ``(sum_j w_ij)^2 / sum_j w_ij^2``.
        zeros: Share of exact zeros among the keys that the row sees.
        top_0_2_percent: Share of the mass in the largest 0.2 % of those keys, rounded up to whole keys.
        top_1_percent: The same for 1 %.
        top_10_percent: The same for 10 %.
        by_length: Means by the number of keys that a live row sees: 1 and 2, 3 and 4, 5 to 8, and so on.
    """

    rows: int
    live: int
    dead: float | None
    mass: float | None
    entropy: float | None
    effective_keys: float | None
    zeros: float | None
    top_0_2_percent: float | None
    top_1_percent: float | None
    top_10_percent: float | None
    by_length: list[LengthReport]


@dataclass(frozen=True)
class SiteReport:
    """Report on one memory.

    Attributes:
        name: Name of the module in the model.
        site: The name without the layer.
        layer: Index of the layer, 0 where there are none.
        kind: ``"attention"`` or ``"key-value"``.
        activation: Activation of the memory.
        heads: One report per head; a key-value memory has one.
        variance_ratio: Variance of the entries of the output over that of the residual stream, without padding.
        anisotropy: Mean cosine between the outputs at different positions of the batch; zero vectors are left out.
    """

    name: str
    site: str
    layer: int
    kind: str
    activation: str
    heads: list[HeadReport]
    variance_ratio: float | None
    anisotropy: float | None

    @property
    def mean(self) -> HeadReport:
        """Report on all heads as one."""
        return pooled(self.heads)


@dataclass(frozen=True)
class MemoryReport:
    """Report on every memory of a model on a batch, in the order of their first calls.

    Attributes:
        sites: One report per memory.
        about: Description of what was measured, for later readers of the file.
    """

    sites: list[SiteReport]
    about: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and None: ready for JSON."""
        return dataclasses.asdict(self)

    def table(self, heads: bool = False) -> "Table":
        """A table with one row per memory, or per head."""
        from reluformer.report.tables import site_table

        return site_table(self, heads)

    def length_table(self) -> "Table":
        """A table of the attention sites by the number of keys that a row sees, over all layers and heads."""
        from reluformer.report.tables import length_table

        return length_table(self)

    def save(self, folder: Path | str, maps: Sequence["AttentionMap"] = ()) -> list[Path]:
        """Write ``report.json`` and one PNG per map (see :func:`attention_maps`); return the paths."""
        folder = Path(folder)
        paths = [folder / "report.json"]
        write_json(paths[0], self.to_dict())
        if maps:
            from reluformer.report.figures import draw_map

            for drawn in maps:
                paths.append(folder / f"{drawn.site}-{drawn.layer}-{drawn.head}.png")
                draw_map(paths[-1], drawn)
        return paths


def pooled(heads: Sequence[HeadReport]) -> HeadReport:
    """Several heads as one: every measure averaged over the live rows of all of them."""
    rows, live = sum(h.rows for h in heads), sum(h.live for h in heads)
    means = {
        name: sum((getattr(h, name) or 0.0) * h.live for h in heads) / live if live else None
        for name in (f.name for f in dataclasses.fields(HeadReport))
        if name not in ("rows", "live", "dead", "by_length")
    }
    spans = sorted({(x.fewest, x.most) for h in heads for x in h.by_length})
    by_length = [_pooled_length([x for h in heads for x in h.by_length if x.fewest == span[0]]) for span in spans]
    return HeadReport(rows=rows, live=live, dead=1 - live / rows if rows else None, by_length=by_length, **means)


def _pooled_length(parts: Sequence[LengthReport]) -> LengthReport:
    rows = sum(x.rows for x in parts)
    means = {
        name: sum(getattr(x, name) * x.rows for x in parts) / rows for name in ("mass", "entropy", "effective_keys")
    }
    return LengthReport(parts[0].fewest, parts[0].most, rows, **means)
