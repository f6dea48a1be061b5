"""Language models that forget: ReLU and softmax, each with and without a forget gate, beyond the length of training.

The claims are those of the Forgetting Transformer, arXiv 2503.02130, and whether they also hold for ReLU.
``language`` makes the same experiment on a text of your own.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from reluformer.data.files import DataError, hash_of, hash_of_file, read_json, write_json
from reluformer.models import ReLUFormerForCausalLM, ReLUFormerLanguageConfig
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Diverged, Experiment, Plot
from reluformer.study.language.texts import read_corpus, read_file
from reluformer.study.language.training import Course, mean_gate, score_language, train_language
from reluformer.study.locks import locked
from reluformer.study.scales import SCALES, Scale

TIMES = (1, 2, 4, 8)  # lengths to test at, in multiples of the training length
SCORED = "scored.json"

# Models by name: the family of the preset, and changes to it.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("transformer-lm", {}),
    "softmax, gate": ("transformer-lm-forget", {}),
    "relu": ("reluformer-lm", {}),
    "relu, gate": ("reluformer-lm-forget", {}),
}
# The published block; and division by other powers of the number of keys, which a gate already bounds.
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax, gate, pro": ("transformer-lm-forget-pro", {}),
    "relu, gate, pro": ("reluformer-lm-forget-pro", {}),
    "relu, alpha 1": ("reluformer-lm", {"decoder_self": {"alpha": 1.0}}),
    "relu, gate, alpha 1/2": ("reluformer-lm-forget", {"decoder_self": {"alpha": 0.5}}),
}


@dataclass(frozen=True)
class Plan:
    """Size of the experiment at a scale.

    Attributes:
        size: Size of the presets: tiny, small or base.
        course: Course of training of each model.
        model: Fields of the configuration that differ from the preset.
        further: Whether to include more models than the four that the question is about.
        scored: Largest number of tokens to validate and to test on; None for all.
    """

    size: str
    course: Course
    model: dict[str, Any] = field(default_factory=dict)
    further: bool = True
    scored: int | None = None


PLANS = {
    "smoke": Plan(
        "tiny", Course(steps=4, length=16, batch=4, points=2), {"d_model": 32, "heads": 2, "layers": 1}, False, 1000
    ),
    "laptop": Plan("tiny", Course(steps=300, length=64, batch=16, points=3)),
    "gpu": Plan("small", Course(steps=6000, length=512, batch=32, lr=1e-3, points=20)),
}


def language(text: str = "", *, name: str = "language", plans: Mapping[str, Plan] | Plan = PLANS) -> Experiment:
    """Return the experiment on a text file, or on the source side of the corpus if none is given."""
    by_scale = plans if isinstance(plans, Mapping) else dict.fromkeys(SCALES, plans)

    def arms(scale: Scale) -> list[Arm]:
        return _arms(by_scale[scale.name], text)

    return Experiment(
        name=name,
        title="Language models that forget" + (f": {text}" if text else ""),
        question="Does a forget gate carry ReLU, as it does softmax, beyond the length of training, without positions?",
        arms=arms,
        run=run,
        columns=(
            Column("loss", "nll", 3, "lower"),
            Column("perplexity", "perplexity", 1, "lower"),
            Column("loss, later half", "late", 3, "lower"),
            Column("mean gate", "gate", 3),
            Column("parameters, k", "parameters", 1),
            Column("training, s", "train_seconds", 0),
        ),
        claims=tuple(_claims()),
        plots=(
            Plot("Loss and the length of the context", "nll", "length, tokens", "test loss", log_x=True),
            Plot("Loss in the later half of a context", "late", "length, tokens", "test loss", log_x=True),
        ),
    )


def _arms(plan: Plan, text: str) -> list[Arm]:
    """Return every model at every length; a model is trained once, however many lengths it is tested at."""
    data = {"data": text, "content": hash_of_file(Path(text))} if text else {}
    return [
        Arm(
            f"{name}, {times}x",
            data | {
                "preset": f"{family}-{plan.size}", "model": {**plan.model, **changes}, "course": asdict(plan.course),
                "scored": plan.scored, "times": times,
            },
            x=times * plan.course.length,
            series=name,
        )
        for name, (family, changes) in (PLAIN | (FURTHER if plan.further else {})).items()
        for times in TIMES
    ]  # fmt: skip


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train a model, or reuse the trained one, and return its results at the arm's length."""
    settings = {name: x for name, x in arm.settings.items() if name != "times"}
    own = {name: x for name, x in settings.items() if name != "data"}  # the path of a file does not matter
    folder = bench.work / "language" / hash_of([own, seed, bench.scale.key(), bench.corpus.key])
    with locked(folder.with_suffix(".lock")):
        note = read_json(folder / SCORED)
        if note is None:
            note = _train(settings, seed, bench, folder)
            write_json(folder / SCORED, note)
    times = arm.settings["times"]
    result: dict[str, Any] = note["common"] | note["lengths"].get(str(times), {})
    if times == TIMES[0]:
        result |= {"curve": note["curve"]}
    if note["diverged"]:
        raise Diverged(note["diverged"], result)
    return result


