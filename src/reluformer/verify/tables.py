"""Certificates as a table."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from reluformer.console import number, plain_table
from reluformer.verify.certify import Certificate

COLUMNS = ("model", "attention", "ffn", "radius", "right", "certified", "attacked", "width", "seen", "seconds")


def certificate_table(certificates: Mapping[str, Sequence[Certificate]]) -> Table:
    """A table with one line for each model and radius; ``certificates`` maps the names of models to their own."""
    rows = [
        [
            model,
            x.attention,
            x.ffn,
            f"{x.radius:g}",
            *(f"{share:.1%}" for share in (x.right, x.certified, x.attacked)),
            *(number(value) for value in (x.width, x.seen, x.seconds)),
        ]
        for model, several in certificates.items()
        for x in several
    ]
    caption = (
        "certified: right, and so is every image in the ball; attacked: right after an attack; "
        "width: of the logits' bounds; seen: at random corners"
    )
    return plain_table("", COLUMNS, rows, caption)
