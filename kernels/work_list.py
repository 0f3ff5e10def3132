"""A work list: the tokens of a ragged batch in equal shares, one for each program.

What changes against `decode.py`: cutting every sequence into the same number of intervals gives a program of a long sequence
more to do than one of a short sequence, and the last one decides. Here the sequences are laid end to end and the whole is cut
into equal shares, so a share may hold the end of one sequence, a few whole ones and the beginning of the next. Its program
walks over those pieces in turn.

The list is made on the GPU, by one program, from the lengths that lie there: nothing waits for the host, and a captured graph
makes the list of the lengths it finds at each replay. It depends on the lengths alone, so one list serves all layers of a step.
(A tile scheduler, as FlashInfer, Ye et al. 2025, section 3.3, and FlashMLA have; the numbering of the pieces is ours.)
"""

from dataclasses import dataclass

import torch

from . import checks, decode_hopper, hopper, plan
from ._mode import MODE, Unsupported, device_of, launching, tl, triton
from ._operation import operation
from .interval import attend_interval, length_of
from .tiles import decode_rows, pad

# Tokens that a share is a multiple of; every tile divides it.
WORK_UNIT: tl.constexpr = tl.constexpr(128)


@dataclass(frozen=True, eq=False)
class WorkList:
    """Who does what in a decode step over a ragged batch; made by ``plan_work``, for any layer of that step.

    ``bounds`` int32 [shares + 1, 2]: share i goes from (sequence, token) bounds[i] to bounds[i + 1]. ``slots`` int32 [B, 2]:
    the piece that share i makes of sequence b is partial state i + b, which no other piece is, because from a piece to the
    next either i or b grows; so the pieces of sequence b are slots[b, 1] states from slots[b, 0] on.
    """

    bounds: torch.Tensor
    slots: torch.Tensor


@triton.jit
def units_of(seq_lens, seq_lens_stride, sequences, batch, capacity):
    """Work units of these sequences, 0 beyond the batch."""
    in_batch = sequences < batch
    kv_len = length_of(seq_lens, seq_lens_stride, tl.minimum(sequences, batch - 1), capacity)
    return tl.where(in_batch, tl.cdiv(kv_len, WORK_UNIT), 0)


