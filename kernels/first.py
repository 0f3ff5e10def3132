"""First kernels, in the order in which the primer reads them; each adds one idea.

``copy`` cuts a tensor into blocks, gives each block to a program of its own and masks the tail. ``softmax_three_passes`` gives
a program a row that is wider than a block, so it walks over the row, and it has to walk three times. ``softmax`` keeps the
whole row in registers and reads it once; how a row that does not fit there gets by with one walk is what `online_softmax.py`
is about. ``read`` is there to measure how fast memory can be read.
"""

import torch

from . import checks, reference
from ._mode import MODE, Unsupported, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .plan import ceil_div

MAX_BLOCK = 8192
MAX_ROW = 32768
MIN_ROW_TILE = 1024  # shorter rows share one tile, or each of their lengths would compile a kernel
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def copy_kernel(x, out, n_elements, x_stride, BLOCK: tl.constexpr):
    """out[i] = x[i * x_stride]. Each program copies BLOCK elements, the last one what is left."""
    first = tl.program_id(0).to(tl.int64) * BLOCK  # 64 bits: a tensor may hold more than 2**31 elements
    offsets = first + tl.arange(0, BLOCK)
    inside = offsets < n_elements
    values = tl.load(x + offsets * x_stride, mask=inside)
    tl.store(out + offsets, values, mask=inside)


@operation("copy")
def _copy(x: torch.Tensor, block: int) -> torch.Tensor:
    checks.runnable(torch.float32, device_of(x).capability)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n_elements = x.numel()
    if n_elements:
        bits = BITS[x.element_size()]
        programs = ceil_div(n_elements, block)
        checks.launchable(programs)
        with launching(x):
            copy_kernel[(programs,)](
                x.view(bits), out.view(bits), n_elements, x.stride(0) if x.dim() == 1 else 1, BLOCK=block
            )  # fmt: skip
    return out


@_copy.register_fake
def _(x, block):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def copy(x: torch.Tensor, *, block: int = 1024) -> torch.Tensor:
    """A contiguous copy of ``x``: one axis with any stride, or any number of axes if contiguous.

    Elements are moved as integers of 1, 2, 4 or 8 bytes, so every bit arrives, a NaN's too. ``block`` elements, a power of
    two up to 8192, are one program's share: ceil(numel / block) programs.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: a gradient is required, or no kernel can run here.
    """
    checks.plain("x", x)
    if x.element_size() not in BITS:
        raise TypeError(f"x must have elements of 1, 2, 4 or 8 bytes, got {x.dtype} of {x.element_size()}")
    if x.dim() != 1 and not x.is_contiguous():
        raise ValueError(f"x must have one axis or be contiguous, got shape {list(x.shape)} with strides {list(x.stride())}")
    checks.placed("x", x)
    _check_block(block)
    checks.no_gradient("copy", x=x)
    checks.no_tangent("copy", x=x)
    return reference.copy(x) if MODE == "reference" else _copy(x, block)


@triton.jit
def load_block(row, start, n_columns, column_stride, BLOCK: tl.constexpr):
    """Columns start, start + 1, … of a row as a tile [BLOCK] in float32, -inf where the row has ended."""
    columns = (start + tl.arange(0, BLOCK)).to(tl.int64)
    return tl.load(row + columns * column_stride, mask=columns < n_columns, other=float("-inf")).to(tl.float32)


