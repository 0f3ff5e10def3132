"""The loop: some query rows walk over an interval of keys, tile by tile.

Everything that distinguishes the kernels of the course stays outside. What a *row* is, the caller decides (a query position
of one head in `forward.py`, a query head of a group in `decode.py`); where a tile *lies*, ``load_tile`` decides.
"""

from . import online_softmax
from ._mode import tl, triton


@triton.jit
def load_rows(
    base, start, stop, row_stride, column_stride,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows start, start + 1, … of a matrix as a [ROWS, PADDED] tile.

    Columns from WIDTH on read 0, and with MASKED rows from ``stop`` on do too: what lies there is never loaded, so it may be
    anything, NaN included. Offsets are 64-bit because a cache may pass 2**31 elements.
    """
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    tile = base + tl.cast(start, tl.int64) * row_stride
    pointers = tile + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    if MASKED:
        return tl.load(pointers, mask=(start + rows < stop)[:, None] & (columns < WIDTH)[None, :], other=0.0)
    elif WIDTH == PADDED:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)


@triton.jit
def load_contiguous(
    source, start, stop,
    BLOCK_N: tl.constexpr, D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Keys [BLOCK_N, PAD_QK] and values [BLOCK_N, PAD_V] of tokens start, start + 1, … stored one after another."""
    k, v, k_token_stride, k_column_stride, v_token_stride, v_column_stride = source
    return (
        load_rows(k, start, stop, k_token_stride, k_column_stride, BLOCK_N, D_QK, PAD_QK, MASKED),
        load_rows(v, start, stop, v_token_stride, v_column_stride, BLOCK_N, D_V, PAD_V, MASKED),
    )


@triton.jit
def attend(
    q, visible, start, all_visible, stop, scale_log2, load_tile: tl.constexpr, source,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of the rows q [ROWS, PAD_QK] over keys start <= j < stop; row r sees key j when j < visible[r].

    ``all_visible`` is the smallest of ``visible``. Returns the state (m, l, acc).
    """
    m, l, acc = online_softmax.begin(ROWS, PAD_V)
    # Tiles that every row sees whole come first and carry no mask. They are all but the last one or two.
    unmasked = start + tl.maximum(tl.minimum(all_visible, stop) - start, 0) // BLOCK_N * BLOCK_N
    for tile in tl.range(start, unmasked, BLOCK_N, num_stages=STAGES):
        k, v = load_tile(source, tile, stop, BLOCK_N, D_QK, D_V, PAD_QK, PAD_V, False)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        m, l, acc = online_softmax.update(m, l, acc, scores, v, PRECISION)
    for tile in tl.range(unmasked, stop, BLOCK_N, num_stages=STAGES):
        k, v = load_tile(source, tile, stop, BLOCK_N, D_QK, D_V, PAD_QK, PAD_V, True)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        keys = tile + tl.arange(0, BLOCK_N)
        seen = (keys[None, :] < visible[:, None]) & (keys < stop)[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        m, l, acc = online_softmax.update(m, l, acc, scores, v, PRECISION)
    return m, l, acc
