"""Plain training of an image classifier: AdamW, a warm-up and a cosine schedule."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from reluformer.memory import calibrate
from reluformer.models import ReLUFormerForImageClassification
from reluformer.study.experiment import Diverged
from reluformer.study.vision.images import Images, Pair, in_memory
from reluformer.training.optimising import ParameterKinds
from reluformer.training.recipe import Optimiser

WARMUP = 0.1  # share of the updates until the learning rate peaks
CLIP = 1.0  # largest norm of the gradient
READERS = min(4, os.cpu_count() or 1)  # processes that read and decode pictures


@dataclass(frozen=True)
class Course:
    """Course of training: updates, images per update, peak learning rate, weight decay, points of the curve."""

    steps: int
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.05
    points: int = 10


def train_classifier(
    model: ReLUFormerForImageClassification, images: Images, course: Course, seed: int
) -> list[dict[str, float]]:
    """Train in place and return the curve of the mean training loss.

    Memories that learn their gamma calibrate it first.

    Raises:
        Diverged: The loss is not a number.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).train()  # type: ignore[arg-type]
    batches = _forever(images, course.batch, seed)
    if model.config.memory("encoder_self").gamma in ("learned", "shared"):
        calibrate(model, pixel_values=next(batches)[0].to(device))
    settings = Optimiser(lr=course.lr, weight_decay=course.weight_decay, gamma_lr=1.0)
    optimiser = torch.optim.AdamW(ParameterKinds.of(model).groups(model, settings), lr=course.lr, betas=settings.betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share_of_lr(step, course.steps))
    began, losses, curve = time.monotonic(), list[Tensor](), list[dict[str, float]]()
    for step in range(1, course.steps + 1):
        pixels, labels = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(pixel_values=pixels.to(device), labels=labels.to(device)).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        if step % max(1, course.steps // course.points) == 0 or step == course.steps:
            mean = float(torch.stack(losses).mean())
            if not math.isfinite(mean):
                raise Diverged("the loss is not a number", {"curve": curve})
            curve.append({"step": step, "train_loss": mean, "seconds": time.monotonic() - began})
            losses = []
    return curve


@torch.no_grad()
def score_classifier(model: ReLUFormerForImageClassification, images: Dataset[Pair], batch: int) -> dict[str, float]:
    """Return the mean loss, in nats, and the accuracy, in percent."""
    model.eval()  # type: ignore[no-untyped-call]
    loss = right = count = 0.0
    for pixels, labels in DataLoader(images, batch, num_workers=_readers(images)):
        logits = model(pixel_values=pixels.to(model.device)).logits.float().cpu()
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        right += float((logits.argmax(-1) == labels).sum())
        count += len(labels)
    return {"loss": loss / count, "accuracy": 100 * right / count}


def _forever(images: Images, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    readers, batch = _readers(images.train), min(batch, len(images.train))  # type: ignore[arg-type]
    loader = DataLoader(images.train, batch, shuffle=True, drop_last=True, num_workers=readers, generator=random)
    while True:
        yield from loader


def _readers(images: Dataset[Pair]) -> int:
    return 0 if in_memory(images) else READERS


def _share_of_lr(step: int, steps: int) -> float:
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
