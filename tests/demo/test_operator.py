import pytest

from reluformer.demo.operator import show_operator


def test_the_operator_tells_its_story(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # as a user runs it, and faster
    show_operator()
    out, err = capsys.readouterr()
    assert err == ""
    for part in ("One query", "Gradients through the statistics", "back ends", "Packed sequences", "Speed and memory"):
        assert part in out
