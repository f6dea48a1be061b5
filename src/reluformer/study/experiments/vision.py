"""ReLU in vision transformers: weights ``L^-alpha h(q.k / sqrt d)`` over the L tokens of an image, for many h.

The claims are those of Wortsman et al., arXiv 2309.08586. ``vision`` makes the same experiment on other images.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from reluformer.data.files import DataError
from reluformer.memory import Attention
from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig
from reluformer.report import memory_report
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Diverged, Experiment, Plot
from reluformer.study.scales import SCALES, Scale
from reluformer.study.vision.images import DIGITS, contents, open_images
from reluformer.study.vision.training import Course, score_classifier, train_classifier

# The paper's h, by name, and their names here; its sigmoid is that of the score itself.
ACTIVATIONS = {
    "relu": "relu", "relu squared": "relu_squared", "gelu": "gelu", "softplus": "softplus", "identity": "identity",
    "relu6": "relu6", "sigmoid": "plain_sigmoid",
}  # fmt: skip
SOFTMAX = {"activation": "softmax", "alpha": 0.0, "gamma": "none"}
SHOWN = 64  # test images on which the memories are inspected
SCORED = 256  # batch size for testing
_AS_IT_IS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Plan:
    """Size of the experiment at a scale.

    Attributes:
        size: Size of the presets: digits, s32, s16, b32, b16 or l16.
        course: Course of training of each model.
        model: Fields of the configuration that differ from the preset.
        alphas: Exponents of the grid; the claims are about 0, 0.5 and 1.
        growth: Further changes that give models of growing size, the smallest first.
    """

    size: str
    course: Course
    model: dict[str, Any] = field(default_factory=dict)
    alphas: tuple[float, ...] = (0.0, 0.5, 1.0)
    growth: tuple[dict[str, Any], ...] = ()


def _shape(width: int, layers: int) -> dict[str, Any]:
    return {"d_model": width, "heads": width // 16, "layers": layers, "ffn": {"slots": 2 * width}}


# Every pixel is a token, so that L is large enough to matter.
LAPTOP = Plan(
    "digits", Course(steps=400, batch=32, lr=3e-3), {"patch_size": 1, **_shape(32, 2)}, (0.0, 0.5, 1.0, 1.5),
    (_shape(16, 1), _shape(32, 2), _shape(64, 3)),
)  # fmt: skip
PLANS = {
    "smoke": Plan("digits", Course(steps=4, batch=32), growth=(_shape(16, 1), _shape(32, 1), _shape(32, 2))),
    "laptop": LAPTOP,
    "gpu": LAPTOP,  # digits need no more; use a GPU for images of your own
}
# Photographs, in colour.
PHOTOS = {
    "smoke": Plan("s32", Course(steps=4, batch=8), {"image_size": 16, "patch_size": 8, **_shape(32, 1)}),
    "laptop": Plan(
        "s32", Course(steps=400, batch=32, lr=3e-3), {"image_size": 32, "patch_size": 4, **_shape(64, 2)},
        growth=(_shape(32, 1), _shape(64, 2), _shape(96, 3)),
    ),
    "gpu": Plan(
        "s32", Course(steps=20_000, batch=1024, lr=1e-3),
        growth=({}, {"patch_size": 16}, {"patch_size": 16, "d_model": 768, "heads": 12, "ffn": {"slots": 3072}}),
    ),
}  # fmt: skip


def vision(
    data: str = DIGITS, test: str = "", *, name: str = "vision", plans: Mapping[str, Plan] | Plan | None = None
) -> Experiment:
    """Return the experiment on images, given as ``open_images`` takes them, with a plan for every scale."""
    plans = plans or (PLANS if data == DIGITS else PHOTOS)
    by_scale = plans if isinstance(plans, Mapping) else dict.fromkeys(SCALES, plans)

    source = {"data": data, "test": test} | contents(data, test)

    def arms(scale: Scale) -> list[Arm]:
        return _arms(by_scale[scale.name], source)

    return Experiment(
        name=name,
        title="Attention in vision transformers" + ("" if data == DIGITS else f": {data}"),
        question="Divided by L^alpha, which activation and which alpha classify images as well as softmax?",
        arms=arms,
        run=run,
        columns=(
            Column("accuracy, %", "accuracy", 2, "higher"),
            Column("loss", "loss", 3, "lower"),
            Column("training loss", "train_loss", 3, "lower"),
            Column("parameters, k", "parameters", 1),
            Column("mass", "mass", 2),
            Column("zeros", "zeros", 2),
        ),
        claims=tuple(_claims(max(len(plan.growth) for plan in by_scale.values()))),
        plots=(
            Plot("Accuracy and alpha", "accuracy_by_alpha", "alpha", "accuracy, %"),
            Plot("Loss and alpha", "loss_by_alpha", "alpha", "test loss"),
            Plot("Accuracy and compute", "accuracy_by_compute", "training, GFLOP", "accuracy, %", log_x=True),
            Plot("Loss and compute", "loss_by_compute", "training, GFLOP", "test loss", log_x=True),
        ),
    )


def _arms(plan: Plan, data: dict[str, str]) -> list[Arm]:
    """Return softmax, the grid, other variants of ReLU, and both activations in models of growing size."""
    common = data | {"size": plan.size, "course": vars(plan.course)}

    def arm(name: str, attention: dict[str, Any], by: str = "", growth: Mapping[str, Any] = _AS_IT_IS, **x: Any) -> Arm:
        return Arm(name, common | {"model": {**plan.model, **growth, "encoder_self": attention}, "by": by}, **x)

    softmax = [
        arm("softmax", SOFTMAX),
        arm("softmax, query-key norm", SOFTMAX | {"query_key_norm": True}),
        arm("softmax, gate", SOFTMAX | {"norm": "gated"}),
    ]
    grid = [
        arm(f"{name}, alpha {alpha:g}", published(h, alpha), "alpha", x=alpha, series=name)
        for name, h in ACTIVATIONS.items()
        for alpha in plan.alphas
    ]
    tried = [
        arm("relu, alpha 1, query-key norm", published("relu", 1.0, query_key_norm=True)),
        arm("relu, alpha 1, gate", published("relu", 1.0, norm="gated")),
        # Images of one size have a single L, whose power a learned gamma absorbs: alpha does not matter then.
        arm("relu, gamma learned", {"activation": "relu", "alpha": 1.0, "gamma": "learned"}),
    ]
    grown = [
        arm(
            f"{name}, size {number}", attention, "compute", growth, series=name,
            x=round(training_gflop(_config(plan.size, plan.model | growth), plan.course), 2),
        )
        for number, growth in enumerate(plan.growth, 1)
        for name, attention in (("softmax", SOFTMAX), ("relu", published("relu", 1.0)))
    ]  # fmt: skip
    return [*softmax, *grid, *tried, *grown]


def published(activation: str, alpha: float, **more: Any) -> dict[str, Any]:
    """Return the paper's attention: divided by ``L^alpha``, see :func:`set_published_scale`, and by nothing learned."""
    return {"activation": activation, "alpha": alpha, "gamma": "fixed", **more}


