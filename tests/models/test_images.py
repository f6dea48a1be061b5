"""The vision transformer as a user of Hugging Face meets it: whatever way it is run, it computes the same."""

import math
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForImageClassification, pipeline
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # elsewhere 5.17 asks for torchvision

from reluformer import memory_report
from reluformer.memory import Attention, MemorySettings, calibrate
from reluformer.memory.activations import NORMALISED
from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig, image_processor


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(activation="relu", **fields):
    torch.manual_seed(0)
    kind = {"activation": activation} | ({"alpha": 0.0, "gamma": "none"} if activation in NORMALISED else {})
    fields["encoder_self"] = kind | fields.get("encoder_self", {})
    return ReLUFormerForImageClassification(ReLUFormerImageConfig.preset("reluformer-digits", **fields)).eval()


def batch(count=3, height=8, width=8, channels=1):
    torch.manual_seed(1)
    return torch.randn(count, channels, height, width)


VARIANTS = [
    {"activation": "relu"},
    {"activation": "softmax"},
    {"activation": "relu6"},
    {"pooling": "mean", "norm_order": "post"},
    {"channels": 3, "image_size": [8, 4], "patch_size": 4, "key_heads": 2},
    {"encoder_self": {"norm": "gated", "query_key_norm": True, "slots": 3, "bias": 0.1}, "ffn": {"slots": 0}},
    {"encoder_self": {"norm": "mass", "bias": 1.0}, "ffn": {"activation": "softmax", "norm": "layer"}},
]


def images_for(model, count=3):
    return batch(count, *model.config.edges, model.config.channels)


# Each h written out once more, for one score.
FORMULAS = {
    "relu": lambda s: s if s > 0 else 0 * s,
    "relu_squared": lambda s: s * s if s > 0 else 0 * s,
    "gelu": lambda s: 0.5 * s * (1 + torch.erf(s / math.sqrt(2))),
    "softplus": lambda s: torch.log1p(torch.exp(s)),
    "identity": lambda s: s,
    "relu6": lambda s: 0 * s if s <= 0 else s if s < 6 else 0 * s + 6,
    "plain_sigmoid": lambda s: 1 / (1 + torch.exp(-s)),
}


def attention_by_hand(memory, x, alpha, h):
    """``sum_j L^-alpha h(q_i.k_j / sqrt d) v_j``, pair by pair."""
    d, length = memory.head_dim, x.shape[1]
    rows = []
    for image in x:
        q, k, v = (image @ part.weight.T + part.bias for part in (memory.query, memory.key, memory.value))  # (L, H * D)
        for i in range(length):
            parts = []
            for head in range(memory.heads):
                own = slice(head * d, (head + 1) * d)
                total = torch.zeros(d, dtype=x.dtype)
                for j in range(length):
                    score = (q[i, own] * k[j, own]).sum() / math.sqrt(d)
                    total = total + length**-alpha * h(score) * v[j, own]
                parts.append(total)
            rows.append(torch.cat(parts) @ memory.output.weight.T + memory.output.bias)
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("activation", FORMULAS)
def test_attention_is_the_formula_of_the_paper(activation, alpha):
    torch.manual_seed(0)
    memory = Attention(6, 2, MemorySettings(activation, alpha=alpha, gamma="fixed")).double()
    memory.gamma.start_at(2**alpha)  # a memory divides by gamma (L / 2)^alpha
    x = (3 * torch.randn(2, 5, 6, dtype=torch.float64)).requires_grad_()
    found, _ = memory(x)
    expected = attention_by_hand(memory, x, alpha, FORMULAS[activation])
    torch.testing.assert_close(found, expected)
    toward = torch.randn_like(found)
    for_all = [x, *memory.parameters()]
    grads = (torch.autograd.grad((y * toward).sum(), for_all) for y in (found, expected))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
class TestComputesTheSame:
    def test_alone_and_in_a_batch(self, fields):
        model = make(**fields)
        images = images_for(model)
        logits = model(images).logits
        assert logits.shape == (3, 10)
        for i in range(3):
            torch.testing.assert_close(model(images[i : i + 1]).logits, logits[i : i + 1], atol=1e-5, rtol=1e-5)

    def test_with_gradient_checkpointing(self, fields):
        grads = []
        for checkpointing in (False, True):
            model = make(**fields, regulariser={"mass": 0.1}).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(images_for(model), labels=torch.tensor([1, 2, 3])).loss.backward()
            assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
            grads.append([p.grad for p in model.parameters()])
        for plain, again in zip(*grads, strict=True):
            torch.testing.assert_close(plain, again)


@pytest.mark.parametrize("activation", ["relu", "softmax"])
def test_compiles_as_one_graph(activation):
    model = make(activation, regulariser={"mass": 0.1} if activation == "relu" else {}).train()
    inputs = {"pixel_values": batch(), "labels": torch.tensor([1, 2, 3])}
    model(**inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**inputs).loss, model(**inputs).loss)


def test_compiled_layer_by_layer():
    model, counter = make(regulariser={"mass": 0.1}).train(), torch._dynamo.testing.CompileCounter()
    inputs = {"pixel_values": batch(), "labels": torch.tensor([1, 2, 3])}
    expected = model(**inputs).loss
    model.compile_layers(backend=counter)
    torch.testing.assert_close(model(**inputs).loss, expected)
    assert counter.frame_count == 2  # one for all layers, and the regulariser


def test_bfloat16_autocast():
    model = make(regulariser={"mass": 0.1, "entropy": 0.1}).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch(), labels=torch.tensor([1, 2, 3])).loss
    loss.backward()
    assert loss.isfinite()


