"""Ctrl-C for work that ignores it, such as that of libraries in Rust: the caller waits, and can be interrupted."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

Made = TypeVar("Made")


def hearing(work: Callable[[], Made]) -> Made:
    """Return the result of ``work``, done in a thread that Ctrl-C abandons and that ends with the process."""
    done: Future[Made] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        return done.result()
    except KeyboardInterrupt:
        atexit.register(_end_with, thread)
        raise


def _end_with(thread: threading.Thread) -> None:
    """End the process at once if the thread still runs: shutting Python down under a thread in Rust would crash."""
    if thread.is_alive():
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the stream may be missing, or its reader gone
                stream.flush()
        os._exit(130)
