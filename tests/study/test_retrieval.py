import torch

from reluformer.models.loss import IGNORED
from reluformer.study.experiments._memories import POWER
from reluformer.study.retrieval import SPECIAL, WORDS, Course, batch_of, make_model, nll_by_length, train_model

CPU = torch.device("cpu")


def test_the_target_is_the_source_word_by_word() -> None:
    batch = batch_of(9, 50, torch.Generator().manual_seed(0))
    source, target, seen = batch["input_ids"], batch["labels"], batch["attention_mask"].bool()
    assert (target[~seen] == IGNORED).all()
    assert (source[~seen] == 0).all()
    table = dict(zip(source[seen].tolist(), target[seen].tolist(), strict=True))
    assert [table[x] for x in source[seen].tolist()] == target[seen].tolist()  # one translation for every word
    assert sorted(table) == sorted(table.values()) == list(range(SPECIAL, SPECIAL + WORDS))
    lengths = seen.sum(1)
    assert (lengths.min(), lengths.max()) == (5, 9)


def test_a_model_learns_it() -> None:
    course = Course(short=2, long=4, steps=(200, 60), tokens=256)
    model = make_model(POWER, course.short, seed=0)
    losses, between = train_model(model, course, 0, CPU)
    after = nll_by_length(model, course, CPU)
    assert len(losses) == 260
    assert between[2] < 1.0 < 3.0 < losses[0]
    assert list(after) == [1, 2, 4, 8]
    assert after[4] < between[4]


def test_a_seed_says_it_all() -> None:
    course = Course(short=4, long=8, steps=(3, 2), tokens=64)
    first, second, other = (train_model(make_model(POWER, course.short, seed), course, seed, CPU) for seed in (1, 1, 2))
    assert first == second
    assert first != other
