import pytest
import torch

from reluformer.data.batching import CostBatches, StagedBatches


def lengths(count=5000, longest=300):
    return torch.randint(1, longest, (count,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_example_once_and_no_batch_over_budget(shuffle):
    n = lengths()
    batches = CostBatches(n, budget=4096, quadratic=512, shuffle=shuffle)
    found = list(batches)
    assert sorted(i for batch in found for i in batch) == list(range(len(n)))
    assert all(batches.cost(len(b), max(n[i] for i in b)) <= 4096 for b in found)
    assert len(batches) == len(found)


def test_little_is_padding():
    n = lengths()
    padded = sum(len(b) * max(n[i] for i in b) for b in CostBatches(n, budget=8192))
    assert padded < 1.06 * sum(n)


def test_long_batches_hold_fewer_tokens():
    batches = CostBatches([64] * 1000 + [2048] * 100, budget=32768, quadratic=2048)
    tokens = {64: set(), 2048: set()}
    for batch in batches:
        length = batches.lengths[batch].max().item()
        tokens[length].add(len(batch) * length)
    assert max(tokens[2048]) == 16384  # at the length where attention is half of the cost
    assert max(tokens[64]) > 30000


def test_what_is_left_over_is_no_batch_of_its_own():
    for count, sizes in ((101, [51, 50]), (102, [51, 51])):
        batches = CostBatches([10] * count, budget=1005, quadratic=10**6, shuffle=False)
        assert [len(batch) for batch in batches] == sizes
    n = [10] * 100 + [90]  # ten of those that go before fit beside the long one
    assert [len(batch) for batch in CostBatches(n, budget=1005, quadratic=10**6, seed=1)] in ([90, 11], [11, 90])


def test_an_example_over_budget_comes_alone():
    assert sorted(CostBatches([5, 10000, 5], budget=100, shuffle=False), key=len) == [[1], [0, 2]]


def test_seed_and_epoch_decide_the_order():
    n = lengths(500)

    def order(seed, epoch):
        batches = CostBatches(n, budget=2048, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_evaluation_starts_with_the_longest():
    n = lengths(500)
    first = next(iter(CostBatches(n, budget=2048, shuffle=False)))
    assert n[first[0]] == max(n)


def test_nothing_gives_nothing():
    assert list(CostBatches([], budget=10)) == []


@pytest.mark.parametrize(
    ("options", "message"), [({"budget": 0}, "budget"), ({"budget": 1, "quadratic": 0.5}, "quadratic")]
)
def test_errors_name_the_argument(options, message):
    with pytest.raises(ValueError, match=f"{message} must be an int >= 1, got"):
        CostBatches([1], **options)


class TestStages:
    def test_one_after_another_each_as_long_as_asked(self):
        run = StagedBatches([(lengths(50), 30), (lengths(20), 5), (lengths(10), 0)], budget=1000)
        found = list(run)
        assert len(found) == len(run) == 35
        assert all(i < 50 for batch in found[:30] for i in batch)
        assert all(50 <= i < 70 for batch in found[30:] for i in batch)

    def test_a_long_stage_goes_through_its_examples_again_in_another_order(self):
        batches = list(StagedBatches([([10] * 40, 8)], budget=105))
        first, second = batches[:4], batches[4:]
        for epoch in (first, second):
            assert sorted(i for batch in epoch for i in batch) == list(range(40))
        assert first != second

    def test_the_same_again_and_from_anywhere(self):
        def run(start=0):
            return StagedBatches([(lengths(50), 12), (lengths(20), 5)], budget=1000, seed=3, start=start)

        assert list(run()) == list(run())
        for start in (7, 12, 15, 17):
            assert list(run(start)) == list(run())[start:]
            assert len(run(start)) == 17

    def test_a_stage_without_examples_is_refused(self):
        with pytest.raises(ValueError, match="stage 1 must have examples for its 2 batches, got none"):
            StagedBatches([([1], 1), ([], 2)], budget=10)


def test_fixed_shapes():
    n = lengths()
    batches = CostBatches(n, budget=4096, quadratic=512, fixed=True)
    found = list(batches)
    assert sorted(i for batch in found for i in batch) == list(range(len(n)))
    partial = 0
    for batch in found:
        length = batches.shapes.length(max(n[i] for i in batch))
        assert batches.cost(len(batch), length) <= 4096
        partial += len(batch) < batches.shapes.rows(length)
    assert partial <= 3  # the last of each of the pools
    padded = sum(
        batches.shapes.rows(m) * m for batch in found for m in [batches.shapes.length(max(n[i] for i in batch))]
    )
    assert padded < 1.15 * sum(n)
    batches.set_epoch(1)
    assert list(batches) != found


def test_stages_of_fixed_shapes():
    n = lengths(500)
    stages = StagedBatches([(n, 10)], 2048, fixed=True)
    assert list(stages) == list(CostBatches(n, 2048, fixed=True))[:10]
