import torch

from reluformer.report import AttentionMap
from reluformer.study.bench import Bench
from reluformer.study.experiments import maps


def test_numbers_and_picture(bench: Bench) -> None:
    arm = maps.arms(bench.scale)[1]
    result = maps.run(arm, 0, bench)
    for name in ("far", "marks", "stops", "marks_share", "stops_share"):
        assert 0 <= result[name] <= 1
    assert len(result["pairs"]) == maps.PAIRS
    assert (bench.work.parent / result["pictures"][0]).read_bytes().startswith(b"\x89PNG")


def test_far_weight() -> None:
    names = [str(i) for i in range(8)]
    seen = torch.ones(8, 8, dtype=torch.bool)
    near, even = torch.eye(8), torch.ones(8, 8)
    assert maps._far(AttentionMap("s", 0, 0, near, seen, names, names)) == 0
    far = maps._far(AttentionMap("s", 0, 0, 3 * even, seen, names, names))
    assert far == (64 - 8 - 2 * 7) / 64  # all but the diagonal and its neighbours
