"""What the kernels for Hopper share: Gluon, where it can be used, and the pieces that more than one of them needs.

What changes against all other files: the language. Triton divides a tile among the threads of a program, decides when data
moves, and lets every warp do the same. Gluon, a part of Triton, leaves all that to the author: which register of which thread
holds which element, what lies in shared memory and how it is swizzled, who waits for whom, and what each warp does. In return,
the warps of one program can have different roles, and the tensor cores need not wait for a softmax:

    producer   one warp that only starts copies from global to shared memory (TMA, the copy engine, moves the bytes)
    consumer   one warpgroup, 4 warps, that multiplies (wgmma, the tensor cores) what has arrived, and does the arithmetic
    full       barrier of a buffer: the producer says how many bytes will come, consumers wait until they are there
    empty      barrier of a buffer: each consumer arrives when it has read, the producer waits before it copies again

A barrier lies in shared memory and knows a phase, which flips when all have arrived: the n-th use of one of S buffers is
buffer n % S in phase n // S % 2. A *named* barrier is one of the 16 that the hardware has for a program, and costs less; it
counts threads, and has no phase.

Gluon has no interpreter. Where it cannot be used these kernels are text, and the portable form behind the same function runs.
"""

import contextlib
import functools
import math
import types
import warnings
from typing import NamedTuple

import torch

from ._mode import MODE, device_of, triton

# The versions of Triton that these kernels are compiled with in the tests. Gluon is young and changes from one to the next.
TESTED = ("3.6", "3.7")
VERSION = ".".join(getattr(triton, "__version__", "0.0").split(".")[:2])

# All that differs between machines and versions of Triton is in this block.
if VERSION in TESTED and MODE != "interpreter":
    from triton._C.libtriton import ir
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language._core import builtin
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )  # fmt: skip
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    barrier = gl.thread_barrier if VERSION == "3.6" else gl.barrier

    @builtin
    def tma_add(descriptor, place, source, _semantic=None):
        """Add a tile in shared memory to global memory, in the copy engine. Gluon has the instruction, but no name for it."""
        place = _semantic._convert_to_ir_values(place, require_i64=False)
        _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, descriptor.handle, place, source.handle)
else:
    # The kernels are only read: their files have to import, and nothing else.
    gluon = types.SimpleNamespace(jit=lambda function=None, **_: function or (lambda f: f))
    gl = types.SimpleNamespace(constexpr=lambda value: value)
    TensorDescriptor = barrier = fence_async_shared = mbarrier = tma = tma_add = None
    warpgroup_mma = warpgroup_mma_init = warpgroup_mma_wait = None


CAPABILITY = (9, 0)


def present() -> bool:
    """Whether these kernels can run on the current GPU: a Hopper one, and a version of Triton that was tried."""
    return MODE == "compiled" and VERSION in TESTED and torch.cuda.get_device_capability() == CAPABILITY


# One for the process. A variable of the thread or the context would not do: autograd computes gradients in threads of its own,
# one for each GPU, and ``portable`` around a backward pass has to hold there. So does its price: it holds in all other threads.
_portable = False


@contextlib.contextmanager
def portable():
    """Inside, everything runs in its portable form, as on a GPU that is no Hopper: to compare the two, and to teach.

    It holds for the whole process, not for one thread.
    """
    global _portable
    before, _portable = _portable, True
    try:
        yield
    finally:
        _portable = before


def is_portable() -> bool:
    """Whether ``portable`` is in force."""
    return _portable


def describable(tensor: torch.Tensor) -> bool:
    """Whether the copy engine can walk over this tensor: dense columns, and every other step a multiple of 16 bytes."""
    steps = (stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1)
    return (
        tensor.numel() > 0
        and tensor.stride(-1) == 1
        and tensor.data_ptr() % 16 == 0
        and all(stride > 0 and stride * tensor.element_size() % 16 == 0 and stride < 2**38 for stride in steps)
    )


def available(*tensors: torch.Tensor) -> bool:
    """Whether the kernels in Gluon can take these tensors, which lie on one device and have one dtype.

    A Hopper GPU, a 16-bit format, tensors that its copy engine can walk over, and a version of Triton that was tried. On
    another version a warning says so, once; all else is quiet, because the portable form gives the same result.
    """
    first = tensors[0]
    if _portable or MODE != "compiled" or device_of(first).capability != CAPABILITY:
        return False
    if first.dtype not in (torch.float16, torch.bfloat16) or not all(map(describable, tensors)):
        return False
    if VERSION not in TESTED:
        _warn_once()
        return False
    return True


