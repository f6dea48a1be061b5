"""Tests run side by side. Without a GPU, Triton's kernels run through its interpreter: the same source, on a CPU."""

import functools
import gc
import importlib.util
import inspect
import os
import signal

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # a process per core: threads of each would be in the others' way
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; commands under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
LANGUAGE = {"triton.language", "triton.language.core"}


def pytest_configure() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        patch_the_language_once_per_kernel()


def patch_the_language_once_per_kernel() -> None:
    """The interpreter does so for every function that a kernel calls as well, which takes it 40 % of its time."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patched: set[str] = set()  # names of modules, while a kernel runs

    @functools.cache
    def modules_of(fn):
        return {x.__name__ for x in fn.__globals__.values() if inspect.ismodule(x)} & LANGUAGE

    def patch_once(fn):
        modules = modules_of(fn)
        if patched and modules <= patched:
            return None
        scope, outermost = patch(fn), not patched
        patched.update(modules)
        if outermost:
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        return scope

    interpreter._patch_lang = patch_once


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported stays: half a million objects that every collection would look through


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory holds NaN, so that an element which is never written shows."""

    def poisoned(make):
        def wrapper(*args, **kwargs):
            x = make(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return wrapper

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
