"""A tiny ReLUFormer learns: the whole chain, from the labels to what it writes."""

import pytest
import torch

from reluformer.memory import calibrate
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

LENGTH, VOCAB, STEPS = 8, 16, 400
END = 2


def pairs(count, reverse):
    source = torch.randint(3, VOCAB, (count, LENGTH))
    target = source.flip(1) if reverse else source
    return {"input_ids": source, "labels": torch.cat([target, torch.full((count, 1), END)], 1)}


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True], ids=["copy", "reverse"])
def test_learns_to(reverse):
    torch.manual_seed(0)
    config = ReLUFormerConfig.preset(
        "reluformer-tiny", vocab_size=VOCAB, regulariser={"mass": 0.02, "entropy": 0.02} if reverse else None
    )
    model = ReLUFormerForConditionalGeneration(config)
    calibrate(model, **pairs(32, reverse))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS, pct_start=0.1)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**pairs(64, reverse)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    test = pairs(200, reverse)
    written = model.eval().generate(test["input_ids"], max_new_tokens=LENGTH + 1)[:, 1:]
    written = torch.nn.functional.pad(written, (0, LENGTH + 1 - written.shape[1]))
    assert (written == test["labels"]).float().mean() > 0.99