@triton.jit
def softmax_three_passes_kernel(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    """out[r] = exp(x[r] - largest) / total for x [R, N]. One program owns one row and reads it three times."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x + row * row_stride

    largest = float("-inf")
    for start in range(0, n_columns, BLOCK):
        scores = load_block(x_row, start, n_columns, column_stride, BLOCK)
        largest = tl.maximum(largest, tl.max(scores, 0))
    shift = tl.where(largest == float("-inf"), 0.0, largest)  # -inf - -inf would be NaN

    total = 0.0
    for start in range(0, n_columns, BLOCK):
        scores = load_block(x_row, start, n_columns, column_stride, BLOCK)
        total += tl.sum(tl.exp(scores - shift), 0)
    total = tl.where(total == 0.0, 1.0, total)

    for start in range(0, n_columns, BLOCK):
        scores = load_block(x_row, start, n_columns, column_stride, BLOCK)
        columns = start + tl.arange(0, BLOCK)
        weights = (tl.exp(scores - shift) / total).to(out.dtype.element_ty)
        tl.store(out + row * n_columns + columns, weights, mask=columns < n_columns)


@triton.jit
def softmax_kernel(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    """The same with the row in one tile: BLOCK >= N, and every element is read once."""
    row = tl.program_id(0).to(tl.int64)
    scores = load_block(x + row * row_stride, 0, n_columns, column_stride, BLOCK)

    largest = tl.max(scores, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp(scores - shift)
    total = tl.sum(weights, 0)
    total = tl.where(total == 0.0, 1.0, total)

    columns = tl.arange(0, BLOCK)
    tl.store(out + row * n_columns + columns, (weights / total).to(out.dtype.element_ty), mask=columns < n_columns)


@operation("softmax")
def _softmax(x: torch.Tensor, block: int | None) -> torch.Tensor:
    checks.runnable(x.dtype, device_of(x).capability)
    (scores,) = to_kernel(x)
    n_rows, n_columns = x.shape
    out = torch.empty(x.shape, dtype=scores.dtype, device=x.device)
    if out.numel():
        checks.launchable(n_rows)
        if block is None:
            kernel, block = softmax_kernel, max(MIN_ROW_TILE, triton.next_power_of_2(n_columns))
        else:
            kernel = softmax_three_passes_kernel
        with launching(x):
            kernel[(n_rows,)](scores, out, n_columns, *scores.stride(), BLOCK=block, num_warps=4 if block <= 2048 else 16)
    return out.to(x.dtype)


@_softmax.register_fake
def _(x, block):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def softmax_three_passes(x: torch.Tensor, *, block: int = 1024) -> torch.Tensor:
    """Softmax over the last axis of ``x`` [R, N], for rows of any width: largest value, sum, result, each its own walk.

    Args:
        x: float16, bfloat16 or float32, any strides. The arithmetic is float32.
        block: columns a program holds at a time, a power of two up to 8192.

    Returns:
        [R, N], contiguous, in x's dtype. A row of -inf gives zeros, as attention does for a row without keys (torch.softmax
        gives NaN); NaN and +inf give a row of NaN.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: a gradient is required, or no kernel can run here.
    """
    _check_block(block)
    _check_rows("softmax_three_passes", x)
    return reference.softmax_three_passes(x).to(x.dtype) if MODE == "reference" else _softmax(x, block)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """``softmax_three_passes`` in one pass, for rows of up to 32768 columns: each element is read once.

    Wider rows are refused with ``Unsupported``: the row has to fit into a program's registers.
    """
    _check_rows("softmax", x)
    if x.shape[1] > MAX_ROW:
        raise Unsupported(
            f"softmax keeps a row in registers and goes up to {MAX_ROW} columns, got {x.shape[1]}: use softmax_three_passes"
        )
    return reference.softmax(x).to(x.dtype) if MODE == "reference" else _softmax(x, None)


def _check_rows(operation: str, x: torch.Tensor) -> None:
    checks.tensors(x=x)
    checks.shape("x", x, "R N", {})
    checks.no_gradient(operation, x=x)
    checks.no_tangent(operation, x=x)


def _check_block(block: int) -> None:
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"block must be an integer, got {type(block).__name__}")
    if not 1 <= block <= MAX_BLOCK or block & (block - 1):
        raise ValueError(f"block must be a power of two from 1 to {MAX_BLOCK}, got {block}")


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


@operation("read")
def _read(x: torch.Tensor, programs: int, block: int, unroll: int) -> torch.Tensor:
    checks.runnable(torch.float32, device_of(x).capability)
    stretch = ceil_div(x.numel(), programs * block * unroll) * block * unroll
    out = x.new_empty(programs)
    with launching(x):
        read_kernel[(programs,)](x, out, x.numel(), stretch, BLOCK=block, UNROLL=unroll, num_warps=4)
    return out


@_read.register_fake
def _(x, programs, block, unroll):
    return x.new_empty(programs)


def read(x: torch.Tensor, *, programs: int | None = None) -> torch.Tensor:
    """Read a contiguous int32 tensor once, for timing how fast memory can be read; returns int32 [programs].

    The xor over the result equals the xor over ``x``, which is how a test knows that every element was read once.
    """
    checks.plain("x", x, "a contiguous int32 tensor")
    if x.dtype != torch.int32 or not x.is_contiguous():
        raise TypeError("x must be a contiguous int32 tensor")
    if MODE == "reference":
        raise Unsupported("read exists to be timed on a GPU, and Triton is not installed")
    checks.placed("x", x)
    checks.positive("programs", programs)
    block, unroll = 1024, 8
    if programs is None:
        programs = max(1, min(device_of(x).sm_count * 8, ceil_div(x.numel(), block * unroll)))
    return _read(x, programs, block, unroll)
