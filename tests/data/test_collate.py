import torch

from reluformer.data.collate import Collator
from reluformer.data.shapes import Shapes
from reluformer.models.loss import IGNORED

EXAMPLES = [{"input_ids": [7, 8, 2], "labels": [9, 2]}, {"input_ids": [6, 2], "labels": [5, 6, 7, 8, 2]}]


def test_padding_and_shift():
    batch = Collator()(EXAMPLES)
    assert batch["input_ids"].tolist() == [[7, 8, 2], [6, 2, 0]]
    assert batch["attention_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert batch["labels"].tolist() == [[9, 2, IGNORED, IGNORED, IGNORED], [5, 6, 7, 8, 2]]
    assert batch["decoder_input_ids"].tolist() == [[1, 9, 2, 0, 0], [1, 5, 6, 7, 8]]


def test_multiples():
    batch = Collator(8)(EXAMPLES)
    assert {x.shape for x in batch.values()} == {(2, 8)}
    assert torch.equal(batch["labels"][:, :5], Collator()(EXAMPLES)["labels"])
    assert Collator(8)([{"input_ids": [2] * 8, "labels": [2] * 9}])["input_ids"].shape == (1, 8)


def test_the_shift_is_that_of_the_model():
    from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", vocab_size=16))
    batch = Collator(4)(EXAMPLES)
    assert torch.equal(batch["decoder_input_ids"], model.prepare_decoder_input_ids_from_labels(batch["labels"]))


def test_shapes_are_filled_with_sources_that_have_no_target():
    shapes = Shapes(40, 10**6)
    batch = Collator(8, shapes)(EXAMPLES)
    assert {x.shape for x in batch.values()} == {(shapes.rows(8), 8)} == {(4, 8)}
    plain = Collator(8)(EXAMPLES)
    for name in batch:
        assert torch.equal(batch[name][:2], plain[name])
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(batch[name][2:], plain[name])
    assert (batch["labels"][2:] == IGNORED).all()
    assert batch["decoder_input_ids"][2:].tolist() == [[1] + [0] * 7] * 2


def test_source_and_target_of_a_shape_have_one_length():
    batch = Collator(8, Shapes(40, 10**6))([{"input_ids": [2] * 3, "labels": [2] * 9}])
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 16)
