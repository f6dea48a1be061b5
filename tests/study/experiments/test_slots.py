from reluformer.study.experiments import centralisation, slots
from reluformer.study.scales import SCALES


def test_three_seeds_where_it_counts_and_one_elsewhere() -> None:
    arms = slots.arms(SCALES["gpu"])
    assert {arm.x for arm in arms} == {32, 128, 512, 1024, 2048, 3072, 4096, 16384}
    assert len(arms) == 8 * 3 * 2 + 1
    assert arms[-1].name == "ReLU + LN, key-value, 4096"
    seeds = SCALES["gpu"].seeds
    cells = {arm.name: seeds if arm.seeds is None else min(seeds, arm.seeds) for arm in arms}
    assert cells["ReLU, FFN, 4096"] == cells["softmax + LN, key-value, 512"] == cells["softmax, FFN, 2048"] == 3
    assert sum(cells.values()) == 2 * 3 * (3 * 3 + 5) + 3


def test_centralisation_trains_the_temperatures_alone_and_no_longer_than_the_others() -> None:
    scale = SCALES["gpu"]
    trained = [(arm.settings, arm.seeds) for arm in slots.arms(scale)]
    own = [arm for arm in centralisation.arms(scale) if (arm.settings, arm.seeds) not in trained]
    assert [arm.settings["model"]["ffn"]["temperature"] for arm in own] == list(scale.temperatures)
    assert all(arm.settings["recipe"] == {"steps": slots.SHARE} for arm in own)
