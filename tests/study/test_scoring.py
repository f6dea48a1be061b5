import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from reluformer.data.batching import CostBatches
from reluformer.data.dataset import PackedDataset
from reluformer.report import memory_report
from reluformer.study import scoring
from reluformer.study.bench import Bench
from reluformer.study.scoring import TRANSLATIONS, compare_translations, most_cost, report_on, validation_batch
from reluformer.translation.loading import load_model


def test_two_models_are_compared_by_sacrebleus_paired_bootstrap(bench: Bench, tmp_path: Path) -> None:
    """On files that the models kept, rewritten as parts of the references: models this small are equally bad."""
    scale = dataclasses.replace(bench.scale, documents=3, sentences=4, resamples=40)
    bench = Bench(scale, bench.corpus, tmp_path)
    first, second = (bench.train({}, seed, 60).folder for seed in (0, 1))
    systems: list[list[dict[str, list[str]]]] = []
    for number, folder in enumerate((first, second)):
        path = folder.parent / TRANSLATIONS
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for i, record in enumerate(records):
            cut = [max(1, (1 + number) * len(line.split()) // 3 + i) for line in record["reference"]]
            record["de"] = [" ".join(x.split()[:n]) for x, n in zip(record["reference"], cut, strict=True)]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        systems.append(records)
    found = compare_translations(first, second, bench.corpus, bench.scale)
    for key, segments in (("bleu", list), ("d_bleu", lambda lines: [" ".join(lines)])):
        ours = [(str(i), [x for r in records for x in segments(r["de"])]) for i, records in enumerate(systems)]
        references = [x for r in systems[0] for x in segments(r["reference"])]
        _, results = PairedTest(ours, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=40)()
        before, after = results["BLEU"]
        assert found[f"{key}_lead"] == pytest.approx(after.score - before.score)
        assert found[f"{key}_lead"] > 0
        assert found[f"{key}_p"] == after.p_value
    back = compare_translations(second, first, bench.corpus, bench.scale)
    assert back["d_bleu_lead"] == pytest.approx(-found["d_bleu_lead"])


def test_self_attention_is_also_measured_by_itself(bench: Bench) -> None:
    """Slots stand beside its keys, not beside those of cross-attention."""
    memory = {"slots": 64}
    trained = bench.train({"ffn": {"slots": 0}, "encoder_self": memory, "decoder_self": memory}, 0)
    report = report_on(load_model(trained.folder, precision="fp32")[0], bench.corpus, bench.scale, 0)
    heads = [head for site in report.sites if "cross" not in site.name for head in site.heads]
    rows = sum(head.live for head in heads)
    assert trained.result["self_top"] == pytest.approx(sum(x.live * x.top_0_2_percent for x in heads) / rows, rel=1e-4)
    assert trained.result["self_entropy"] > trained.result["entropy"]
    assert "ffn_top" not in trained.result


@pytest.mark.parametrize(("room", "usual", "windows"), [(3276, 1, 16), (409, 26, 106)])
def test_a_gpu_translates_many_long_windows_at_a_time(room: int, usual: int, windows: int) -> None:
    gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    translator: Any = SimpleNamespace(model=gpu, cost=65536, beam=5, room=room)
    for cost, most in ((translator.cost, usual), (most_cost(translator), windows)):
        assert max(map(len, CostBatches([room] * 500, cost // translator.beam, shuffle=False))) == most
    translator.room = 0  # sentences
    assert most_cost(translator) == translator.cost


def test_memories_are_looked_into_without_the_head(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of 64 documents of 2048 tokens would take more room than training."""
    model, _ = load_model(bench.train({}, 0, 60).folder, precision="fp32")
    batch = validation_batch(bench.corpus, 60, 3, model.device)
    expected = memory_report(model, batch)
    monkeypatch.setattr(model.lm_head, "forward", None)
    found = report_on(model, bench.corpus, bench.scale, 60)
    assert [x.site for x in found.sites] == [x.site for x in expected.sites]
    for site, other in zip(found.sites, expected.sites, strict=True):
        assert [x.entropy for x in site.heads] == pytest.approx([x.entropy for x in other.heads], rel=1e-6)
        assert [x.rows for x in site.heads] == [x.rows for x in other.heads]


def test_fewer_examples_are_looked_into_where_they_are_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PackedDataset(bench.corpus.folder, "valid", 60)) >= 3
    monkeypatch.setattr(scoring, "MOST_TOKENS", 120)
    device = torch.device("cpu")
    assert len(validation_batch(bench.corpus, 60, 3, device)["labels"]) == 2
    assert len(validation_batch(bench.corpus, 0, 3, device)["labels"]) == 3
