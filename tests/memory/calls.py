"""Lookups in one line."""

from reluformer.memory import weights
from reluformer.memory.dispatch import look_up
from reluformer.memory.lookup import Lookup


def lookup(q, k, v, settings, *, return_stats=False, stats_batch=None, backend="auto", **options):
    """Sums and statistics, by the way that is chosen for them."""
    call = Lookup(q, k, v, settings, **options)
    return look_up(call, return_stats=return_stats, stats_batch=stats_batch, backend=backend)


def weights_of(q, k, settings, *, fades=None, **options):
    """The weights, which values do not matter to."""
    return weights.weights_of(Lookup(q, k, k, settings, **options), fades)