@triton.jit(do_not_specialize=["batch", "capacity", "shares"])
def plan_work_kernel(
    seq_lens, bounds, slots, seq_lens_stride, batch, capacity, shares, BLOCK_B: tl.constexpr, BLOCK_I: tl.constexpr
):
    """One program makes the whole list: seq_lens [B] -> bounds [shares + 1, 2], slots [B, 2]."""
    lane = tl.arange(0, BLOCK_B)
    total = 0
    for first in range(0, batch, BLOCK_B):
        total += tl.sum(units_of(seq_lens, seq_lens_stride, first + lane, batch, capacity), 0)
    units_per_share = tl.maximum(tl.cdiv(total, shares), 1)

    for first_share in range(0, shares + 1, BLOCK_I):
        share = first_share + tl.arange(0, BLOCK_I)
        bound = tl.minimum(share * units_per_share, total)
        sequence = tl.zeros([BLOCK_I], tl.int32)
        before = tl.zeros([BLOCK_I], tl.int32)
        passed = 0
        for first in range(0, batch, BLOCK_B):
            index = first + lane
            units = units_of(seq_lens, seq_lens_stride, index, batch, capacity)
            end = passed + tl.cumsum(units, 0)
            passed += tl.sum(units, 0)
            # A bound lies in the first sequence that ends at or after it, so as an end it never lies before a first unit.
            done = (end[None, :] < bound[:, None]) & (index < batch)[None, :]
            sequence += tl.sum(done.to(tl.int32), 1)
            before += tl.sum(tl.where(done, units[None, :], 0), 1)
            if first_share == 0:
                first_piece = (end - units) // units_per_share
                pieces = tl.where(units > 0, (end - 1) // units_per_share - first_piece + 1, 0)
                tl.store(slots + 2 * index, first_piece + index, mask=index < batch)
                tl.store(slots + 2 * index + 1, pieces, mask=index < batch)
        tl.store(bounds + 2 * share, sequence, mask=share <= shares)
        tl.store(bounds + 2 * share + 1, (bound - before) * WORK_UNIT, mask=share <= shares)


@triton.jit(do_not_specialize=["capacity", "n_kv_heads", "group_size", "q_len"])
def work_kernel(
    q, q_tail, cache, seq_lens, bounds, out, lse, q_strides, q_tail_strides, seq_lens_stride,
    scale_log2, capacity, n_kv_heads, group_size, q_len,
    load_tile: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Queries [B, T, Hq, …] over a cache -> out [shares + B, T, Hq, v], lse [shares + B, T, Hq], the pieces only.

    One program owns (share, KV head, row tile) and walks over the sequences of its share.
    """
    n_tiles = tl.cdiv(group_size * q_len, ROWS)
    program = tl.program_id(0)
    row_tile = program % n_tiles
    kv_head = program // n_tiles % n_kv_heads
    share = (program // (n_tiles * n_kv_heads)).to(tl.int64)

    first_sequence, first_token = tl.load(bounds + 2 * share), tl.load(bounds + 2 * share + 1)
    last_sequence, last_token = tl.load(bounds + 2 * share + 2), tl.load(bounds + 2 * share + 3)
    for index in range(first_sequence, last_sequence + 1):
        sequence = tl.cast(index, tl.int64)
        kv_len = length_of(seq_lens, seq_lens_stride, sequence, capacity)
        start = tl.where(index == first_sequence, first_token, 0)
        stop = tl.minimum(tl.where(index == last_sequence, last_token, kv_len), kv_len)
        if start < stop:
            attend_interval(
                q, q_tail, q_strides, q_tail_strides, load_tile, cache, out, lse, share + sequence,
                sequence, kv_head, row_tile, start, stop, kv_len, scale_log2, n_kv_heads * group_size, group_size, q_len,
                ROWS, BLOCK_N, LAYOUT, STAGES, PRECISION,
            )  # fmt: skip


@operation("plan_work")
def _plan_work(seq_lens: torch.Tensor, capacity: int, shares: int) -> tuple[torch.Tensor, torch.Tensor]:
    checks.runnable(torch.float32, device_of(seq_lens).capability)
    batch = len(seq_lens)
    bounds = seq_lens.new_empty(shares + 1, 2, dtype=torch.int32)
    slots = seq_lens.new_empty(batch, 2, dtype=torch.int32)
    with launching(seq_lens):
        plan_work_kernel[(1,)](
            seq_lens, bounds, slots, seq_lens.stride(0), batch, capacity, shares, BLOCK_B=64, BLOCK_I=64, num_warps=8
        )
    return bounds, slots


@_plan_work.register_fake
def _(seq_lens, capacity, shares):
    return seq_lens.new_empty(shares + 1, 2, dtype=torch.int32), seq_lens.new_empty(len(seq_lens), 2, dtype=torch.int32)


def check_values(bounds: torch.Tensor | None, slots: torch.Tensor | None, seq_lens: torch.Tensor, capacity: int) -> None:
    """The list is the one of these lengths and this capacity. Reads values, as ``checks.length_values`` does."""
    if bounds is None:
        return
    wanted = _plan_work(seq_lens, capacity, len(bounds) - 1)
    if not (torch.equal(bounds, wanted[0]) and torch.equal(slots, wanted[1])):
        raise ValueError("work was made for other lengths or another capacity than seq_lens and block_table have: plan it anew")


def plan_work(
    seq_lens: torch.Tensor,
    n_q_heads: int,
    n_kv_heads: int,
    head_dim_v: int,
    dtype: torch.dtype,
    *,
    capacity: int,
    q_len: int = 1,
    shares: int | None = None,
) -> WorkList:
    """The work list of a decode step, made on the device of ``seq_lens`` without waiting for it.

    Args:
        seq_lens: [B] int32 (or int64) tokens in each sequence; values outside 0 to ``capacity`` are clipped to it.
        n_q_heads, n_kv_heads, head_dim_v, dtype, q_len: of the decode it is for (MLA: one KV head, the latent's width, the
            dtype of the cache); they decide how many programs a share is.
        capacity: tokens that a block table has room for, max_pages * page size.
        shares: None fills the GPU once, two programs a processor, or one that fills it.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: Triton is not installed, or kernels cannot run here.
    """
    if not isinstance(seq_lens, torch.Tensor) or seq_lens.dim() != 1:
        raise TypeError(f"seq_lens must be an int32 tensor [B], got {getattr(seq_lens, 'shape', type(seq_lens).__name__)}")
    checks.lengths(seq_lens, len(seq_lens), seq_lens.device)
    named = {"n_q_heads": n_q_heads, "n_kv_heads": n_kv_heads, "head_dim_v": head_dim_v, "q_len": q_len}
    for name, value in named.items():
        if value is None:
            raise TypeError(f"{name} must be an integer, got None")
        checks.positive(name, value)
    checks.positive("shares", shares)
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 0 <= capacity < 2**31:
        raise ValueError(f"capacity must be an integer from 0 to below 2**31, got {capacity!r}")
    checks.heads(n_q_heads, n_kv_heads)
    if dtype not in (*checks.FLOATS, checks.FP8):
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float8_e4m3fn, got {dtype!r}")
    if MODE == "reference":
        raise Unsupported("a work list steers a kernel, and Triton is not installed: leave work out")
    checks.placed("seq_lens", seq_lens)
    device = device_of(seq_lens)
    if shares is None:
        group_size = n_q_heads // n_kv_heads
        many_rows = decode_hopper.faster(group_size, q_len, head_dim_v, head_dim_v, dtype.itemsize, device)
        if many_rows and not hopper.is_portable():
            rows, fills_sm = decode_hopper.TILE.rows, True
        else:
            rows = decode_rows(group_size * q_len, head_dim_v, dtype.itemsize, device.capability)
            # A tile of wide latents takes most of a processor's shared memory, whatever its rows.
            fills_sm = pad(head_dim_v) > 256 and dtype.itemsize == 2
        programs = plan.head_tiles(n_q_heads, n_kv_heads, block_h=rows, q_len=q_len)
        shares = plan.shares(programs, device.sm_count, programs_per_sm=1 if fills_sm else 2)
    return WorkList(*_plan_work(seq_lens, capacity, shares))