def _warn_once(said=[]) -> None:  # noqa: B006  the list is the memory
    if not said:
        said.append(VERSION)
        warnings.warn(
            f"The kernels for Hopper were tried with Triton {' and '.join(TESTED)}, this is {VERSION}: "
            "the portable kernels run in their place, and take longer.",
            stacklevel=4,
        )


@functools.cache  # there are few, and the host waits for each
def _swizzled(columns: int, itemsize: int, rank: int, dense: bool):
    """Layout of a block in shared memory: its lines swizzled as the tensor cores want them, or ``dense``, one after another."""
    swizzle = 0 if dense else min(128, columns * itemsize)
    return gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * itemsize, rank=rank)


def describe(tensor: torch.Tensor, *block: int, dense: bool = False):
    """Descriptor by which the copy engine moves blocks of this tensor, ``block`` long along its last axes, 1 along the others.

    Columns are swizzled in shared memory as the tensor cores want them, or lines lie there one after another (``dense``). What
    lies outside the tensor reads 0, and is not written.
    """
    shape = [1] * (tensor.dim() - len(block)) + list(block)
    # The step along an axis of one entry is never taken, but has to look like one.
    strides = [stride if n > 1 else 16 for n, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]
    layout = _swizzled(block[-1], tensor.element_size(), len(shape), dense or len(block) == 1)
    return TensorDescriptor(tensor, list(tensor.shape), [*strides, 1], shape, layout)


@gluon.jit
def arrive_named(name, threads):
    """Named barrier: the threads of this warp, or warps, have come by; they go on."""
    gl.inline_asm_elementwise("bar.arrive $1, $2; mov.u32 $0, $1;", "=r,r,r", [name, threads], gl.int32, False, 1)


@gluon.jit
def wait_named(name, threads):
    """Named barrier: wait until ``threads`` threads have come by, these among them."""
    gl.inline_asm_elementwise("bar.sync $1, $2; mov.u32 $0, $1;", "=r,r,r", [name, threads], gl.int32, False, 1)


@gluon.jit
def pack(x, dtype: gl.constexpr):
    """Neighbours of a row as pairs of 16-bit numbers in int32, [R, C] float32 -> [R, C / 2].

    A tensor of 16-bit numbers that is used in more than one place is unpacked and packed again each time.
    """
    low, high = gl.split(gl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], gl.int32, True, 1)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], gl.int32, True, 1)


@gluon.jit
def unpack(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """The 16-bit numbers that ``pack`` made into pairs, [R, C / 2] -> [R, C]."""
    if dtype == gl.bfloat16:
        low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], (gl.bfloat16, gl.bfloat16), True, 1)
    else:
        low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], (gl.float16, gl.float16), True, 1)
    return gl.convert_layout(gl.reshape(gl.join(low, high), [pairs.shape[0], 2 * pairs.shape[1]]), LAYOUT)


