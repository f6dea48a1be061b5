"""How large a study is: from two minutes on two cores to the real thing on a GPU."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

# What decides which cells there are, or how they are shown, but not what comes out of one.
CHOICES = ("name", "seeds", "slots", "lengths", "reach", "rates", "counts", "temperatures", "extras")


@dataclass(frozen=True)
class Scale:
    """Sizes and budgets of a study.

    Attributes:
        name: On the command line.
        size: Of the presets: tiny, small, base.
        model: What differs from the preset.
        steps: Updates of a run; 0 to go by ``epochs``.
        epochs: Passes over the data.
        seeds: Runs of every arm, unless the user says otherwise.
        chapters: Of the embedded corpus, for training; None for all. Validation takes a tenth.
        vocab: Its vocabulary.
        slots: Of the memories in ``slots``.
        lengths: Of the documents in ``documents``, in tokens.
        reach: Lengths that ``extrapolation`` tests at; it trains on the first, which should be one of ``lengths``.
        rates: The highest learning rate on documents by family, ``transformer`` or ``reluformer``, where it is not
            ``lr``; arms hold it, so that no other cell depends on it.
        counts: Keys or slots in ``variance``.
        temperatures: Of softmax in ``ffn``.
        extras: Whether ``attempts`` and ``extrapolation`` have all their arms.
        cost: Of a batch, in tokens of short sequences.
        lr: The highest learning rate.
        warmup: Updates until it is reached, as a share of all.
        optimiser: What else differs from the optimiser of a recipe.
        regulariser: Weight of its terms where an arm has them.
        points: Validations of a run.
        average: How many of the last checkpoints the final model averages.
        beam: Of the search.
        documents: Most test documents that are translated; None for all.
        sentences: Most sentences of each; None for all.
        examples: Validation examples whose memories are looked into.
        resamples: Of the bootstrap behind confidence intervals.
        compile: Let torch.compile fuse the layers, on a GPU.
        long_share: Share of the updates on documents, where a run ends on them.
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
        """What the result of a cell depends on."""
        return {name: value for name, value in self.to_dict().items() if name not in CHOICES and value != {}}

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Scale":
        """Back from JSON."""
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
