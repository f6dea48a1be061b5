"""From pixels to tokens: a linear map of the pixels of every patch, plus its position."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.models.image_configuration import ReLUFormerImageConfig


class PatchEmbedding(nn.Module):
    """Embeds the patches of an image, with learned positions, after a class token if the configuration has one.

    The class token has no position: both would be learned, and one is enough.
    """

    def __init__(self, config: ReLUFormerImageConfig) -> None:
        super().__init__()
        self.patch, self.channels = config.patch_size, config.channels
        self.grid = (config.edges[0] // self.patch, config.edges[1] // self.patch)  # rows, columns
        self.project = nn.Linear(self.channels * self.patch**2, config.d_model)
        self.positions = nn.Parameter(torch.zeros(*self.grid, config.d_model))
        self.class_token = nn.Parameter(torch.zeros(config.d_model)) if config.pooling == "class" else None

    def forward(self, pixels: Tensor) -> Tensor:
        """Tokens ``(B, N, width)`` of the images ``(B, channels, height, width)``, row by row."""
        if pixels.dim() != 4 or pixels.shape[1] != self.channels:
            raise ValueError(
                f"pixel_values must have shape (batch, {self.channels}, height, width), got {tuple(pixels.shape)}"
            )
        if pixels.shape[2] % self.patch or pixels.shape[3] % self.patch:
            raise ValueError(
                f"pixel_values must be a multiple of {self.patch} high and wide, got {tuple(pixels.shape[2:])}"
            )
        p = self.patch
        x = pixels.unflatten(3, (-1, p)).unflatten(2, (-1, p))  # (B, C, rows, p, columns, p)
        x = x.permute(0, 2, 4, 1, 3, 5)  # (B, rows, columns, C, p, p)
        x = self.project(x.flatten(3))  # (B, rows, columns, width)
        x = (x + self._positions(x.shape[1], x.shape[2]).to(x.dtype)).flatten(1, 2)  # (B, rows * columns, width)
        if self.class_token is None:
            return x
        return torch.cat([self.class_token.to(x.dtype).expand(len(x), 1, -1), x], dim=1)

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Positions of a grid, ``(rows, columns, width)``: as learned, or interpolated for an image of another size."""
        if (rows, columns) == self.grid:
            return self.positions
        learned = self.positions.permute(2, 0, 1)[None]  # (1, width, rows, columns)
        return F.interpolate(learned, (rows, columns), mode="bicubic", align_corners=False)[0].permute(1, 2, 0)
