"""Work that is deaf to Ctrl-C, as that of libraries in Rust is: whoever waits for it hears."""

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
    """What ``work`` returns, done in a thread that Ctrl-C leaves behind; the end of the process ends it."""
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
    """Python cannot be taken down under a thread that is in Rust: that would be a crash."""
    if thread.is_alive():
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # there may be none, or nobody who reads
                stream.flush()
        os._exit(130)
