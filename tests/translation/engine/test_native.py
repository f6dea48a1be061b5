"""step.c computes what PyTorch computes."""

import platform
import shutil
from importlib.machinery import ModuleSpec

import pytest
import torch
from torch import Tensor

from reluformer.models.quantising import dequantise_rows, quantise_rows
from reluformer.translation.engine import native

built = pytest.mark.skipif(native.library() is None, reason="step.c was not built here: there was no C compiler")
DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [
    (1, 1, 1, 1, 16),
    (2, 5, 3, 37, 24),
    (1, 3, 2, 130, 64),
    (3, 1, 4, 64, 128),
    (1, 2, 2, 9, 80),
]  # S, beam, H, M, D


def test_it_is_built_where_it_can_be() -> None:
    if platform.system() != "Linux" or shutil.which("gcc") is None:
        pytest.skip("no GCC on Linux")
    assert native.library() is not None


def test_without_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """None was built, or one that cannot be loaded here, or one of an earlier step.c."""
    if native.library() is not None:
        monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
        assert native.library.__wrapped__() is None
    broken = tmp_path / "_step.so"
    broken.write_bytes(b"for another machine")
    for spec in (None, ModuleSpec("_step", None, origin=str(broken))):
        monkeypatch.setattr(native, "find_spec", lambda _, spec=spec: spec)
        assert native.library.__wrapped__() is None


def close(found: Tensor, expected: Tensor, power: int = 1) -> None:
    """To rounding in float32, of which a power makes more; ``expected`` is float64."""
    assert found.isfinite().all()
    assert (found.double() - expected).norm() <= 1e-6 * (2 + power) * expected.norm()


