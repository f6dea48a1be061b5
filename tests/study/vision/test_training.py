from pathlib import Path

import pytest
import torch

from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig
from reluformer.study.experiment import Diverged
from reluformer.study.vision.images import open_images
from reluformer.study.vision.training import Course, score_classifier, train_classifier
from tests.study.vision.pictures import write_folder


def model_of(preset: str, **changes: object) -> ReLUFormerForImageClassification:
    torch.manual_seed(0)
    return ReLUFormerForImageClassification(ReLUFormerImageConfig.preset(preset, **changes))


@pytest.mark.parametrize("family", ["reluformer", "transformer"])
def test_learns_digits(family: str) -> None:
    model = model_of(f"{family}-digits")
    images = open_images("digits", "", model.config)
    curve = train_classifier(model, images, Course(steps=100, lr=3e-3), seed=0)
    assert [point["step"] for point in curve] == list(range(10, 101, 10))
    assert curve[-1]["train_loss"] < curve[0]["train_loss"]
    found = score_classifier(model, images.test, 256)
    assert found["accuracy"] > 90
    assert found["loss"] < 0.35


def test_a_seed_decides_everything() -> None:
    losses = []
    for seed in (0, 0, 1):
        model = model_of("reluformer-digits", dropout=0.1)
        curve = train_classifier(model, open_images("digits", "", model.config), Course(steps=4, batch=16), seed)
        losses.append(curve[-1]["train_loss"])
    assert losses[0] == losses[1] != losses[2]


def test_a_loss_that_is_no_number_ends_it() -> None:
    model = model_of("reluformer-digits")
    with pytest.raises(Diverged, match="the loss is not a number"):
        train_classifier(model, open_images("digits", "", model.config), Course(steps=10, lr=1e30), 0)


def test_learns_from_a_folder(tmp_path: Path) -> None:
    model = model_of("transformer-digits", channels=3, num_labels=2)
    images = open_images(str(write_folder(tmp_path)), "", model.config)
    train_classifier(model, images, Course(steps=12, batch=99, points=2, lr=3e-3), 0)  # there are 14
    assert score_classifier(model, images.test, 4)["accuracy"] == 100
