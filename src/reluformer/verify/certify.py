"""What can be certified of a classifier, beside what an attack finds."""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.ops.intervals import WIDE, Interval
from reluformer.verify.classifier import RowClassifier
from reluformer.verify.images import Images
from reluformer.verify.kinds import name_of

BATCH = 120  # images whose bounds are computed together
STEPS = 20  # of the attack
CORNERS = 64  # of a ball, tried at random to see how far logits really go


@dataclass(frozen=True)
class Certificate:
    """One classifier, one radius. Shares are of all images.

    Attributes:
        attention: What memory the attention is.
        ffn: What memory the FFN is.
        radius: Of the balls, L-infinity, within pixels from 0 to 1.
        images: How many.
        right: Share that is classified right.
        certified: Share that is classified right together with every image in the ball around it.
        attacked: Share that an attack by gradients leaves right: no certificate can have more.
        width: Mean width of the logits' bounds.
        seen: Mean width of the logits at random corners of the balls: no bounds can be tighter.
        seconds: That the bounds of all images took.
    """

    attention: str
    ffn: str
    radius: float
    images: int
    right: float
    certified: float
    attacked: float
    width: float
    seen: float
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """As JSON holds it."""
        return dataclasses.asdict(self)


def certify(model: RowClassifier, images: Images, radius: float) -> Certificate:
    """Certify the answers of a model for every image in the balls of this radius around some.

    Everything is computed in float64, with the weights as they are: the bounds speak of the function that these weights
    define in real numbers, which a model in float32 computes with rounding errors.
    """
    model = _copy(model)
    right = certified = attacked = 0
    width = seen = seconds = 0.0
    for pixels, labels in _batches(images):
        ball = Interval.around(pixels, radius, 0.0, 1.0)
        begin = time.perf_counter()
        with torch.no_grad():
            logits, certain = model.bounds(ball), model.certain(ball, labels)
        seconds += time.perf_counter() - begin
        right += _right(model, pixels, labels)
        certified += int(certain.sum())
        attacked += _right(model, _attack(model, pixels, labels, ball), labels)
        width += float(logits.width.sum())
        seen += float(_seen(model, ball).sum())
    count = len(images.labels)
    logits_count = count * model.config.classes
    return Certificate(
        attention=name_of(model.config.memory("attention")),
        ffn=name_of(model.config.memory("ffn")),
        radius=radius,
        images=count,
        right=right / count,
        certified=certified / count,
        attacked=attacked / count,
        width=width / logits_count,
        seen=seen / logits_count,
        seconds=seconds,
    )


def _copy(model: RowClassifier) -> RowClassifier:
    copy = RowClassifier(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.double().eval().requires_grad_(False)


def _batches(images: Images) -> Iterator[Images]:
    for pixels, labels in zip(images.pixels.split(BATCH), images.labels.split(BATCH), strict=True):
        yield Images(pixels.to(WIDE), labels)


@torch.no_grad()
def _right(model: RowClassifier, pixels: Tensor, labels: Tensor) -> int:
    return int((model(pixel_values=pixels).logits.argmax(-1) == labels).sum())


def _attack(model: RowClassifier, pixels: Tensor, labels: Tensor, ball: Interval) -> Tensor:
    """Images in the ball that are as wrong as steps along the gradient's sign make them; the last wrong one is kept."""
    found, x = pixels, pixels
    for step in range(STEPS):
        x = x.detach().requires_grad_()
        out = model(pixel_values=x, labels=labels)
        wrong = (out.logits.argmax(-1) != labels)[:, None, None]
        found = torch.where(wrong, x.detach(), found)
        (slope,) = torch.autograd.grad(out.loss, x)
        stride = ball.width / 4 * (1 - step / STEPS)  # smaller and smaller
        x = torch.minimum(torch.maximum(x.detach() + stride * slope.sign(), ball.lower), ball.upper)
    with torch.no_grad():
        wrong = (model(pixel_values=x).logits.argmax(-1) != labels)[:, None, None]
    return torch.where(wrong, x, found)


@torch.no_grad()
def _seen(model: RowClassifier, ball: Interval) -> Tensor:
    """How far logits go at some corners of the ball, ``(B, classes)``."""
    generator = torch.Generator().manual_seed(0)
    corners = []
    for _ in range(CORNERS):
        up = torch.rand(ball.shape, generator=generator) < 0.5
        corners.append(model(pixel_values=torch.where(up, ball.upper, ball.lower)).logits)
    found = torch.stack(corners)  # (corners, B, classes)
    return found.amax(0) - found.amin(0)
