"""Engines with the library of step.c and without it."""

import pytest

from reluformer.translation.engine import native


@pytest.fixture(params=["step.c", "PyTorch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What engines look up by."""
    if request.param == "PyTorch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("step.c was not built here: there was no C compiler")
    return request.param
