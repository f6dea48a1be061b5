"""Engines with the library of step.c and without it."""

import pytest

from reluformer.translation.engine import native


@pytest.fixture(params=[True, False], ids=["step.c", "PyTorch"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether engines look up by step.c."""
    if request.param and native.library() is None:
        pytest.skip("step.c was not built here: there was no C compiler")
    return bool(request.param)
