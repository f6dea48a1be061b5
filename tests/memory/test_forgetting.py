import pytest
import torch

from reluformer.memory.forgetting import ForgetGate, decay, pack, unpack


def slow_decay(log_forget, places):
    """``D`` by its definition, key by key: 0 for a key that is not before its query."""
    batch, heads, m = log_forget.shape
    fades = torch.zeros(batch, heads, len(places), m, dtype=log_forget.dtype)
    for row, i in enumerate(places):
        for j in range(m):
            fades[:, :, row, j] = log_forget[:, :, j + 1 : i + 1].sum(-1)
    return fades


def gates(*shape):
    torch.manual_seed(0)
    return torch.nn.functional.logsigmoid(torch.randn(*shape, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("n", [1, 4, 13])
def test_fades_by_the_gates_in_between(n):
    log_forget = gates(2, 3, 13)
    found, expected = decay(log_forget, n), slow_decay(log_forget, range(13 - n, 13))
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found).tril(13 - n)  # later keys are nobody's business
    for grad, want in zip(*(torch.autograd.grad(x, log_forget, upstream) for x in (found, expected)), strict=True):
        torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("n", [1, 4])
def test_queries_may_stand_before_room_for_more_keys(n):
    log_forget = gates(2, 3, 13).detach()
    log_forget[..., 9:] = 0  # nobody has written there yet
    places = torch.arange(9 - n, 9)
    seen = torch.arange(13) <= places[:, None]
    found = decay(log_forget, n, places).where(seen, 0.0)
    torch.testing.assert_close(found, slow_decay(log_forget, places.tolist()))


def test_near_keys_keep_their_digits_behind_a_long_text():
    log_forget = torch.full((1, 1, 100_000), -3.0)
    log_forget[..., -3:] = torch.tensor([-0.1, -0.2, -0.3])
    torch.testing.assert_close(decay(log_forget, 1)[0, 0, 0, -3:], torch.tensor([-0.5, -0.3, 0.0]))


def test_the_gate_is_a_sigmoid_of_the_token():
    gate = ForgetGate(8, 3, start=1.5).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = torch.sigmoid(x @ gate.project.weight.T + 1.5).log().transpose(1, 2)
    torch.testing.assert_close(gate(x), expected)
    assert gate.bfloat16()(x.bfloat16()).dtype == torch.float32  # sums of many follow


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (12, 1)])
def test_keys_carry_their_gates_through_a_cache(heads, key_heads):
    k, log_forget = torch.randn(2, key_heads, 7, 16), gates(2, heads, 7).detach().float()
    packed = pack(k, log_forget)
    assert packed.shape[-1] % 8 == 0
    again, found = unpack(packed, 16, heads)
    assert torch.equal(again, k)
    assert torch.equal(found, log_forget)
