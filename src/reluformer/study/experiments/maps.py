"""Attention heads side by side on long documents: far relations, and the weight on punctuation and common words."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.data.files import hash_of, written_file
from reluformer.png import png_of
from reluformer.report import AttentionMap, attention_maps
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment
from reluformer.study.experiments._heads import FAR, Head, describe, distances, mean_head, normalised, strangeness
from reluformer.study.experiments.documents import TWIN, models_of, settings_of
from reluformer.study.scales import Scale
from reluformer.translation.loading import load_model

COMMON = 30  # number of stop words: the most frequent words of the validation data, whatever the language
LENGTH = 1024
DOCUMENTS = 4  # the longest ones of the validation data
PAIRS = 5  # far relations to record
SHOWN = 4  # heads of each model in a picture
SITE = "encoder.self_attention"


def arms(scale: Scale) -> list[Arm]:
    """Return two models of ``documents``, alone and side by side, at the scale's length nearest to the paper's maps."""
    length = min(scale.lengths, key=lambda n: abs(n - LENGTH))
    models = {name: settings_of(scale, models_of(scale)[name]) for name in (TWIN, "ReLUFormer")}
    alone = [Arm(name, model | {"length": length, "map": SITE}, seeds=1) for name, model in models.items()]
    return [*alone, Arm("side by side", {"models": models, "length": length, "map": SITE}, seeds=1)]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Describe the models' encoder attention on the longest validation documents."""
    length, site = arm.settings["length"], arm.settings["map"]
    models = arm.settings.get("models", {arm.name: arm.settings})
    looks = {name: _look(bench, model, seed, length, site) for name, model in models.items()}
    if len(looks) > 1:
        key = hash_of([arm.settings, bench.scale.key(), bench.corpus.key])  # a folder may hold several pictures
        return _side_by_side(looks, bench.work.parent / "maps" / f"side-by-side-{seed}-{key}.png", bench.work.parent)
    (look,) = looks.values()
    return asdict(mean_head(look.heads)) | {
        "tokens": len(look.dull),
        "far_best": max(head.far for head in look.heads),
        "marks_share": look.marks_share,
        "stops_share": look.stops_share,
        "pairs": _pairs(look.maps, look.dull),
    }


@dataclass(frozen=True)
class _Look:
    """A model's attention on the documents.

    Attributes:
        heads: Numbers of each head, the mean over documents.
        maps: Maps of the same heads on the longest document.
        dull: Mask of that document's tokens that are punctuation or common words.
        marks_share: Share of all tokens that are punctuation.
        stops_share: Share of all tokens that are common words.
    """

    heads: list[Head]
    maps: list[AttentionMap]
    dull: Tensor
    marks_share: float
    stops_share: float


def _look(bench: Bench, settings: dict[str, Any], seed: int, length: int, site: str) -> _Look:
    trained = bench.train(settings["model"], seed, length, **settings.get("recipe", {}))
    model, tokenizer = load_model(trained.folder, precision="fp32")
    examples = PackedDataset(bench.corpus.folder, "valid", length)
    common = _common(examples, tokenizer)
    heads: list[list[Head]] = []  # per document
    kinds: list[Tensor] = []  # (2, N): which tokens are marks, which are common words
    # The longest comes last, since the last maps are the ones that are kept.
    for i in (-examples.source_lengths).argsort(kind="stable")[:DOCUMENTS][::-1].tolist():
        batch = {name: x.to(model.device) for name, x in Collator()([examples[i]]).items()}
        pieces = [tokenizer.decode([token], skip_special_tokens=False) for token in examples[i]["input_ids"]]
        words = [piece.strip().lower() for piece in pieces]
        kinds.append(torch.tensor([[_is_mark(word) for word in words], [word in common for word in words]]))
        maps = attention_maps(model, batch, [f"{site}:*:*"], source_tokens=pieces)
        heads.append([describe(x.weights, *kinds[-1]) for x in maps])
    shares = torch.cat(kinds, 1).float().mean(1).tolist()
    return _Look([mean_head(same) for same in zip(*heads, strict=True)], maps, kinds[-1].any(0), *shares)


def _is_mark(word: str) -> bool:
    return bool(word) and all(unicodedata.category(c)[0] == "P" for c in word)


def _common(examples: PackedDataset, tokenizer: Any) -> set[str]:
    counts = Counter(token for i in range(len(examples)) for token in examples[i]["input_ids"])
    words = (tokenizer.decode([token]).strip().lower() for token, _ in counts.most_common())
    found: list[str] = []
    for word in words:
        if len(found) == COMMON:
            break
        if word.isalpha() and word not in found:
            found.append(word)
    return set(found)


