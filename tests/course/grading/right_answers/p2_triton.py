"""Right answers to P2, written in other ways."""

import torch

from course.grading import packages
from kernels._mode import tl, triton


def in_other_units(givens):
    mib = givens["rows"] * givens["columns"] * givens["bytes_per_element"] / 1024**2
    per_sector = 8 / givens["stride"]
    return {
        "bytes_in_steps": 8 * mib,
        "bytes_fused": mib * 1.048576 * 2,
        "masked": -givens["elements"] % givens["block"],
        "sectors": givens["block"] if per_sector < 1 else len({i * givens["stride"] // 8 for i in range(givens["block"])}),
    }


def load_block_by_choice():
    """The same loads, with the choice of -inf in a line of its own."""
    text = """
@triton.jit
def load_block(row, start, n_columns, column_stride, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    loaded = tl.load(row + columns.to(tl.int64) * column_stride, mask=columns < n_columns, other=0.0)
    return tl.where(columns < n_columns, loaded.to(tl.float32), float("-inf"))
"""
    return packages.changed("kernels/first.py", text).first


@triton.jit
def two_rows(x, out, n_rows, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    there = (rows < n_rows) & (columns < n_columns)
    scores = tl.load(x + rows * row_stride + columns * column_stride, mask=there, other=float("-inf")) * 1.4426950408889634
    largest = tl.maximum(tl.max(scores, 1, keep_dims=True), -1e30)
    weights = tl.exp2(scores - largest)
    total = tl.maximum(tl.sum(weights, 1, keep_dims=True), 1e-30)
    tl.store(out + rows * n_columns + columns, weights / total, mask=there)


def softmax_of_two_rows(x):
    out = torch.empty(x.shape, device=x.device)
    block = 1 << (x.shape[1] - 1).bit_length()
    two_rows[((len(x) + 1) // 2,)](x, out, *x.shape, *x.stride(), BLOCK=block)
    return out


@triton.jit
def state_for_each_lane(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    x += tl.program_id(0) * row_stride
    largest, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        scores = tl.load(x + c * column_stride, mask=c < n_columns, other=float("-inf"))
        larger = tl.maximum(largest, scores)
        total = total * tl.exp(largest - larger) + tl.exp(scores - larger)
        largest = larger
    row_largest = tl.max(largest, 0)
    log_sum = row_largest + tl.log(tl.sum(total * tl.exp(largest - row_largest), 0))
    for start in range(0, n_columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        scores = tl.load(x + c * column_stride, mask=c < n_columns, other=0.0)
        tl.store(out + tl.program_id(0) * n_columns + c, tl.exp(scores - log_sum), mask=c < n_columns)


def two_passes_by_lanes(x, block):
    out = torch.empty(x.shape, device=x.device)
    state_for_each_lane[(len(x),)](x, out, x.shape[1], *x.stride(), BLOCK=block)
    return out


RIGHT = {
    "p2_triton.traffic": [("other units", in_other_units)],
    "p2_triton.mask": [("the choice apart", load_block_by_choice)],
    "p2_triton.softmax": [("two rows a program, base 2", lambda: softmax_of_two_rows)],
    "p2_triton.two_passes": [("a state for each lane", lambda: two_passes_by_lanes)],
}
