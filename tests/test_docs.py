"""The console sessions in README and docs run as they are printed."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/operator.md", "docs/models.md"])
def test_examples(page: str) -> None:
    failed, tried = doctest.testfile(str(ROOT / page), module_relative=False)
    assert tried > 10
    assert failed == 0
