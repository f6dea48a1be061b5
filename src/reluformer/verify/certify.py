"""Certificates of a classifier, next to what an attack finds."""

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
STEPS = 20  # steps of the attack
CORNERS = 64  # random corners of each ball, at which logits are computed to see how far they really go


@dataclass(frozen=True)
class Certificate:
    """Results of one classifier at one radius; shares are of all images.

    Attributes:
        attention: Name of the kind of memory in the attention.
        ffn: Name of the kind of memory in the FFN.
        radius: L-infinity radius of the balls, which are clipped to pixels from 0 to 1.
        images: Number of images.
        right: Share of images classified right.
        certified: Share of images classified right together with every image in the ball around them.
        attacked: Share of images still classified right after an attack by gradients: ``certified`` cannot be more.
        width: Mean width of the bounds of the logits.
        seen: Mean range of the logits over random corners of the balls: ``width`` cannot be less.
        seconds: Time that the bounds of all images took.
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
        """The certificate as a dict for JSON."""
        return dataclasses.asdict(self)


def certify(model: RowClassifier, images: Images, radius: float) -> Certificate:
    """Certify the answers of a model for every image in the balls of this radius around the given ones.

    Everything is computed in float64, with the weights as they are: the bounds hold for the function that these weights
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
    """Attack each image by steps along the sign of the gradient, within its ball.

    Returns, for each image, the last misclassified one on the way, or the image itself if there was none.
    """
    found, x = pixels, pixels
    for step in range(STEPS):
        x = x.detach().requires_grad_()
        out = model(pixel_values=x, labels=labels)
        wrong = (out.logits.argmax(-1) != labels)[:, None, None]
        found = torch.where(wrong, x.detach(), found)
        (slope,) = torch.autograd.grad(out.loss, x)
        stride = ball.width / 4 * (1 - step / STEPS)  # decreases step by step
        x = torch.minimum(torch.maximum(x.detach() + stride * slope.sign(), ball.lower), ball.upper)
    with torch.no_grad():
        wrong = (model(pixel_values=x).logits.argmax(-1) != labels)[:, None, None]
    return torch.where(wrong, x, found)


@torch.no_grad()
def _seen(model: RowClassifier, ball: Interval) -> Tensor:
    """The range of each logit over random corners of the ball, ``(B, classes)``."""
    generator = torch.Generator().manual_seed(0)
    corners = []
    for _ in range(CORNERS):
        up = torch.rand(ball.shape, generator=generator) < 0.5
        corners.append(model(pixel_values=torch.where(up, ball.upper, ball.lower)).logits)
    found = torch.stack(corners)  # (corners, B, classes)
    return found.amax(0) - found.amin(0)
