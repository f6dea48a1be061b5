import pickle
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from reluformer.data.digits import load_digits
from reluformer.data.files import DataError
from reluformer.models import ReLUFormerImageConfig, image_processor
from reluformer.study.vision.images import HELD_OUT, in_memory, open_images
from tests.study.vision.pictures import CLASSES, pictures, write_folder

DIGITS = ReLUFormerImageConfig.preset("reluformer-digits")
SMALL = ReLUFormerImageConfig.preset("reluformer-digits", channels=3, image_size=8)


def labels_of(images) -> list[int]:
    return [int(label) for _, label in images]


def test_digits_are_as_the_model_s_processor_makes_them() -> None:
    images = open_images("digits", "", DIGITS)
    assert (len(images.train), len(images.test)) == (1258, 539)
    assert images.classes == tuple("0123456789")
    assert in_memory(images.train)
    pixels, _ = images.test[0]
    picture = Image.fromarray(((pixels[0] + 1) / 2 * 255).round().to(torch.uint8).numpy())
    again = image_processor(DIGITS)(picture, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(again, pixels, atol=1.01 / 255, rtol=0)


def test_the_same_of_every_class_are_held_out() -> None:
    first, second = (open_images("digits", "", DIGITS).test for _ in range(2))
    assert first.indices == second.indices
    counts = torch.bincount(torch.tensor(labels_of(first)))
    assert (counts.float() / torch.bincount(load_digits()[1]) - HELD_OUT).abs().max() < 0.01


def test_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "all")
    (folder / "notes.txt").write_text("no class")
    (folder / "dark" / "notes.txt").write_text("no image")
    images = open_images(str(folder), "", SMALL)
    assert images.classes == CLASSES
    assert (len(images.train), len(images.test)) == (14, 6)
    assert not in_memory(images.train)
    assert len(pickle.loads(pickle.dumps(images.train))) == 14  # for processes that are not forked
    for pixels, label in images.train:
        assert pixels.shape == (3, 8, 8)
        assert (pixels.mean() > 0) == (label == 0)
    grey = open_images(str(folder), "", DIGITS)
    assert grey.train[0][0].shape == (1, 8, 8)


def test_a_folder_to_test_on(tmp_path: Path) -> None:
    train, test = write_folder(tmp_path / "train", 4), write_folder(tmp_path / "test", 3, seed=1)
    images = open_images(str(train), str(test), SMALL)
    assert (labels_of(images.train), labels_of(images.test)) == ([0] * 4 + [1] * 4, [0] * 3 + [1] * 3)
    (test / "dark").rename(test / "gloomy")
    with pytest.raises(DataError, match=r"test must have the classes of .*train, bright, dark; it has bright, gloomy"):
        open_images(str(train), str(test), SMALL)


def test_a_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    shown, labels = zip(*pictures(5), strict=True)
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=list(CLASSES))})
    rows = datasets.Dataset.from_dict({"img": list(shown), "kind": list(labels)}, features=features)
    datasets.DatasetDict({"train": rows, "valid": rows.select([0, 9])}).save_to_disk(tmp_path / "set")
    images = open_images(f"hf:{tmp_path}/set", f"hf:{tmp_path}/set?split=valid", SMALL)
    assert images.classes == CLASSES
    assert (labels_of(images.train), labels_of(images.test)) == ([0] * 5 + [1] * 5, [0, 1])
    assert len(open_images(f"hf:{tmp_path}/set", "", SMALL).test) == 4
    rows.remove_columns("kind").save_to_disk(tmp_path / "bare")
    with pytest.raises(DataError, match=r"must have a column of type ClassLabel, it has img \(Image\)"):
        open_images(f"hf:{tmp_path}/bare", "", SMALL)


def test_what_is_no_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"/nowhere is no folder"):
        open_images("/nowhere", "", SMALL)
    with pytest.raises(DataError, match=r"must have a folder of images for each of two classes or more, it has 0"):
        open_images(str(tmp_path), "", SMALL)
    load_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r'digits needs scikit-learn: pip install "reluformer\[vision\]"'):
        open_images("digits", "", DIGITS)
