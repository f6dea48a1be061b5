"""What the Hopper kernels share: mostly instructions for which Triton has no name."""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from reluformer.ops.statistics import TINY as _TINY

TINY = gl.constexpr(_TINY)
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # in Triton 3.6, and from 3.7 on

AT_LEAST_TINY = gl.constexpr(f"max.f32 $0, $1, 0f{struct.pack('>f', _TINY).hex()};")


@gluon.jit
def rectify(x):
    """``relu(x)`` as bfloat16: one instruction rectifies, rounds and packs two scores."""
    return gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def raised(u, POWER: gl.constexpr):
    """``u ** POWER`` by repeated squaring, for the powers 1, 2, 4 and 8."""
    if POWER >= 2:
        u = u * u
    if POWER >= 4:
        u = u * u
    if POWER == 8:
        u = u * u
    return u


@gluon.jit
def weigh(x, POWER: gl.constexpr):
    """``relu(x) ** POWER`` as bfloat16."""
    if POWER == 1:
        return rectify(x)
    return raised(gl.maximum(x, 0.0), POWER).to(gl.bfloat16)


@gluon.jit
def log2(x):
    """Base-2 logarithm of positive numbers, in one instruction."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def clamp(x):
    """``max(x, TINY)``, marked impure: else the compiler moves it past what overwrites ``x``, which costs a copy."""
    return gl.inline_asm_elementwise(AT_LEAST_TINY, "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1)
