"""A compressed model is a folder like others: a quarter of the bytes, nearly the same logits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration, ReLUFormerModel
from reluformer.models.compressing import (
    WEIGHTS,
    compress,
    decompress,
    is_compressed,
    read_weights,
    write_compressed,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same compressed."""
    torch.manual_seed(0)
    plain, small = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("small")
    config = ReLUFormerConfig.preset("reluformer-tiny", vocab_size=500, positions="learned")
    model = ReLUFormerForConditionalGeneration(config)
    model.generation_config.max_length = 33
    model.save_pretrained(plain)
    for name in ("config.json", "generation_config.json"):
        (small / name).write_bytes((plain / name).read_bytes())
    write_compressed(small / WEIGHTS, compress(read_weights(plain))[0])
    return plain, small


def test_the_report_adds_up(folders) -> None:
    weights = read_weights(folders[0])
    kept, report = compress(weights)
    assert [x.name for x in report] == list(weights)
    assert sum(x.bytes for x in report) == sum(x.nbytes for x in kept.values())
    again = decompress(kept)
    assert again.keys() == weights.keys()
    for x in report:
        exact = weights[x.name].double()
        difference = float((again[x.name] - exact).norm() / exact.norm().clamp_min(1e-30))
        assert x.error == pytest.approx(difference, rel=1e-3, abs=1e-9)
        assert x.kind == ("int8" if weights[x.name].dim() == 2 else "float32")
        assert x.error < 0.01 if x.kind == "int8" else x.error == 0


def test_a_quarter_of_the_bytes(folders) -> None:
    before, after = ((folder / WEIGHTS).stat().st_size for folder in folders)
    matrices = sum(x.numel() for x in load_file(folders[0] / WEIGHTS).values() if x.dim() == 2)
    assert after < before - 2.7 * matrices  # 3 bytes less of 4, for a scale per row of 64 and names
    assert not is_compressed(folders[0])
    assert is_compressed(folders[1])
    assert not is_compressed(folders[1] / "nothing")


@pytest.mark.parametrize("load", [ReLUFormerForConditionalGeneration, AutoModelForSeq2SeqLM])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_models_read_it(folders, load, dtype) -> None:
    plain, small = folders
    options = {} if dtype is None else {"dtype": dtype}
    expected = ReLUFormerForConditionalGeneration.from_pretrained(plain, **options)
    model, info = load.from_pretrained(small, output_loading_info=True, local_files_only=True, **options)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == expected.dtype == (dtype or torch.float32)
    assert model.lm_head.weight is model.model.shared.weight
    assert not model.training
    assert model.generation_config.max_length == 33
    ids = torch.randint(3, 500, (2, 9))
    with torch.no_grad():
        logits, exact = (x(ids, decoder_input_ids=ids).logits.float() for x in (model, expected))
    assert 0 < (logits - exact).norm() / exact.norm() < 0.05


def test_saved_again_it_is_plain(folders, tmp_path: Path) -> None:
    model = ReLUFormerForConditionalGeneration.from_pretrained(folders[1])
    model.save_pretrained(tmp_path)
    assert not is_compressed(tmp_path)
    again = ReLUFormerForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), again.parameters(), strict=True))
    integers, _ = compress(read_weights(tmp_path))
    kept = read_weights(folders[1])
    assert all(torch.equal(integers[name], kept[name]) for name in kept if name.endswith(".int8"))


def test_a_model_without_its_head_reads_it(folders) -> None:
    model = ReLUFormerModel.from_pretrained(folders[1])
    expected = ReLUFormerForConditionalGeneration.from_pretrained(folders[1]).model
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"a.weight must be finite to be compressed, got inf or nan"):
        compress({"a.weight": torch.tensor([[1.0, value]])})


def test_options_are_those_of_a_plain_folder(folders) -> None:
    wanted = GenerationConfig(num_beams=4)
    for folder in folders:
        model = ReLUFormerForConditionalGeneration.from_pretrained(
            folder.parent, subfolder=folder.name, dropout=0.25, dtype=torch.bfloat16, generation_config=wanted
        )
        assert model.config.dropout == 0.25
        assert model.dtype == torch.bfloat16
        assert model.generation_config.num_beams == 4
