import dataclasses

from reluformer.models import ReLUFormerConfig
from reluformer.study.bench import Bench
from reluformer.study.experiments.documents import EXPERIMENT, LOSS, PARTED, models_of, twin_of
from reluformer.study.scales import SCALES
from reluformer.training.recipe import Stage

ARMS = {arm.name: arm for arm in EXPERIMENT.arms(SCALES["gpu"])}


def test_a_length_has_all_numbers_and_a_comparison_with_the_twin(bench: Bench) -> None:
    arms = {arm.series: arm for arm in EXPERIMENT.arms(bench.scale)}
    result, twin = (EXPERIMENT.run(arms[name], 0, bench) for name in ("ReLUFormer", "Transformer"))
    assert {column.key for column in EXPERIMENT.columns} <= result.keys()
    assert result["d_bleu_lead"] == result["d_bleu"] - twin["d_bleu"]
    assert 0 <= result["d_bleu_p"] <= 1
    assert "d_bleu_p" not in twin
    for found in (result, twin):
        positions, tokens = found["by_position"], found["tokens_by_position"]
        mean = sum(positions[end] * count for end, count in tokens.items()) / sum(tokens.values())
        assert abs(mean - found["nll"]) < 1e-6


def test_what_has_a_sentence_bias_is_compared_with_what_has_one_too() -> None:
    models = models_of(SCALES["gpu"])
    for name in ("ReLUFormer", "power 8"):
        for text in ("", PARTED):
            own, twin = (
                ReLUFormerConfig.preset(f"{model.pop('family', 'transformer')}-small", **model)
                for model in ({**models[f"{name}{text}"]}, {**models[twin_of(f"{name}{text}")]})
            )
            for site in ("encoder_self", "decoder_self", "cross"):
                first, second = own.memory(site), twin.memory(site)
                assert first.activation != second.activation == "softmax"
                assert first.sentence_bias == second.sentence_bias == (LOSS if text else None)
                assert first.query_key_norm == second.query_key_norm
    assert {arm.x for arm in ARMS.values() if PARTED in arm.name} == {512, 1024}


def test_twins_see_the_same_batches(bench: Bench) -> None:
    scale = dataclasses.replace(bench.scale, rates={"reluformer": 2e-3})
    own = Bench(scale, bench.corpus, bench.work)
    first, second = (
        own.recipe(arm.settings["model"], 1, 60, **arm.settings.get("recipe", {}))
        for arm in EXPERIMENT.arms(scale)
        if arm.series in ("ReLUFormer", "Transformer")
    )
    same = dataclasses.replace(first, model=second.model, optimiser=dataclasses.replace(first.optimiser, lr=scale.lr))
    assert same == second
    assert (first.optimiser.lr, second.optimiser.lr) == (2e-3, scale.lr)


def test_each_family_has_its_own_learning_rate() -> None:
    scale = dataclasses.replace(SCALES["gpu"], rates={"transformer": 7e-4, "reluformer": 2e-3})
    arms = {arm.name: arm.settings for arm in EXPERIMENT.arms(scale)}
    softmax, relu = ({"optimiser": {"lr": rate}} for rate in (7e-4, 2e-3))
    assert (arms["ReLUFormer, 512"]["recipe"], arms["ReLUFormer, 512"]["twin"]) == (relu, softmax)
    assert (arms["sparsemax, 512"]["recipe"], arms["sparsemax, 512"]["twin"]) == (softmax, softmax)
    assert arms["Transformer, 512"] == {"model": {"positions": "rotary"}, "length": 512, "recipe": softmax}


def test_a_common_learning_rate_leaves_no_trace_in_cells() -> None:
    prepared = [arm for arm in ARMS.values() if not arm.name.endswith("no sentences")]
    assert all(arm.settings.keys() == {"model", "length"} for arm in prepared)
    usual = dataclasses.replace(SCALES["gpu"], rates={"transformer": SCALES["gpu"].lr})
    assert EXPERIMENT.arms(usual) == list(ARMS.values())
    assert usual.key() == SCALES["gpu"].key()


def test_without_sentences_a_run_has_documents_from_its_first_update_on_and_so_has_its_twin(bench: Bench) -> None:
    arm, usual = ARMS["power 8, 1024, no sentences"], ARMS["power 8, 1024"]
    assert arm.settings["model"] == usual.settings["model"]
    for name in ("recipe", "twin"):
        (stage,) = bench.recipe(arm.settings["model"], 0, 1024, **arm.settings[name]).stages
        assert stage == Stage(1024, bench.steps())
    assert len(bench.recipe(usual.settings["model"], 0, 1024).stages) == 2
    assert {a.split(", ")[-2] for a in ARMS if a.endswith("no sentences")} == {"1024"}
    assert not any(a.name.endswith("no sentences") for a in EXPERIMENT.arms(SCALES["laptop"]))
