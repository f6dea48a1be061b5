"""Converted models come back as they were, also in a new process, and never as softmax."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertForMaskedLM,
    ViTModel,
)

from reluformer.integration import AttentionMemory, attention_sites, convert
from reluformer.memory import MemorySettings
from reluformer.memory.calibration import expected_mass
from tests.integration.stock import FAMILIES, batch_for, logits, stock

AUTO = {
    "bart": AutoModelForSeq2SeqLM,
    "bert": AutoModelForMaskedLM,
    "llama": AutoModelForCausalLM,
    "marian": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM,
    "vit": AutoModelForImageClassification,
}
NEW_PROCESS = """
import sys
from pathlib import Path
import torch, transformers

root = Path(sys.argv[1])
cases = torch.load(root / "cases.pt")
for family, case in cases.items():
    for attempt in (getattr(transformers, case["auto"]), getattr(transformers, case["stock"])):
        try:
            attempt.from_pretrained(root / family)
        except ValueError as error:
            assert f"relu-{family}" in str(error) or "reluformer" in str(error), error
        else:
            raise AssertionError(f"{attempt} loaded a converted {family}")

import reluformer.integration
for family, case in cases.items():
    model = getattr(transformers, case["auto"]).from_pretrained(root / family)
    with torch.no_grad():
        torch.testing.assert_close(model(**case["batch"]).logits, case["logits"], rtol=0, atol=0)
print("all the same")
"""


def test_a_new_process_computes_the_same_and_transformers_alone_refuses(tmp_path: Path):
    cases = {}
    for family in FAMILIES:
        batch, model = batch_for(family), stock(family)
        case = {"auto": AUTO[family].__name__, "stock": type(model).__name__, "batch": batch}
        convert(model, batch=batch, settings=MemorySettings(alpha=0.8, bias=0.1)).save_pretrained(tmp_path / family)
        with torch.no_grad():
            cases[family] = case | {"logits": model(**batch).logits}
    torch.save(cases, tmp_path / "cases.pt")
    run = subprocess.run([sys.executable, "-c", NEW_PROCESS, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "all the same" in run.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_sites_come_back(family, tmp_path: Path):
    batch, model = batch_for(family), stock(family)
    convert(model, batch=batch, sites=attention_sites(model)[1:2]).save_pretrained(tmp_path)
    again = AUTO[family].from_pretrained(tmp_path)
    assert type(again) is type(model)
    torch.testing.assert_close(logits(again, batch), logits(model, batch), rtol=0, atol=0)
    base = AutoModel.from_pretrained(tmp_path)
    assert sum(isinstance(x, AttentionMemory) for x in base.modules()) == 1


def test_the_configuration_says_what_the_memories_are(tmp_path: Path):
    convert(stock("marian"), settings={"alpha": 0.7, "gamma": "fixed"}, length=40).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["model_type"] == "relu-marian"
    assert fields["architectures"] == ["ReLUMarianMTModel"]
    assert fields["relu_memory"]["alpha"] == 0.7
    assert (fields["relu_length"], fields["relu_sites"]) == (40, None)
    assert AutoConfig.from_pretrained(tmp_path).relu_memory == MemorySettings(alpha=0.7, gamma="fixed").to_dict()


@pytest.mark.parametrize("gamma", ["none", "fixed", "learned", "shared"])
def test_gamma_of_every_kind_comes_back(gamma, tmp_path: Path):
    batch = batch_for("bert")
    model = convert(stock("bert"), batch=batch, settings={"gamma": gamma})
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again, batch), logits(model, batch), rtol=0, atol=0)
    learned = {"learned": [(4,)] * 2, "shared": [(1,)] * 2}  # of two layers
    assert [x.shape for name, x in again.named_parameters() if "gamma" in name] == learned.get(gamma, [])


def test_a_stock_class_stops_at_a_converted_folder(tmp_path: Path):
    batch = batch_for("bert")
    convert(stock("bert"), batch=batch).save_pretrained(tmp_path)
    model = BertForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="BertSelfAttention belongs to a converted model but was loaded without"):
        model(**batch)


def test_another_implementation_cannot_be_asked_for(tmp_path: Path):
    convert(stock("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="attn_implementation must be 'reluformer' in a converted model, got 'sdpa'"):
        AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="sdpa")


def test_a_stock_checkpoint_in_a_converted_class_starts_by_formula(tmp_path: Path):
    batch, model = batch_for("bert"), stock("bert")
    model.save_pretrained(tmp_path)
    fields = {name: value for name, value in model.config.to_dict().items() if name != "model_type"}
    config = AutoConfig.for_model("relu-bert", **fields, relu_length=30)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path, config=config)
    torch.testing.assert_close(logits(loaded, batch), logits(convert(model, length=30), batch), rtol=0, atol=0)
    fresh = AutoModelForMaskedLM.from_config(config)
    for memory in (x for x in fresh.modules() if isinstance(x, AttentionMemory)):
        torch.testing.assert_close(memory.gamma().detach(), torch.full((4,), expected_mass(MemorySettings(), 30)))


def test_names_of_old_checkpoints_survive_conversion(tmp_path: Path):
    """Transformers saves a model under the names it was loaded from: ViT's have changed, ours must follow."""
    batch = batch_for("vit")
    ViTModel(stock("vit").config).save_pretrained(tmp_path / "stock")
    model = convert(ViTModel.from_pretrained(tmp_path / "stock"), batch=batch)
    model.save_pretrained(tmp_path / "relu")
    again, report = AutoModel.from_pretrained(tmp_path / "relu", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(again(**batch)[0], model(**batch)[0], rtol=0, atol=0)


def test_memories_of_a_half_precision_model_come_back(tmp_path: Path):
    batch = batch_for("bert")
    model = convert(stock("bert").to(torch.bfloat16), batch=batch)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(again, batch), logits(model, batch), rtol=0, atol=0)
