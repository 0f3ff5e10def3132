"""The loop: some query rows walk over an interval of keys, tile by tile.

Everything that distinguishes the kernels of the course stays outside. What a *row* is, the caller decides (a query position
of one head in `forward.py`, a query head of a group in `decode.py`); what a tile *is* and where it *lies*, ``load_tile``
decides (a stretch of memory here, a page in `paged.py`, a latent that is key and value at once in `mla.py`).
"""

from typing import NamedTuple

import torch

from . import online_softmax
from ._mode import INTERPRETED, tl, triton
from .tiles import pad


class Cache(NamedTuple):
    """Keys and values as a kernel takes them. What a format does not have is None.

    A key may lie in two blocks of columns, ``k`` and ``k_tail``; MLA has no ``v``, its key is its value. Scales belong to
    8-bit elements. The integers are strides in elements: from one sequence, or page, to the next, and from one KV head to the
    next. (They are fields of their own because Triton 3.6 forgets, inside a loop, what a tuple in a tuple held.)
    """

    k: torch.Tensor
    k_tail: torch.Tensor | None
    v: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    block_table: torch.Tensor | None
    k_outer: int | None = None
    k_head: int | None = None
    k_tail_outer: int | None = None
    k_tail_head: int | None = None
    v_outer: int | None = None
    v_head: int | None = None
    k_scale_outer: int | None = None
    k_scale_head: int | None = None
    v_scale_outer: int | None = None
    v_scale_head: int | None = None
    table_sequence: int | None = None
    table_entry: int | None = None


def cache_of(k, k_tail=None, v=None, k_scale=None, v_scale=None, block_table=None) -> Cache:
    """A cache of tensors [sequence or page, KV head, token, column] (scales without columns, the table with two axes)."""
    tensors = (k, k_tail, v, k_scale, v_scale, block_table)
    strides = ((None, None) if tensor is None else tensor.stride()[:2] for tensor in tensors)
    return Cache(*tensors, *(stride for pair in strides for stride in pair))


class Layout(NamedTuple):
    """What a kernel is compiled for: the columns of the blocks of a tile, and how to step through them.

    Steps are strides too, but from one (token, column) to the next. They belong to a model and its cache, not to a batch or a
    length, and as constants they cost no registers: a tile of 64 latents would need 64 of them for its addresses.
    """

    head: int  # of q and k; all of them if ``tail`` is 0, and in 8 bits half of them: even columns and odd ones go apart
    tail: int
    v: int  # in 8 bits half of them
    padded_head: int  # the next power of two: Triton's tiles have such edges only
    padded_tail: int
    padded_v: int
    k_token: int  # steps
    k_column: int
    k_tail_token: int
    k_tail_column: int
    v_token: int
    v_column: int
    k_scale_token: int
    v_scale_token: int
    page: int  # tokens of a page; 0 where a sequence's tokens lie one after another


def layout_of(
    head: int, tail: int, v_width: int, k, k_tail=None, v=None, k_scale=None, v_scale=None, *, page: int = 0
) -> Layout:
    """The layout of a cache of tensors [sequence or page, KV head, token, column] (scales without columns)."""

    def steps(tensor):
        return tuple(tensor.stride()[2:]) if tensor is not None else (0, 0)

    return Layout(
        head, tail, v_width, pad(head), pad(tail) if tail else 0, pad(v_width),
        *steps(k), *steps(k_tail), *steps(v), *(0 if scale is None else scale.stride(2) for scale in (k_scale, v_scale)), page,
    )  # fmt: skip


