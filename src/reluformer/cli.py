"""The ``reluformer`` command. Any problem with an argument or a file is one line on stderr and exit status 2."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import reluformer
from reluformer.data.files import FULL

TOOLKIT = (
    "accelerate", "matplotlib", "numpy", "rich", "sacrebleu", "safetensors", "tensorboard", "tokenizers",
    "transformers", "typer", "yaml",
)  # fmt: skip
STOPPED = "stopped"  # printed at Ctrl-C where a command has nothing better to say


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # "?" for what cannot be encoded, bytes for names that are not text
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding.lower() == "utf-8" else "replace")
    try:
        with _ctrl_c(_end_at_once):
            status = _command()(args=arguments, prog_name="reluformer", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in TOOLKIT:
            raise
        _fail("reluformer", f'{error.name} is not installed: pip install "reluformer[toolkit]"')
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:  # an error on a file carries its name: one without a name comes from printing
        if error.filename is not None:
            _fail("reluformer", f"cannot use {error.filename}: {error.strerror}")
        if error.errno not in FULL:
            raise
        _drop_output()
        _fail("reluformer", f"cannot write standard output: {error.strerror}")
    except Exception as error:
        # Typer's usage errors, told by their attributes: their class has moved between versions of Typer.
        if getattr(error, "exit_code", None) != 2 or not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        _fail(context.command_path if context else "reluformer", _one_line(error, context))
    sys.exit(status if isinstance(status, int) else 0)


@contextmanager
def _ctrl_c(handler: Callable[..., Any]) -> Iterator[None]:
    """Handle Ctrl-C by ``handler`` within this context, unless it is ignored, as in the background of a script."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(*_: Any) -> NoReturn:
    """Exit at once: while modules load there is nothing to tidy up, and some of them would swallow an exception."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(130)


def _drop_output() -> None:
    """Discard buffered output, which would fail again at exit: its reader has gone, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(where: str, what: str) -> NoReturn:
    if what:  # a bare command has printed its help instead
        print(f"{where}: {what}", file=sys.stderr)
    sys.exit(2)


def _one_line(error: Any, context: Any) -> str:
    text = " ".join(error.format_message().split())
    commands = getattr(getattr(context, "command", None), "commands", None)
    return f"{text} It takes {', '.join(sorted(commands))}." if text and commands else text


def _command() -> Any:
    """Build the command. It is built when called, so that importing this module needs torch alone."""
    import typer

    from reluformer.bench.commands import bench
    from reluformer.data.commands import data
    from reluformer.demo.commands import demo
    from reluformer.report.commands import inspect
    from reluformer.study.commands import study
    from reluformer.training.commands import train
    from reluformer.translation.commands import compress, evaluate, translate
    from reluformer.verify.commands import verify

    class Commands(typer.core.TyperGroup):
        """All commands; none ends at Ctrl-C without a message."""

        def invoke(self, ctx: Any) -> Any:
            try:
                with _ctrl_c(signal.default_int_handler):
                    return super().invoke(ctx)
            except KeyboardInterrupt:
                print(STOPPED, file=sys.stderr)
                raise

    app = typer.Typer(
        cls=Commands,
        help="Transformers in which ReLU replaces softmax.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", is_eager=True, help="Show the version and exit."),
    ) -> None:
        if version:
            print(f"reluformer {reluformer.__version__}")
            raise typer.Exit

    app.add_typer(bench, name="bench")
    app.add_typer(data, name="data")
    app.command()(compress)
    app.command()(demo)
    app.command()(evaluate)
    app.command()(inspect)
    app.command()(study)
    app.command()(train)
    app.command()(translate)
    app.command()(verify)
    return typer.main.get_command(app)


if __name__ == "__main__":
    main()
