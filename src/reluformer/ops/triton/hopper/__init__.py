"""Kernels for Hopper GPUs, in Gluon: the schedule is written out to keep the tensor cores busy.

They take the common case of training (bfloat16, head dims 64 and 128, dense, causal or not, grouped heads, statistics);
everything else runs on the portable kernels. Gluon is experimental and not in every Triton, so import this package only
when it is needed.
"""