def _train(settings: Mapping[str, Any], seed: int, bench: Bench, folder: Path) -> dict[str, Any]:
    """Train a model and score it at all lengths; the model is kept with its tokeniser."""
    file = settings.get("data", "")
    if file and hash_of_file(Path(file)) != settings["content"]:
        raise DataError(f"{file} is not the text that the cell was made of: it has changed")
    text = read_file(Path(file), bench.scale.vocab) if file else read_corpus(bench.corpus)
    course = Course(**settings["course"])
    valid, test = (part[: settings["scored"]] for part in (text.valid, text.test))
    torch.manual_seed(seed)
    config = ReLUFormerLanguageConfig.preset(
        settings["preset"], vocab_size=text.vocabulary, calibration_length=course.length, **settings["model"]
    )
    model = ReLUFormerForCausalLM(config)
    common: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()) / 1000,
        "steps": course.steps,
        "test_tokens": len(test),
    }
    note: dict[str, Any] = {"common": common, "lengths": {}, "curve": [], "diverged": ""}
    try:
        note["curve"] = train_language(model, text.train, valid, course, seed)
    except Diverged as reason:
        return note | {"diverged": str(reason), "curve": reason.result["curve"]}
    common |= {
        "train_seconds": note["curve"][-1]["seconds"],
        "gate": mean_gate(model, test[None, : TIMES[-1] * course.length]),
    }
    for times in TIMES:
        losses = score_language(model, test, times * course.length, course)
        note["lengths"][str(times)] = {
            "nll": float(losses.mean()),
            "perplexity": math.exp(min(float(losses.mean()), 50.0)),
            "late": float(losses[len(losses) // 2 :].mean()),
            "by_position": _by_position(losses.tolist()),
        }
    guess = math.log(text.vocabulary)
    curve = note["curve"]
    if curve[-1]["nll"] > guess and curve[-1]["nll"] >= curve[0]["nll"] and len(curve) > 1:
        note["diverged"] = f"the loss ends at {curve[-1]['nll']:.2f}, above the {guess:.2f} of guessing"
    model.save_pretrained(folder / "model")
    text.tokenizer.save_pretrained(folder / "model")  # type: ignore[attr-defined]
    return note


def _by_position(losses: list[float]) -> dict[str, float]:
    """Return the mean loss of tokens 1, 2, 3 to 4, 5 to 8 and so on, keyed by the last of each group."""
    ends = [2**i for i in range(len(losses).bit_length()) if 2**i <= len(losses)]
    return {
        str(end): sum(part) / len(part)
        for start, end in zip([0, *ends], ends, strict=False)
        if (part := losses[start:end])
    }


def _claims() -> list[Claim]:
    longest = TIMES[-1]
    claims = []
    for name in ("softmax", "relu"):
        published = name == "softmax"
        claims += [
            Claim(
                f"{name}: a gate beats rotary positions at the length of training", "nll",
                f"{name}, gate, 1x", f"{name}, 1x", "<", paper="better" if published else "",
            ),
            Claim(
                f"{name}: a gate beats rotary positions at {longest} times that length", "nll",
                f"{name}, gate, {longest}x", f"{name}, {longest}x", "<", paper="better" if published else "",
            ),
            Claim(
                f"{name}: with a gate, a context longer than any in training helps", "nll", f"{name}, gate, {longest}x",
                f"{name}, gate, 1x", "<",
            ),
            Claim(
                f"{name}: the Pro block improves on the gate alone", "nll", f"{name}, gate, pro, 1x",
                f"{name}, gate, 1x", "<", paper="better" if published else "",
            ),
        ]  # fmt: skip
    return [
        *claims,
        *(
            Claim(f"with a gate, ReLU matches softmax at {times}x", "nll", f"relu, gate, {times}x",
                  f"softmax, gate, {times}x", "=", 0.02)
            for times in (TIMES[0], longest)
        ),
    ]  # fmt: skip


EXPERIMENT = language()
