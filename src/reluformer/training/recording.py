"""Training steps as CUDA graphs: recorded once for every shape of batch, then launched as a whole.

A step on a small batch is a thousand short kernels, which take a GPU less time than launching them one by one takes the
host. A recorded step is a single launch; it repeats what was recorded, on whatever is in the same memory by then. So
inputs are copied to where they were, and gradients are added up where they were.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Step = Callable[[Tensors], Tensors]
# Records a function without doing what it does, and returns another that does it, with the tensors that it then fills.
Recorder = Callable[[Callable[[], Tensors]], tuple[Callable[[], Any], Tensors]]


class CudaRecorder:
    """Records CUDA graphs, which all use the same memory, one after another."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensors]) -> tuple[Callable[[], Any], Tensors]:
        """Record ``run`` without executing it."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which move batches to the GPU, may go on meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = run()
        except RuntimeError as error:
            if isinstance(error.__context__, torch.OutOfMemoryError):  # which a recording that cannot be ended hides
                raise error.__context__ from None
            raise
        return graph.replay, outputs


@dataclass(frozen=True)
class _Recorded:
    inputs: Tensors
    replay: Callable[[], Any]
    outputs: Tensors


class RecordedStep:
    """A step that adds gradients to those of the parameters, and is recorded for every shape of its inputs.

    The first step of a shape runs as it is, since whatever compiles or tunes itself does so then, and that cannot be
    recorded. The second is recorded, and from then on repeated.

    Args:
        step: Computes the gradients of a batch. It must not read from the GPU, nor depend on anything that changes,
            apart from its inputs and ``kind``.
        parameters: Parameters that the gradients are for.
        recorder: Recorder of steps.
    """

    def __init__(self, step: Step, parameters: Iterable[nn.Parameter], recorder: Recorder) -> None:
        self.step, self.recorder = step, recorder
        self.parameters = [x for x in parameters if x.requires_grad]
        self.gradients: list[Tensor] = []  # where recorded steps add to them
        self.known: dict[Hashable, _Recorded | None] = {}

    def __call__(self, inputs: Tensors, kind: Hashable = None) -> Tensors:
        """Add the gradients of a batch to those that the parameters have, and return what the step returns.

        ``kind`` stands for everything that the step depends on besides its inputs.
        """
        self._restore_gradients()
        key = (kind, *((name, x.shape) for name, x in inputs.items()))
        if key not in self.known:
            self.known[key] = None
            return self._add(inputs)
        known = self.known[key]
        if known is None:
            known = self.known[key] = self._record(inputs)
        for name, x in inputs.items():
            known.inputs[name].copy_(x)
        known.replay()
        return {name: x.clone() for name, x in known.outputs.items()}

    def forget(self) -> None:
        """Release the memory of everything recorded, and of gradients unless the parameters have them."""
        self.known.clear()
        self.gradients = []

    def _record(self, inputs: Tensors) -> _Recorded:
        kept = {name: x.clone() for name, x in inputs.items()}
        return _Recorded(kept, *self.recorder(lambda: self._add(kept)))

    def _add(self, inputs: Tensors) -> Tensors:
        """Run the step, and add its gradients to all others at once: PyTorch would launch a kernel for each."""
        for x in self.parameters:
            x.grad = None
        outputs = self.step(inputs)
        made = [(total, x.grad) for x, total in zip(self.parameters, self.gradients, strict=True) if x.grad is not None]
        torch._foreach_add_([total for total, _ in made], [gradient for _, gradient in made])
        for x, total in zip(self.parameters, self.gradients, strict=True):
            x.grad = total
        return outputs

    def _restore_gradients(self) -> None:
        """Move gradients to where recorded steps add to them; those that were cleared are zeros there."""
        if not self.gradients:
            self.gradients = [torch.zeros_like(x) for x in self.parameters]
        pairs = zip(self.parameters, self.gradients, strict=True)
        moved = [(x, gradient) for x, gradient in pairs if x.grad is not gradient]
        if moved:
            torch._foreach_zero_([gradient for _, gradient in moved])
        for x, gradient in moved:
            if x.grad is not None:
                gradient.copy_(x.grad)
            x.grad = gradient
