"""Parameter groups of the optimiser: matrices decay, scales learn faster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from reluformer.memory.attention import Attention
from reluformer.memory.scale import Gamma
from reluformer.training.recipe import Optimiser


@dataclass(frozen=True)
class ParameterKinds:
    """Names of a model's parameters by kind, collected before anything wraps the model: shards lose their shapes.

    Attributes:
        matrices: Parameters with two dimensions or more.
        gammas: Logarithms of gamma.
        biases: Biases of attention scores.
    """

    matrices: frozenset[str]
    gammas: frozenset[str]
    biases: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module) -> "ParameterKinds":
        """Collect the names from a model."""
        kinds: list[tuple[type[nn.Module], tuple[str, ...]]] = [
            (Gamma, ("log_gamma",)), (Attention, ("bias", "sentence_bias")),
        ]  # fmt: skip
        parameters = dict(model.named_parameters())
        gammas, biases = (
            frozenset(f"{name}.{x}" for name, module in model.named_modules() if isinstance(module, kind) for x in own)
            & parameters.keys()
            for kind, own in kinds
        )
        return cls(frozenset(name for name, x in parameters.items() if x.ndim > 1), gammas, biases)

    def groups(self, model: nn.Module, optimiser: Optimiser) -> list[dict[str, Any]]:
        """Return parameter groups for an optimiser, first the one with the recipe's learning rate and weight decay."""
        named = [(_plain(name), x) for name, x in model.named_parameters() if x.requires_grad]
        scales = self.gammas | self.biases
        lr = optimiser.lr
        groups: list[dict[str, Any]] = [
            {"params": [x for name, x in named if name in self.matrices], "weight_decay": optimiser.weight_decay},
            {"params": [x for name, x in named if name not in self.matrices | scales], "weight_decay": 0.0},
            {"params": [x for name, x in named if name in scales], "weight_decay": 0.0, "lr": lr * optimiser.gamma_lr},
        ]
        return [group for group in groups if group["params"]]

    def find_gammas(self, model: nn.Module) -> Iterator[Tensor]:
        """Iterate over the learned gammas of a model, per head; if it is sharded, all processes must call this."""
        for name, x in model.named_parameters():
            if name in self.gammas:
                whole: Tensor = x.full_tensor() if isinstance(x, DTensor) else x  # type: ignore[no-untyped-call]
                yield whole.detach().exp()


def _plain(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")