def set_published_scale(model: torch.nn.Module) -> None:
    """Set gamma to ``2^alpha`` wherever it is fixed: a memory divides by ``gamma (L / 2)^alpha``, hence ``L^alpha``."""
    for memory in model.modules():
        if isinstance(memory, Attention) and memory.settings.gamma == "fixed":
            memory.gamma.start_at(2.0**memory.settings.alpha)


def training_gflop(config: ReLUFormerImageConfig, course: Course) -> float:
    """Return the GFLOP of training: 6 per weight and token, 12 per pair of tokens and unit of width."""
    slots = config.memory("ffn").slots
    weights = config.layers * (4 * config.d_model**2 + 2 * config.d_model * slots)
    pairs = config.layers * config.d_model * config.tokens
    return config.tokens * course.steps * course.batch * (6 * weights + 12 * pairs) / 1e9


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train a classifier and score it; the bench's corpus is not used."""
    from reluformer.study.scoring import memory_numbers

    settings = arm.settings
    torch.manual_seed(seed)
    config = _config(settings["size"], settings["model"])
    if "content" in settings and contents(settings["data"], settings["test"])["content"] != settings["content"]:
        raise DataError(f"{settings['data']} has not the images that the cell was made of: they have changed")
    images = open_images(settings["data"], settings["test"], config)
    config.id2label = dict(enumerate(images.classes))
    config.label2id = {name: i for i, name in config.id2label.items()}
    model = ReLUFormerForImageClassification(config)
    set_published_scale(model)
    course = Course(**settings["course"])
    curve = train_classifier(model, images, course, seed)
    result: dict[str, Any] = score_classifier(model, images.test, SCORED)
    if settings["by"]:
        result |= {f"{name}_by_{settings['by']}": result[name] for name in ("accuracy", "loss")}
    shown = torch.stack([images.test[i][0] for i in range(min(SHOWN, len(images.test)))])  # type: ignore[arg-type]
    result |= memory_numbers(memory_report(model, {"pixel_values": shown.to(model.device)}))
    result |= {
        "curve": curve,
        "steps": course.steps,
        "train_loss": curve[-1]["train_loss"],
        "train_seconds": curve[-1]["seconds"],
        "parameters": sum(p.numel() for p in model.parameters()) / 1000,
    }
    guess = math.log(len(images.classes))
    if result["loss"] > guess and curve[-1]["train_loss"] >= curve[0]["train_loss"] and course.steps > course.points:
        raise Diverged(f"the loss ends at {result['loss']:.2f}, above the {guess:.2f} of guessing", result)
    return result


def _config(size: str, model: Mapping[str, Any]) -> ReLUFormerImageConfig:
    return ReLUFormerImageConfig.preset(f"transformer-{size}", **model)


def _claims(sizes: int) -> list[Claim]:
    near_one = [
        Claim(f"{name}: alpha 1 beats alpha 0", "loss", f"{name}, alpha 1", f"{name}, alpha 0", "<", paper="near 1")
        for name in ACTIVATIONS
    ]
    no_best = [
        Claim(f"{name} is as good as relu", "accuracy", f"{name}, alpha 1", "relu, alpha 1", "=", 1.0, "no clear best")
        for name in list(ACTIVATIONS)[1:]
    ]
    return [
        Claim("ReLU matches softmax", "accuracy", "relu, alpha 1", "softmax", "=", 1.0, "matches"),
        *(
            Claim(
                f"ReLU matches softmax at size {number}", "accuracy", f"relu, size {number}", f"softmax, size {number}",
                "=", 1.0, "matches, at all sizes",
            )
            for number in range(1, sizes + 1)
        ),
        Claim("relu: alpha 1 beats alpha 1/2", "loss", "relu, alpha 1", "relu, alpha 0.5", "<", paper="near 1"),
        *near_one,
        *no_best,
        Claim(
            "ReLU does not need query-key norm", "accuracy", "relu, alpha 1, query-key norm", "relu, alpha 1", "=", 1.0,
            "no large effect",
        ),
        Claim("a gate adds nothing", "accuracy", "relu, alpha 1, gate", "relu, alpha 1", "=", 1.0, "no improvement"),
    ]  # fmt: skip


EXPERIMENT = vision()
