"""The report of a study: what was measured, beside the paper's figures, and which claims hold."""

from reluformer.study.report.write import write_report

__all__ = ["write_report"]
