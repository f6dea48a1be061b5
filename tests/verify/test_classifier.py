"""The small classifier: saved and loaded, certified, trained."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

from reluformer.ops.intervals import Interval
from reluformer.verify.certify import certify
from reluformer.verify.classifier import RowClassifier, RowClassifierConfig, worst_case_loss
from reluformer.verify.images import Images, read_images, split
from reluformer.verify.kinds import KINDS
from reluformer.verify.training import train_classifier

kinds = pytest.mark.parametrize("kind", KINDS)


def classifier(kind: str, **changes: object) -> RowClassifier:
    return RowClassifier(RowClassifierConfig(attention=KINDS[kind], ffn=KINDS[kind], layers=2, **changes)).eval()


def some_images(count: int = 40) -> Images:
    return Images(torch.rand(count, 8, 8), torch.arange(count) % 10)


@kinds
def test_bounds_hold_all_logits_in_the_ball(kind: str) -> None:
    model, images = classifier(kind).double(), some_images(10)
    for radius in (0.01, 0.2):
        ball = Interval.around(images.pixels, radius, 0.0, 1.0)
        with torch.no_grad():
            logits, lead = model.bounds(ball), model.lead_bounds(ball, images.labels)
            for _ in range(100):
                part = torch.rand(ball.shape, dtype=torch.float64)
                found = model(pixel_values=ball.lower + part.round() * ball.width).logits
                assert logits.contains(found).all()
                own = found.gather(1, images.labels[:, None])
                assert lead.contains(found - own).all()
        # The lead knows that both logits belong to one image.
        difference = logits.upper - logits.lower.gather(1, images.labels[:, None])
        others = torch.nn.functional.one_hot(images.labels, 10) == 0
        assert (lead.upper <= difference + 1e-9)[others].all()


@kinds
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model, images = classifier(kind), some_images(5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(loaded, RowClassifier)
    for site in ("attention", "ffn"):
        assert loaded.config.memory(site) == model.config.memory(site)
    with torch.no_grad():
        assert torch.equal(loaded(pixel_values=images.pixels).logits, model(pixel_values=images.pixels).logits)


def test_nothing_is_certain_that_is_not_a_number() -> None:
    model, images = classifier("softmax"), some_images(3)
    with torch.no_grad():
        model.embedding.bias.fill_(float("nan"))
    assert not model.certain(Interval.around(images.pixels, 0.0), images.labels).any()


@kinds
def test_worst_case_loss_is_above_every_loss_in_the_ball(kind: str) -> None:
    model, images = classifier(kind).double(), some_images(10)
    ball = Interval.around(images.pixels, 0.05, 0.0, 1.0)
    worst = worst_case_loss(model, ball, images.labels)
    for _ in range(20):
        pixels = ball.lower + torch.rand(ball.shape, dtype=torch.float64).round() * ball.width
        assert model(pixel_values=pixels, labels=images.labels).loss <= worst
    worst.backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in model.parameters())


def test_certificates_agree_with_the_attack() -> None:
    images = split(read_images("digits"))[0]
    images = Images(*(x[:200] for x in images))
    model = train_classifier(images, "relu", radius=0.01, epochs=12)
    narrow, wide = (certify(model, images, radius) for radius in (0.001, 0.05))
    assert narrow.right > 0.5
    assert 0 < narrow.certified <= narrow.attacked <= narrow.right
    assert wide.certified <= narrow.certified
    assert wide.certified <= wide.attacked
    for certificate in (narrow, wide):
        assert certificate.seen <= certificate.width
        assert certificate.seconds > 0
    point = certify(model, images, 0.0)
    assert point.certified == point.right == point.attacked


def test_training_depends_on_its_seed_alone() -> None:
    images = some_images()
    state = torch.get_rng_state()
    first, again, other = (train_classifier(images, "softmax", epochs=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rows": 0}, "rows must be an int >= 1, got 0"),
        ({"attention": {"activation": "gelu"}}, "bounds need activation to be one of"),
        ({"ffn": {"norm": "layer"}}, "bounds need norm to be none or mass"),
        ({"attention": {"fast": True}}, "attention.fast is no memory setting"),
        ({"attention": {"sentence_bias": 1.0}}, "bounds need sentence_bias = None, got 1.0"),
        ({"attention": {"slots": 2, "slot_activation": "relu"}}, "bounds need slot_activation = None, got relu"),
    ],
)
def test_wrong_configuration_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(Exception, match=words):
        RowClassifierConfig(**fields)
