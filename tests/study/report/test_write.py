from reluformer.study.report import write_report
from tests.study.report.samples import sweep


def test_files(tmp_path):
    found, measured = sweep()
    written = write_report(tmp_path / "new", [found], measured)
    assert sorted(path.relative_to(tmp_path / "new").as_posix() for path in written) == [
        "plots/slots-1.png", "plots/slots-curves.png", "report.html", "report.md"
    ]  # fmt: skip
    assert all(path.stat().st_size for path in written)
    for line in (tmp_path / "new" / "report.md").read_text().splitlines():
        if line.startswith("!["):
            assert (tmp_path / "new" / line[line.index("](") + 2 : -1]).exists()
    assert write_report(tmp_path / "new", [found], measured) == written  # over itself
