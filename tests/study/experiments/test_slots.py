from reluformer.models import ReLUFormerConfig
from reluformer.study.experiments import centralisation, slots
from reluformer.study.scales import SCALES


def test_three_seeds_where_it_counts_and_one_elsewhere() -> None:
    arms = [arm for arm in slots.arms(SCALES["gpu"]) if slots.CUT_SHORT not in arm.name]
    assert {arm.x for arm in arms} == {32, 128, 512, 1024, 2048, 3072, 4096, 16384, None}
    assert len(arms) == 8 * 3 * 2 + 2 + 5
    assert [arm.name for arm in arms[-7:-5]] == ["ReLU + LN, key-value, 4096", "power 8, key-value, 4096"]
    seeds = SCALES["gpu"].seeds
    cells = {arm.name: seeds if arm.seeds is None else min(seeds, arm.seeds) for arm in arms}
    assert cells["ReLU, FFN, 4096"] == cells["softmax + LN, key-value, 512"] == cells["softmax, FFN, 2048"] == 3
    assert sum(cells.values()) == 2 * 3 * (3 * 3 + 5) + (2 + 5) * 3 == 105


def test_models_of_half_the_size_see_all_updates_and_those_of_full_size_a_third() -> None:
    for arm in slots.arms(SCALES["gpu"]):
        cut_short = slots.CUT_SHORT in arm.name
        assert ("d_model" in arm.settings["model"]) != cut_short
        assert arm.settings["recipe"] == ({"steps": 1 / 3} if cut_short else {"graphs": True})
        assert (arm.x is None) == (cut_short or slots.APART in arm.name)  # no point of a curve


def test_below_the_large_scale_models_have_their_own_size() -> None:
    for arm in slots.arms(SCALES["laptop"]):
        assert "d_model" not in arm.settings["model"]
        assert "recipe" not in arm.settings


def test_slots_apart_differ_in_nothing_but_their_activation() -> None:
    models = {arm.name: arm.settings["model"] for arm in slots.arms(SCALES["laptop"]) if slots.APART in arm.name}
    assert len(models) == 5
    for norm in ("", " + LN"):
        relu, softmax = (models[f"{name}{norm}, {slots.APART}, 4096"] for name in ("ReLU", "softmax"))
        assert relu["encoder_self"]["activation"] == "softmax"
        assert relu["encoder_self"] | {"slot_activation": "softmax"} == softmax["encoder_self"]
    configs = {name: ReLUFormerConfig.preset("transformer-tiny", **model) for name, model in models.items()}
    without = configs[f"{slots.BESIDE}, {slots.APART}, 4096"]
    sites = [without.memory(site) for site in ("encoder_self", "decoder_self", "cross")]
    assert "softmax" not in {x for memory in sites for x in (memory.activation, memory.slot_activation)}


def test_centralisation_trains_the_temperatures_alone_and_in_models_of_the_same_size() -> None:
    scale = SCALES["gpu"]
    trained = [(arm.settings, arm.seeds) for arm in slots.arms(scale)]
    own = [arm for arm in centralisation.arms(scale) if (arm.settings, arm.seeds) not in trained]
    assert [arm.settings["model"]["ffn"]["temperature"] for arm in own] == list(scale.temperatures)
    assert all(arm.settings["model"].items() > slots.HALF.items() for arm in own)
