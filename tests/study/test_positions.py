"""Losses by position against loops that know nothing of batches, padding and tensors of positions."""

from collections import defaultdict

import pytest
import torch

from reluformer.data.dataset import PackedDataset
from reluformer.study.bench import Bench
from reluformer.study.positions import FIRST, document_starts, losses_by_position, mean_loss, target_losses
from reluformer.translation.loading import load_model


@pytest.fixture(scope="module")
def examples(bench: Bench) -> PackedDataset:
    return PackedDataset(bench.corpus.folder, "valid", 60)


def test_losses_are_those_of_one_example_at_a_time(bench: Bench, examples: PackedDataset) -> None:
    model, _ = load_model(bench.train({}, 0, 60).folder, precision="fp32")
    model = model.double()
    found = target_losses(model, examples, 200)
    assert len(found) == len(examples) > 3
    for i, losses in enumerate(found):
        source, target = examples[i]["input_ids"], examples[i]["labels"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[1, *target[:-1]]])).logits
        expected = -logits[0].log_softmax(-1)[range(len(target)), target]
        torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert mean_loss(found) == pytest.approx(sum(float(x.sum()) for x in found) / sum(map(len, found)), rel=1e-12)


def test_starts_count_the_tokens_before_in_the_document(examples: PackedDataset) -> None:
    seen: dict[str, int] = defaultdict(int)
    expected = []
    for i in range(len(examples)):
        document, _ = examples.origin(i)
        expected.append(seen[document])
        seen[document] += len(examples[i]["labels"])
    assert document_starts(examples) == expected
    assert any(expected)
    assert expected.count(0) == len(seen)


def test_buckets_by_brute_force() -> None:
    random = torch.Generator().manual_seed(0)
    losses = [torch.rand(n, generator=random, dtype=torch.float64) for n in (1, 32, 33, 100, 257)]
    starts = [0, 0, 31, 5, 300]
    sums: dict[int, list[float]] = defaultdict(list)
    for row, start in zip(losses, starts, strict=True):
        for k, value in enumerate(row.tolist()):
            end = FIRST
            while start + k + 1 > end:
                end *= 2
            sums[end].append(value)
    found = losses_by_position(losses, starts)
    assert found["tokens_by_position"] == {str(end): len(sums[end]) for end in sorted(sums)}
    for end, values in sums.items():
        assert found["by_position"][str(end)] == pytest.approx(sum(values) / len(values), rel=1e-12)


def test_a_bucket_that_nobody_reaches_is_left_out() -> None:
    found = losses_by_position([torch.ones(3), torch.ones(2)], [0, 200])
    assert found["tokens_by_position"] == {"32": 3, "256": 2}