@gluon.jit
def widen(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """``unpack`` as float32."""
    if dtype == gl.bfloat16:  # by hand: the compiler would keep a register for each half
        halves: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        low, high = gl.inline_asm_elementwise(halves, "=&r,=r,r", [pairs], (gl.float32, gl.float32), True, 1)
        return gl.convert_layout(gl.reshape(gl.join(low, high), [pairs.shape[0], 2 * pairs.shape[1]]), LAYOUT)
    else:
        return unpack(pairs, dtype, LAYOUT).to(gl.float32)


@gluon.jit
def tile_of(index, n_tiles, n_heads, section):
    """(tile, head) of a place in the order of work: ``section`` heads together, and of these first the tiles numbered 0."""
    first = index // (n_tiles * section) * section
    width = gl.minimum(section, n_heads - first)
    rest = index - first * n_tiles
    return rest // width, first + rest % width


@gluon.jit
def draw(counter):
    """Take a number from a counter in global memory, one for the warp. It comes later; ``drawn`` waits for it."""
    return gl.inline_asm_elementwise(
        """{
        .reg .pred first; .reg .u32 lane;
        mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0; mov.u32 $0, 0;
        @first atom.global.add.u32 $0, [$1], 1;
        }""",
        "=r,l", [counter.to(gl.int64)], gl.int32, False, 1,
    )  # fmt: skip


@gluon.jit
def drawn(ticket):
    """The number that ``draw`` took, in every thread of the warp."""
    return gl.inline_asm_elementwise("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r", [ticket], gl.int32, False, 1)


@gluon.jit
def lane_id():
    """The number of a thread in its warp: a scalar that is not the same in all threads."""
    return gl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r", [], gl.int32, True, 1)


@gluon.jit
def from_lane(value, lane):
    """The scalar of one lane, in every thread of the warp."""
    return gl.inline_asm_elementwise("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", "=r,r,r", [value, lane], gl.int32, False, 1)


# What a program of a decode step walks over: every warp reads it for itself.

UNIT = gl.constexpr(128)  # tokens that a program's piece of a sequence begins at a multiple of


class Work(NamedTuple):
    """What a program does. Without ``bounds`` the parts are the splits of all sequences; with them, shares of a work list."""

    part: int
    num_splits: int
    batch: int
    bounds: torch.Tensor | None
    seq_lens: torch.Tensor | None
    seq_lens_stride: int
    capacity: int


@gluon.jit
def sequences_of(work):
    """The sequences of a program: the first, and the one after the last."""
    if work.bounds is None:
        return work.part // work.num_splits, work.part // work.num_splits + 1
    else:
        return gl.load(work.bounds + 2 * work.part), gl.load(work.bounds + 2 * work.part + 2) + 1


@gluon.jit
def piece_of(sequence, work):
    """A program's piece of a sequence: the sequence's tokens, first token, units, and its place among the states."""
    kv_len = work.capacity
    if work.seq_lens is not None:
        kv_len = gl.load(work.seq_lens + sequence * work.seq_lens_stride)
        kv_len = gl.minimum(gl.maximum(kv_len, 0), work.capacity).to(gl.int32)
    if work.bounds is None:
        split = work.part % work.num_splits
        length = gl.cdiv(gl.cdiv(kv_len, UNIT), work.num_splits) * UNIT
        start = split * length
        stop = start + length
        slot = split * work.batch + sequence
    else:
        bounds = work.bounds + 2 * work.part
        start = gl.where(sequence == gl.load(bounds), gl.load(bounds + 1), 0)
        stop = gl.where(sequence == gl.load(bounds + 2), gl.load(bounds + 3), kv_len)
        slot = work.part + sequence
    return kv_len, start, gl.cdiv(gl.maximum(gl.minimum(stop, kv_len) - start, 0), UNIT), slot


# Where the tokens of a sequence lie.


class Pages(NamedTuple):
    """The table that says where the pages of a sequence are; None for a contiguous cache."""

    block_table: torch.Tensor | None
    table_sequence: int  # steps from one sequence to the next, and from one entry
    table_entry: int


@gluon.jit
def outer_of(token, kv_len, sequence, pages, PAGE: gl.constexpr):
    """The sequence, or the page, in which a token lies; -1, outside the tensor, for one beyond the sequence, whose table entry
    is not read. With a token for each lane of the warp, one for each lane."""
    if PAGE == 0:
        return gl.where(token < kv_len, sequence, -1)
    else:
        entry = gl.to_tensor(sequence).to(gl.int64) * pages.table_sequence + token // PAGE * pages.table_entry
        return gl.load(pages.block_table + entry, mask=token < kv_len, other=-1).to(gl.int32)


def box_rows(page_size: int, block_tokens: int) -> int:
    """Tokens that one copy moves: the largest part of a block that never spans two pages (page size 0: no pages).

    It must be a multiple of 8: the swizzled lines of shared memory repeat after as many.
    """
    return math.gcd(page_size, block_tokens)


def placed(block_table: torch.Tensor | None, seq_lens: torch.Tensor | None) -> tuple:
    """The arguments of a kernel that say where pages are, and how long sequences: both with their steps."""
    steps = (0, 0) if block_table is None else block_table.stride()
    return block_table, *steps, seq_lens, 0 if seq_lens is None else seq_lens.stride(0)
