"""The language model as a user of Hugging Face meets it: whatever way it is run, it computes the same."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache, Trainer, TrainingArguments

from reluformer.memory import calibrate
from reluformer.memory.activations import ACTIVATIONS, NORMALISED
from reluformer.models import ReLUFormerForCausalLM, ReLUFormerLanguageConfig

VOCAB = 40
PRO = {"query_key_norm": True, "token_shift": True, "norm": "rms", "output_gate": True}


def make(activation="relu", **fields):
    """A tiny model whose random logits are far apart, so that tokens do not hang on rounding."""
    torch.manual_seed(0)
    kind = {"activation": activation} | ({"alpha": 0.0, "gamma": "none"} if activation in NORMALISED else {})
    fields = {"vocab_size": VOCAB, "tie_word_embeddings": False, "d_model": 32, "ffn": {"slots": 64}} | fields
    fields["decoder_self"] = kind | fields.get("decoder_self", {})
    model = ReLUFormerForCausalLM(ReLUFormerLanguageConfig.preset("reluformer-lm-tiny", **fields))
    torch.nn.init.normal_(model.lm_head.weight)
    return model.eval()


def batch():
    """Two texts, the second with padding on its left."""
    torch.manual_seed(1)
    ids, mask = torch.randint(3, VOCAB, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    ids[1, :3], mask[1, :3] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, inputs, **options):
    out = model.generate(
        **inputs, max_new_tokens=6, min_new_tokens=6, return_dict_in_generate=True, output_logits=True, **options
    )
    return out.sequences[:, -6:], torch.stack(out.logits, 1)


def assert_same(first, second):
    assert first[0].tolist() == second[0].tolist()
    torch.testing.assert_close(first[1], second[1], atol=1e-4, rtol=1e-4)


VARIANTS = [
    *({"activation": x, "decoder_self": {"forget": gate}} for x in ACTIVATIONS for gate in (None, 1.0)),
    {"positions": "none", "norm_order": "post"},
    {"positions": "learned", "key_heads": 2, "decoder_self": {"forget": 1.0, "bias": 0.3}},
    {"positions": "sinusoidal", "decoder_self": {"slots": 5, "norm": "gated"}, "ffn": {"slots": 0}},
    {"positions": "rotary", "key_heads": 2, "decoder_self": PRO},
    {"key_heads": 2, "decoder_self": PRO | {"forget": 0.0}},
    {"activation": "softmax", "decoder_self": PRO | {"forget": 0.0}},
    {"decoder_self": {"token_shift": True, "norm": "mass", "forget": 0.0}},
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
        alone = generate(model, {"input_ids": inputs["input_ids"][1:, 3:]})
        assert_same((tokens[1:], logits[1:]), alone)

    def test_at_once_and_in_pieces(self, fields):
        """Several tokens behind those of a cache, as in assisted decoding and in prompts that come in chunks."""
        model, inputs = make(**fields), batch()
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        cache, pieces = DynamicCache(config=model.config), []
        with torch.no_grad():
            whole = model(**inputs, use_cache=False).logits
            for start, stop in ((0, 4), (4, 7), (7, 8), (8, 9)):
                pieces.append(model(ids[:, start:stop], mask[:, :stop], past_key_values=cache).logits)
        real = mask.bool()
        torch.testing.assert_close(torch.cat(pieces, 1)[real], whole[real], atol=1e-4, rtol=1e-4)

    def test_beams(self, fields):
        model, inputs = make(**fields), batch()
        beams = [model.generate(**inputs, max_new_tokens=6, num_beams=3, use_cache=cache) for cache in (True, False)]
        assert beams[0].tolist() == beams[1].tolist()

    def test_every_parameter_learns(self, fields):
        model, inputs = make(regulariser={"mass": 0.1, "entropy": 0.1}, **fields).train(), batch()
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        model(**inputs, labels=labels).loss.backward()
        assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


GATED = [{"decoder_self": {"forget": 1.0}}, {"activation": "softmax", "decoder_self": PRO | {"forget": 0.0}}]


def test_sampling():
    torch.manual_seed(0)
    assert make(**GATED[0]).generate(**batch(), max_new_tokens=6, min_new_tokens=6, do_sample=True).shape == (2, 15)


@pytest.mark.parametrize("fields", GATED, ids=str)
def test_tokens_that_were_guessed_and_taken_back(fields):
    """Guesses that turn out wrong leave the cache as it was, gates and all."""
    model, ids = make(**fields), batch()["input_ids"][:1].repeat(1, 2)
    guessed = model.generate(ids, max_new_tokens=8, prompt_lookup_num_tokens=3)
    assert guessed.tolist() == model.generate(ids, max_new_tokens=8).tolist()


@pytest.mark.parametrize("fields", VARIANTS[-3:])
def test_the_first_layers_guess(fields):
    model, inputs = make(layers=3, **fields), {"input_ids": batch()["input_ids"][:1]}
    assert_same(generate(model, inputs, assistant_early_exit=1), generate(model, inputs))
    assert model.config.layers == 3


def test_a_token_sees_none_that_follow():
    model, ids = make(**GATED[1]), batch()["input_ids"][:1]
    other = torch.cat([ids[:, :5], 42 - ids[:, 5:]], 1)
    torch.testing.assert_close(model(other).logits[:, :5], model(ids).logits[:, :5])


def test_a_shift_needs_a_cache_of_its_configuration():
    model = make(decoder_self=PRO)
    with pytest.raises(ValueError, match=r"past_key_values must have room for token_shift: .*config=model.config"):
        model(**batch(), past_key_values=DynamicCache())


def test_a_cache_of_bfloat16_holds_the_gates():
    model, inputs = make(decoder_self={"forget": 1.0}).bfloat16(), batch()
    with torch.no_grad():
        whole = model(**inputs, use_cache=False).logits
        cache = model(inputs["input_ids"][:, :-1], inputs["attention_mask"][:, :-1]).past_key_values
        step = model(inputs["input_ids"][:, -1:], inputs["attention_mask"], past_key_values=cache).logits
    exact = model.float()(**inputs).logits[:, -1]
    assert (step[:, -1] - exact).norm() < 2 * (whole[:, -1] - exact).norm() + 1e-2 * exact.norm()


class TestTraining:
    def test_loss_is_the_mean_cross_entropy_of_the_tokens_that_follow(self):
        model, ids = make(), batch()["input_ids"]
        labels = ids.clone()
        labels[1, :5] = -100
        out = model(ids, labels=labels)
        logits = model(ids).logits[:, :-1]
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        torch.testing.assert_close(out.loss, expected)
        torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=24).loss, expected * 12 / 24)

    def test_regularisation_is_part_of_the_loss_in_training_alone(self):
        model, ids = make(regulariser={"mass": 0.1, "entropy": 0.2}, **GATED[0]), batch()["input_ids"]
        plain = model(ids, labels=ids)
        assert plain.regularisation is None
        out = model.train()(ids, labels=ids)
        torch.testing.assert_close(out.loss, plain.loss + out.regularisation)
        assert out.regularisation > 0

    def test_padding_costs_nothing(self):
        """Alone or beside a longer one, a text costs the same."""
        model, ids = make(regulariser={"mass": 0.1, "entropy": 0.1}, **GATED[0]).train(), batch()["input_ids"][:1]
        short = model(ids, labels=ids)
        padded, labels = (torch.nn.functional.pad(ids, (0, 3), value=value) for value in (0, -100))
        long = model(padded, labels=labels)
        torch.testing.assert_close(long.regularisation, short.regularisation)
        torch.testing.assert_close(long.loss, short.loss)

    def test_regularisation_of_a_share_of_the_texts(self):
        model, inputs = make(regulariser={"mass": 0.1, "share": 0.5}, dropout=0.0, **GATED[0]).train(), batch()
        inputs = {name: x.flip(0) for name, x in inputs.items()}  # the padded one first
        half = model(**inputs).regularisation
        torch.testing.assert_close(half, model(**{name: x[:1] for name, x in inputs.items()}).regularisation)
        assert half != model(**{name: x[1:] for name, x in inputs.items()}).regularisation

    @pytest.mark.parametrize("fields", GATED, ids=str)
    def test_gradient_checkpointing_changes_nothing(self, fields):
        ids, grads = batch()["input_ids"], []
        for checkpointing in (False, True):
            model = make(regulariser={"mass": 0.1}, **fields).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(ids, labels=ids).loss.backward()
            grads.append([p.grad for p in model.parameters()])
        for plain, again in zip(*grads, strict=True):
            torch.testing.assert_close(plain, again)

    @pytest.mark.parametrize("fields", GATED, ids=str)
    def test_bfloat16_autocast(self, fields):
        model, inputs = make(regulariser={"mass": 0.1}, **fields).train(), batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        torch.testing.assert_close(loss.detach(), model(**inputs, labels=inputs["input_ids"]).loss, rtol=0.05, atol=0)

    @pytest.mark.slow
    @pytest.mark.parametrize("fields", GATED, ids=str)
    def test_compiles_as_one_graph(self, fields):
        model, ids = make(regulariser={"mass": 0.1}, layers=1, **fields).train(), batch()["input_ids"]
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(ids, labels=ids).loss, model(ids, labels=ids).loss)

    @pytest.mark.slow
    def test_compiled_layer_by_layer(self):
        model, ids = make(layers=1, **GATED[1]).train(), batch()["input_ids"]
        expected = model(ids, labels=ids).loss
        model.compile_layers(backend="aot_eager")
        torch.testing.assert_close(model(ids, labels=ids).loss, expected)


class TestSaving:
    @pytest.mark.slow
    def test_reloads_bit_equal_in_a_new_process(self, tmp_path):
        model, inputs = make(tie_word_embeddings=True, decoder_self=PRO | {"forget": 1.0, "gamma": "fixed"}), batch()
        with torch.no_grad():
            for p in model.parameters():  # nothing may be what a fresh model would have anyway
                p.add_(0.1 * torch.randn_like(p))
            model.model.layers[0].self_attention.memory.gamma.log_gamma.fill_(0.7)
            expected = model(**inputs).logits
        model.save_pretrained(tmp_path)
        torch.save((inputs, expected), tmp_path / "case.pt")
        script = (
            "import sys, torch; from transformers import AutoModelForCausalLM; import reluformer.models\n"
            "inputs, expected = torch.load(sys.argv[1] + '/case.pt')\n"
            "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
            "with torch.no_grad(): found = model(**inputs).logits\n"
            "assert torch.equal(found, expected)\n"
        )
        result = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "model.safetensors").exists()

    def test_what_starts_somewhere_is_not_started_again(self, tmp_path):
        model = make(decoder_self={"forget": 2.5})
        memory = model.model.layers[0].self_attention.memory
        assert memory.forget.project.bias.tolist() == [2.5] * 4
        with torch.no_grad():
            memory.forget.project.bias.fill_(0.25)
            memory.gamma.log_gamma.fill_(0.5)
        model.save_pretrained(tmp_path)
        again = AutoModelForCausalLM.from_pretrained(tmp_path).model.layers[0].self_attention.memory
        assert again.forget.project.bias.tolist() == [0.25] * 4
        assert again.gamma.log_gamma.tolist() == [0.5] * 4

    def test_twins_have_the_same_parameters_but_gamma(self):
        shapes = [
            {n: p.shape for n, p in make(name, decoder_self={"forget": 0.0}).named_parameters() if "gamma" not in n}
            for name in ("relu", "softmax")
        ]
        assert shapes[0] == shapes[1]

    def test_resizes_its_vocabulary(self):
        model, inputs = make(tie_word_embeddings=True), batch()
        model.resize_token_embeddings(VOCAB + 3)
        assert model(**inputs).logits.shape[-1] == VOCAB + 3
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_labels_that_a_trainer_smooths_are_those_of_the_tokens_that_follow(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], label_smoothing_factor=0.1)
    model, ids = make(), batch()["input_ids"]
    loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids})
    expected = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_hidden_states_and_some_of_the_logits():
    model, inputs = make(), batch()
    out = model(**inputs, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits)
    torch.testing.assert_close(model(**inputs, logits_to_keep=2).logits, out.logits[:, -2:])


def test_gives_either_tokens_or_their_embeddings():
    model, ids = make(), batch()["input_ids"]
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(ids).logits)
    with pytest.raises(ValueError, match="give either input_ids or inputs_embeds, and not both"):
        model(ids, inputs_embeds=embedded)
    with pytest.raises(ValueError, match="position_ids must be None"):
        model(ids, position_ids=torch.arange(ids.shape[1])[None])
    with pytest.raises(ValueError, match=r"attention_mask must have 2 dimensions, .*, got the shape \(1, 1, 2, 2\)"):
        model(ids, attention_mask=torch.ones(1, 1, 2, 2))


def test_a_mask_must_be_for_all_tokens():
    """One that is too short would be taken for one that hides the rest."""
    model, ids = make(), batch()["input_ids"]
    short = torch.ones_like(ids)[:, 1:]
    with pytest.raises(ValueError, match=rf"attention_mask must be for all {ids.shape[1]} tokens, got the shape"):
        model(ids, attention_mask=short)
    past = model(ids).past_key_values
    with pytest.raises(ValueError, match=rf"attention_mask must be for all {ids.shape[1] + 1} tokens"):
        model(ids[:, :1], attention_mask=torch.ones_like(ids), past_key_values=past)


def test_a_mask_is_for_these_tokens_and_no_others():
    """The last ones of a longer mask would be taken for those of the tokens, which have their positions from it."""
    model, ids = make(), batch()["input_ids"]
    room = StaticCache(config=model.config, max_cache_len=16)
    model(ids[:, :8], past_key_values=room)
    with pytest.raises(ValueError, match=r"attention_mask must be for all 9 tokens, got the shape \(2, 16\)"):
        model(ids[:, 8:], attention_mask=torch.ones(2, 16), past_key_values=room)
    with pytest.raises(ValueError, match=r"attention_mask must be for all 9 tokens, got the shape \(2, 10\)"):
        model(ids, attention_mask=torch.ones(2, 10))
    with pytest.raises(ValueError, match=r"attention_mask must be for all 2 sequences, got the shape \(1, 9\)"):
        model(ids, attention_mask=torch.zeros(1, 9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": torch.tensor([3, 4])}, r"input_ids must have the shape \(batch, tokens\), got \(2,\)"),
        ({"inputs_embeds": torch.ones(2, 32)}, r"inputs_embeds .* \(batch, tokens, d_model\), got \(2, 32\)"),
        ({"past_key_values": ((torch.ones(2, 4, 1, 8),) * 2,)}, "past_key_values must be a Cache .*, got tuple"),
        ({"labels": torch.full((9, 2), 3)}, r"labels must have .* tokens, \(2, 9\), got \(9, 2\)"),
        ({"labels": torch.full((2, 9), 3), "logits_to_keep": 2}, r"labels must .*, \(2, 2\), got \(2, 9\)"),
    ],
)  # fmt: skip
def test_what_is_of_another_shape_is_called_by_its_name(arguments, message):
    given = {} if "inputs_embeds" in arguments else {"input_ids": batch()["input_ids"]}
    with pytest.raises(ValueError, match=message):
        make()(**given | arguments)


def test_what_cannot_be_had_is_refused_and_some_logits_are_those_of_all():
    model, ids = make(), batch()["input_ids"]
    with pytest.raises(ValueError, match="output_attentions must be False"):
        model(ids, output_attentions=True)
    logits = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:])
    some = torch.tensor([0, 3])
    torch.testing.assert_close(model(ids, logits_to_keep=some).logits, logits[:, some])


@pytest.mark.parametrize("family", ["reluformer-lm-forget", "transformer-lm-forget-pro"])
def test_learns_to_go_on_with_a_pattern(family):
    """Two random tokens in turn: from the third on there is no doubt what follows."""
    torch.manual_seed(0)

    def texts(count):
        return torch.randint(3, 12, (count, 2)).repeat(1, 4)

    fields = {"vocab_size": 12, "d_model": 32, "heads": 2, "layers": 1, "ffn": {"slots": 64}, "calibration_length": 8}
    model = ReLUFormerForCausalLM(ReLUFormerLanguageConfig.preset(f"{family}-tiny", **fields))
    calibrate(model, input_ids=texts(32))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    model.train()
    for _ in range(150):
        ids = texts(32)
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimiser.step()
    test = texts(100)
    written = model.eval().generate(test[:, :4], max_new_tokens=4, min_new_tokens=4)[:, -4:]
    assert (written == test[:, -4:]).float().mean() > 0.95
