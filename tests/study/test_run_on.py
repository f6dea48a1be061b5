import itertools

import pytest
import torch

from reluformer.data.dataset import PackedDataset
from reluformer.data.packing import split_sentences
from reluformer.study.bench import Bench
from reluformer.study.positions import target_losses
from reluformer.study.run_on import run_on_examples, score_run_on
from reluformer.study.scoring import test_documents as documents_of  # by its own name pytest would run it
from reluformer.translation.loading import load_model

SIDES = ("input_ids", "labels")


@pytest.mark.parametrize("length", [60, 133, 400])
def test_sentences_run_on_and_fill_every_window(bench: Bench, length: int) -> None:
    sentences = PackedDataset(bench.corpus.folder, "valid", 0)
    short = [i for i in range(len(sentences)) if max(len(sentences[i][side]) for side in SIDES) <= length]
    windows = run_on_examples(sentences, length)
    for side in SIDES:
        told = [sentence for window in windows for sentence in split_sentences(window[side])]
        assert told == [sentences[i][side][:-1] for i in short]
    sizes = [max(len(window[side]) for side in SIDES) for window in windows]
    assert max(sizes) <= length
    if len(short) == len(sentences):
        # Greedy: what follows would not have fitted.
        for window, following in itertools.pairwise(windows):
            assert any(len(window[side]) + len(split_sentences(following[side])[0]) + 1 > length for side in SIDES)


def test_numbers_of_a_model_beyond_its_length(bench: Bench) -> None:
    folder = bench.train({}, 0, 60).folder
    found = score_run_on(folder, bench.corpus, bench.scale, 100, 60)
    model, _ = load_model(folder, precision="fp32")
    losses = target_losses(model, run_on_examples(PackedDataset(bench.corpus.folder, "valid", 0), 100), 100)
    assert found["nll"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    past = [float(x) for row in losses for k, x in enumerate(row) if k >= 60]
    assert found["beyond"] == pytest.approx(sum(past) / len(past), rel=1e-5)
    assert list(found["by_position"]) == ["32", "64", "128"]
    assert found["mass"] == pytest.approx(1, rel=1e-4)
    assert 0 < found["window"] <= 100
    assert found["test_sentences"] == sum(len(x.source) for x in documents_of(bench.corpus, bench.scale))
    assert score_run_on(folder, bench.corpus, bench.scale, 60, 60)["beyond"] is None