def _pairs(maps: Sequence[AttentionMap], dull: Tensor) -> list[str]:
    """Return the strongest far relations between words that are neither punctuation nor common, as text."""
    strongest = torch.stack([normalised(x.weights) for x in maps]).amax(0)  # (N, N)
    n = len(strongest)
    hidden = (distances(n) < FAR * n) | dull[:, None] | dull[None, :]
    values, places = strongest.masked_fill(hidden, 0.0).flatten().topk(min(PAIRS, n * n))
    names = maps[0].keys
    return [
        f"{names[place // n].strip()} ({place // n}) - {names[place % n].strip()} ({place % n}): {value:.3f}"
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]


def _side_by_side(looks: dict[str, _Look], picture: Path, root: Path) -> dict[str, Any]:
    """Compare the heads of each model that differ most from the other's: their numbers, and their maps in two rows."""
    (one, first), (other, second) = looks.items()
    chosen: dict[str, list[tuple[float, Head, AttentionMap]]] = {}
    for name, own, twin in ((one, first, second), (other, second, first)):
        apart = strangeness(own.heads, twin.heads)
        order = sorted(range(len(apart)), key=lambda i: -apart[i])[:SHOWN]
        chosen[name] = [(apart[i], own.heads[i], own.maps[i]) for i in order]
    _draw(picture, chosen)
    head = ["model", "layer", "head", "from the nearest of the twin", "far", "beyond 256 tokens", "on punctuation",
            "on common words", "mean distance", "entropy"]  # fmt: skip
    rows = [
        [
            name, str(x.layer), str(x.head), f"{apart:.2f}", *(f"{share:.3f}" for share in (
                numbers.far, numbers.beyond, numbers.marks, numbers.stops
            )), f"{numbers.distance:.0f}", f"{numbers.entropy:.2f}",
        ]
        for name, heads in chosen.items()
        for apart, numbers, x in heads
    ]  # fmt: skip
    return {
        "tables": [{"title": "Heads that differ most from the twin's", "head": head, "rows": rows}],
        "pictures": [str(picture.relative_to(root))],
    }


def _draw(path: Path, chosen: dict[str, list[tuple[float, Head, AttentionMap]]]) -> None:
    from matplotlib.figure import Figure

    columns = max(map(len, chosen.values()))
    figure = Figure(figsize=(3.6 * columns, 4.1 * len(chosen)), layout="constrained")
    grid: Any = figure.subplots(len(chosen), columns, squeeze=False)
    for row, (name, heads) in zip(grid, chosen.items(), strict=True):
        for axis in row[len(heads) :]:
            axis.remove()
        for axis, (_, numbers, x) in zip(row, heads, strict=False):
            shown = normalised(x.weights)
            axis.imshow(shown.sqrt().numpy(), cmap="magma", vmin=0, vmax=float(shown.quantile(0.999).sqrt()) or 1.0)
            axis.set_title(
                f"layer {x.layer}, head {x.head}: {numbers.beyond:.0%} beyond 256,\n{numbers.marks:.0%} on marks, "
                f"{numbers.stops:.0%} on common words", fontsize=9,
            )  # fmt: skip
            axis.set_xlabel("key")
        row[0].set_ylabel(f"{name}\nquery")
    figure.suptitle("Square root of the normalised weights: the heads of each that the other has nothing like")
    with written_file(path) as file:
        file.write(png_of(figure, dpi=110))


EXPERIMENT = Experiment(
    name="maps",
    title="Attention maps of long documents",
    question="Does ReLU find far relations, and give punctuation and common words less weight?",
    arms=arms,
    run=run,
    columns=(
        Column("far weight", "far", 3, "higher"),
        Column("far weight, best head", "far_best", 3, "higher"),
        Column("beyond 256 tokens", "beyond", 3, "higher"),
        Column("mean distance", "distance", 0, "higher"),
        Column("on punctuation", "marks", 3, "lower"),
        Column("tokens that are", "marks_share", 3),
        Column("on common words", "stops", 3, "lower"),
        Column("tokens that are", "stops_share", 3),
        Column("entropy", "entropy", 2),
    ),
    claims=(
        Claim("ReLU looks farther", "far", "ReLUFormer", "Transformer", ">", paper="finds far relations"),
        Claim("ReLU gives punctuation less", "marks", "ReLUFormer", "Transformer", "<", paper="less weight"),
        Claim("ReLU gives common words less", "stops", "ReLUFormer", "Transformer", "<", paper="less weight"),
    ),
)
