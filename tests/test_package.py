"""What an import costs: the operator and the memories need torch alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import reluformer

# A layer imports only from those above it. The public names of the package itself are the first.
LAYERS = (
    "reluformer", "ops", "memory", "models", "integration",
    "machine", "console", "png", "data", "pretrained", "report", "translation", "training",
    "verify", "bench", "demo", "study", "cli", "__main__",
)  # fmt: skip
SOURCES = Path(reluformer.__file__).parent


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


def imported(file: Path) -> Iterator[str]:
    """Modules of this package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "reluformer":
            modules = [f"reluformer.{alias.name}" for alias in node.names] if node.module == "reluformer" else []
            yield from modules or [node.module]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("reluformer."))


def layer_of(module: str) -> str:
    """Layer of a module, or of a name that the package itself has."""
    return (module.split(".") + [""])[1] if module.partition(".")[2] not in reluformer.__all__ else "reluformer"


def test_a_layer_imports_only_from_layers_above_it():
    inside = {file.relative_to(SOURCES) for file in SOURCES.rglob("*.py")} - {Path("__init__.py")}
    assert {path.parts[0].removesuffix(".py") for path in inside} == set(LAYERS) - {"reluformer"}
    below = [
        f"{path}: {module}"
        for path in sorted(inside)
        for module in imported(SOURCES / path)
        if LAYERS.index(layer_of(module)) > LAYERS.index(path.parts[0].removesuffix(".py"))
    ]
    assert not below
