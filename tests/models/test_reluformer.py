"""The model as a user of Hugging Face meets it: whatever way it is run, it computes the same."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM, DynamicCache, Trainer, TrainingArguments

from reluformer.memory import Attention, calibrate
from reluformer.memory.activations import ACTIVATIONS, NORMALISED
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

VOCAB = 40


def make(activation="relu", **fields):
    """A tiny model whose random logits are far apart, so that tokens do not hang on rounding."""
    torch.manual_seed(0)
    kind = {"activation": activation} | ({"alpha": 0.0, "gamma": "none"} if activation in NORMALISED else {})
    sites = {site: kind | fields.pop(site, {}) for site in ("encoder_self", "decoder_self", "cross")}
    fields = {"vocab_size": VOCAB, "tie_word_embeddings": False} | sites | fields
    model = ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", **fields))
    torch.nn.init.normal_(model.lm_head.weight)
    return model.eval()


def batch():
    torch.manual_seed(1)
    ids, mask = torch.randint(3, VOCAB, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    ids[1, 6:], mask[1, 6:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, inputs, **options):
    out = model.generate(
        **inputs, max_new_tokens=8, min_new_tokens=8, return_dict_in_generate=True, output_logits=True, **options
    )
    return out.sequences, torch.stack(out.logits, 1)


def assert_same(first, second):
    assert first[0].tolist() == second[0].tolist()
    torch.testing.assert_close(first[1], second[1], atol=1e-4, rtol=1e-4)


VARIANTS = [
    *({"activation": activation} for activation in ACTIVATIONS),
    {"positions": "rotary", "norm_order": "post"},
    {"positions": "learned", "key_heads": 2},
    {"decoder_self": {"slots": 5, "bias": 0.3}, "encoder_self": {"slots": 3}, "ffn": {"slots": 0}},
    {"cross": {"norm": "gated", "query_key_norm": True}, "ffn": {"norm": "layer"}},
    {site: {"norm": "mass", "bias": 1.0} for site in ("encoder_self", "decoder_self", "cross", "ffn")},
    {"activation": "relu_squared", "positions": "rotary", "key_heads": 2}
    | {site: {"centred": True, "bias": 2.0, "alpha": 1.0} for site in ("encoder_self", "decoder_self", "cross")},
    {"activation": "relu_fourth", "key_heads": 2}
    | {site: {"centred": True, "bias": 4.0, "norm": "mass"} for site in ("encoder_self", "decoder_self", "cross")},
    {"activation": "relu_fourth"}
    | {site: {"centred": True, "bias": 4.0, "norm": "mass", "slots": 3} for site in ("encoder_self", "decoder_self")},
    {"activation": "relu_eighth", "positions": "rotary", "key_heads": 2}
    | {
        site: {"constant_channel": True, "bias": 8.0, "norm": "mass"}
        for site in ("encoder_self", "decoder_self", "cross")
    },
    {"activation": "relu_squared"}
    | {
        site: {"constant_channel": True, "bias": 2.0, "norm": "mass", "slots": 3}
        for site in ("encoder_self", "decoder_self")
    },
    {"norm_order": "post"} | {site: {"centred": True, "slots": 3} for site in ("encoder_self", "decoder_self")},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
class TestComputesTheSame:
    def test_with_and_without_a_cache(self, fields):
        model, inputs = make(**fields), batch()
        cached = generate(model, inputs)
        assert_same(cached, generate(model, inputs, use_cache=False))
        assert_same(cached, generate(model, inputs, cache_implementation="static"))
        assert len(set(cached[0].flatten().tolist())) > 2  # a model that says one thing would agree with itself

    def test_alone_and_padded_in_a_batch(self, fields):
        model, inputs = make(**fields), batch()
        tokens, logits = generate(model, inputs)
        alone = generate(model, {"input_ids": inputs["input_ids"][1:, :6]})
        assert_same((tokens[1:], logits[1:]), alone)

    def test_teacher_forced_and_step_by_step(self, fields):
        model, inputs = make(**fields), batch()
        tokens, logits = generate(model, inputs)
        forced = model(**inputs, decoder_input_ids=tokens[:, :-1], use_cache=False).logits
        torch.testing.assert_close(forced, logits, atol=1e-4, rtol=1e-4)


def test_left_padded_targets():
    model, inputs = make(), batch()
    target = torch.randint(3, VOCAB, (1, 5))
    padded, mask = torch.cat([torch.zeros(1, 3, dtype=torch.long), target], 1), torch.arange(8)[None] >= 3
    one = {"input_ids": inputs["input_ids"][:1]}
    expected = model(**one, decoder_input_ids=target).logits
    found = model(**one, decoder_input_ids=padded, decoder_attention_mask=mask).logits[:, 3:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_beams_and_sampling():
    model, inputs = make(), batch()
    beams = [model.generate(**inputs, max_new_tokens=8, num_beams=3, use_cache=cache) for cache in (True, False)]
    assert beams[0].tolist() == beams[1].tolist()
    torch.manual_seed(0)
    assert model.generate(**inputs, max_new_tokens=8, do_sample=True).shape == (2, 9)


@pytest.mark.parametrize("beams", [1, 3])
def test_softmax_s_share_is_there_in_generation_too(beams):
    model, twin, inputs = make(), make("softmax"), batch()
    twin.load_state_dict({name: x for name, x in model.state_dict().items() if "gamma" not in name})
    expected, plain = (generate(x, inputs, num_beams=beams) for x in (twin, model))
    assert plain[0].tolist() != expected[0].tolist()
    for memory in (x for x in model.modules() if isinstance(x, Attention)):
        memory.softmax_share = torch.ones(())
    assert_same(generate(model, inputs, num_beams=beams), expected)


class TestTraining:
    def test_loss_is_the_mean_cross_entropy_of_the_labels(self):
        model, inputs = make(), batch()
        labels = torch.randint(3, VOCAB, (2, 5))
        labels[1, 3:] = -100
        out = model(**inputs, labels=labels)
        start = torch.full((2, 1), model.config.decoder_start_token_id)
        shifted = torch.cat([start, labels[:, :-1]], 1).masked_fill(torch.cat([start, labels[:, :-1]], 1) == -100, 0)
        logits = model(**inputs, decoder_input_ids=shifted).logits
        torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
        total = model(**inputs, labels=labels, num_items_in_batch=16).loss
        torch.testing.assert_close(total, out.loss * 8 / 16)

    def test_regularisation_is_part_of_the_loss_in_training_alone(self):
        model, inputs = make(regulariser={"mass": 0.1, "entropy": 0.2}), batch()
        labels = torch.randint(3, VOCAB, (2, 5))
        plain = model(**inputs, labels=labels)
        assert plain.regularisation is None
        out = model.train()(**inputs, labels=labels)
        torch.testing.assert_close(out.loss, plain.loss + out.regularisation)
        assert out.regularisation > 0
        assert make().train()(**inputs, labels=labels).regularisation is None

    @pytest.mark.parametrize("fields", VARIANTS, ids=str)
    def test_every_parameter_learns(self, fields):
        model, inputs = make(regulariser={"mass": 0.1, "entropy": 0.1}, **fields).train(), batch()
        model(**inputs, labels=torch.randint(3, VOCAB, (2, 5))).loss.backward()
        assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []

    def test_gradient_checkpointing_changes_nothing(self):
        inputs = batch() | {"labels": torch.randint(3, VOCAB, (2, 5))}
        grads = []
        for checkpointing in (False, True):
            model = make(regulariser={"mass": 0.1}).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(**inputs).loss.backward()
            grads.append([p.grad for p in model.parameters()])
        for plain, again in zip(*grads, strict=True):
            torch.testing.assert_close(plain, again)

    def test_bfloat16_autocast(self):
        model, inputs = make(regulariser={"mass": 0.1}).train(), batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs, labels=torch.randint(3, VOCAB, (2, 5))).loss
        loss.backward()
        assert loss.isfinite()

    @pytest.mark.slow
    @pytest.mark.parametrize("dynamic", [None, True])
    @pytest.mark.parametrize("activation", ["relu", "softmax"])
    def test_compiles_as_one_graph(self, activation, dynamic):
        fields = {"encoder_layers": 1, "decoder_layers": 1} | (
            {"regulariser": {"mass": 0.1}} if activation == "relu" else {}
        )
        model = make(activation, **fields).train()
        inputs = batch() | {"labels": torch.randint(3, VOCAB, (2, 5))}
        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        torch.testing.assert_close(compiled(**inputs).loss, model(**inputs).loss)


class TestSaving:
    @pytest.mark.parametrize("tied", [True, False])
    def test_reloads_bit_equal_in_a_new_process(self, tied, tmp_path):
        gammas = {"cross": {"gamma": "fixed"}, "encoder_self": {"gamma": "shared"}}
        model, inputs = make(tie_word_embeddings=tied, **gammas), batch()
        with torch.no_grad():
            for p in model.parameters():  # nothing may be what a fresh model would have anyway
                p.add_(0.1 * torch.randn_like(p))
            model.model.decoder.layers[0].cross_attention.memory.gamma.log_gamma.fill_(0.7)
            expected = model(**inputs, decoder_input_ids=inputs["input_ids"]).logits
        model.save_pretrained(tmp_path)
        torch.save((inputs, expected), tmp_path / "case.pt")
        script = (
            "import sys, torch; from transformers import AutoModelForSeq2SeqLM; import reluformer.models\n"
            "inputs, expected = torch.load(sys.argv[1] + '/case.pt')\n"
            "model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])\n"
            "with torch.no_grad(): found = model(**inputs, decoder_input_ids=inputs['input_ids']).logits\n"
            "assert torch.equal(found, expected)\n"
        )
        result = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "model.safetensors").exists()

    def test_gamma_starts_at_unit_mass_and_is_not_started_again(self, tmp_path):
        model = make(calibration_length=64)
        gamma = model.model.encoder.layers[0].self_attention.memory.gamma
        torch.testing.assert_close(gamma(), torch.full((4,), (64 / torch.pi) ** 0.5), rtol=1e-4, atol=0)
        with torch.no_grad():
            gamma.log_gamma.fill_(0.25)
        model.save_pretrained(tmp_path)
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).model.encoder.layers[0].self_attention.memory.gamma
        assert torch.equal(again.log_gamma, gamma.log_gamma)

    def test_twins_have_the_same_parameters_but_gamma(self):
        shapes = [
            {n: p.shape for n, p in make(name).named_parameters() if "gamma" not in n} for name in ("relu", "softmax")
        ]
        assert shapes[0] == shapes[1]

    def test_resizes_its_vocabulary(self):
        model, inputs = make(tie_word_embeddings=True), batch()
        model.resize_token_embeddings(VOCAB + 3)
        assert model(**inputs, decoder_input_ids=inputs["input_ids"]).logits.shape[-1] == VOCAB + 3
        assert model.lm_head.weight is model.model.shared.weight


def test_hidden_states_of_all_layers():
    model, inputs = make(), batch()
    out = model(**inputs, decoder_input_ids=inputs["input_ids"], output_hidden_states=True)
    assert len(out.encoder_hidden_states) == len(out.decoder_hidden_states) == 3
    torch.testing.assert_close(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)


def test_the_encoder_alone_gives_the_hidden_states_that_its_configuration_asks_for():
    model, inputs = make(output_hidden_states=True), batch()
    assert len(model.get_encoder()(**inputs).hidden_states) == 3
    assert model.get_encoder()(**inputs, output_hidden_states=False).hidden_states is None
    assert make().get_encoder()(**inputs).hidden_states is None


def test_too_long_for_learned_positions():
    model = make(positions="learned", max_position_embeddings=4)
    with pytest.raises(ValueError, match="longer than the 4 positions that were learned"):
        model(input_ids=torch.ones(1, 5, dtype=torch.long), decoder_input_ids=torch.ones(1, 1, dtype=torch.long))


class TestPositionShift:
    def test_positions_begin_there(self):
        encoder, ids = make().model.encoder, torch.randint(3, VOCAB, (2, 6))
        shifted, _ = encoder._enter(ids, None, None, shift=torch.tensor(3))
        later, _ = encoder._enter(torch.nn.functional.pad(ids, (3, 0), value=5), None, None)
        torch.testing.assert_close(shifted, later[:, 3:])

    def test_in_training_alone_and_on_both_sides_alike(self, monkeypatch):
        model, inputs = make(position_shift=50, dropout=0.0), batch()
        inputs["labels"] = inputs["input_ids"]
        still = make(dropout=0.0)
        torch.testing.assert_close(model.eval()(**inputs).logits, still.eval()(**inputs).logits)
        seen = []
        for side in (model.model.encoder, model.model.decoder):

            def spy(*inputs, enter=side._enter, **options):
                seen.append(options.get("shift", inputs[-1]))
                return enter(*inputs, **options)

            monkeypatch.setattr(side, "_enter", spy)
        losses = {model.train()(**inputs).loss.item() for _ in range(20)}
        assert len(losses) > 5
        assert all(x == y for x, y in zip(seen[::2], seen[1::2], strict=True))
        assert 0 <= min(seen) < max(seen) <= 50


class TestRegularisation:
    def test_padding_of_the_target_does_not_count(self):
        """Alone or beside a longer one, a target costs the same."""
        model, inputs = make(regulariser={"mass": 0.1, "entropy": 0.1}, dropout=0.0).train(), batch()
        labels = torch.randint(3, VOCAB, (1, 5)).expand(2, -1).clone()
        inputs = {name: x[:1].expand(2, -1) for name, x in inputs.items()}
        short = model(**inputs, labels=labels).regularisation
        padded = torch.nn.functional.pad(labels, (0, 3), value=-100)
        torch.testing.assert_close(model(**inputs, labels=padded).regularisation, short)

    @pytest.mark.parametrize("activation", ["relu", "sigmoid", "softmax"])
    def test_of_a_share_of_the_sequences(self, activation):
        """Half of two sequences is the first, alone; what padding the other has does not count."""
        terms = {"mass": 0.1, "entropy": 0.1, "ceiling": 0.3}
        model, inputs = make(activation, regulariser=terms | {"share": 0.5}, dropout=0.0).train(), batch()
        inputs["labels"] = torch.randint(3, VOCAB, (2, 5))
        inputs["labels"][0, 3:] = -100
        half = model(**inputs).regularisation
        torch.testing.assert_close(half, model(**{name: x[:1] for name, x in inputs.items()}).regularisation)
        turned = {name: x.flip(0) for name, x in inputs.items()}
        assert abs(model(**turned).regularisation - half) > 1e-4

    def test_halves_average_to_the_whole(self):
        """An unbiased estimate, gradients and all, where all sequences have as many rows that are alive."""
        terms, grads = {"mass": 0.1, "entropy": 0.1}, {}
        alive = {site: {"bias": 9.0} for site in ("encoder_self", "decoder_self", "cross")}
        inputs = {"input_ids": torch.randint(3, VOCAB, (4, 9)), "labels": torch.randint(3, VOCAB, (4, 5))}
        turned = {name: x.flip(0) for name, x in inputs.items()}
        for share in (0.5, 1.0):
            model = make(regulariser=terms | {"share": share}, dropout=0.0, **alive).train()
            model(**inputs).regularisation.backward()
            model(**turned).regularisation.backward()
            grads[share] = [p.grad for p in model.parameters() if p.grad is not None]
        for found, expected in zip(grads[0.5], grads[1.0], strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)

    def test_trains_on_a_share_of_the_sequences(self):
        """With layers that are computed again in the backward pass, and batches of many sizes."""
        model = make(regulariser={"mass": 1.0, "entropy": 1.0, "share": 0.5}, dropout=0.0).train()
        model.gradient_checkpointing_enable()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        ids = torch.randint(3, VOCAB, (6, 9))
        costs = []
        for step in range(30):
            out = model(input_ids=ids[: 3 + step % 4], labels=ids[: 3 + step % 4])
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            costs.append(torch.stack([out.loss - out.regularisation, out.regularisation]).detach())
        first, last = costs[0], costs[-1]
        assert (last < first / 2).all()

    def test_layers_compile_once_for_all_batches(self):
        model = make(regulariser={"mass": 0.1, "share": 0.5}, dropout=0.0, encoder_layers=1, decoder_layers=1).train()
        expected, found = [], []
        inputs = [torch.randint(3, VOCAB, (size, 7)) for size in (5, 6, 9, 12)]
        for ids in inputs:
            expected.append(model(input_ids=ids, labels=ids).loss)
        torch.compiler.reset()
        counter = torch._dynamo.testing.CompileCounter()
        model.compile_layers(backend=counter, dynamic=True)
        graphs = []
        for ids in inputs:
            found.append(model(input_ids=ids, labels=ids).loss)
            graphs.append(counter.frame_count)
        torch.testing.assert_close(found, expected)
        assert len(set(graphs)) == 1


def test_a_compiled_model_can_be_copied_and_pickled():
    model = make(regulariser={"mass": 0.1}, encoder_layers=1, decoder_layers=1)
    ids = torch.randint(3, VOCAB, (2, 7))
    expected = model.train()(input_ids=ids, labels=ids).loss
    model.compile_layers(backend="eager")
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(again(input_ids=ids, labels=ids).loss, expected)


def test_calibration_leaves_padded_labels_out():
    config = ReLUFormerConfig.preset("reluformer-tiny", vocab_size=50)
    model = ReLUFormerForConditionalGeneration(config)
    source, target = torch.randint(3, 50, (2, 3, 7))
    calibrate(model, input_ids=source, labels=target)
    alone = {name: x.clone() for name, x in model.named_parameters() if "log_gamma" in name}
    calibrate(model, input_ids=source, labels=F.pad(target, (0, 9), value=-100))
    for name, x in alone.items():
        assert torch.allclose(model.get_parameter(name), x, atol=1e-4), name


def test_generation_from_a_source_that_was_read_before():
    model, ids = make(), batch()["input_ids"]
    read = model.get_encoder()(ids)
    assert torch.equal(model.generate(encoder_outputs=read, max_new_tokens=6), model.generate(ids, max_new_tokens=6))


def test_a_smaller_model_assists():
    model, ids = make(), batch()["input_ids"]
    written = model.generate(ids[:1], assistant_model=make(decoder_layers=1), max_new_tokens=8, do_sample=False)
    assert torch.equal(written, model.generate(ids[:1], max_new_tokens=8))


def test_reentrant_checkpoints_are_refused_where_they_drop_gradients():
    make().gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant must be False"):
        make(regulariser={"mass": 0.1}).gradient_checkpointing_enable({"use_reentrant": True})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_hugging_face_s_own_trainer_evaluates(tmp_path, smoothing):
    rows = [{"input_ids": ids, "decoder_input_ids": ids, "labels": ids} for ids in torch.randint(3, VOCAB, (4, 5))]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, label_smoothing_factor=smoothing
    )
    trainer = Trainer(make(regulariser={"mass": 0.1}), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_missing_target_is_called_by_its_name():
    with pytest.raises(ValueError, match="give either decoder_input_ids or decoder_inputs_embeds, and not both"):
        make()(torch.tensor([[3, 4, 2]]))


def test_masks_must_be_for_all_tokens():
    model, inputs = make(), batch()
    ids, short = inputs["input_ids"], inputs["attention_mask"][:, :6]
    source = model.model.encoder(ids).last_hidden_state
    with pytest.raises(ValueError, match="attention_mask must be for all 9 tokens, got the shape"):
        model(ids, attention_mask=short, decoder_input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask must be for all 9 tokens, got the shape"):
        model(attention_mask=short, encoder_outputs=(source,), decoder_input_ids=ids)
    with pytest.raises(ValueError, match="decoder_attention_mask must be for all 9 tokens, got the shape"):
        model(**inputs, decoder_input_ids=ids, decoder_attention_mask=short)
    with pytest.raises(ValueError, match=r"attention_mask must be for all 9 tokens, got the shape \(2, 10\)"):
        model(attention_mask=torch.ones(2, 10), encoder_outputs=(source,), decoder_input_ids=ids)
    with pytest.raises(ValueError, match="output_attentions must be False"):
        model(**inputs, decoder_input_ids=ids, output_attentions=True)


def test_a_cache_is_one_of_source_and_target():
    with pytest.raises(ValueError, match="past_key_values must be an EncoderDecoderCache, got DynamicCache"):
        make()(**batch(), decoder_input_ids=batch()["input_ids"], past_key_values=DynamicCache())


def test_hugging_face_s_own_trainer_keeps_the_masks(tmp_path):
    """It drops what the model does not name."""
    ids = torch.randint(3, VOCAB, (4, 5))
    masks = {"attention_mask": torch.ones(5), "decoder_attention_mask": torch.ones(5)}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    rows = [{"input_ids": x, "decoder_input_ids": x, "labels": x} | masks for x in ids]
    found = next(iter(Trainer(make(), arguments, train_dataset=rows).get_train_dataloader()))
    assert found.keys() == rows[0].keys()


@pytest.mark.parametrize("training", [True, False])
def test_source_and_target_have_one_batch(training):
    model = make().train(training)
    source, target = torch.randint(3, VOCAB, (2, 9)), torch.randint(3, VOCAB, (4, 7))
    with pytest.raises(ValueError, match="the target must have as many sequences as the source, 2, got 4"):
        model(source, labels=target)


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}, {}])
def test_writes_in_training_too(options):
    model = make(regulariser={"mass": 0.02, "entropy": 0.02}, dropout=0.0)
    found = [model.train(training).generate(**batch(), max_new_tokens=4, **options) for training in (True, False)]
    assert found[0].shape == found[1].shape
    if "do_sample" not in options:
        torch.testing.assert_close(*found)


def test_positions_are_not_shifted_where_the_source_was_read_before():
    model, inputs = make(position_shift=50, dropout=0.0).train(), batch()
    read = model.get_encoder()(**inputs)
    losses = {
        model(encoder_outputs=read, attention_mask=inputs["attention_mask"], labels=inputs["input_ids"]).loss.item()
        for _ in range(4)
    }
    assert len(losses) == 1


def test_weights_that_the_configuration_asks_for_are_refused():
    model = make(output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions must be False"):
        model(**batch(), decoder_input_ids=batch()["input_ids"])
