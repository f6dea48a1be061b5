"""Training of a small classifier, on images as they are or on the worst case in a ball around them."""

from collections.abc import Iterator

import torch

from reluformer.ops.intervals import Interval
from reluformer.verify.classifier import RowClassifier, RowClassifierConfig, worst_case_loss
from reluformer.verify.images import Images
from reluformer.verify.kinds import KINDS

BATCH = 64
RATE = 2e-3


def train_classifier(
    images: Images, attention: str, *, ffn: str = "relu", radius: float = 0.0, epochs: int = 20, seed: int = 0
) -> RowClassifier:
    """Train a classifier of these images.

    With a radius above 0, half of the loss is that of certified training: the cross entropy of the worst logits that
    the bounds allow in the ball of that radius around each image. The radius grows from 0 during the first half of the
    epochs.

    Args:
        images: Images to train on.
        attention: Kind of memory in the attention, a name in :data:`~reluformer.verify.kinds.KINDS`.
        ffn: Kind of memory in the FFN, likewise.
        radius: L-infinity radius of certified training; 0 for plain training.
        epochs: Number of times that each image is seen.
        seed: Seed of the initial weights and of the order of the images.
    """
    rows, columns = images.pixels.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = RowClassifierConfig(
            rows=rows, columns=columns, classes=int(images.labels.max()) + 1, attention=KINDS[attention], ffn=KINDS[ffn]
        )
        model = RowClassifier(config).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    batches = list(_batches(images, epochs, seed))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=len(batches))
    for step, (pixels, labels) in enumerate(batches):
        loss = model(pixel_values=pixels, labels=labels).loss
        if radius:
            ball = Interval.around(pixels, radius * min(1.0, 2 * step / len(batches)), 0.0, 1.0)
            loss = (loss + worst_case_loss(model, ball, labels)) / 2
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def _batches(images: Images, epochs: int, seed: int) -> Iterator[Images]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(images.labels), generator=generator).split(BATCH):
            yield Images(images.pixels[rows], images.labels[rows])
