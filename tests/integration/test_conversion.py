"""``convert`` on stock models: against attention written out, mass, gradients, sites, errors."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AttentionInterface,
    BartForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    T5EncoderModel,
    Trainer,
    TrainingArguments,
)

from reluformer.integration import AttentionMemory, attention_sites, calibrate, convert
from reluformer.integration.attention import NAME
from reluformer.integration.families import TWINS, attention_modules
from reluformer.memory import MemorySettings
from reluformer.memory import calibrate as calibrate_memories
from reluformer.memory.activations import FUSED
from reluformer.memory.calibration import expected_mass
from tests.integration.stock import FAMILIES, SEQ2SEQ, batch_for, logits, stock, tokens


def memories(model) -> list[AttentionMemory]:
    return [x for x in model.modules() if isinstance(x, AttentionMemory)]


def scramble(model) -> None:
    """Another gamma in every head, so that a mix-up of heads shows."""
    for memory in memories(model):
        memory.gamma.log_gamma.data += torch.randn_like(memory.gamma.log_gamma)


def written_out(padding: Tensor | None, source_length: int):
    """ReLU attention as one reads it, with masks of its own: causality, and padding where the keys are the source."""

    def attention(module, q, k, v, mask, scaling=None, position_bias=None, **_):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.mT * scaling
        if position_bias is not None:
            scores = scores + position_bias
        visible = torch.ones(q.shape[0], 1, *scores.shape[2:], dtype=torch.bool)
        if module.is_causal:
            visible = visible.tril()
        if padding is not None and k.shape[2] == source_length:
            visible = visible & padding[:, None, None, :].bool()
        n = visible.sum(-1, keepdim=True).clamp_min(1)
        memory = module.relu_memory
        divisor = memory.gamma.log_gamma.exp()[:, None, None] * (n / 2) ** memory.settings.alpha
        power = FUSED[memory.settings.activation]
        bias = 0.0 if memory.bias is None else memory.bias[:, None, None]
        weights = torch.relu(scores + bias) ** power * visible / divisor
        return (weights @ v).transpose(1, 2), None

    return attention


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [None, MemorySettings("relu_squared", alpha=1.0, bias=-0.1)])
def test_a_converted_model_is_the_stock_one_with_relu_attention(family, settings, monkeypatch):
    batch = batch_for(family)
    model = stock(family)
    softmax = logits(model, batch)
    assert convert(model, settings=settings, batch=batch) is model
    scramble(model)
    relu = logits(model, batch)
    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, written_out(batch.get("attention_mask"), 9))
    torch.testing.assert_close(relu, logits(model, batch), rtol=1e-4, atol=1e-4)
    assert (relu - softmax).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_every_head_unit_mass(family):
    batch = batch_for(family)
    if family in SEQ2SEQ:  # labels that end in padding, from which the model makes its decoder's input
        batch["labels"] = batch.pop("decoder_input_ids").clone()
        batch["labels"][1, 4:] = -100
    model = convert(stock(family).train(), batch=batch)
    assert model.training
    model.eval()
    masses = {}

    def measure(name, counted):
        def hook(memory, args, options):
            _, stats = memory.forward(*args, **options, return_stats=True)
            live = (stats.mass > 0) & counted[:, None, :]
            masses[name] = (stats.mass * live).sum((0, 2)) / live.sum((0, 2))

        return hook

    for name, module in attention_modules(model).items():
        counted = torch.ones(2, 17, dtype=torch.bool) if family == "vit" else batch["attention_mask"].bool()
        if family in SEQ2SEQ and name.startswith("decoder."):
            counted = batch["labels"] != -100
        module.relu_memory.register_forward_pre_hook(measure(name, counted), with_kwargs=True)
    with torch.no_grad():
        model(**batch)
    assert len(masses) == (6 if family in SEQ2SEQ else 2)
    for mass in masses.values():
        torch.testing.assert_close(mass, torch.ones(4))


def test_without_a_batch_gamma_comes_from_the_formula():
    model = convert(stock("marian"), length=50)
    settings = MemorySettings()
    for name, module in attention_modules(model).items():
        causal = name.startswith("decoder.") and name.endswith("self_attn")
        expected = torch.full((4,), expected_mass(settings, 50, causal))
        torch.testing.assert_close(module.relu_memory.gamma().detach(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_gamma_and_the_projections(family):
    batch = batch_for(family)
    model = convert(stock(family), batch=batch).train()
    model(**batch).logits.square().mean().backward()
    for memory in memories(model):
        assert memory.gamma.log_gamma.grad.abs().min() > 0
    assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())


def test_labels_that_a_trainer_smooths_are_those_of_the_tokens_that_follow(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], label_smoothing_factor=0.1)
    model, ids = convert(stock("llama")), tokens(9, 9)["input_ids"]
    loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids})
    expected = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_attention_dropout_is_not_applied():
    model = convert(stock("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.9))
    batch = batch_for("bert")
    torch.testing.assert_close(logits(model.train(), batch), logits(model.eval(), batch))


@pytest.mark.parametrize("family", [x for x in FAMILIES if x != "vit"])
def test_padding_changes_nothing(family):
    batch = batch_for(family)
    model = convert(stock(family), batch=batch)
    together = model(**batch).logits[1:]
    real = batch["attention_mask"][1].bool()
    alone = {name: x[1:, real] for name, x in batch.items() if "decoder" not in name and name != "attention_mask"}
    if family in SEQ2SEQ:
        alone["decoder_input_ids"] = batch["decoder_input_ids"][1:]
    else:
        together = together[:, real]
    torch.testing.assert_close(together, model(**alone).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_that_are_not_chosen_stay_softmax(family):
    batch = batch_for(family)
    model = stock(family)
    softmax = logits(model, batch)
    names = attention_sites(model)
    assert set(names) <= {name for name, _ in model.named_modules()}
    converted = convert(stock(family), sites=names[-1:], batch=batch)
    by_function = convert(stock(family), sites=lambda name: name == names[-1], batch=batch)
    assert len(memories(converted)) == 1
    torch.testing.assert_close(logits(converted, batch), logits(by_function, batch), rtol=0, atol=0)
    assert (logits(converted, batch) - softmax).abs().max() > 1e-3
    for module in attention_modules(converted).values():
        module.relu_memory = None
    torch.testing.assert_close(logits(converted, batch), softmax, rtol=1e-4, atol=1e-4)


def test_other_models_of_the_same_configuration_stay_as_they_are():
    one = stock("bert")
    other = type(one)(one.config).eval()
    before = logits(other, batch_for("bert"))
    convert(one)
    torch.testing.assert_close(logits(other, batch_for("bert")), before, rtol=0, atol=0)
    assert other.config.model_type == "bert"


def test_hidden_states_are_still_given():
    model = BertModel(stock("bert").config).eval()
    batch = batch_for("bert")
    expected = len(model(**batch, output_hidden_states=True).hidden_states)
    assert len(convert(model)(**batch, output_hidden_states=True).hidden_states) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_not_given(family):
    with pytest.raises(ValueError, match="output_attentions must be False"):
        convert(stock(family))(**batch_for(family), output_attentions=True)


def test_every_head_of_a_family_has_its_twin():
    model = convert(T5EncoderModel(stock("t5").config), sites=["encoder.block.1.layer.0.SelfAttention"])
    assert type(model).__name__ == "ReLUT5EncoderModel"
    model = convert(BartForSequenceClassification(stock("bart").config))
    assert isinstance(model, TWINS[BartForSequenceClassification])


def test_a_converted_model_can_be_copied_pickled_and_cast():
    batch = batch_for("llama")
    model = convert(stock("llama"), batch=batch)
    expected = logits(model, batch)
    torch.testing.assert_close(logits(copy.deepcopy(model), batch), expected, rtol=0, atol=0)
    torch.testing.assert_close(logits(pickle.loads(pickle.dumps(model)), batch), expected, rtol=0, atol=0)
    half = logits(model.to(torch.bfloat16), batch)
    assert half.dtype == torch.bfloat16
    assert (half - expected).norm() / expected.norm() < 0.1


def test_a_model_in_half_precision_gets_memories_of_its_kind():
    """All but gamma, whose logarithm would lose too much."""
    model = convert(stock("llama").to(torch.bfloat16), settings={"bias": 0.5}, batch=batch_for("llama"))
    assert {x.dtype for name, x in model.named_parameters() if "gamma" not in name} == {torch.bfloat16}
    assert {x.dtype for name, x in model.named_parameters() if "gamma" in name} == {torch.float32}


@pytest.mark.parametrize("name", ["sdpa", "eager", {"": "sdpa"}])
def test_nobody_turns_a_converted_model_back_into_softmax(name):
    model = convert(stock("bert"))
    for part in (model, model.bert):
        with pytest.raises(ValueError, match="attn_implementation must be 'reluformer' in a converted model"):
            part.set_attn_implementation(name)
    model.set_attn_implementation(NAME)
    assert model.config._attn_implementation == NAME


def test_unknown_models_are_refused():
    model = DistilBertModel(DistilBertConfig(vocab_size=9, dim=8, n_layers=1, n_heads=2, hidden_dim=8))
    families = "bart, bert, llama, marian, t5, vit"
    with pytest.raises(ValueError, match=f"model must be a stock model of {families}, got DistilBertModel"):
        convert(model)
    with pytest.raises(ValueError, match="got Linear"):
        convert(torch.nn.Linear(2, 2))


def test_each_calibration_knows_its_memories():
    """To find none and say nothing would leave every gamma where it was."""
    batch = batch_for("llama")
    with pytest.raises(ValueError, match="model must be one that convert has made, got LlamaForCausalLM"):
        calibrate(stock("llama"), batch)
    with pytest.raises(ValueError, match=r"must hold an Attention .*, got ReLULlamaForCausalLM without"):
        calibrate_memories(convert(stock("llama")), **batch)


def test_a_second_conversion_is_refused():
    with pytest.raises(ValueError, match="model is converted already: ReLUBertForMaskedLM"):
        convert(convert(stock("bert")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length must be an int >= 1, got 0"),
        ({"length": True}, "length must be an int >= 1, got True"),
        ({"batch": [1]}, "batch must be a mapping of the model's arguments, got list"),
        ({"settings": {"alpa": 1}}, "settings.alpa is no memory setting"),
        ({"settings": {"activation": "softmax"}}, "settings.activation must be one of relu, relu_squared, relu_fourth"),
        ({"settings": {"slots": 4}}, "settings.slots must be 0 in a converted model, got 4"),
        ({"settings": {"norm": "layer"}}, "settings.norm must be 'none' in a converted model, got 'layer'"),
        ({"sites": ["bert"]}, "sites must name attention modules, got 'bert'; there are bert.encoder.layer.0"),
        ({"sites": []}, "sites must choose at least one attention module"),
        ({"sites": 0}, "sites must be names of attention modules or a function of a name, got 0"),
    ],
)
def test_wrong_arguments_leave_the_model_alone(arguments, message):
    model = stock("bert")
    with pytest.raises(ValueError, match=message):
        convert(model, **arguments)
    assert type(model).__name__ == "BertForMaskedLM"


def test_a_batch_that_fails_leaves_the_model_as_it_was():
    model, batch = stock("marian"), batch_for("marian")
    before, names = logits(model, batch), set(model.state_dict())
    with pytest.raises(ValueError, match="decoder_input_ids"):  # the decoder has none, the encoder was calibrated
        convert(model, batch=tokens(4))
    assert type(model).__name__ == "MarianMTModel"
    assert model.config.model_type == model.model.encoder.config.model_type == "marian"
    assert set(model.state_dict()) == names
    torch.testing.assert_close(logits(model, batch), before, rtol=0, atol=0)
    convert(model, batch=batch)


def test_a_converted_class_takes_no_stock_configuration():
    model = stock("bert")
    with pytest.raises(ValueError, match="config must be a ReLUBertConfig, got BertConfig"):
        TWINS[type(model)](model.config)


def test_initialising_a_model_again_does_not_undo_calibration():
    batch = batch_for("bert")
    model = convert(stock("bert"), batch=batch)
    before = logits(model, batch)
    model.init_weights()
    torch.testing.assert_close(logits(model, batch), before, rtol=0, atol=0)
