"""Plain training of a language model, and its loss by the length of the context."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import get_cosine_schedule_with_warmup

from reluformer.memory import Attention, calibrate
from reluformer.models import ReLUFormerForCausalLM
from reluformer.study.experiment import Diverged
from reluformer.training.optimising import ParameterKinds
from reluformer.training.recipe import Optimiser

WARMUP = 0.1  # share of the updates until the learning rate peaks
CLIP = 1.0  # largest norm of the gradient


@dataclass(frozen=True)
class Course:
    """Course of training.

    Attributes:
        steps: Number of updates.
        length: Length of the windows, in tokens.
        batch: Windows per update.
        lr: Peak learning rate.
        weight_decay: Weight decay of matrices; biases, gains and gammas do not decay.
        points: Points of the curve.
    """

    steps: int
    length: int
    batch: int = 16
    lr: float = 3e-3
    weight_decay: float = 0.05
    points: int = 5


def train_language(
    model: ReLUFormerForCausalLM, text: Tensor, valid: Tensor, course: Course, seed: int
) -> list[dict[str, float]]:
    """Train in place on random windows of a text ``(tokens,)``, and return the curve of the validation loss.

    Memories with a learned or a fixed gamma calibrate it on the first batch.

    Raises:
        Diverged: The loss is not a number.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).train()  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(seed)
    calibrate(model, input_ids=_windows(text, course, random).to(device))
    settings = Optimiser(lr=course.lr, weight_decay=course.weight_decay, gamma_lr=1.0)
    optimiser = torch.optim.AdamW(ParameterKinds.of(model).groups(model, settings), lr=course.lr, betas=settings.betas)
    schedule = get_cosine_schedule_with_warmup(optimiser, max(1, round(WARMUP * course.steps)), course.steps)
    seconds, mark, curve = 0.0, time.monotonic(), list[dict[str, float]]()
    for step in range(1, course.steps + 1):
        ids = _windows(text, course, random).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        schedule.step()
        if step % max(1, course.steps // course.points) == 0 or step == course.steps:
            finite = math.isfinite(float(loss.detach()))  # waits for the device
            seconds += time.monotonic() - mark
            if not finite:
                raise Diverged("the loss is not a number", {"curve": curve})
            losses = score_language(model, valid, course.length, course)
            curve.append({"step": step, "nll": float(losses.mean()), "seconds": seconds})
            mark = time.monotonic()
    return curve


@torch.no_grad()
def score_language(model: ReLUFormerForCausalLM, text: Tensor, length: int, course: Course) -> Tensor:
    """Return the mean loss at every position of a window ``(length,)``, in nats, over consecutive windows.

    Every position predicts the token after it, so the first prediction has one token of context. A remainder that
    does not fill a window is dropped.
    """
    training = model.training
    model.eval()  # type: ignore[no-untyped-call]
    count = (len(text) - 1) // length
    if not count:
        raise ValueError(f"a text of {len(text)} tokens has no window of {length}, and the token behind it")
    inputs, targets = (x[: count * length].view(count, length) for x in (text, text[1:]))
    together = max(1, course.batch * course.length // length)
    total = torch.zeros(length)
    bf16 = model.device.type == "cuda"  # as in training
    for first in range(0, count, together):
        ids, following = (x[first : first + together] for x in (inputs, targets))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits
        losses = F.cross_entropy(logits.float().transpose(1, 2), following.to(model.device), reduction="none")
        total += losses.sum(0).cpu()
    model.train(training)
    return total / count


@torch.no_grad()
def mean_gate(model: ReLUFormerForCausalLM, ids: Tensor) -> float | None:
    """Return the mean forget gate over tokens ``(B, N)``, heads and layers; None where there are no gates."""
    gates: list[Tensor] = []
    found = [x.forget for x in model.modules() if isinstance(x, Attention) and x.forget is not None]
    handles = [gate.register_forward_hook(lambda _, __, log_f: gates.append(log_f.exp().mean())) for gate in found]
    try:
        model(input_ids=ids.to(model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return float(torch.stack(gates).mean()) if gates else None


def _windows(text: Tensor, course: Course, random: torch.Generator) -> Tensor:
    """Draw a batch of windows, each with the token after it, ``(batch, length + 1)``."""
    last = len(text) - course.length
    if last < 1:
        raise ValueError(f"a text of {len(text)} tokens has no window of {course.length}, and the token behind it")
    starts = torch.randint(last, (course.batch, 1), generator=random)
    return text[starts + torch.arange(course.length + 1)]
