import gc

import pytest
import torch

from reluformer.bench import attention, contestants, tables
from reluformer.bench.attention import Row, Setting

CPU = torch.device("cpu")
SMALL = Setting(head_dim=16, causal=True, length=64, batch=2, heads=2, dtype="float32")


def test_operations_are_counted_as_the_field_counts_them() -> None:
    full = Setting(64, False, 4096, 4, 32, "bfloat16")
    assert full.flops("forward") == 4 * 4 * 32 * 4096**2 * 64
    assert full.flops("backward") == 2.5 * full.flops("forward")
    assert Setting(64, True, 4096, 4, 32, "bfloat16").flops("both") == 3.5 * full.flops("forward") / 2
    row = Row(full, "x", False, False, ms={"forward": 2.0})
    assert row.tflops("forward") == pytest.approx(full.flops("forward") / 2e-3 / 1e12)
    assert row.tflops("backward") is None


def test_settings_share_out_the_tokens() -> None:
    found = list(attention.settings([64, 128], [False], [1024, 32768], 16384, 2048, "bfloat16"))
    assert [(s.head_dim, s.heads, s.length, s.batch) for s in found] == [
        (64, 32, 1024, 16),
        (64, 32, 32768, 1),
        (128, 16, 1024, 16),
        (128, 16, 32768, 1),
    ]


def test_ratio_is_to_the_fastest_softmax() -> None:
    rows = attention.measure(SMALL, CPU, seconds=0.001, fewest=1, quick=True)
    softmax = [r for r in rows if r.softmax]
    for kind in attention.PASSES:
        fastest = min(r.ms[kind] for r in softmax)
        for row in rows:
            if kind in row.ms:
                assert row.vs_softmax[kind] == pytest.approx(fastest / row.ms[kind])


def test_a_setting_leaves_no_tensor_to_the_next() -> None:
    shape = (SMALL.batch, SMALL.heads, SMALL.length, SMALL.head_dim)
    gc.collect()
    gc.disable()
    try:
        attention.measure(SMALL, CPU, seconds=0.001, fewest=1, quick=True)
        assert not [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.shape == shape]
    finally:
        gc.enable()


def test_a_failing_rival_loses_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[torch.Tensor, ...]:
        raise torch.OutOfMemoryError("tried to allocate 80 GiB\nand more")

    field = contestants.contestants(CPU)
    extra = [contestants.Contestant("broken", broken), contestants.Contestant("wrong", lambda q, k, v, c: (q + k + v,))]
    monkeypatch.setattr(attention, "contestants", lambda device: [*field, *extra])
    rows = {r.name: r for r in attention.measure(SMALL, CPU, seconds=0.001, fewest=1, quick=True)}
    assert rows["broken"].note == "out of memory"
    assert rows["wrong"].note.startswith("disagrees with this operator")
    assert rows["broken"].ms == {}
    assert set(rows["ReLU, this operator"].ms) == set(attention.PASSES)
    assert any("broken: out of memory (length 64)" in line for line in tables.notes(list(rows.values())))
    assert tables.attention_table(list(rows.values())).row_count == len(rows)
