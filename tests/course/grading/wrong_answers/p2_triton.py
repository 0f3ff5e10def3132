"""Wrong answers to P2."""

import torch

from kernels import first
from kernels._mode import tl, triton
from tests.course.grading.right_answers.p2_triton import in_other_units


def but(key, value):
    return lambda givens: in_other_units(givens) | {key: value(givens)}


def matrix(givens):
    return givens["rows"] * givens["columns"] * givens["bytes_per_element"]


@triton.jit
def no_shift(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    there = columns < n_columns
    scores = tl.load(x + tl.program_id(0) * row_stride + columns * column_stride, mask=there, other=float("-inf"))
    weights = tl.exp(scores)
    tl.store(out + tl.program_id(0) * n_columns + columns, weights / tl.sum(weights, 0), mask=there)


@triton.jit
def whole_matrix_maximum(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    there = columns < n_columns
    scores = tl.load(x + tl.program_id(0) * row_stride + columns * column_stride, mask=there, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    tl.store(out + tl.program_id(0) * n_columns + columns, weights / tl.sum(weights, 0), mask=there)


def by(kernel, contiguous=False):
    def softmax(x):
        out = torch.empty(x.shape, device=x.device)
        strides = (x.shape[1], 1) if contiguous else x.stride()
        kernel[(len(x),)](x, out, x.shape[1], *strides, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out

    return lambda: softmax


@triton.jit
def forgets_to_rescale(x, out, n_columns, row_stride, column_stride, BLOCK: tl.constexpr):
    x += tl.program_id(0) * row_stride
    largest, total = float("-inf"), 0.0
    for start in range(0, n_columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        scores = tl.load(x + c * column_stride, mask=c < n_columns, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(scores, 0))
        total += tl.sum(tl.exp(scores - largest), 0)
    for start in range(0, n_columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        scores = tl.load(x + c * column_stride, mask=c < n_columns, other=0.0)
        tl.store(out + tl.program_id(0) * n_columns + c, tl.exp(scores - largest) / total, mask=c < n_columns)


def without_rescaling(x, block):
    out = torch.empty(x.shape, device=x.device)
    forgets_to_rescale[(len(x),)](x, out, x.shape[1], *x.stride(), BLOCK=block)
    return out


WRONG = {
    "p2_triton.traffic": [
        ("all five steps write", but("bytes_in_steps", lambda g: 10 * matrix(g))),
        ("reads alone", but("bytes_in_steps", lambda g: 5 * matrix(g))),
        ("one pass fused", but("bytes_fused", matrix)),
        ("elements for bytes", but("bytes_fused", lambda g: 2 * g["rows"] * g["columns"])),
        ("lanes with an element", but("masked", lambda g: g["elements"] % g["block"])),
        ("stride 1", but("sectors", lambda g: g["block"] // 8)),
    ],
    "p2_triton.softmax": [
        ("by torch", lambda: lambda x: torch.softmax(x, -1)),
        ("three passes", lambda: lambda x: first.softmax_three_passes(x, block=64)),
        ("no shift", by(no_shift)),
        ("NaN for an empty row", by(whole_matrix_maximum)),
        ("taken for contiguous", by(whole_matrix_maximum, contiguous=True)),
    ],
    "p2_triton.two_passes": [
        ("never rescaled", lambda: without_rescaling),
        ("three passes", lambda: lambda x, block: first.softmax_three_passes(x, block=block)),
        ("one pass", lambda: lambda x, block: first.softmax(x)),
    ],
}
