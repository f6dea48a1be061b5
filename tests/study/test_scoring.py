import dataclasses
import json
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from reluformer.study.bench import Bench
from reluformer.study.scoring import TRANSLATIONS, compare_translations, report_on
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
