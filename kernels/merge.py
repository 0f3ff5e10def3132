"""Merge partial states: attention over disjoint sets of keys becomes attention over their union.

What changes against `decode.py`: the rows no longer meet keys, they meet results. Of interval i a row knows the normalised
output O_i and the log-sum-exp lse_i, that is, ln of its softmax mass. The union's mass is the sum of the masses, so

    lse = ln sum_i exp(lse_i),        O = sum_i exp(lse_i - lse) O_i,

with the largest lse_i taken out first, as in any softmax. The operation is associative up to rounding, so it may be a tree, or
run across GPUs. (Flash-Decoding, Dao et al. 2023; the formula is the one of Milakov and Gimelshein 2018, section 3.)
"""

import torch

from . import checks, reference
from ._mode import MODE, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .plan import ceil_div
from .tiles import pad


@triton.jit(do_not_specialize=["num_splits", "rows_per_sequence", "lse_split_stride"])
def merge_kernel(
    outs, lses, out, lse, slots,
    num_splits, rows_per_sequence, out_split_stride, out_row_stride, out_column_stride, lse_split_stride, lse_row_stride,
    BLOCK_S: tl.constexpr, D_V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program merges a block of columns of one row: outs [S, R, D_V], lses [S, R] -> out [R, D_V], lse [R].

    With ``slots`` [B, 2] (see `work_list.py`) a sequence has its own stretch of partial states, first and number, and R rows.
    """
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, BLOCK_S)
    columns = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    first_state, partial_row = 0, row
    if slots is not None:
        sequence, partial_row = row // rows_per_sequence, row % rows_per_sequence
        first_state, num_splits = tl.load(slots + 2 * sequence).to(tl.int64), tl.load(slots + 2 * sequence + 1)
    lse_row = lses + first_state * lse_split_stride + partial_row * lse_row_stride
    out_row = outs + first_state * out_split_stride + partial_row * out_row_stride

    # Outputs are loaded beside the log-sum-exps, not after them: a merge is short, and each trip to memory is a part of it.
    largest = float("-inf")
    mass = 0.0
    acc = tl.zeros([BLOCK_V], tl.float32)
    for first in range(0, num_splits, BLOCK_S):
        index = (first + splits).to(tl.int64)
        part = tl.load(lse_row + index * lse_split_stride, mask=index < num_splits, other=float("-inf"))
        pointers = out_row + index[:, None] * out_split_stride + columns.to(tl.int64)[None, :] * out_column_stride
        values = tl.load(pointers, mask=(index < num_splits)[:, None] & (columns < D_V)[None, :], other=0.0)
        before = largest
        largest = tl.maximum(largest, tl.max(part, 0))
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        # Natural log and base e on purpose: a state alone has weight exp(0) = 1 and comes out unrounded.
        weight = tl.exp(part - shift)
        rescale = tl.exp(before - shift)
        # A state without mass may hold anything.
        values = tl.where((weight > 0.0)[:, None], values.to(tl.float32), 0.0)
        acc = acc * rescale + tl.sum(values * weight[:, None], 0)
        mass = mass * rescale + tl.sum(weight, 0)

    total = tl.where(mass == 0.0, 1.0, mass)
    tl.store(out + row * D_V + columns, (acc / total).to(out.dtype.element_ty), mask=columns < D_V)
    tl.store(lse + row, tl.where(mass == 0.0, float("-inf"), largest + tl.log(total)))


def launch_merge(
    outs: torch.Tensor, lses: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, slots: torch.Tensor | None = None
) -> None:
    """Merge outs [S, R, Dv] and lses [S, R] (any strides) into the contiguous out [R, Dv] and lse [R].

    With ``slots`` int32 [B, 2] the states of sequence b are slots[b, 1] of the S, from slots[b, 0] on: out [B * R, Dv].
    """
    num_splits, rows_per_sequence, head_dim_v = outs.shape
    n_rows = lse.numel()
    # A few sizes, so that a cache that grows does not compile a merge for each number of splits. Measured on an H200: few
    # states go best in wide blocks of columns, many in narrower ones, and in the narrowest where there are not rows enough to
    # fill the GPU.
    block_v = pad(head_dim_v)
    wide = block_v > 256
    states = ceil_div(num_splits, 1 if slots is None else len(slots))  # of a row; with a work list, on average
    if states <= (16 if wide and n_rows * head_dim_v >= 131072 else 8):
        block_s = 2 if wide and states <= 2 else 4 if wide and states <= 4 else 8
        block_v, num_warps = min(block_v, 512 if block_s == 2 else 256), 1
    elif n_rows * head_dim_v >= 32768:
        block_s, block_v, num_warps = (32, 64, 1) if wide else (64, min(block_v, 128), 2)
    else:
        block_s, block_v, num_warps = 64, min(block_v, 32), 1
    checks.launchable(n_rows)
    with launching(outs):
        merge_kernel[(n_rows, ceil_div(head_dim_v, block_v))](
            outs, lses, out, lse, slots,
            num_splits, rows_per_sequence, *outs.stride(), *lses.stride(),
            BLOCK_S=block_s, D_V=head_dim_v, BLOCK_V=block_v, num_warps=num_warps,
        )  # fmt: skip


@operation("merge")
def _merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    checks.runnable(outs.dtype, device_of(outs).capability)
    (partial_outs,) = to_kernel(outs)
    out = partial_outs.new_empty(outs.shape[1:])
    lse = lses.new_empty(lses.shape[1:])
    if out.numel():
        num_splits, head_dim_v = outs.shape[0], outs.shape[-1]
        launch_merge(partial_outs.reshape(num_splits, -1, head_dim_v), lses.reshape(num_splits, -1), out, lse)
    return out.to(outs.dtype), lse


@_merge.register_fake
def _(outs, lses):
    return outs.new_empty(outs.shape[1:]), lses.new_empty(lses.shape[1:])


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge S partial attention states over disjoint keys into the state of all keys.

    Args:
        outs: [S, …, Dv] normalised outputs; float16, bfloat16 or float32.
        lses: [S, …] float32 natural log-sum-exps; -inf marks a state without keys, whose output may be anything.

    Returns:
        out [S dropped: …, Dv] in the dtype of ``outs``, lse […] float32. A row without any key gives 0 and -inf; merging with
        a state without keys returns the other state unrounded (only a zero loses its sign).

    Raises:
        TypeError, ValueError: naming the argument.
    """
    checks.tensors(outs=outs)
    checks.dense("lses", lses, (torch.float32,), "a float32 tensor")
    if outs.dim() < 2 or lses.shape != outs.shape[:-1]:
        raise ValueError(
            f"lses must have the shape of outs without its last axis, got {list(lses.shape)} for {list(outs.shape)}"
        )
    checks.together("lses", lses, "outs", outs)
    if outs.shape[0] == 0 or outs.shape[-1] == 0:
        raise ValueError(f"outs must hold at least one state of width 1 or more, got {list(outs.shape)}")
    checks.no_gradient("merge", outs=outs, lses=lses)
    checks.no_tangent("merge", outs=outs, lses=lses)
    if MODE == "reference":
        out, lse = reference.merge(outs, lses)
        return out.to(outs.dtype), lse.float()
    return _merge(outs, lses)
