"""``reluformer bench trainers``: whole training runs on real data, ours and a stock Marian with the stock trainer."""

import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from reluformer.bench.models import MARIAN, REGULARISED, REGULARISER, TWIN, Load, marian
from reluformer.bench.timing import release
from reluformer.data.batching import CostBatches, StagedBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset, read_manifest
from reluformer.data.shapes import MULTIPLE
from reluformer.data.tokenizer import PAD_ID
from reluformer.training.arguments import uses_gpu
from reluformer.training.loading import longer_sides
from reluformer.training.recipe import Batches, Checkpoints, Optimiser, Recipe, Stage
from reluformer.training.run import model_config, train

QUADRATIC = 8192  # where fused attention is half of a small model's cost, see benchmarks/results/training-h200.csv
RECORDED = ", recorded"  # with updates as CUDA graphs
SAMPLE_MS = 100  # between two samples of the GPU's utilisation


@dataclass(frozen=True)
class Run:
    """What is trained, and on what; ``length`` is the length that the data was packed to, 0 for sentences.

    ``compile`` is that of our recipes. With ``graphs``, ours are trained once more, with updates recorded as CUDA
    graphs, and ``warmup`` should be long enough to record most of them.
    """

    data: str
    size: str
    length: int
    cost: int
    steps: int
    warmup: int
    compile: bool
    graphs: bool


@dataclass
class Row:
    """Speed of one trainer after its warm-up, in target tokens without padding."""

    run: Run
    name: str
    tokens_per_s: float
    tokens_per_step: float
    busy: float | None  # share of the time that the GPU was at work
    vs_marian: float | None = None

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        names = ("tokens_per_s", "tokens_per_step", "busy", "vs_marian")
        about = {**asdict(self.run), "data": Path(self.run.data).name}
        return about | {"trainer": self.name} | {name: getattr(self, name) for name in names}


def race(run: Run, out: Path) -> Iterator[Row]:
    """Train all contestants for the same number of steps and about as many tokens per step; files go to ``out``."""
    stock = _stock(run, out)
    stock.vs_marian = 1.0
    yield stock
    for name in (REGULARISED, TWIN, *((REGULARISED + RECORDED, TWIN + RECORDED) if run.graphs else ())):
        release(torch.device("cuda" if uses_gpu() else "cpu"))
        row = _ours(run, name, out)
        row.vs_marian = row.tokens_per_s / stock.tokens_per_s
        yield row


def _recipe(run: Run, name: str, out: Path) -> Recipe:
    relu = name.removesuffix(RECORDED) == REGULARISED
    preset = f"{'reluformer' if relu else 'transformer'}-{run.size}"
    return Recipe(
        data=run.data,
        out=str(out / name.replace(", ", "-").replace(" ", "-")),
        stages=(Stage(run.length, run.steps),),
        model={"preset": preset, "dropout": 0.1, "regulariser": REGULARISER if relu else {}},
        optimiser=Optimiser(lr=3e-4, warmup=100),
        batches=Batches(cost=run.cost, quadratic=QUADRATIC),
        checkpoints=Checkpoints(every=10 * run.steps, keep=1, average=1),
        regulariser_warmup=0,
        compile=run.compile,
        graphs=name.endswith(RECORDED),
    )


def _ours(run: Run, name: str, out: Path) -> Row:
    meter = Meter(run.warmup, hooked=False)
    recipe = _recipe(run, name, out)
    train(recipe, [meter])
    meter.tokens = _tokens(run, recipe)
    return meter.row(run, name)


def _tokens(run: Run, recipe: Recipe) -> int:
    """Return the target tokens of all batches after the warm-up."""
    examples = PackedDataset(run.data, "train", run.length)
    budget = (recipe.batches.cost, recipe.batches.quadratic, recipe.seed, run.warmup, recipe.graphs)
    batches = StagedBatches([(longer_sides(examples), run.steps)], *budget)
    return sum(int(examples.target_lengths[batch].sum()) for batch in batches)


