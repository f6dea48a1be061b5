import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.training.averaging import average_checkpoints


def save(folder, seed, **fields):
    torch.manual_seed(seed)
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", vocab_size=30, **fields))
    model.save_pretrained(folder)
    return model


def test_weights_are_means_and_the_model_loads(tmp_path):
    models = [save(tmp_path / f"checkpoint-{i}", i) for i in range(3)]
    average_checkpoints([tmp_path / f"checkpoint-{i}" for i in range(3)], tmp_path / "average")
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "average").state_dict()
    for name, value in found.items():
        expected = torch.stack([m.state_dict()[name] for m in models]).mean(0)
        torch.testing.assert_close(value, expected)
    assert not list(tmp_path.glob("*.tmp"))


def test_one_checkpoint_is_its_own_average(tmp_path):
    model = save(tmp_path / "one", 0)
    average_checkpoints([tmp_path / "one"], tmp_path / "average")
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "average").state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="folders must name at least one checkpoint, got none"):
        average_checkpoints([], tmp_path / "out")
    with pytest.raises(ValueError, match=r"nothing is no checkpoint: it has no model\.safetensors"):
        average_checkpoints([tmp_path / "nothing"], tmp_path / "out")
    save(tmp_path / "a", 0)
    save(tmp_path / "b", 0, encoder_layers=1)
    with pytest.raises(ValueError, match="holds other weights than"):
        average_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
