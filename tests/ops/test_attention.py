"""The operator in use: compilation, autocast, choice of back end, derivatives, imports."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import reluformer
from reluformer import relu_attention, relu_attention_varlen
from reluformer.ops import attention, operators


def qkv(b: int = 1, h: int = 2, n: int = 17, m: int = 17, d: int = 16, grad: bool = True) -> list[Tensor]:
    return [torch.randn(b, h, length, d, requires_grad=grad) for length in (n, m, m)]


class TestCompile:
    """One graph, any length, no compilation anew for a new length."""

    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        torch.compiler.reset()

    @staticmethod
    def gradients(function, inputs: list[Tensor], *others: object) -> list[Tensor]:
        loss = function(*inputs, *others)
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    def agree(self, function, cases: list[tuple[list[Tensor], tuple[object, ...]]]) -> None:
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
        compilations = []
        for inputs, others in cases:
            expected = self.gradients(function, inputs, *others)
            torch.testing.assert_close(self.gradients(compiled, inputs, *others), expected)
            compilations.append(counter.frame_count)
        assert len(set(compilations)) == 1

    def test_statistics(self) -> None:
        def loss(q, k, v, gamma, bias):
            out, stats = relu_attention(q, k, v, gamma=gamma, bias=bias, causal=True, return_stats=True)
            return out.square().sum() + stats.mass.sum() + stats.entropy.sum() + stats.active.sum()

        per_head = [torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)]
        self.agree(loss, [([*qkv(2, n=n, m=n + 3), *per_head], ()) for n in (17, 33, 100, 257)])

    def test_statistics_of_some_sequences(self) -> None:
        def loss(q, k, v, key_mask, measured):
            out, stats = relu_attention(q, k, v, key_padding_mask=key_mask, return_stats=True, stats_batch=measured)
            again = relu_attention(q, k, v, return_stats="mass_entropy", stats_batch=math.ceil(0.25 * q.shape[0]))
            return out.square().sum() + stats.mass.sum() + stats.entropy.sum() + again[1].entropy.sum()

        cases = [(qkv(b, n=n, m=n + 3), (torch.rand(b, n + 3) < 0.7, b - 2)) for b, n in ((5, 17), (6, 33), (9, 20))]
        self.agree(loss, cases)

    def test_masks(self) -> None:
        def loss(q, k, v, key_mask, attn_mask):
            return relu_attention(q, k, v, key_padding_mask=key_mask, attn_mask=attn_mask, window=9).square().sum()

        def masks(n: int, m: int) -> tuple[Tensor, Tensor]:
            return torch.rand(2, m) < 0.7, torch.rand(n, m) < 0.7

        self.agree(loss, [(qkv(2, n=n, m=m), masks(n, m)) for n, m in ((17, 19), (33, 63), (100, 99))])

    def test_forget_gates(self) -> None:
        def loss(q, k, v, gates):
            out = relu_attention(q, k, v, causal=True, log_forget=torch.nn.functional.logsigmoid(gates))
            return out.square().sum()

        self.agree(
            loss, [([*qkv(2, n=n, m=n + 3), torch.randn(2, 2, n + 3, requires_grad=True)], ()) for n in (17, 33, 100)]
        )

    def test_packed(self) -> None:
        def loss(q, k, v, bounds, longest):
            out, stats = relu_attention_varlen(
                q, k, v, bounds, bounds, longest, longest, causal=True, return_stats=True
            )
            return out.square().sum() + stats.mass.sum() + stats.entropy.sum()

        cases = []
        for lengths in ([5, 12], [30, 3, 40], [2, 63, 100, 7]):
            bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            inputs = [torch.randn(sum(lengths), 2, 16, requires_grad=True) for _ in range(3)]
            cases.append((inputs, (bounds, max(lengths))))
        self.agree(loss, cases)

    def test_inductor(self) -> None:
        def loss(q, k, v):
            return relu_attention(q * 2, k, v, causal=True).square().sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True)
        for n in (31, 64):
            inputs = qkv(n=n, m=n)
            torch.testing.assert_close(self.gradients(compiled, inputs), self.gradients(loss, inputs))


class TestAutocast:
    """Autocast casts the tensors, as it does for scaled_dot_product_attention."""

    @pytest.mark.parametrize("backend", ["reference", "chunked"])
    def test_casts(self, backend: str) -> None:
        q, k, v = qkv()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, stats = relu_attention(q, k, v, gamma=torch.ones(2), return_stats=True, backend=backend)
        assert out.dtype == torch.bfloat16
        assert stats.mass.dtype == torch.float32
        expected = relu_attention(*(x.bfloat16() for x in (q, k, v)), backend=backend)
        torch.testing.assert_close(out, expected)
        out.float().sum().backward()
        assert q.grad.dtype == torch.float32

    def test_mixed_dtypes_meet(self) -> None:
        q, k, v = qkv(grad=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert relu_attention(q.bfloat16(), k, v).dtype == torch.bfloat16

    def test_off(self) -> None:
        q, k, v = qkv(grad=False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            assert relu_attention(q, k, v).dtype == torch.float32


class TestChoice:
    """Which back end runs."""

    def chosen(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> str:
        seen = []
        module = operators._module
        monkeypatch.setattr(operators, "_module", lambda name: seen.append(name) or module("chunked"))
        relu_attention(*qkv(), **options)
        return seen[0] if seen else "reference"

    def test_auto_on_the_cpu_is_chunked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.chosen(monkeypatch) == "chunked"

    @pytest.mark.parametrize("backend", ["reference", "chunked"])
    def test_by_name(self, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
        assert self.chosen(monkeypatch, backend=backend) == backend

    def test_triton_takes_masks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "_triton_obstacle", lambda q: None)
        assert self.chosen(monkeypatch, backend="triton", attn_mask=torch.zeros(17, 17)) == "triton"

    def test_triton_hands_over_masks_that_need_a_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "_triton_obstacle", lambda q: None)
        mask = torch.zeros(17, 17, requires_grad=True)
        assert self.chosen(monkeypatch, backend="triton", attn_mask=mask) == "chunked"
        with torch.no_grad():
            assert self.chosen(monkeypatch, backend="triton", attn_mask=mask) == "triton"


class TestDerivatives:
    def test_second_derivative_is_refused(self) -> None:
        inputs = qkv()
        first = torch.autograd.grad(relu_attention(*inputs).square().sum(), inputs, create_graph=True)
        with pytest.raises(RuntimeError, match=r"'chunked' .* has no second derivative; backend 'reference' has"):
            first[0].sum().backward()

    def test_forward_mode_is_refused(self) -> None:
        q, k, v = qkv(grad=False)
        with pytest.raises(RuntimeError, match="'chunked' has no forward-mode derivative; backend 'reference' has"):
            torch.func.jvp(lambda x: relu_attention(x, k, v), (q,), (q,))
        torch.func.jvp(lambda x: relu_attention(x, k, v, backend="reference"), (q,), (q,))

    def test_checkpointing(self) -> None:
        def loss(q, k, v):
            out, stats = relu_attention(q, k, v, causal=True, return_stats=True)
            return out.square().sum() + stats.entropy.sum()

        inputs = qkv()
        expected = torch.autograd.grad(loss(*inputs), inputs)
        found = torch.autograd.grad(checkpoint(loss, *inputs, use_reentrant=False), inputs)
        torch.testing.assert_close(found, expected)

    def test_frozen_inputs_have_no_gradient(self) -> None:
        q, k, v = qkv()
        gamma = torch.ones(2)
        relu_attention(q, k.detach(), v, gamma=gamma).sum().backward()
        assert q.grad is not None
        assert v.grad is not None
        assert k.grad is None
        assert gamma.grad is None

    def test_statistics_alone_can_be_the_loss(self) -> None:
        q, k, v = qkv()
        _, stats = relu_attention(q, k, v, return_stats=True)
        dq, dv = torch.autograd.grad(stats.mass.sum(), (q, v), allow_unused=True, materialize_grads=True)
        assert dq.abs().sum() > 0
        assert dv.abs().sum() == 0

    def test_active_has_no_gradient(self) -> None:
        _, stats = relu_attention(*qkv(), return_stats=True)
        assert not stats.active.requires_grad

    @pytest.mark.parametrize("backend", ["reference", "chunked"])
    def test_mass_and_entropy_alone(self, backend: str) -> None:
        q, k, v = qkv()
        out, full = relu_attention(q, k, v, return_stats=True, backend=backend)
        alone, light = relu_attention(q, k, v, return_stats="mass_entropy", backend=backend)
        torch.testing.assert_close((alone, *light[:2]), (out, *full[:2]))
        assert light.active.numel() == 0
        for stats in (full, light):
            stats.entropy.sum().backward()
        torch.testing.assert_close(
            q.grad, 2 * torch.autograd.grad(relu_attention(q, k, v, return_stats=True)[1].entropy.sum(), q)[0]
        )

    def test_statistics_of_another_kind(self) -> None:
        with pytest.raises(ValueError, match="return_stats must be True, False or 'mass_entropy', got 'mass'"):
            relu_attention(*qkv(), return_stats="mass")  # type: ignore[call-overload]

    @pytest.mark.parametrize("backend", ["reference", "chunked"])
    def test_number_and_tensor_gamma_agree(self, backend: str) -> None:
        inputs = qkv(grad=False)
        number = relu_attention(*inputs, gamma=2.5, return_stats=True, backend=backend)
        tensor = relu_attention(*inputs, gamma=torch.full((2,), 2.5), return_stats=True, backend=backend)
        torch.testing.assert_close(number, tensor)


def test_meta_tensors_have_shapes() -> None:
    q, k, v = (x.to("meta") for x in qkv(2, n=5, m=9))
    out, stats = relu_attention(q, k, v, causal=True, return_stats=True)
    assert out.shape == q.shape
    assert out.is_meta
    assert stats.mass.shape == q.shape[:3]
    some = relu_attention(q, k, v, return_stats=True, stats_batch=1)[1]
    assert [x.shape for x in some] == [(1, *q.shape[1:3])] * 3


def test_inference_mode_takes_packed_sequences() -> None:
    with torch.inference_mode():
        bounds = torch.tensor([0, 3, 7], dtype=torch.int32)
        x = torch.randn(7, 2, 16)
        assert relu_attention_varlen(x, x, x, bounds, bounds, 4, 4).shape == x.shape


def test_docstring_example() -> None:
    import doctest

    finder = doctest.DocTestFinder(recurse=False)
    names = {"torch": torch, "relu_attention": relu_attention}
    (example,) = finder.find(relu_attention, "relu_attention", globs=names)
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("absent", [("triton",), ("typer", "rich", "matplotlib")], ids=["triton", "toolkit"])
def test_import_without(absent: tuple[str, ...]) -> None:
    """The package works where optional packages cannot be imported, in a process of its own."""
    program = f"""
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
hide = lambda name, *rest: None if name.partition(".")[0] in {absent!r} else find(name, *rest)
PathFinder.find_spec = staticmethod(hide)  # called on the class by some, on an instance by others
import torch
from reluformer import relu_attention
x = torch.randn(1, 1, 5, 8, requires_grad=True)
relu_attention(x, x, x).sum().backward()
assert not set(sys.modules) & set({absent!r}), "imported after all"
"""
    source = str(Path(reluformer.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
