"""What an import costs: the operator and the memories need torch alone."""

import subprocess
import sys

import pytest

import reluformer


def test_the_operator_and_the_memories_need_torch_alone():
    script = (
        "import sys, reluformer, reluformer.memory\n"
        "extra = {'transformers', 'typer', 'rich', 'matplotlib', 'entmax'} & set(sys.modules)\n"
        "assert not extra, extra\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", reluformer.__all__)
def test_every_public_name_is_there(name):
    assert getattr(reluformer, name) is not None
    assert name in dir(reluformer)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'reluformer' has no attribute 'softmax_attention'"):
        _ = reluformer.softmax_attention


def test_a_name_that_needs_the_toolkit_says_so(monkeypatch):
    for module in [m for m in sys.modules if m.startswith("reluformer.models")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(vars(reluformer), "ReLUFormerConfig", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r'reluformer\.ReLUFormerConfig needs transformers: pip install "'):
        _ = reluformer.ReLUFormerConfig
