"""Reports on the inside of a model: what each of its memories does on a batch, as numbers and as maps."""

from reluformer.report.maps import AttentionMap, HeadChoice, attention_maps
from reluformer.report.measure import memory_report
from reluformer.report.records import HeadReport, LengthReport, MemoryReport, SiteReport

__all__ = [
    "AttentionMap",
    "HeadChoice",
    "HeadReport",
    "LengthReport",
    "MemoryReport",
    "SiteReport",
    "attention_maps",
    "memory_report",
]
