"""The cells in results/ are still those of the study, so that no change of the code makes them run again."""

import json
from pathlib import Path

import pytest

from reluformer.study.cells import Cell
from reluformer.study.corpus import Corpus
from reluformer.study.experiments import find_experiments
from reluformer.study.scales import SCALES

RESULTS = Path(__file__).parents[2] / "results"
EARLIER = {"europarl-first"}  # of a scale that is no longer, kept to be compared with
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/cells") if path.parent.name not in EARLIER)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_kept_cell_is_one_of_the_study(folder):
    files = sorted(folder.glob("cells/*/*.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text())
        experiment, _ = find_experiments([])[record["study"]]
        scale = SCALES[record["scale_settings"]["name"]]
        (arm,) = (arm for arm in experiment.arms(scale) if arm.name == record["arm"])
        corpus = Corpus(**record["corpus_settings"])
        assert Cell(record["study"], "", arm, record["seed"], scale, corpus, str(folder)).path == file
