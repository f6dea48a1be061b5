import json

import numpy as np
import pytest
import yaml

from reluformer.memory import MemorySettings
from reluformer.memory.activations import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_survive_a_configuration(activation):
    settings = MemorySettings(activation, alpha=1.0, bias=-0.5, slots=3)
    assert MemorySettings.of("cross", settings.to_dict()) == settings


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_numbers_of_numpy_become_plain_ones(kind):
    numbers = {name: kind(1) for name in ("alpha", "bias", "temperature", "forget")}
    values = MemorySettings("softmax", **numbers).to_dict()
    assert json.loads(json.dumps(values)) == values
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    assert {values[name] for name in numbers} == {1.0}
    assert str(MemorySettings(alpha=0).to_dict()["alpha"]) == "0"  # a plain one stays as it is


def test_those_of_an_earlier_version_have_none_of_the_later_parts():
    saved = {"activation": "relu", "alpha": 0.5, "gamma": "learned", "norm": "none", "bias": None, "temperature": 1.0}
    settings = MemorySettings.of("cross", saved | {"query_key_norm": False, "slots": 0})
    assert settings == MemorySettings()
    assert (settings.forget, settings.token_shift, settings.output_gate) == (None, False, False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation": "rely"}, r"cross\.activation must be one of relu, .*, got 'rely'"),
        ({"alpha": -1}, r"cross\.alpha must be a number >= 0, got -1"),
        ({"alpha": "half"}, r"cross\.alpha must be a number >= 0, got 'half'"),
        ({"gamma": 3.0}, r"cross\.gamma must be one of none, fixed, learned, shared, got 3\.0"),
        ({"norm": "mass", "activation": "gelu"}, r"cross\.norm must not be 'mass' for gelu, whose weights may be neg"),
        ({"norm": "batch"}, r"cross\.norm must be one of none, mass, layer, rms, gated, got 'batch'"),
        ({"bias": "yes"}, r"cross\.bias must be None or a number, got 'yes'"),
        ({"temperature": 0, "activation": "softmax"}, r"cross\.temperature must be a positive number, got 0"),
        ({"temperature": 2.0}, r"cross\.temperature must be 1 unless activation is one of softmax, .*, got 2\.0"),
        ({"slots": -1}, r"cross\.slots must be an int >= 0, got -1"),
        ({"query_key_norm": 1}, r"cross\.query_key_norm must be True or False, got 1"),
        ({"centred": 1}, r"cross\.centred must be True or False, got 1"),
        ({"centred": True, "norm": "mass"}, r"cross\.bias must be a number other than 0 where .* got None"),
        ({"constant_channel": 1}, r"cross\.constant_channel must be True or False, got 1"),
        (
            {"constant_channel": True},
            r"cross\.constant_channel must be False unless norm is 'mass', with a bias and one of relu, ",
        ),
        (
            {"constant_channel": True, "norm": "mass", "bias": 1.0, "activation": "softmax"},
            r"cross\.constant_channel must be False unless norm is 'mass', with a bias and one of relu, ",
        ),
        ({"forget": "yes"}, r"cross\.forget must be None or a number, got 'yes'"),
        ({"forget": float("inf")}, r"cross\.forget must be None or a number, got inf"),
        (
            {"forget": 0.0, "slots": 3},
            r"cross\.forget must be None beside slots, which are no tokens to fade, .*",
        ),
        ({"token_shift": None}, r"cross\.token_shift must be True or False, got None"),
        ({"output_gate": 0.5}, r"cross\.output_gate must be True or False, got 0\.5"),
        ({"alhpa": 1}, r"cross\.alhpa is no memory setting; there are activation, alpha, .*"),
        ("relu", r"cross must be a mapping of memory settings, got 'relu'"),
    ],
)
def test_errors_name_the_field(values, message):
    with pytest.raises(ValueError, match=message):
        MemorySettings.of("cross", values)
