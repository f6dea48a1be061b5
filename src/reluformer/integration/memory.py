"""The ReLU memory that ``convert`` puts into an attention module, for the queries, keys and values that it projects."""

from typing import Any

import torch
from torch import Tensor, nn

from reluformer.memory.activations import FUSED
from reluformer.memory.calibration import expected_mass, start_gamma
from reluformer.memory.scale import Gamma
from reluformer.memory.settings import MemorySettings
from reluformer.ops import relu_attention

# The projections remain the model's own, so settings that act on them, or between them, are not available.
NEUTRAL = {
    "norm": "none", "query_key_norm": False, "centred": False, "constant_channel": False, "sentence_bias": None,
    "slots": 0, "forget": None, "token_shift": False, "output_gate": False,
}  # fmt: skip


class AttentionMemory(nn.Module):
    """ReLU attention with one gamma (and one bias, if the settings have one) per query head."""

    def __init__(self, settings: MemorySettings, heads: int) -> None:
        super().__init__()
        self.settings = settings
        self.gamma = Gamma(settings, heads)
        self.bias = None if settings.bias is None else nn.Parameter(torch.full((heads,), float(settings.bias)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        """Look up ``q (B, Hq, N, D)`` in ``k, v (B, Hk, M, D)``; options as in :func:`reluformer.relu_attention`."""
        power = FUSED[self.settings.activation]
        return relu_attention(
            q, k, v, gamma=self.gamma(), alpha=self.settings.alpha, power=power, bias=self.bias, **options
        )

    def start(self, length: int, causal: bool) -> None:
        """Set gamma, by formula for sequences of this length, and the bias, unless a checkpoint or a call has."""
        if _claim(self.gamma.log_gamma):
            start_gamma(self.gamma, expected_mass(self.settings, length, causal))
        if self.bias is not None and _claim(self.bias):
            nn.init.constant_(self.bias, float(self.settings.bias or 0.0))

    @torch.no_grad()
    def calibrate_on(
        self, q: Tensor, k: Tensor, v: Tensor, *, query_mask: Tensor | None = None, **options: Any
    ) -> None:
        """Multiply gamma by the mean mass of these rows; ``query_mask (B, N)`` says which of them count."""
        _, stats = self.forward(q, k, v, **options, return_stats=True)  # bypasses the hooks, one of which calls this
        self.gamma.take_in(stats.mass, query_mask)


def check_settings(settings: MemorySettings) -> MemorySettings:
    """Return the settings; raise ``ValueError`` if a converted model cannot have them."""
    if settings.activation not in FUSED:
        raise ValueError(f"settings.activation must be one of {', '.join(FUSED)}, got {settings.activation!r}")
    for name, neutral in NEUTRAL.items():
        if getattr(settings, name) != neutral:
            raise ValueError(
                f"settings.{name} must be {neutral!r} in a converted model, got {getattr(settings, name)!r}"
            )
    return settings


def _claim(parameter: Any) -> bool:
    """Whether a parameter exists and is not set yet, by transformers' own mark, which is set here."""
    unset = parameter is not None and not getattr(parameter, "_is_hf_initialized", False)
    if unset:
        parameter._is_hf_initialized = True
    return unset