@triton.jit
def load_queries(q, rows, column_stride, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """One block of columns of the queries that begin at the element offsets ``rows``, [ROWS, PADDED]; 0 where not live."""
    columns = tl.arange(0, PADDED)
    pointers = q + rows[:, None] + columns.to(tl.int64)[None, :] * column_stride
    return tl.load(pointers, mask=live[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def store_states(out, lse, rows, live, m, l, acc, LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Finish the rows' states and write them to the rows of out [R, BLOCKS * v], every BLOCKS-th column, and of lse [R]."""
    result, result_lse = online_softmax.finish(m, l, acc)
    columns = tl.arange(0, LAYOUT.padded_v)
    tl.store(
        out + rows[:, None] * (LAYOUT.v * BLOCKS) + columns[None, :] * BLOCKS + BLOCK,
        result.to(out.dtype.element_ty),
        mask=live[:, None] & (columns < LAYOUT.v)[None, :],
    )
    tl.store(lse + rows, result_lse, mask=live)


@triton.jit
def load_block(
    base, first, rows, live,
    TOKEN: tl.constexpr, COLUMN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of columns of a tile, [rows, PADDED]: the tokens first + rows of ``base``, in these steps.

    Columns from WIDTH on read 0, and with MASKED rows that are not ``live`` do too: what lies there is never loaded, so it may
    be anything, NaN included. Offsets are 64-bit because a cache may pass 2**31 elements.
    """
    columns = tl.arange(0, PADDED)
    pointers = (base + first * TOKEN + rows * TOKEN)[:, None] + columns[None, :].to(tl.int64) * COLUMN
    # A mask only where there is something to mask: without one the loads are whole 16-byte words.
    if MASKED and WIDTH == PADDED:
        return tl.load(pointers, mask=live[:, None], other=0.0)
    elif MASKED:
        return tl.load(pointers, mask=live[:, None] & (columns < WIDTH)[None, :], other=0.0)
    elif WIDTH < PADDED:
        return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def load_scales(base, first, rows, live, TOKEN: tl.constexpr, MASKED: tl.constexpr):
    """The scales [rows] of the same tokens."""
    if MASKED:
        return tl.load(base + first * TOKEN + rows * TOKEN, mask=live, other=0.0)
    else:
        return tl.load(base + first * TOKEN + rows * TOKEN)


@triton.jit
def load_bytes(base, first, rows, live, TOKEN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """A tile of 8-bit elements as two of float16, which holds each exactly: the even columns and the odd ones, WIDTH each.

    The tensor cores want two tokens of a column in one register, and no instruction turns a tile of bytes that way. A tile of
    byte pairs is turned like any tile of 16-bit elements; after that one instruction picks the even bytes of two tokens, and
    one makes them float16. The interpreter, which knows no assembly, loads the two halves.
    """
    if INTERPRETED:
        even = load_block(base, first, rows, live, TOKEN, 2, WIDTH, PADDED, MASKED).to(tl.float16)
        odd = load_block(base + 1, first, rows, live, TOKEN, 2, WIDTH, PADDED, MASKED).to(tl.float16)
    else:
        pairs = load_block(base.to(tl.pointer_type(tl.uint16)), first, rows, live, TOKEN // 2, 1, WIDTH, PADDED, MASKED)
        even, odd = tl.inline_asm_elementwise(
            """{
            .reg .b32 evens, odds; .reg .b16 even, odd, none;
            prmt.b32 evens, $2, 0, 0x4420; prmt.b32 odds, $2, 0, 0x4431;
            mov.b32 {even, none}, evens; mov.b32 {odd, none}, odds;
            cvt.rn.f16x2.e4m3x2 $0, even; cvt.rn.f16x2.e4m3x2 $1, odd;
            }""",
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return even, odd


@triton.jit
def load_blocks(cache, kv_head, outer, first, rows, live, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    """All that the cache holds of the tokens first + rows of ``outer``, a sequence or page (one for each row, maybe).

    Returns k, k_odd, k_tail, v, v_odd, k_scale, v_scale; in the place of what the cache does not hold stands k.
    """
    kv_head = kv_head.to(tl.int64)
    k_base = cache.k + outer * cache.k_outer + kv_head * cache.k_head
    if cache.k_scale is not None:
        k, k_odd = load_bytes(k_base, first, rows, live, LAYOUT.k_token, LAYOUT.head, LAYOUT.padded_head, MASKED)
    else:
        k = load_block(k_base, first, rows, live, LAYOUT.k_token, LAYOUT.k_column, LAYOUT.head, LAYOUT.padded_head, MASKED)
        k_odd = k
    k_tail, v, v_odd, k_scale, v_scale = k, k, k_odd, k, k
    if cache.k_tail is not None:
        k_tail = load_block(
            cache.k_tail + outer * cache.k_tail_outer + kv_head * cache.k_tail_head,
            first, rows, live, LAYOUT.k_tail_token, LAYOUT.k_tail_column, LAYOUT.tail, LAYOUT.padded_tail, MASKED,
        )  # fmt: skip
    if cache.v is not None:
        v_base = cache.v + outer * cache.v_outer + kv_head * cache.v_head
        if cache.v_scale is not None:
            v, v_odd = load_bytes(v_base, first, rows, live, LAYOUT.v_token, LAYOUT.v, LAYOUT.padded_v, MASKED)
        else:
            v = load_block(v_base, first, rows, live, LAYOUT.v_token, LAYOUT.v_column, LAYOUT.v, LAYOUT.padded_v, MASKED)
    if cache.k_scale is not None:
        base = cache.k_scale + outer * cache.k_scale_outer + kv_head * cache.k_scale_head
        k_scale = load_scales(base, first, rows, live, LAYOUT.k_scale_token, MASKED)
        v_scale = k_scale
    if cache.v_scale is not None:
        base = cache.v_scale + outer * cache.v_scale_outer + kv_head * cache.v_scale_head
        v_scale = load_scales(base, first, rows, live, LAYOUT.v_scale_token, MASKED)
    return k, k_odd, k_tail, v, v_odd, k_scale, v_scale


@triton.jit
def load_contiguous(cache, sequence, kv_head, start, stop, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    """The tile of tokens start, start + 1, … of a sequence whose tokens lie one after another."""
    rows = tl.arange(0, BLOCK_N)
    return load_blocks(
        cache, kv_head, sequence, tl.cast(start, tl.int64), rows.to(tl.int64), rows < stop - start, LAYOUT, MASKED
    )


@triton.jit
def half_queries(q, q_odd):
    """Queries as float16 numbers below 2, and the powers of two [ROWS] that were taken out; float32 stays as it is.

    They meet keys of 8 bits, which are exact in float16 and cheap to turn into it (into bfloat16 it takes four times as long).
    Taking out a power of two, the exponent of the largest, rounds nothing but what is 2**14 times smaller than that.
    """
    factor = tl.full([q.shape[0]], 1.0, tl.float32)
    if q.dtype != tl.float32:
        largest = tl.maximum(tl.max(tl.abs(q.to(tl.float32)), 1), tl.max(tl.abs(q_odd.to(tl.float32)), 1))
        exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
        factor = exponent.to(tl.float32, bitcast=True)
        divisor = tl.where(factor == 0.0, 1.0, factor)[:, None]
        q = (q.to(tl.float32) / divisor).to(tl.float16)
        q_odd = (q_odd.to(tl.float32) / divisor).to(tl.float16)
    return q, q_odd, factor


@triton.jit
def take_tile(
    q, q_odd, q_tail, q_scale, visible, m, l, acc, acc_odd,
    load_tile: tl.constexpr, cache, sequence, kv_head, tile, stop, scale_log2,
    BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One turn of the loop: the tile's scores, their weights, and the weighted values, taken into (m, l, acc)."""
    k, k_odd, k_tail, v, v_odd, k_scale, v_scale = load_tile(cache, sequence, kv_head, tile, stop, BLOCK_N, LAYOUT, MASKED)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
    if cache.k_scale is not None:
        scores = tl.dot(q_odd, tl.trans(k_odd.to(q.dtype)), scores, input_precision=PRECISION)
        # One scale a token: it meets the scores, which are fewer than the elements.
        scores *= q_scale[:, None] * k_scale[None, :]
    if LAYOUT.tail > 0:
        scores = tl.dot(q_tail, tl.trans(k_tail), scores, input_precision=PRECISION)
    if MASKED:
        seen = tl.arange(0, BLOCK_N)[None, :] < (visible - tile)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
    m, l, rescale, p = online_softmax.weigh(m, l, scores, scale_log2)
    if cache.k_scale is None:
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
    else:
        # A weight times a scale may fall out of 16 bits. Over the largest of its row it does not.
        p *= v_scale[None, :]
        largest = tl.max(tl.abs(p), 1)
        p = (p / tl.where(largest == 0.0, 1.0, largest)[:, None]).to(q.dtype)
        gained = tl.dot(p, v.to(q.dtype), input_precision=PRECISION)
        acc = acc * rescale[:, None] + gained * largest[:, None]
        gained = tl.dot(p, v_odd.to(q.dtype), input_precision=PRECISION)
        acc_odd = acc_odd * rescale[:, None] + gained * largest[:, None]
    return m, l, acc, acc_odd


@triton.jit
def attend(
    q, q_odd, q_tail, visible, load_tile: tl.constexpr, cache, sequence, kv_head, start, all_visible, stop, scale_log2,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of the rows q [ROWS, head], q_tail [ROWS, tail] over keys start <= j < stop; row r sees j < visible[r].

    ``all_visible`` is the smallest of ``visible``. Returns the state (m, l, acc), and acc_odd. Over an 8-bit cache q and acc
    are the even columns and q_odd and acc_odd the odd ones; else those two stand idle.
    """
    m, l, acc = online_softmax.begin(ROWS, LAYOUT.padded_v)
    acc_odd, q_scale = m, m
    if cache.k_scale is not None:
        acc_odd = acc
        q, q_odd, q_scale = half_queries(q, q_odd)
    visible = tl.minimum(visible, stop)
    # Tiles that every row sees whole come first and carry no mask. They are all but the last one or two. With many rows of wide
    # values a second loop body costs more, in registers, than the masks that it saves.
    unmasked = start
    if ROWS < 64 or LAYOUT.padded_v <= 256:
        unmasked += tl.maximum(tl.minimum(all_visible, stop) - start, 0) // BLOCK_N * BLOCK_N
        for tile in tl.range(start, unmasked, BLOCK_N, num_stages=STAGES):
            m, l, acc, acc_odd = take_tile(
                q, q_odd, q_tail, q_scale, visible, m, l, acc, acc_odd,
                load_tile, cache, sequence, kv_head, tile, stop, scale_log2, BLOCK_N, LAYOUT, PRECISION, False,
            )  # fmt: skip
    for tile in tl.range(unmasked, stop, BLOCK_N, num_stages=STAGES):
        m, l, acc, acc_odd = take_tile(
            q, q_odd, q_tail, q_scale, visible, m, l, acc, acc_odd,
            load_tile, cache, sequence, kv_head, tile, stop, scale_log2, BLOCK_N, LAYOUT, PRECISION, True,
        )  # fmt: skip
    return m, l, acc, acc_odd
