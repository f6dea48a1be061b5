"""``reluformer demo operator``: the operator at work on this machine, every number computed on the spot."""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from reluformer import relu_attention, relu_attention_varlen
from reluformer.bench.peak import peak_extra_bytes
from reluformer.bench.timing import Call, medians
from reluformer.console import number, plain_table
from reluformer.machine import at_work
from reluformer.ops.attention import Backend


def show_operator() -> None:
    """Show the operator at work on this machine: weights, statistics, back ends, packing, speed."""
    torch.manual_seed(0)
    console = Console(highlight=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console.print(f"[bold]ReLU attention[/] on {at_work(device)}, torch {torch.__version__}\n")
    _one_row(console)
    _unit_mass(console, device)
    _back_ends(console, device)
    _packed(console, device)
    _speed(console, device)


def _one_row(console: Console) -> None:
    console.print("[bold]1. One query, twelve keys.[/] ReLU leaves keys out, softmax none.")
    keys = d = 12
    q, k = torch.randn(1, 1, 1, d), torch.randn(1, 1, keys, d)
    v = torch.eye(keys)[None, None]  # the identity as values: the output spells out the weights
    out, stats = relu_attention(q, k, v, return_stats=True)
    rectified, softmaxed = out.flatten(), functional.scaled_dot_product_attention(q, k, v).flatten()
    score = (q @ k.mT).flatten() / d**0.5
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("key", "score", "ReLU", "", "softmax", ""):
        table.add_column(heading, justify="right" if heading else "left", min_width=0 if heading else 18)
    for j in range(keys):
        r, s = rectified[j].item(), softmaxed[j].item()
        bars = [f"[{colour}]{'█' * round(20 * w)}[/]" for colour, w in (("blue", r), ("yellow", s))]
        table.add_row(str(j), f"{score[j]:+.2f}", f"{r:.2f}", bars[0], f"{s:.2f}", bars[1])
    console.print(table)
    entropy = -(softmaxed * softmaxed.log()).sum()
    console.print(
        f"  ReLU:    mass {stats.mass.item():.2f}, entropy {stats.entropy.item():.2f}, "
        f"{stats.active.item():.0f} of {keys} keys active\n"
        f"  softmax: mass {softmaxed.sum():.2f}, entropy {entropy:.2f}, "
        f"{(softmaxed > 0).sum()} of {keys} keys active\n"
    )


def _unit_mass(console: Console, device: torch.device) -> None:
    console.print("[bold]2. Gradients through the statistics.[/] Ten steps on |log mass| teach gamma.")
    q, k, v = torch.randn(3, 2, 4, 256, 64, device=device)
    log_gamma = torch.zeros(4, device=device, requires_grad=True)
    masses = []
    for _ in range(11):
        _, stats = relu_attention(q, k, v, gamma=log_gamma.exp(), causal=True, return_stats=True)
        masses.append(stats.mass.mean().item())
        (slope,) = torch.autograd.grad(stats.mass.clamp_min(1e-6).log().abs().mean((0, 2)).sum(), log_gamma)
        log_gamma = (log_gamma - 0.25 * slope).detach().requires_grad_()
    console.print("  mean mass: " + " → ".join(f"{m:.2f}" for m in masses[::2]) + "\n")


def _back_ends(console: Console, device: torch.device) -> None:
    console.print("[bold]3. One meaning, three back ends.[/] Largest error in float32 (exact: float64).")
    inputs = torch.randn(3, 2, 4, 300, 64, device=device, dtype=torch.float64)
    exact = _results(inputs, "reference")
    cells, refusals = [], []
    backends: tuple[Backend, ...] = ("reference", "chunked", "triton")
    for backend in backends:
        try:
            found = _results(inputs.float(), backend)
        except RuntimeError as error:  # the operator says why a back end cannot run
            refusals.append(f"  {error}\n")
            continue
        cells.append((backend, *(f"{(x - y).abs().max().item():.1e}" for x, y in zip(found, exact, strict=True))))
    console.print(plain_table("", ["", "output", "mass", "entropy", "gradient of q"], cells))
    for line in refusals:
        console.print(line, style="dim")


def _results(inputs: Tensor, backend: Backend) -> tuple[Tensor, ...]:
    q, k, v = inputs
    q = q.detach().requires_grad_()
    out, stats = relu_attention(q, k, v, causal=True, return_stats=True, backend=backend)
    (dq,) = torch.autograd.grad(out.square().sum() + stats.mass.sum(), q)
    return out.detach(), stats.mass.detach(), stats.entropy.detach(), dq


def _packed(console: Console, device: torch.device) -> None:
    lengths = [5, 200, 63]
    console.print(f"[bold]4. Packed sequences[/] of lengths {lengths}, against one call for each.")
    total = sum(lengths)
    q, k, v = torch.randn(3, total, 4, 64, device=device)  # each (T, H, D)
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    packed = relu_attention_varlen(q, k, v, bounds, bounds, max(lengths), max(lengths), causal=True)
    apart = []
    for parts in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        alone = relu_attention(*(x.transpose(0, 1)[None] for x in parts), causal=True)  # (1, H, N, D)
        apart.append(alone[0].transpose(0, 1))
    console.print(f"  {total} tokens in one call; largest difference {(packed - torch.cat(apart)).abs().max():.1e}\n")


def _speed(console: Console, device: torch.device) -> None:
    gpu = device.type == "cuda"
    n, heads, dtype = (8192, 16, torch.bfloat16) if gpu else (1024, 8, torch.float32)
    q, k, v = (torch.randn(1, heads, n, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    slope = torch.randn_like(q)
    console.print(f"[bold]5. Speed and memory[/], forward + backward, {n} tokens, {heads} x 64, {str(dtype)[6:]}.")

    def step(out: Tensor) -> tuple[object, ...]:
        return out, torch.autograd.grad(out, (q, k, v), slope)

    calls: dict[str, Call] = {
        "ReLU, this operator": lambda: step(relu_attention(q, k, v)),
        "softmax, PyTorch's SDPA": lambda: step(functional.scaled_dot_product_attention(q, k, v)),
        "ReLU, plain PyTorch": lambda: step(relu_attention(q, k, v, backend="reference")),
    }
    milliseconds = medians(calls, device, seconds=0.5, most=50)
    cells = []
    for name, call in calls.items():
        found = milliseconds[name]
        extra = number(peak_extra_bytes(call, device) / 2**20) if isinstance(found, float) else "n/a"
        cells.append((name, number(found) if isinstance(found, float) else found, extra))
    console.print(plain_table("", ["", "ms", "extra MiB"], cells))
    console.print("More: [bold]reluformer bench attention[/], [bold]bench decode[/], [bold]bench memory[/]")
