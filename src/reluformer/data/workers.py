"""An ordered map over several processes, with few batches in flight: memory does not grow with the corpus."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from reluformer.data.files import DataError

In = TypeVar("In")
Out = TypeVar("Out")
OrderedMap = Callable[[Callable[[In], Out], Iterable[In]], Iterator[Out]]


@contextlib.contextmanager
def workers(count: int) -> Iterator[OrderedMap[Any, Any]]:
    """Provide a ``map`` over ``count`` processes; with one, the work is done in this process."""
    if count < 2:
        yield map
        return
    # Forked processes would inherit locks that our threads may hold, those of the tokenisers among them: spawn instead.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start) as pool:
        _start_all(pool, count)
        try:
            yield lambda function, items: _ordered(pool, function, items, 2 * count)
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, for want of memory perhaps: try fewer workers; in a script, prepare data "
                'below `if __name__ == "__main__":`'
            ) from None
        except BaseException:
            with deaf():  # a second Ctrl-C here would leave processes waiting for each other
                pool.shutdown(cancel_futures=True)
            raise


def refuse_in_workers(does: str = "prepares data") -> None:
    """Refuse to run where a script runs again in its own worker processes, which would wait for each other."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise DataError(f'a script that {does} must do so below `if __name__ == "__main__":`')


def _start_all(pool: ProcessPoolExecutor, count: int) -> None:
    """Start the processes deaf to Ctrl-C, which reaches every process of a terminal: the parent ends its own."""
    with deaf():  # the processes inherit this
        for _ in range(count):
            pool.submit(int)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Ignore Ctrl-C where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ordered(
    pool: ProcessPoolExecutor, function: Callable[[In], Out], items: Iterable[In], ahead: int
) -> Iterator[Out]:
    under_way: deque[Future[Out]] = deque()
    for item in items:
        under_way.append(pool.submit(function, item))
        if len(under_way) > ahead:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _start() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # every core has a process already
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is killed, instead of waiting for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
