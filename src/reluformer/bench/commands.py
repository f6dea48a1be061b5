"""The commands of ``reluformer bench``."""

import typer

from reluformer.bench.model_commands import data, generation, trainers, training, translation
from reluformer.bench.operator_commands import attention, decode, forgetting, memory

bench = typer.Typer(help="Speed and memory on this machine.", no_args_is_help=True, add_completion=False)
for command in (attention, forgetting, decode, memory, training, generation, translation, data, trainers):
    bench.command()(command)