def weights_of(scores: Tensor, power: int) -> Tensor:
    return scores.clamp_min(0) ** power if power else scores.softmax(-1)


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [0, 1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_look_up(shape: tuple[int, ...], power: int, dtype: torch.dtype, masked: bool) -> None:
    sources, beam, heads, keys, dim = shape
    torch.manual_seed(keys)
    made = torch.randn(sources, beam, 2, heads, dim)  # queries beside something else
    k, v = torch.randn(2, sources, heads, keys + 7, dim).to(dtype)  # with room that is not in use
    k[:, :, keys:], v[:, :, keys:] = torch.nan, torch.nan
    bias, gain = torch.randn(heads), torch.rand(dim) + 0.5
    masks = beam if sources == 1 else 1
    mask = (torch.rand(sources, masks, keys + 7) < 0.7).to(dtype)
    mask[:, :, 0] = 1
    found = native.look_up(
        made[:, :, 1], k, v, keys, power=power, scale=0.3, factor=0.7, bias=bias, gain=gain,
        eps=1e-5, mask=mask if masked else None,
    )  # fmt: skip
    q = made[:, :, 1].double()
    q = q * gain.double() / (q.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    scores = torch.einsum("sbhd,shmd->sbhm", q, k[:, :, :keys].double()) * 0.3 + bias[:, None].double()
    if masked:
        scores = scores.masked_fill(mask[:, :, None, :keys] == 0, -torch.inf)
    sums = torch.einsum("sbhm,shmd->sbhd", weights_of(scores * 0.7, power), v[:, :, :keys].double())
    close(found, sums.reshape(found.shape), power)


@built
def test_rows_over_their_mass() -> None:
    """The first channel of values is 1; a row without any weight is zeros."""
    torch.manual_seed(0)
    q, (k, v) = torch.randn(1, 2, 2, 16), torch.randn(2, 1, 2, 40, 16)
    v[..., 0] = 1
    bias = torch.tensor([1.0, -1e6])
    found = native.look_up(q, k, v, 40, power=4, scale=0.25, bias=bias, counted=True).view(2, 2, 16)
    weights = weights_of(torch.einsum("sbhd,shmd->sbhm", q, k).double() * 0.25 + bias[:, None], 4)
    expected = torch.einsum("sbhm,shmd->sbhd", weights / weights.sum(-1, keepdim=True), v.double())[0]
    close(found[:, 0], expected[:, 0], 4)
    assert (found[:, 1] == 0).all()


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_keep(dtype: torch.dtype, centred: bool, folded: bool, plain: bool) -> None:
    """Queries and keys are normed, turned and completed; keys and values stand where they should, and nothing else."""
    sources, beam, heads, room, dim, place, count = 2, 3, 2, 11, 24, 5, 4
    torch.manual_seed(1)
    made = torch.randn(sources, beam, 3, heads, dim)
    k, v = torch.full((2, sources, heads, room, dim), 7.0).to(dtype)
    gains, angles, first = torch.rand(2, dim) + 0.5, torch.rand(dim // 2), torch.randn(heads)
    turn = torch.polar(torch.ones_like(angles), angles)
    sums = torch.randn(sources, beam, heads, dim)
    before, q, key, value = sums.double(), *made.double().unbind(2)
    native.keep(
        made, k, v, place, gains=None if plain else gains, eps=1e-6, turn=None if plain else turn,
        first=None if plain else first, folded=folded, sums=sums if centred else None, count=count,
    )  # fmt: skip
    if not plain:
        q, key = (
            x * g / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() for x, g in ((q, gains[0]), (key, gains[1]))
        )
        q, key = (
            torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2) for x in (q, key)
        )
        if not folded:
            q[..., 0], key[..., 0] = 0, 1
        before = before + key if centred else before
        q[..., 0] = first - ((q * before).sum(-1) / count if centred else 0)
    close(made[:, :, 0], q)
    close(sums, before)
    for found, new in ((k, key), (v, value)):
        expected = torch.full(found.shape, 7.0, dtype=torch.float64)
        expected[:, :, place : place + beam] = new.transpose(1, 2)
        torch.testing.assert_close(
            found.double(), expected.to(dtype).double(), rtol=1e-5 if dtype == DTYPES[0] else 8e-3, atol=1e-6
        )


@built
def test_bfloat16_is_rounded_to_the_nearest() -> None:
    made = torch.randn(1, 1, 3, 1, 4096)
    made[..., 0], made[..., 1] = 1 + 2**-8, 1 + 3 * 2**-8  # ties, to even
    k, v = torch.zeros(2, 1, 1, 1, 4096, dtype=torch.bfloat16)
    options = {"gains": None, "eps": 0.0, "turn": None, "first": None, "folded": False, "sums": None, "count": 1}
    native.keep(made, k, v, 0, **options)
    assert torch.equal(k.flatten(), made[0, 0, 1, 0].bfloat16())
    assert torch.equal(v.flatten(), made[0, 0, 2, 0].bfloat16())


@built
def test_what_is_no_number_stays_none() -> None:
    q, (k, v) = torch.randn(1, 1, 1, 16), torch.randn(2, 1, 1, 8, 16)
    for power in (0, 1, 8):
        assert native.look_up(q * torch.nan, k, v, 8, power=power, scale=1.0).isnan().all()
    made = torch.full((1, 1, 3, 1, 16), torch.nan)
    made[0, 0, 1:] = torch.tensor([0x7FFFFFFF, 0x7F800001]).int().view(torch.float32)[:, None, None]  # all are NaN
    kept = torch.zeros(2, 1, 1, 1, 16, dtype=torch.bfloat16)
    options = {"gains": None, "eps": 0.0, "turn": None, "first": None, "folded": False, "sums": None, "count": 1}
    native.keep(made, *kept, 0, **options)
    assert kept.isnan().all()


@built
@pytest.mark.parametrize(("rows", "slots", "width"), [(1, 1024, 512), (5, 100, 63), (3, 7, 200), (2, 1, 1)])
@pytest.mark.parametrize("threads", [1, 3])
def test_sum_values(rows: int, slots: int, width: int, threads: int) -> None:
    torch.manual_seed(slots)
    torch.set_num_threads(threads)
    weights = torch.randn(rows, slots).relu()
    integers, scale = quantise_rows(torch.randn(width, slots))
    bias, stream = torch.randn(width), torch.randn(rows, width)
    values = integers.T.contiguous()
    found = native.sum_values(weights, values, scale[:, 0].contiguous(), bias, stream)
    matrix = dequantise_rows(integers, scale).double()
    close(found, stream.double() + weights.double() @ matrix.T + bias.double())


@built
def test_values_without_a_weight_are_not_read() -> None:
    """Where a value that nobody weighs is no number, the sum is one all the same."""
    k, v = torch.randn(2, 1, 1, 8, 16)
    v[:, :, 3] = torch.nan
    q = -k[:, :, 3:4] * 100  # what looks away from the fourth key
    found = native.look_up(q.transpose(1, 2), k, v, 8, power=1, scale=1.0)
    assert found.isfinite().all()


@built
@pytest.mark.parametrize(("rows", "vocabulary", "many"), [(1, 8000, 10), (5, 131, 6), (3, 64, 64), (2, 7, 2)])
@pytest.mark.parametrize("never", [None, 2])
def test_best_tokens(rows: int, vocabulary: int, many: int, never: int | None) -> None:
    torch.manual_seed(vocabulary)
    logits = 5 * torch.randn(rows, vocabulary)
    logits[0, 2] = 30.0  # the likeliest
    logits[-1, 5] = -torch.inf
    best, tokens = native.best_tokens(logits, many, never)
    logarithms = logits.double().log_softmax(-1)
    if never is not None:
        logarithms[:, never] = -torch.inf
    expected = logarithms.topk(many)
    torch.testing.assert_close(best.double(), expected.values, rtol=1e-6, atol=2e-6)
    live = expected.values.isfinite()
    assert torch.equal(tokens[live], expected.indices[live])


@built
def test_best_tokens_of_what_is_no_number() -> None:
    best, tokens = native.best_tokens(torch.full((1, 100), torch.nan), 4)
    assert not best.isfinite().any()
    assert (tokens == 0).all()
