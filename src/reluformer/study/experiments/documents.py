"""Long documents: ReLUFormer, power 8, Transformer and sparsemax as the input grows."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Diverged, Experiment, Plot, Profile
from reluformer.study.experiments._memories import ATTENTIONS, PLAIN_EIGHTH, RELU, attention, reluformer
from reluformer.study.scales import Scale
from reluformer.study.scoring import compare_translations

TWIN = "Transformer"
NORMED_TWIN = "Transformer, query-key norm"
EIGHTH = "power 8"
PARTED = ", sentence bias"
LOSS = 4.0  # of the scores of keys in other sentences, at first; enough to begin documents as sentences
UNPREPARED = ", no sentences"  # that is, none before the documents
LONG = (512, 1024)  # lengths at which the paper has ReLU ahead, and most test documents fill a window


def arms(scale: Scale) -> list[Arm]:
    """Return all models at every length; at the large scale also on documents alone, as the paper may have trained."""
    twin = settings_of(scale, models_of(scale)[TWIN]).get("recipe")  # the same for all with softmax
    found = [
        Arm(
            f"{name}, {length}",
            settings_of(scale, model) | {"length": length} | ({"twin": twin} if twin and name != TWIN else {}),
            length,
            name,
            seeds=1 if name == "sparsemax" else None,
        )
        for length in scale.lengths
        for name, model in models_of(scale).items()
        if PARTED not in name or length in LONG
    ]
    long = [arm for arm in found if scale.extras and arm.x == LONG[-1] and arm.seeds is None]
    return found + [_unprepared(arm) for arm in long]


def _unprepared(arm: Arm) -> Arm:
    """Return an arm that trains on documents from the start, without sentences first, and whose twin does, too."""
    names = ("recipe",) if arm.series == TWIN else ("recipe", "twin")
    recipes = {name: arm.settings.get(name, {}) | {"long_share": 1.0} for name in names}
    return Arm(arm.name + UNPREPARED, arm.settings | recipes, arm.x, f"{arm.series}{UNPREPARED}")


def models_of(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the models to compare on documents.

    At the large scale, power 8 has a twin of its own, normed, and all of these are there with a sentence bias, too.
    """
    parted: dict[str, Any] = {"sentence_bias": LOSS}
    normed = ATTENTIONS["softmax"] | {"query_key_norm": True}
    large = {
        NORMED_TWIN: attention(**normed),
        f"ReLUFormer{PARTED}": reluformer(scale, **parted),
        f"{EIGHTH}{PARTED}": RELU | attention(**PLAIN_EIGHTH | parted),
        f"{TWIN}{PARTED}": attention(**parted),
        f"{NORMED_TWIN}{PARTED}": attention(**normed | parted),
    }
    return {
        "ReLUFormer": reluformer(scale),
        EIGHTH: RELU | attention(**PLAIN_EIGHTH),
        TWIN: {},
        **(large if scale.extras else {}),
        "sparsemax": attention(activation="sparsemax"),
    }


def twin_of(name: str) -> str:
    """Return the name of the Transformer from which a model differs in the activation alone, or in one part of it."""
    if name == f"{TWIN}{PARTED}":
        return TWIN
    return (NORMED_TWIN if name.startswith(EIGHTH) else TWIN) + (PARTED if name.endswith(PARTED) else "")