def test_loss_is_the_mean_cross_entropy_and_in_training_the_regularisation():
    model, images, labels = make(regulariser={"mass": 0.1, "entropy": 0.2}), batch(), torch.tensor([1, 2, 3])
    plain = model(images, labels=labels)
    torch.testing.assert_close(plain.loss, torch.nn.functional.cross_entropy(plain.logits, labels))
    assert plain.regularisation is None
    torch.testing.assert_close(model(images, labels=labels, num_items_in_batch=6).loss, plain.loss * 3 / 6)
    out = model.train()(images, labels=labels)
    torch.testing.assert_close(out.loss, plain.loss + out.regularisation)
    assert out.regularisation > 0


def test_a_row_has_unit_mass_at_the_start_and_after_calibration():
    model, images = make(), batch(16)
    # The first layer sees a stream of unit variance, as the formula has it; a batch makes it exact, in every layer.
    assert memory_report(model, {"pixel_values": images}).sites[0].mean.mass == pytest.approx(1, rel=0.3)
    calibrate(model, pixel_values=images)
    for site in memory_report(model, {"pixel_values": images}).sites:
        if site.kind == "attention":
            assert site.mean.mass == pytest.approx(1, rel=1e-4)


class TestImagesOfOtherSizes:
    def test_the_mass_of_a_row_stays(self):
        """With alpha = 1, the preset's, more patches are not more mass."""
        model = make()
        masses = [memory_report(model, {"pixel_values": batch(8, n, n)}).sites[0].mean.mass for n in (8, 32)]
        assert masses[1] == pytest.approx(masses[0], rel=0.1)

    def test_positions_are_interpolated(self):
        model = make()
        patches = model.model.patches
        tokens = patches(torch.zeros(1, 1, 12, 16))
        assert tokens.shape == (1, 1 + 6 * 8, 64)
        learned = patches.positions.permute(2, 0, 1)[None]
        expected = torch.nn.functional.interpolate(learned, (6, 8), mode="bicubic")[0].flatten(1).T
        torch.testing.assert_close(tokens[0, 1:] - patches.project.bias, expected)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((2, 3, 8, 8), r"pixel_values must have shape \(batch, 1, height, width\), got \(2, 3, 8, 8\)"),
            ((1, 8, 8), r"pixel_values must have shape .*, got \(1, 8, 8\)"),
            ((2, 1, 8, 9), r"pixel_values must be a multiple of 2 high and wide, got \(8, 9\)"),
        ],
    )
    def test_what_is_no_image_is_refused(self, shape, message):
        with pytest.raises(ValueError, match=message):
            make()(torch.zeros(shape))


def test_patches_are_read_row_by_row():
    model = make(image_size=[4, 6], patch_size=2)
    patches = model.model.patches
    image = torch.arange(24.0).view(1, 1, 4, 6)
    tokens = patches(image)[0, 1:] - patches.positions.flatten(0, 1)
    expected = patches.project(torch.tensor([[0.0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11], [12, 13, 18, 19]]))
    torch.testing.assert_close(tokens[:4], expected, atol=1e-4, rtol=1e-4)


class TestSaving:
    def test_reloads_bit_equal_in_a_new_process(self, tmp_path):
        fields = {"encoder_self": {"gamma": "fixed", "norm": "gated", "bias": 0.2}, "pooling": "class"}
        model, images = make(**fields), batch()
        with torch.no_grad():
            for p in [*model.parameters(), *model.buffers()]:  # nothing may be what a fresh model would have anyway
                p.add_(0.1 * torch.randn_like(p))
            expected = model(images).logits
        model.save_pretrained(tmp_path)
        image_processor(model.config).save_pretrained(tmp_path)
        torch.save((images, expected), tmp_path / "case.pt")
        script = (
            "import sys, torch; from transformers import AutoModelForImageClassification; import reluformer.models\n"
            "from transformers.models.auto.image_processing_auto import AutoImageProcessor\n"
            "images, expected = torch.load(sys.argv[1] + '/case.pt')\n"
            "model = AutoModelForImageClassification.from_pretrained(sys.argv[1])\n"
            "with torch.no_grad(): found = model(images).logits\n"
            "assert torch.equal(found, expected)\n"
            "assert AutoImageProcessor.from_pretrained(sys.argv[1]).size['height'] == 8\n"
        )
        result = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr

    def test_each_site_keeps_its_settings(self, tmp_path):
        make(encoder_self={"alpha": 0.7}, ffn={"activation": "relu6", "gamma": "learned"}).save_pretrained(tmp_path)
        again = AutoModelForImageClassification.from_pretrained(tmp_path)
        layer = again.model.layers[1]
        assert layer.self_attention.memory.settings.alpha == 0.7
        assert layer.ffn.memory.settings == MemorySettings("relu6", 0.0, "learned", bias=0.0, slots=128)

    def test_pipeline(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        model = make(channels=3, id2label={i: f"digit {i}" for i in range(10)})
        model.save_pretrained(tmp_path)
        image_processor(model.config).save_pretrained(tmp_path)
        found = pipeline("image-classification", model=str(tmp_path), device="cpu")(image.new("RGB", (20, 30), "red"))
        pixels = AutoImageProcessor.from_pretrained(tmp_path)(image.new("RGB", (20, 30), "red"), return_tensors="pt")
        assert pixels["pixel_values"].shape == (1, 3, 8, 8)
        best = int(model(**pixels).logits.argmax())
        assert found[0]["label"] == f"digit {best}"
