"""``reluformer bench attention``: forward, backward and both, against softmax in the same run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from reluformer.bench.contestants import Contestant, contestants, obstacle
from reluformer.bench.peak import peak_extra_bytes
from reluformer.bench.timing import Call, medians, reason, release

PASSES = ("forward", "backward", "both")
FLOPS = {"forward": 4.0, "backward": 10.0, "both": 14.0}  # times B H N^2 D; halved if causal


@dataclass(frozen=True)
class Setting:
    """One shape of the problem."""

    head_dim: int
    causal: bool
    length: int
    batch: int
    heads: int
    dtype: str

    def flops(self, kind: str) -> float:
        """Return the floating-point operations of a pass, counted as is usual in the field."""
        full = FLOPS[kind] * self.batch * self.heads * self.length**2 * self.head_dim
        return full / 2 if self.causal else full


@dataclass
class Row:
    """Results of one contestant in one setting; a pass that did not run is missing, and the note says why."""

    setting: Setting
    name: str
    softmax: bool
    statistics: bool
    ms: dict[str, float] = field(default_factory=dict)
    vs_softmax: dict[str, float] = field(default_factory=dict)
    extra_mib: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def tflops(self, kind: str) -> float | None:
        """Return the rate that a pass achieved, in TFLOP/s."""
        return self.setting.flops(kind) / self.ms[kind] / 1e9 if kind in self.ms else None

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        found: dict[str, object] = asdict(self.setting) | {"contestant": self.name, "statistics": self.statistics}
        for kind in PASSES:
            found |= {
                f"{kind}_ms": self.ms.get(kind),
                f"{kind}_tflops": self.tflops(kind),
                f"{kind}_vs_softmax": self.vs_softmax.get(kind),
            }
        return (
            found
            | {f"{kind}_extra_mib": self.extra_mib.get(kind) for kind in ("forward", "both")}
            | {"note": self.note}
        )


def settings(
    head_dims: list[int], causal: list[bool], lengths: list[int], tokens: int, width: int, dtype: str
) -> Iterator[Setting]:
    """Yield every combination, with ``tokens`` per call (at least one sequence) and ``width`` = heads x head dim."""
    for d in head_dims:
        for c in causal:
            for n in lengths:
                yield Setting(d, c, n, max(1, tokens // n), max(1, width // d), dtype)


def measure(
    setting: Setting,
    device: torch.device,
    seconds: float,
    fewest: int,
    quick: bool = False,
    without: Sequence[str] = (),
) -> list[Row]:
    """Time all contestants on the same random inputs, except those with a word of ``without`` in their names."""
    trial = _Trial(setting, device)
    # The compiled rival keeps its graph for many backward passes, which donated buffers would not survive.
    with functorch_config.patch(donated_buffer=False):
        for contestant in contestants(device):
            if any(word in contestant.name.lower() for word in without):
                continue
            note = obstacle(contestant.score_matrices, trial.inputs[0])
            if quick and contestant.compiled:
                note = "skipped: it compiles for long"
            trial.enter(contestant, note)
        for kind in PASSES:
            for name, found in medians(trial.calls[kind], device, seconds, fewest).items():
                if isinstance(found, float):
                    trial.rows[name].ms[kind] = found
                else:
                    trial.rows[name].note = f"{kind}: {found}"
    rows = list(trial.rows.values())
    for kind in PASSES:
        fastest = min((r.ms[kind] for r in rows if r.softmax and kind in r.ms), default=None)
        for row in rows:
            if fastest and kind in row.ms:
                row.vs_softmax[kind] = fastest / row.ms[kind]
    del trial
    torch.compiler.reset()  # each setting compiles afresh, below the limit on recompilations
    release(device)
    return rows


class _Trial:
    """The inputs of one setting, and the contestants that have proved to run on them."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        shape = (setting.batch, setting.heads, setting.length, setting.head_dim)
        dtype = getattr(torch, setting.dtype)
        self.setting, self.device = setting, device
        self.inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        self.slope = torch.randn(shape, device=device, dtype=dtype)
        self.rows: dict[str, Row] = {}
        self.calls: dict[str, dict[str, Call]] = {kind: {} for kind in PASSES}
        self.truth: list[Tensor] = []  # output and gradients of the first contestant, this operator

    def enter(self, contestant: Contestant, obstacle: str | None) -> None:
        """Enter a contestant for all passes; measure its memory and check its results while it runs alone."""
        name = contestant.name
        row = self.rows[name] = Row(self.setting, name, contestant.softmax, contestant.statistics, note=obstacle or "")
        if obstacle:
            return

        def forward() -> tuple[Tensor, ...]:
            q, k, v = self.inputs
            return contestant.attend(q, k, v, self.setting.causal)

        def both() -> tuple[Sequence[Tensor], ...]:
            outputs = forward()
            return outputs, torch.autograd.grad(outputs, self.inputs, slopes)

        try:
            outputs = forward()
            slopes = [self.slope, *(torch.randn_like(x) for x in outputs[1:])]
            row.extra_mib["forward"] = peak_extra_bytes(forward, self.device) / 2**20
            self.calls["forward"][name] = forward
            results = both()
            if not contestant.softmax:
                self._check([results[0][0], *(() if contestant.statistics else results[1])])
            del results
            row.extra_mib["both"] = peak_extra_bytes(both, self.device) / 2**20
            self.calls["both"][name] = both
            self.calls["backward"][name] = lambda: torch.autograd.grad(outputs, self.inputs, slopes, retain_graph=True)
        except Exception as error:  # a rival that cannot run here loses its row, not the table
            row.note = reason(error)
            release(self.device)

    def _check(self, found: list[Tensor]) -> None:
        """Check that all implementations of ReLU attention agree; otherwise their times could not be compared."""
        self.truth = self.truth or [x.detach() for x in found]
        for x, truth in zip(found, self.truth, strict=False):
            error = ((x - truth).float().norm() / truth.float().norm()).item()
            if not error < 0.03:
                raise RuntimeError(f"disagrees with this operator by {error:.2g}")
