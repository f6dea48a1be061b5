import pytest

from reluformer.study.report.figures import counted, duration, reason, spread


@pytest.mark.parametrize(
    ("values", "digits", "text"),
    [
        ([1.0, 2.0, 3.0], 2, "2.00 ± 1.00"),
        ([34.224], 2, "34.22"),
        ([], 2, "n/a"),
        ([0.0, 0.0], 1, "0.0 ± 0.0"),
        ([2079.12734], 4, "2,079.13"),
        ([12345678.0], 2, "12,345,678"),
        ([0.00066, 0.00068], 4, "0.00067 ± 0.00001"),
        ([1.5e-9], 2, "1.5e-09"),
        ([-0.5], 2, "-0.50"),
    ],
)
def test_mean_and_deviation(values, digits, text):
    assert spread(values, digits) == text


def test_durations():
    assert [duration(s) for s in (2.5, 42, 600, 7260)] == ["2.5 s", "42 s", "10 min", "2 h 01 min"]


def test_counts_and_reasons():
    assert counted({"done": 2, "failed": 0, "diverged": 1}) == "2 done, 1 diverged"
    assert counted({}) == "no cells"
    assert reason("Traceback\n  x\nValueError: bad\n") == "ValueError: bad"
    assert len(reason("x" * 999)) == 160
    assert reason(None) == ""
