"""The residual stream of a model that norms before its memories is what enters the sublayer, not the normed input."""

import pytest
import torch

from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.report import memory_report


@pytest.mark.parametrize("order", ["pre", "post"])
def test_variance_is_over_the_residual_stream(order):
    torch.manual_seed(0)
    config = ReLUFormerConfig.preset("reluformer-tiny", vocab_size=50, norm_order=order)
    model = ReLUFormerForConditionalGeneration(config).eval()
    seen = {}
    sublayer = model.model.encoder.layers[1].ffn
    sublayer.register_forward_pre_hook(lambda _, args: seen.update(stream=args[0]))
    sublayer.memory.register_forward_hook(lambda _, args, out: seen.update(out=out))
    ids = torch.randint(3, 50, (2, 9))
    report = memory_report(model, {"input_ids": ids, "decoder_input_ids": ids})
    site = next(s for s in report.sites if (s.site, s.layer) == ("encoder.ffn", 1))
    expected = seen["out"].var(correction=0) / seen["stream"].var(correction=0)
    assert site.variance_ratio == pytest.approx(expected.item(), rel=1e-5)
