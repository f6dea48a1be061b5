"""A task that is nothing but finding keys: word-by-word translation of random words with a fixed dictionary.

The i-th word of the target is the translation of the i-th word of the source. No word predicts the next, so attention
has to find the i-th key among all, by its position. Models learn this on short sequences, then on long ones.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from reluformer.memory import calibrate
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.loss import IGNORED
from reluformer.training.optimising import ParameterKinds
from reluformer.training.recipe import Optimiser

WORDS, SPECIAL = 56, 4  # tokens of the vocabulary: words, and special tokens
SHIFT = 17  # from the number of a word to that of its translation
SHAPE = {"d_model": 64, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn": {"slots": 128}, "dropout": 0.0}


@dataclass(frozen=True)
class Course:
    """Course of training: updates on sequences up to the short length, then up to the long one.

    Attributes:
        short: Longest sequence of the first part, in words.
        long: Longest sequence of the second part, in words.
        steps: Updates of the first and of the second part.
        tokens: Tokens of a batch, padding included.
        lr: Peak learning rate; it warms up over 50 updates and decays linearly to 0.
    """

    short: int
    long: int
    steps: tuple[int, int]
    tokens: int = 2048
    lr: float = 4e-3


def batch_of(longest: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return ``size`` sequences of between half of ``longest`` and ``longest`` words, padded."""
    lengths = torch.randint((longest + 1) // 2, longest + 1, (size, 1), generator=generator)
    seen = torch.arange(longest) < lengths
    words = torch.randint(WORDS, (size, longest), generator=generator)
    return {
        "input_ids": (SPECIAL + words).masked_fill(~seen, 0),
        "attention_mask": seen.long(),
        "labels": (SPECIAL + (words + SHIFT) % WORDS).masked_fill(~seen, IGNORED),
    }


def make_model(memory: dict[str, Any], longest: int, seed: int) -> Any:
    """Return a small model with the same memory at all attention sites."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = SHAPE | {site: memory for site in ("encoder_self", "decoder_self", "cross")}
    config = ReLUFormerConfig(vocab_size=SPECIAL + WORDS, calibration_length=longest, **fields)
    return ReLUFormerForConditionalGeneration(config)


def train_model(model: Any, course: Course, seed: int, device: torch.device) -> tuple[list[float], dict[int, float]]:
    """Train a model and return the loss of every update, and the NLL by length between the two parts."""
    generator = torch.Generator().manual_seed(seed)
    groups = ParameterKinds.of(model).groups(model, Optimiser(lr=course.lr))  # scales learn faster, as in all training
    optimiser = torch.optim.AdamW(groups, lr=course.lr, betas=(0.9, 0.98))
    total, losses = sum(course.steps), []
    between: dict[int, float] = {}
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: min(1.0, (t + 1) / 50) * (1 - t / total))
    model.to(device).train()
    for step in range(total):
        if step == course.steps[0]:
            between = nll_by_length(model, course, device)
            model.train()
        longest = course.short if step < course.steps[0] else course.long
        batch = batch_of(longest, course.tokens // longest, generator)
        batch = {name: x.to(device) for name, x in batch.items()}
        if step == 0:
            calibrate(model, **batch)
        loss = model(**batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist(), between


@torch.no_grad()
def nll_by_length(model: Any, course: Course, device: torch.device) -> dict[int, float]:
    """Return the NLL per word on fixed sequences whose longest length doubles from half ``short`` to twice ``long``."""
    model.eval()
    found, longest = {}, course.short // 2
    while longest <= 2 * course.long:
        generator = torch.Generator().manual_seed(7)
        batch = batch_of(longest, max(8, 4 * course.tokens // longest), generator)
        batch = {name: x.to(device) for name, x in batch.items()}
        logits = model(**batch).logits
        found[longest] = float(cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED))
        longest *= 2
    return found
