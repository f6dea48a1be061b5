"""Scales of a study: from two minutes on two cores to the real thing on a GPU."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

# Fields that decide which cells exist or how they are shown, but not what any of them results in.
CHOICES = ("name", "seeds", "slots", "lengths", "reach", "rates", "counts", "temperatures", "extras")


@dataclass(frozen=True)
class Scale:
    """Sizes and budgets of a study.

    Attributes:
        name: Name on the command line.
        size: Size of the presets: tiny, small or base.
        model: Fields of the configuration that differ from the preset.
        steps: Updates of a run; 0 to go by ``epochs``.
        epochs: Passes over the data.
        seeds: Runs of every arm, unless the user says otherwise.
        chapters: Chapters of the embedded corpus to train on; None for all. Validation takes a tenth as many.
        vocab: Vocabulary size of the embedded corpus.
        slots: Numbers of slots that the experiment ``slots`` compares.
        lengths: Lengths of the documents in ``documents``, in tokens.
        reach: Lengths that ``extrapolation`` tests at; it trains on the first, which should be one of ``lengths``.
        rates: Peak learning rate on documents by family, ``transformer`` or ``reluformer``, where it is not ``lr``;
            the arms hold it, so that no other cell depends on it.
        counts: Numbers of keys or slots in ``variance``.
        temperatures: Temperatures of softmax in ``ffn``.
        extras: Whether ``attempts`` and ``extrapolation`` have all their arms.
        cost: Cost budget of a batch, in tokens of short sequences.
        lr: Peak learning rate.
        warmup: Updates until the learning rate peaks, as a share of all.
        optimiser: Further fields that differ from the default optimiser of a recipe.
        regulariser: Weight of the regulariser's terms in arms that have them.
        points: Number of validations in a run.
        average: Number of last checkpoints that the final model averages.
        beam: Beam size of the search.
        documents: Largest number of test documents to translate; None for all.
        sentences: Largest number of sentences of each to translate; None for all.
        examples: Number of validation examples on which the memories are inspected.
        resamples: Number of bootstrap samples behind confidence intervals.
        compile: Let torch.compile fuse the layers, on a GPU.
        long_share: Share of the updates that is on documents, in runs that end on them.
    """

    name: str
    size: str
    model: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    epochs: float = 0.0
    seeds: int = 1
    chapters: int | None = None
    vocab: int = 8000
    slots: tuple[int, ...] = (32, 128, 512, 1024, 2048, 3072, 4096, 16384)
    lengths: tuple[int, ...] = (128, 512, 1024, 2048)
    reach: tuple[int, ...] = (512, 1024, 2048, 4096)
    rates: dict[str, float] = field(default_factory=dict)
    counts: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    temperatures: tuple[float, ...] = (0.25, 0.5, 2.0, 4.0)
    extras: bool = True
    cost: int = 16384
    lr: float = 5e-4
    warmup: float = 0.25
    optimiser: dict[str, Any] = field(default_factory=dict)
    regulariser: float = 0.05
    points: int = 20
    average: int = 5
    beam: int = 5
    documents: int | None = None
    sentences: int | None = None
    examples: int = 64
    resamples: int = 1000
    compile: bool = False
    long_share: float = 0.3

    def key(self) -> dict[str, Any]:
        """Return the fields that the result of a cell depends on."""
        return {name: value for name, value in self.to_dict().items() if name not in CHOICES and value != {}}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, serialisable as JSON."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Scale":
        """Restore a scale from :meth:`to_dict`."""
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
        return cls(**fields)


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke", "tiny",
            {"d_model": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn": {"slots": 32}},
            steps=12, chapters=30, vocab=400, slots=(32, 4096), lengths=(128, 1024), reach=(128, 1024),
            counts=(16, 64, 256), temperatures=(0.5,), extras=False, cost=512, lr=5e-3, points=2, average=1, beam=2,
            documents=2, sentences=3, examples=4, resamples=50,
        ),
        Scale(
            "laptop", "tiny", {"dropout": 0.1}, steps=300, vocab=2000, extras=False, slots=(32, 512, 4096),
            lengths=(128, 1024), reach=(128, 512, 1024), counts=(16, 64, 256, 1024), temperatures=(0.5, 2.0),
            cost=1024, lr=3e-3, points=5, average=1, beam=2, documents=6, sentences=8, examples=16, resamples=200,
        ),
        Scale(
            "gpu", "small", {"dropout": 0.1}, epochs=15, seeds=3, compile=True,
            lr=1e-3, warmup=0.1, optimiser={"schedule": "linear"},
        ),
    )
}  # fmt: skip
