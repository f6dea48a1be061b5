"""``reluformer bench training`` and ``generation``: whole models, beside their softmax twin and a stock Marian."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from reluformer.bench.timing import Call, medians, release
from reluformer.memory.settings import EIGHTH_ATTENTION
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.configuration import SITES

RELU = "ReLUFormer"
REGULARISED = "ReLUFormer, regulariser"
QUARTER = "ReLUFormer, regulariser on a quarter"  # of the sequences
POWERED = "ReLUFormer, power 8, query-key norm"
EIGHTH = "ReLUFormer, power 8"  # without the norm: a drop-in for softmax
TWIN = "softmax twin"
NORMED_TWIN = "softmax twin, query-key norm"
MARIAN = "Marian, SDPA"
COMPILED = ", compiled"
REGULARISER = {"mass": 0.02, "entropy": 0.02}
TRAINED = (REGULARISED, QUARTER, NORMED_TWIN)  # left out of generation, where each is the same as another, or nearly
NAMES = (RELU, REGULARISED, QUARTER, POWERED, EIGHTH, TWIN, NORMED_TWIN, MARIAN)


@dataclass(frozen=True)
class Load:
    """The input of the models: sequences of one length, the same for source and target."""

    size: str
    length: int
    batch: int
    vocab_size: int
    dtype: str
    beams: int = 1


@dataclass
class Row:
    """Results of one model."""

    load: Load
    name: str
    ms: float | None
    tokens_per_s: float | None
    vs_twin: float | None = None  # for a compiled model, the compiled twin
    vs_marian: float | None = None  # always the one that is not compiled
    note: str = ""

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        names = ("ms", "tokens_per_s", "vs_twin", "vs_marian", "note")
        return asdict(self.load) | {"model": self.name} | {name: getattr(self, name) for name in names}


def models(load: Load, without: Sequence[str] = ()) -> dict[str, Callable[[], nn.Module]]:
    """Return makers of all models, of one size and dropout, except those with a word of ``without`` in their names."""

    def ours(family: str, **fields: Any) -> Callable[[], nn.Module]:
        config = ReLUFormerConfig.preset(
            f"{family}-{load.size}", vocab_size=load.vocab_size, dropout=0.1, calibration_length=load.length, **fields
        )
        return lambda: ReLUFormerForConditionalGeneration(config)

    makers = {
        RELU: ours("reluformer"),
        REGULARISED: ours("reluformer", regulariser=REGULARISER),
        QUARTER: ours("reluformer", regulariser=REGULARISER | {"share": 0.25}),
        POWERED: ours("reluformer-power"),
        EIGHTH: ours("reluformer", **dict.fromkeys(SITES[:3], EIGHTH_ATTENTION.to_dict())),
        TWIN: ours("transformer"),
        NORMED_TWIN: ours("transformer", **{site: {"query_key_norm": True} for site in SITES[:3]}),
        MARIAN: lambda: marian(load),
    }
    return {name: make for name, make in makers.items() if not any(word.lower() in name.lower() for word in without)}


def marian(load: Load) -> nn.Module:
    """Return a stock Marian of the twin's size."""
    twin = ReLUFormerConfig.preset(f"transformer-{load.size}", vocab_size=load.vocab_size)
    return marian_like(
        twin, max_position_embeddings=load.length + 1, pad_token_id=0, eos_token_id=2, decoder_start_token_id=1
    )


def marian_like(ours: ReLUFormerConfig, **fields: Any) -> nn.Module:
    """Return a stock Marian of the size of one of our models, with further ``fields`` of its configuration."""
    from transformers import MarianConfig, MarianMTModel

    slots = ours.memory("ffn").slots
    config = MarianConfig(
        vocab_size=ours.vocab_size,
        d_model=ours.d_model,
        encoder_layers=ours.encoder_layers,
        decoder_layers=ours.decoder_layers,
        encoder_attention_heads=ours.heads,
        decoder_attention_heads=ours.heads,
        encoder_ffn_dim=slots,
        decoder_ffn_dim=slots,
        activation_function="relu",
        dropout=0.1,
        forced_eos_token_id=None,
        **fields,
    )
    config._attn_implementation = "sdpa"
    return MarianMTModel(config)


def _compile(model: Any) -> None:
    """Compile layer by layer, the stock model in the same way as ours."""
    if isinstance(model, ReLUFormerForConditionalGeneration):
        model.compile_layers()
        return
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        layer.compile()
    model.loss_function = torch.compile(model.loss_function)


def training(
    load: Load,
    device: torch.device,
    seconds: float,
    fewest: int,
    without: Sequence[str] = (),
    ways: Sequence[bool] = (False,),
) -> list[Row]:
    """Time a whole step: forward, backward and optimiser; tokens are those of the target.

    Every model runs in all ``ways``: as it is (False), with its layers compiled (True).
    """
    ids = torch.randint(3, load.vocab_size, (load.batch, load.length), device=device)
    dtype = getattr(torch, load.dtype)

    def step_of(make: Callable[[], Any], compiled: bool) -> Call:
        model = make().to(device).train()
        if compiled:
            _compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")

        def step() -> None:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    calls = {
        name + COMPILED * compiled: partial(step_of, make, compiled)
        for compiled in ways
        for name, make in models(load, without).items()
    }
    return _race(load, device, seconds, fewest, calls, load.batch * load.length)


def generation(load: Load, device: torch.device, seconds: float, fewest: int, without: Sequence[str] = ()) -> list[Row]:
    """Time ``generate``, greedy or with beams, for as many tokens as the source has."""
    ids = torch.randint(3, load.vocab_size, (load.batch, load.length), device=device)
    options = {"max_new_tokens": load.length, "min_new_tokens": load.length, "do_sample": False}

    def call_of(make: Callable[[], Any]) -> Call:
        model = make().to(device, getattr(torch, load.dtype)).eval()
        return lambda: model.generate(input_ids=ids, num_beams=load.beams, **options)

    calls = {name: partial(call_of, make) for name, make in models(load, without).items() if name not in TRAINED}
    return _race(load, device, seconds, fewest, calls, load.batch * load.length)


def _race(
    load: Load,
    device: torch.device,
    seconds: float,
    fewest: int,
    calls: Mapping[str, Callable[[], Call]],
    tokens: int,
) -> list[Row]:
    torch.manual_seed(0)
    torch.compiler.reset()  # or the lengths of earlier races would make this one's shapes dynamic
    found = medians({name: call() for name, call in calls.items()}, device, seconds, fewest)
    rows = [
        Row(load, name, ms, 1000 * tokens / ms) if isinstance(ms, float) else Row(load, name, None, None, note=ms)
        for name, ms in found.items()
    ]
    rates = {row.name: row.tokens_per_s for row in rows}
    for row in rows:
        twin = rates.get(TWIN + COMPILED * row.name.endswith(COMPILED))
        if twin and row.tokens_per_s:
            row.vs_twin = row.tokens_per_s / twin
        marian = rates.get(MARIAN)
        if marian and row.tokens_per_s:
            row.vs_marian = row.tokens_per_s / marian
    release(device)
    return rows
