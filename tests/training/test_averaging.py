import pytest
import torch
from safetensors.torch import load_file, save_file
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


def test_all_but_the_weights_is_the_last_one_s_and_nothing_of_its_training(tmp_path):
    for name in ("first", "last"):
        save(tmp_path / name, 0)
        for file in ("tokenizer.json", "trainer_state.json", "optimizer.pt"):
            (tmp_path / name / file).write_text(f"{file} of the {name}")
    average_checkpoints([tmp_path / "first", tmp_path / "last"], tmp_path / "average")
    found = {file.name for file in (tmp_path / "average").iterdir()}
    assert found == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert (tmp_path / "average" / "tokenizer.json").read_text() == "tokenizer.json of the last"


def average_of(folder, *values):
    folders = [folder / str(i) for i in range(len(values))]
    for path, value in zip(folders, values, strict=True):
        path.mkdir()
        save_file({"x": value}, path / "model.safetensors")
    average_checkpoints(folders, folder / "average")
    return load_file(folder / "average" / "model.safetensors")["x"]


def test_weights_in_half_precision_are_summed_in_float32(tmp_path):
    found = average_of(tmp_path, *(torch.tensor([x], dtype=torch.bfloat16) for x in (256, 1, 1)))
    assert torch.equal(found, torch.tensor([86], dtype=torch.bfloat16))


def test_a_number_that_counts_is_the_last_one_s(tmp_path):
    assert average_of(tmp_path, *map(torch.tensor, (3, 5, 8))).item() == 8


def test_weights_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ValueError, match="x has another shape in"):
        average_of(tmp_path, torch.ones(2), torch.ones(1))


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
