"""Peak memory of a call, beyond its inputs and outputs."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from reluformer.bench.timing import Call


def peak_extra_bytes(call: Call, device: torch.device) -> int:
    """Return the peak of the memory allocated during the call, minus the tensors that it returns."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        # The CPU allocator keeps no peak; the profiler sees every allocation, even inside C++ kernels.
        with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            result = call()
        events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        held = peak = 0
        for _, change in changes:
            held += change
            peak = max(peak, held)
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(result)}
    return max(0, peak - sum(storages.values()))


def _tensors(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Sequence):
        for part in result:
            yield from _tensors(part)


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Silence stderr, where the profiler's C++ side announces every start and stop."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