def settings_of(scale: Scale, model: dict[str, Any]) -> dict[str, Any]:
    """Return a model with the change to its recipe: the learning rate of its family on documents, if it has its own.

    At the large scale, positions are rotary: late sinusoidal ones would be new to models that begin with sentences, and
    would dominate the loss of long documents. Smaller scales keep sinusoidal ones, so that earlier cells stay valid.
    """
    rate = scale.rates.get(model.get("family", "transformer"), scale.lr)
    model = model | ({"positions": "rotary"} if scale.extras else {})
    return {"model": model} | ({"recipe": {"optimiser": {"lr": rate}}} if rate != scale.lr else {})


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences, then on documents of the arm's length; translate in windows of that length.

    The translations are compared pairwise with those of the twin, which saw the same batches. The twin differs in the
    activation alone, if the scale has such a model.
    """
    length, name = arm.settings["length"], str(arm.series).removesuffix(UNPREPARED)
    trained = bench.train(arm.settings["model"], seed, length, **arm.settings.get("recipe", {}))
    if name == TWIN:
        return trained.result
    positions = {name: x for name, x in arm.settings["model"].items() if name == "positions"}
    models = models_of(bench.scale)
    twin_model = models.get(twin_of(name), models[TWIN])
    try:
        twin = bench.train(twin_model | positions, seed, length, **arm.settings.get("twin", {}))
    except Diverged:
        return trained.result
    return trained.result | compare_translations(twin.folder, trained.folder, bench.corpus, bench.scale)


EXPERIMENT = Experiment(
    name="documents",
    title="Length of the documents",
    question="Does ReLUFormer beat the Transformer on long documents?",
    arms=arms,
    run=run,
    columns=(
        Column("s-BLEU", "bleu", 2, "higher"),
        Column("± 95 %", "bleu_ci", 2),
        Column("d-BLEU", "d_bleu", 2, "higher"),
        Column("± 95 %", "d_bleu_ci", 2),
        Column("s-BLEU ahead of the twin", "bleu_lead", 2),
        Column("p", "bleu_p", 3, seeds="largest"),
        Column("d-BLEU ahead of the twin", "d_bleu_lead", 2),
        Column("p", "d_bleu_p", 3, seeds="largest"),
        Column("NLL", "nll", 3, "lower"),
        Column("tokens/s", "tokens_per_second", 0, "higher"),
        Column("sentences/s, translation", "sentences_per_second", 1, "higher"),
        Column("GPU memory, GiB", "peak_gib", 1, "lower"),
    ),
    claims=(
        Claim("level at 128", "d_bleu", "ReLUFormer, 128", "Transformer, 128", "=", 0.5, "level"),
        Claim("ReLUFormer ahead at 512", "d_bleu", "ReLUFormer, 512", "Transformer, 512", paper="better"),
        Claim("ReLUFormer ahead at 1024", "d_bleu", "ReLUFormer, 1024", "Transformer, 1024", paper="+1.15"),
        Claim("ReLU to the eighth over its mass ahead at 1024", "d_bleu", f"{EIGHTH}, 1024", f"{TWIN}, 1024"),
        Claim(
            "ReLU to the eighth over its mass ahead at 1024 of softmax with the same query-key norm", "d_bleu",
            f"{EIGHTH}, 1024", f"{NORMED_TWIN}, 1024",
        ),
        *(
            Claim(
                f"{begun}{name} with a sentence bias ahead at 1024 of {other} {text}", "d_bleu",
                f"{arm}{PARTED}, 1024{stage}", f"{twin}{suffix}, 1024{stage}", margin=margin,
            )
            for begun, stage in (("", ""), ("without sentences first, ", UNPREPARED))
            for name, arm in (("ReLU to the eighth over its mass", EIGHTH), ("ReLUFormer", "ReLUFormer"))
            for twin, suffix, margin, other, text in (
                (TWIN, "", 1.15, "the Transformer", "by 1.15"),
                (twin_of(arm), PARTED, 0.0, "its twin", "with the same bias"),
            )
        ),
        Claim("ReLUFormer ahead at 2048", "d_bleu", "ReLUFormer, 2048", "Transformer, 2048", paper="better"),
        Claim(
            "ReLUFormer ahead at 1024 without sentences first", "d_bleu",
            f"ReLUFormer, 1024{UNPREPARED}", f"{TWIN}, 1024{UNPREPARED}",
        ),
        Claim(
            "sparsemax does not converge on long inputs", "nll", "sparsemax, 1024", "Transformer, 1024", ">", 0.5,
            "fails to converge",
        ),
    ),
    plots=(
        Plot("d-BLEU and length", "d_bleu", "tokens", "d-BLEU", log_x=True),
        Plot("d-BLEU ahead of the twin", "d_bleu_lead", "tokens", "difference", log_x=True),
        Plot("Speed and length", "tokens_per_second", "tokens", "tokens/s", log_x=True),
        Plot("Memory and length", "peak_gib", "tokens", "GPU memory, GiB", log_x=True),
    ),
    profiles=(
        Profile("NLL by position in the document", "by_position", "position, tokens", "NLL", "tokens at a time"),
    ),
)  # fmt: skip
