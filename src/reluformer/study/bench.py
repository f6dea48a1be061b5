"""The bench that experiments run on: data, a scale, and a folder of models, each of which is trained once."""

import dataclasses
import math
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from reluformer.data.batching import CostBatches
from reluformer.data.dataset import PackedDataset, read_manifest
from reluformer.data.files import hash_of, read_json, write_json
from reluformer.models import ReLUFormerConfig
from reluformer.study.clock import Clock, PeakOfLastStage, speed_of
from reluformer.study.corpus import Corpus
from reluformer.study.experiment import Diverged
from reluformer.study.lean import LeanCheckpoints
from reluformer.study.locks import locked
from reluformer.study.recalibration import Recalibration
from reluformer.study.scales import Scale
from reluformer.study.trunk import Trunk
from reluformer.training.errors import NoNumber
from reluformer.training.loading import longer_sides
from reluformer.training.recipe import Batches, Checkpoints, Optimiser, Recipe, Stage

SCORED = "scored.json"


@dataclass(frozen=True)
class Trained:
    """Folder of a trained model, and its results."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Trains and scores models and keeps them below ``work``, so that experiments share those they have in common."""

    scale: Scale
    corpus: Corpus
    work: Path

    def train_and_score(self, model: dict[str, Any], seed: int = 0, length: int = 0, **changes: Any) -> dict[str, Any]:
        """Train a model and return everything that is measured of it.

        Args:
            model: Changes to the scale's softmax Transformer: fields of the configuration, where those of a site may be
                given in part, or ``family="reluformer"``.
            seed: Seed of the run.
            length: Length of the documents that the run ends on; 0 for sentences only.
            changes: Changes to the recipe: ``calibrate=False``, ``optimiser={"lr": 1e-3}``, ``steps=100``. A number of
                updates that is a float is a share of all: ``anneal=0.25``, ``optimiser={"warmup": 0.5}``. One change to
                the scale is possible: ``long_share=1.0`` for documents from the first update on.

        Raises:
            Diverged: The model diverged; the error holds what could be measured.
        """
        return self.train(model, seed, length, **changes).result

    def train(
        self, model: dict[str, Any], seed: int = 0, length: int = 0, recalibrate: bool = False, **changes: Any
    ) -> Trained:
        """Train a model like :meth:`train_and_score`, and return its folder as well.

        With ``recalibrate``, gamma is set to unit mass again on the documents.
        """
        recipe = self.recipe(model, seed, length, **changes)
        folder = self.work / "models" / self._key(recipe, *["recalibrate"] * recalibrate)
        recipe = dataclasses.replace(recipe, out=str(folder))
        with locked(folder.with_suffix(".lock")):
            note = read_json(folder / SCORED)
            if note is None:
                with self._begun(recipe) as callbacks:
                    note = self._train(recipe, folder, length, callbacks + [Recalibration(recipe)] * recalibrate)
                write_json(folder / SCORED, note)
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if note["diverged"]:
            raise Diverged(note["diverged"], note["result"])
        return Trained(folder / "model", note["result"])

    def paces(self, model: dict[str, Any]) -> dict[str, float]:
        """Return the speed of a model on sentences relative to the softmax Transformer's, measured side by side.

        One measurement serves all seeds: the time of an update does not depend on the weights.
        """
        from reluformer.study.pace import paces

        own, twin = (self.recipe(x, 0, 0) for x in (model, {}))
        if own == twin:
            return {"training": 1.0, "translation": 1.0}
        file = self.work / "paces" / f"{self._key(own)}.json"
        found: dict[str, float] | None = read_json(file)
        if found is None:
            write_json(file, found := paces(own, twin, self.scale.beam))
        return found

    def _key(self, recipe: Recipe, *more: str) -> str:
        """Return a hash of everything that the result of a run depends on."""
        plain = {name: x for name, x in dataclasses.asdict(recipe).items() if name not in ("out", "data")}
        return hash_of([plain, self.scale.key(), self.corpus.key, *more])

    def _begun(self, recipe: Recipe) -> AbstractContextManager[list[TrainerCallback]]:
        """Enclose the training of a run: stages before the last are trained once for all runs that share them."""
        *before, last = recipe.stages
        if not before:
            return nullcontext([])
        common = dataclasses.replace(recipe, stages=(*before, dataclasses.replace(last, length=0)))
        return Trunk(self.work / "trunks" / self._key(common), recipe).shared()

    def recipe(self, model: dict[str, Any], seed: int, length: int, **changes: Any) -> Recipe:
        """Return the recipe of a run, with ``out`` still empty."""
        scale = self.scale
        steps = changes.pop("steps", 1.0)
        steps = max(1, round(steps * self.steps())) if isinstance(steps, float) else steps
        share = changes.pop("long_share", scale.long_share)
        long = round(steps * share) if length else 0
        stages = [stage for stage in (Stage(0, steps - long), Stage(length, long)) if stage.steps]
        every = max(1, steps // scale.points)
        optimiser = {"lr": scale.lr, "warmup": scale.warmup} | scale.optimiser | changes.pop("optimiser", {})
        settings: dict[str, Any] = {
            "calibrate": True, "regulariser_warmup": scale.warmup, "compile": scale.compile,
            "log_every": min(50, every), "precision": "auto",
        } | changes  # fmt: skip
        for place, name in ((optimiser, "warmup"), (settings, "regulariser_warmup"), (settings, "anneal")):
            if isinstance(place.get(name), float):
                place[name] = max(1, round(steps * place[name]))
        return Recipe(
            data=self.corpus.folder,
            out="",
            stages=tuple(stages),
            model=self.model(**model),
            optimiser=Optimiser(**optimiser),
            batches=Batches(**{"cost": scale.cost} | settings.pop("batches", {})),
            checkpoints=Checkpoints(every=every, keep=scale.average, average=scale.average),
            seed=seed,
            **settings,
        )

    def model(self, family: str = "transformer", **changes: Any) -> dict[str, Any]:
        """Return a model of the scale's size with changes, where those of a site may be given in part."""
        fields: dict[str, Any] = {"preset": f"{family}-{self.scale.size}"} | self.scale.model
        preset = ReLUFormerConfig.preset(fields["preset"])
        for name, value in changes.items():
            if not isinstance(value, dict):
                fields[name] = value
                continue
            own, usual = fields.get(name, {}), getattr(preset, name, None) or {}
            # Values equal to the preset's are left out, so that a model has a single key and is trained once.
            value = own | {key: x for key, x in value.items() if key in own or key not in usual or usual[key] != x}
            if value:
                fields[name] = value
        return fields

    def steps(self) -> int:
        """Return the number of updates of a run: the scale's ``steps``, or as many as its ``epochs`` take."""
        if self.scale.steps:
            return self.scale.steps
        batches = CostBatches(longer_sides(PackedDataset(self.corpus.folder)), self.scale.cost)
        return math.ceil(len(batches) * self.scale.epochs)

    def _train(self, recipe: Recipe, folder: Path, length: int, callbacks: Sequence[TrainerCallback]) -> dict[str, Any]:
        from reluformer.study.scoring import score_model
        from reluformer.training.run import train

        curve = folder / "curve.json"
        earlier = sum(stage.steps for stage in recipe.stages[:-1])  # speed and memory are measured in the last stage
        peak = PeakOfLastStage(earlier)
        try:
            # The clock comes last: what the others do at a checkpoint is not training.
            outcome = train(recipe, [peak, *callbacks, LeanCheckpoints(folder), Clock(curve)])
        except NoNumber as error:
            reason = str(error).partition(";")[0]
            return {"diverged": reason, "result": {"curve": read_json(curve) or []}}
        if outcome.model is None:
            raise KeyboardInterrupt
        points = read_json(curve) or []
        result: dict[str, Any] = {
            "curve": points,
            "steps": outcome.step,
            "train_seconds": points[-1]["seconds"] if points else None,
            "tokens_per_second": speed_of(folder / "log.jsonl", earlier),
            "peak_gib": peak.gib,
        }
        result |= score_model(outcome.model, self.corpus, self.scale, length)
        return {"diverged": self._why_diverged(result["nll"], points), "result": result}

    def _why_diverged(self, nll: float, points: list[dict[str, float]]) -> str:
        """Return the reason if the loss is worse than guessing and has not fallen, else an empty string.

        Early in training, the loss of a model that does learn is worse than guessing, too.
        """
        guess = math.log(read_manifest(self.corpus.folder)["vocabulary"])
        falls = len(points) > 1 and points[-1]["nll"] < points[0]["nll"]
        return "" if nll <= guess or falls else f"the loss ends at {nll:.2f}, above the {guess:.2f} of guessing"