def _stock(run: Run, out: Path) -> Row:
    """Train Marian as Hugging Face's examples do: batches of a fixed number of examples of similar length, in bf16."""
    examples = PackedDataset(run.data, "train", run.length)
    batches = CostBatches(longer_sides(examples), run.cost, QUADRATIC)
    vocabulary = model_config(_recipe(run, TWIN, out), read_manifest(run.data)["vocabulary"]).vocab_size
    on_gpu = uses_gpu()
    collator = Collator(MULTIPLE if on_gpu else 1)
    longest = collator.padded(int(longer_sides(examples).max()))
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(out / "marian"),
        use_cpu=not on_gpu,
        bf16=on_gpu,
        per_device_train_batch_size=max(1, round(len(examples) / len(batches))),  # as many as ours have on average,
        auto_find_batch_size=True,  # or as many as fit, if the longest ones do not
        train_sampling_strategy="group_by_length",
        max_steps=run.steps,
        learning_rate=3e-4,
        warmup_steps=100,
        label_smoothing_factor=0.1,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        dataloader_num_workers=4 if on_gpu else 0,
        save_strategy="no",
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)

    def trained() -> Row:
        meter, model = Meter(run.warmup), marian(Load(run.size, longest, 0, vocabulary, ""))
        Seq2SeqTrainer(model, arguments, collator, examples, callbacks=[meter]).train()
        return meter.row(run, MARIAN)

    try:
        return trained()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # cuDNN's attention takes masks, but its backward has failed with them: use the next fastest
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            return trained()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)


class Meter(TrainerCallback):
    """Measures time, GPU utilisation and target tokens after the warm-up, without making the host wait in between.

    Tokens are counted where the model is called, unless ``hooked`` is False: a recorded step does not call it.
    """

    def __init__(self, warmup: int, hooked: bool = True) -> None:
        self.warmup, self.hooked = warmup, hooked
        self.gpu = _Busy()
        self.hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Hook into the model, and start over if the trainer has just given up a batch size."""
        if self.hook is not None:
            self.hook.remove()
            self.gpu.stop()
        self.tokens: Any = 0
        self.seconds = 0.0
        if self.hooked:
            self.hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.seconds < 0:  # the clock runs
            ids = kwargs["decoder_input_ids"]  # <s> and the target, without its last token unless there is padding
            self.tokens += (ids != PAD_ID).sum() - (ids[:, -1] == PAD_ID).sum()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock after the warm-up, and stop it after the last step."""
        if state.global_step == self.warmup:
            self._wait()
            self.seconds = -time.perf_counter()
            self.gpu.start()
        elif state.global_step == state.max_steps:  # what follows is not training
            self._wait()
            self.seconds += time.perf_counter()
            self.busy = self.gpu.stop()
            if self.hooked:
                self.hook.remove()

    def row(self, run: Run, name: str) -> Row:
        """Return the results."""
        return Row(
            run, name, float(self.tokens) / self.seconds, float(self.tokens) / (run.steps - run.warmup), self.busy
        )

    @staticmethod
    def _wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


class _Busy:
    """Samples from nvidia-smi the share of time in which a kernel ran."""

    def __init__(self) -> None:
        self.process: Any = None

    def start(self) -> None:
        self.found: list[float] = []
        command = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        if torch.cuda.is_available():
            try:
                self.process = subprocess.Popen([*command, "-lms", str(SAMPLE_MS)], stdout=subprocess.PIPE, text=True)
            except OSError:
                return
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.strip().isdecimal():
                self.found.append(int(line) / 100)

    def stop(self) -> float | None:
        """Return the mean, or None without nvidia-smi or samples."""
        if self.process is None:
            return None
        self.process.terminate()
        self.thread.join()
        return sum(self.found) / len(self.found) if self.found else None
