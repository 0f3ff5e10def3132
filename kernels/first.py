"""First kernels: the smallest programs that say something about a GPU."""

import torch

from . import checks
from ._mode import MODE, Unsupported, device_of, launching, tl, triton


@triton.jit
def read_kernel(x, out, n_elements, elements_per_program, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Read x [n_elements] once and do next to nothing with it: each program leaves one number, so no load is idle.

    A program walks over its own stretch with UNROLL independent loads under way, which is what keeps the memory busy.
    """
    program = tl.program_id(0)
    first = program.to(tl.int64) * elements_per_program
    last = tl.minimum(first + elements_per_program, n_elements)
    offsets = tl.arange(0, BLOCK)
    seen = tl.zeros([BLOCK], tl.int32)
    # A mask that the compiler cannot see through turns 16-byte loads into 4-byte ones: it stays out of the long loop.
    unmasked = first + tl.maximum(last - first, 0) // (BLOCK * UNROLL) * (BLOCK * UNROLL)
    for start in range(first, unmasked, BLOCK * UNROLL):
        for i in tl.static_range(UNROLL):
            seen ^= tl.load(x + start + i * BLOCK + offsets)
    for start in range(unmasked, last, BLOCK):
        seen ^= tl.load(x + start + offsets, mask=start + offsets < last, other=0)
    tl.store(out + program, tl.xor_sum(seen, 0))


def read(x: torch.Tensor, *, programs: int | None = None) -> torch.Tensor:
    """Read a contiguous int32 tensor once, for timing how fast memory can be read; returns int32 [programs].

    The xor over the result equals the xor over ``x``, which is how a test knows that every element was read once.
    """
    if not isinstance(x, torch.Tensor) or x.dtype != torch.int32 or not x.is_contiguous():
        raise TypeError("x must be a contiguous int32 tensor")
    if MODE == "reference":
        raise Unsupported("read exists to be timed on a GPU, and Triton is not installed")
    checks.placed("x", x)
    checks.positive("programs", programs)
    checks.runnable(torch.float32, device_of(x).capability)
    block, unroll = 1024, 8
    if programs is None:
        programs = max(1, min(device_of(x).sm_count * 8, -(-x.numel() // (block * unroll))))
    stretch = -(-x.numel() // (programs * block * unroll)) * block * unroll
    out = x.new_empty(programs)
    with launching(x):
        read_kernel[(programs,)](x, out, x.numel(), stretch, BLOCK=block, UNROLL=unroll, num_warps=4)
    return out
