"""Heads side by side on one long document: far relations, and the weight on punctuation and common words."""

import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.data.dataset import PackedDataset
from reluformer.report import AttentionMap, attention_maps
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment
from reluformer.study.experiments.documents import models_of
from reluformer.study.scales import Scale
from reluformer.training.collate import Collator
from reluformer.translation.loading import load_model

COMMON = 30  # words that count as stop words: the most frequent of the validation data, whatever the language
FAR = 0.25  # share of the document that lies between a query and a far key, at least
LENGTH = 1024
PAIRS = 5  # far relations to write down
SHOWN = 4  # heads of a picture


def arms(scale: Scale) -> list[Arm]:
    """The two models of ``documents`` at the length of the paper's maps, or the nearest that the scale has."""
    length = min(scale.lengths, key=lambda n: abs(n - LENGTH))
    models = models_of(scale)
    return [
        Arm(name, {"model": models[name], "length": length, "map": "encoder.self_attention"}, seeds=1)
        for name in ("Transformer", "ReLUFormer")
    ]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Show the model the longest validation document, and look at its encoder."""
    length = arm.settings["length"]
    trained = bench.train(arm.settings["model"], seed, length)
    model, tokenizer = load_model(trained.folder, precision="fp32")
    examples = PackedDataset(bench.corpus.folder, "valid", length)
    example = examples[int(examples.source_lengths.argmax())]
    batch = {name: x.to(model.device) for name, x in Collator()([example]).items()}
    pieces = [tokenizer.decode([token], skip_special_tokens=False) for token in example["input_ids"]]
    maps = attention_maps(model, batch, [f"{arm.settings['map']}:*:*"], source_tokens=pieces)
    words = [piece.strip().lower() for piece in pieces]
    common = _common(examples, tokenizer)
    marks = torch.tensor([all(unicodedata.category(c)[0] == "P" for c in word) if word else False for word in words])
    stops = torch.tensor([word in common for word in words])
    shares = torch.stack([_received(x) for x in maps])  # (heads, M): of the normalised weight
    far = [_far(x) for x in maps]
    picture = bench.work.parent / "maps" / f"{re.sub('[^a-z]+', '-', arm.name.lower())}-{seed}.png"
    _draw(picture, maps, arm.name)
    return {
        "tokens": len(words),
        "far": sum(far) / len(far),
        "far_best": max(far),
        "marks": float(shares[:, marks].sum(1).mean()),
        "marks_share": float(marks.float().mean()),
        "stops": float(shares[:, stops].sum(1).mean()),
        "stops_share": float(stops.float().mean()),
        "pairs": _pairs(maps, marks | stops),
        "pictures": [str(picture.relative_to(bench.work.parent))],
    }


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


def _normalised(x: AttentionMap) -> Tensor:
    weights = x.weights.clamp_min(0)
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-30)  # (N, M)


def _received(x: AttentionMap) -> Tensor:
    """Share of all weight that each key gets, ``(M,)``; rows without any do not count."""
    weights = _normalised(x)
    return weights.sum(0) / weights.sum().clamp_min(1e-30)


def _distances(n: int) -> Tensor:
    return (torch.arange(n)[:, None] - torch.arange(n)).abs()


def _far(x: AttentionMap) -> float:
    """Share of the weight on far keys."""
    weights = _normalised(x)
    far = _distances(len(weights)) >= FAR * len(weights)
    return float((weights * far).sum() / weights.sum().clamp_min(1e-30))


def _pairs(maps: list[AttentionMap], dull: Tensor) -> list[str]:
    """The strongest far relations between words that are neither marks nor common, as text."""
    strongest = torch.stack([_normalised(x) for x in maps]).amax(0)  # (N, N)
    n = len(strongest)
    hidden = (_distances(n) < FAR * n) | dull[:, None] | dull[None, :]
    values, places = strongest.masked_fill(hidden, 0.0).flatten().topk(min(PAIRS, n * n))
    names = maps[0].keys
    return [
        f"{names[place // n].strip()} ({place // n}) - {names[place % n].strip()} ({place % n}): {value:.3f}"
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]


def _draw(path: Path, maps: list[AttentionMap], title: str) -> None:
    from matplotlib.figure import Figure

    chosen = sorted(maps, key=_far, reverse=True)[:SHOWN]
    figure = Figure(figsize=(4 * len(chosen), 4.4), layout="constrained")
    axes: Any = figure.subplots(1, len(chosen), squeeze=False)[0]
    for axis, x in zip(axes, chosen, strict=True):
        shown = _normalised(x)
        axis.imshow(shown.sqrt().numpy(), cmap="magma", vmin=0, vmax=float(shown.quantile(0.999).sqrt()) or 1.0)
        axis.set_title(f"layer {x.layer}, head {x.head}: {_far(x):.0%} far", fontsize=9)
        axis.set_xlabel("key")
    axes[0].set_ylabel("query")
    figure.suptitle(f"{title}: square root of the normalised weights of the encoder, the farthest-looking heads")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


EXPERIMENT = Experiment(
    name="maps",
    title="Attention maps of a long document",
    question="Does ReLU find far relations, and give punctuation and common words less weight?",
    arms=arms,
    run=run,
    columns=(
        Column("far weight", "far", 3, "higher"),
        Column("far weight, best head", "far_best", 3, "higher"),
        Column("on punctuation", "marks", 3, "lower"),
        Column("tokens that are", "marks_share", 3),
        Column("on common words", "stops", 3, "lower"),
        Column("tokens that are", "stops_share", 3),
    ),
    claims=(
        Claim("ReLU looks farther", "far", "ReLUFormer", "Transformer", ">", paper="finds far relations"),
        Claim("ReLU gives punctuation less", "marks", "ReLUFormer", "Transformer", "<", paper="less weight"),
        Claim("ReLU gives common words less", "stops", "ReLUFormer", "Transformer", "<", paper="less weight"),
    ),
)
