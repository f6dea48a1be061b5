import io

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState

from reluformer.training.progress import ProgressBar, duration

POINT = {"loss": 3.14159, "tokens_per_second": 12345.6}


def show(terminal: bool) -> str:
    text = io.StringIO()
    bar = ProgressBar(Console(file=text, force_terminal=terminal, width=100))
    state, control = TrainerState(global_step=0, max_steps=2000), TrainerControl()
    bar.on_train_begin(None, state, control)
    state.global_step = 1000
    bar.on_log(None, state, control, POINT)
    bar.on_step_end(None, state, control)
    bar.on_log(None, state, control, {"eval_loss": 2.5, "eval_d_bleu": 31.2})
    bar.on_log(None, state, control, {"train_runtime": 3.0})
    bar.close()
    return text.getvalue()


def test_lines_where_nobody_watches():
    assert show(False).splitlines() == [
        "step 1,000/2,000  loss 3.142  12,346 tokens/s  0:00 left",
        "step 1,000: validation loss 2.500  d-BLEU 31.20",
    ]


def test_a_bar_where_somebody_does():
    shown = show(True)
    for part in ("1,000/2,000", "loss 3.142", "12,346 tokens/s", "left", "validation loss 2.500"):
        assert part in shown


def test_only_one_process_shows_it():
    text = io.StringIO()
    bar = ProgressBar(Console(file=text, force_terminal=True))
    state = TrainerState(global_step=0, max_steps=20, is_world_process_zero=False)
    bar.on_train_begin(None, state, TrainerControl())
    bar.on_log(None, state, TrainerControl(), POINT)
    assert text.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(3.6, "0:04"), (61, "1:01"), (3600, "1:00:00"), (90061, "25:01:01")])
def test_durations(seconds, text):
    assert duration(seconds) == text
