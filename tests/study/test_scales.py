import json

import pytest

from reluformer.study.scales import SCALES, Scale


@pytest.mark.parametrize("scale", SCALES.values(), ids=["smoke", "laptop", "large"])  # "gpu" is a mark
def test_scale_survives_json(scale: Scale) -> None:
    assert Scale.from_dict(json.loads(json.dumps(scale.to_dict()))) == scale
