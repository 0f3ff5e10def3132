"""The backward pass of full-sequence attention.

What changes against `forward.py`: no running maximum. The forward pass kept the log-sum-exp of every row, so P comes back from
it, tile by tile, instead of being stored. With delta = rowsum(dO * O), one number a row:

    P = exp(S - lse)   dV = Pᵀ dO   dP = dO Vᵀ   dS = P * (dP - delta)   dQ = scale * dS K   dK = scale * dSᵀ Q

lse is an output too. When a score moves, lse moves by P, so its gradient is subtracted from delta.

dQ sums over keys, dK and dV over queries: two kernels walk the same rectangle in the two directions, and every sum stays in one
program. Nothing is added up in memory, so the same input gives the same bits. Dao 2023 (2307.08691), section 3.1 and algorithm
2, walks it once, by keys, and adds dQ up in memory: five products a tile, where two kernels need seven.

Query heads that share a KV head share its gradient: the program that owns a tile of keys walks the queries of its whole group.
Where that would leave too few programs, several share a group; each writes a partial, and these are summed in a fixed order.
``partials_then_sum`` makes one for every query head.

The loop of `attend.py` is not used here: what it carries from tile to tile is a softmax that is not yet known.
"""

from typing import NamedTuple

import torch

from . import backward_hopper, checks
from ._mode import MODE, Unsupported, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .online_softmax import LN_2, LOG2_E
from .plan import ceil_div
from .tiles import Tile, backward_tile, pad, split_width

# lse and delta are padded at the front to a multiple of this many rows, so that tiles of as many or fewer start at aligned
# addresses and the last one is whole.
ROW_ALIGNMENT: tl.constexpr = tl.constexpr(64)


class Widths(NamedTuple):
    """Columns that a kernel is compiled for; padded to powers of two, because Triton's tiles have such edges only."""

    head: int  # of q and k, in two blocks; all of them if ``tail`` is 0
    tail: int
    v: int
    padded_head: int
    padded_tail: int  # 1 where there is no tail: no tile has 0 columns
    padded_v: int

    @property
    def columns(self) -> int:
        """Padded columns of one row of q or k and one of v: what the tiles hold."""
        return self.padded_head + (self.padded_tail if self.tail else 0) + self.padded_v


@triton.jit
def load_tile(base, start, rows, row_stride, column_stride, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows start + ``rows`` of a matrix WIDTH wide, as a tile PADDED wide.

    Columns from WIDTH on read 0: what lies there is never loaded, so it may be anything, NaN included. Rows have no mask, for
    which the loops lack the registers: where a tile is not filled, the caller names the nearest real row again and P is 0.
    """
    columns = tl.arange(0, PADDED)
    tile = base + tl.cast(start, tl.int64) * row_stride
    pointers = tile + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    if WIDTH == PADDED:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)


@triton.jit
def load_blocks(base, start, rows, row_stride, column_stride, WIDTHS: tl.constexpr):
    """``load_tile`` of q or k in its two blocks of columns; without a tail the head stands in its place."""
    head = load_tile(base, start, rows, row_stride, column_stride, WIDTHS.head, WIDTHS.padded_head)
    tail = head
    if WIDTHS.tail > 0:
        tail_base = base + tl.cast(WIDTHS.head, tl.int64) * column_stride
        tail = load_tile(tail_base, start, rows, row_stride, column_stride, WIDTHS.tail, WIDTHS.padded_tail)
    return head, tail


@triton.jit
def store_tile(base, rows, live, tile, FIRST: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PITCH: tl.constexpr):
    """A tile into WIDTH columns from FIRST on of a matrix PITCH wide, in the rows that are ``live``."""
    columns = tl.arange(0, PADDED)
    tl.store(
        base + rows[:, None] * PITCH + (FIRST + columns)[None, :],
        tile.to(base.dtype.element_ty),
        mask=live[:, None] & (columns < WIDTH)[None, :],
    )


@triton.jit
def store_blocks(base, rows, live, head, tail, WIDTHS: tl.constexpr):
    """The gradient of q or k from its two blocks of columns."""
    PITCH: tl.constexpr = WIDTHS.head + WIDTHS.tail
    store_tile(base, rows, live, head, 0, WIDTHS.head, WIDTHS.padded_head, PITCH)
    if WIDTHS.tail > 0:
        store_tile(base, rows, live, tail, WIDTHS.head, WIDTHS.tail, WIDTHS.padded_tail, PITCH)


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """An accumulator."""
    return tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def padded_rows(q_len):
    """Rows that one head takes in lse_log2 and delta: the padding, then the q_len real ones."""
    return tl.cdiv(q_len, ROW_ALIGNMENT) * ROW_ALIGNMENT


@triton.jit
def visible_keys(rows, q_len, kv_len, CAUSAL: tl.constexpr):
    """How many keys each row sees. The last row sees the last key, so padding in front, counted in q_len too, moves nothing."""
    if CAUSAL:
        return tl.minimum(rows + 1 + kv_len - q_len, kv_len)
    else:
        return tl.zeros_like(rows) + kv_len


@triton.jit
def p_and_ds(
    x, x_tail, y, y_tail, x_out, y_out, lse_log2, delta, keys, visible, scale_log2,
    WIDTHS: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of P and one of dS, computed again.

    Both directions use these lines, for they read the same whichever side stands first: rows x with columns y are queries with
    keys, and x_out with y_out are dO with v; or they are keys with queries, and v with dO. What belongs to a query (lse_log2,
    delta, visible) or a key (keys) comes with an axis of one in the place of the other.
    """
    scores = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    if WIDTHS.tail > 0:
        scores = tl.dot(x_tail, tl.trans(y_tail), scores, input_precision=PRECISION)
    dp = tl.dot(x_out, tl.trans(y_out), input_precision=PRECISION)
    log2_p = scores * scale_log2 - lse_log2
    if MASKED:
        log2_p = tl.where(keys < visible, log2_p, float("-inf"))
    p = tl.exp2(log2_p)
    return p, p * (dp - delta)


@triton.jit(do_not_specialize=["n_q_heads", "q_len"])
def delta_kernel(
    out, d_out, lse, d_lse, lse_log2, delta,
    out_strides, d_out_strides, d_lse_strides,
    n_q_heads, q_len,
    ROWS: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """The two numbers of each row that both gradients need: lse in base 2, and delta = rowsum(dO * O) - dlse.

    out, d_out [B, Hq, M, Dv], lse, d_lse [B, Hq, M] -> lse_log2, delta [B, Hq, padded rows], one program a tile of rows. A row
    without keys and a row of padding get +inf and 0: every score then gives P = exp2(score - inf) = 0.
    """
    pitch = padded_rows(q_len)
    n_tiles = pitch // ROWS
    program = tl.program_id(0)
    padded = program % n_tiles * ROWS + tl.arange(0, ROWS)
    head = (program // n_tiles % n_q_heads).to(tl.int64)
    sequence = (program // (n_tiles * n_q_heads)).to(tl.int64)
    rows = padded - (pitch - q_len)
    loaded = tl.maximum(rows, 0)
    out += sequence * out_strides[0] + head * out_strides[1]
    d_out += sequence * d_out_strides[0] + head * d_out_strides[1]
    d_lse += sequence * d_lse_strides[0] + head * d_lse_strides[1]
    o = load_tile(out, 0, loaded, out_strides[2], out_strides[3], WIDTHS.v, WIDTHS.padded_v)
    do = load_tile(d_out, 0, loaded, d_out_strides[2], d_out_strides[3], WIDTHS.v, WIDTHS.padded_v)
    row_delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) - tl.load(d_lse + loaded.to(tl.int64) * d_lse_strides[2])
    row_lse = tl.load(lse + (sequence * n_q_heads + head) * q_len + rows, mask=rows >= 0, other=float("-inf"))
    silent = row_lse == float("-inf")
    slot = (sequence * n_q_heads + head) * pitch + padded
    tl.store(lse_log2 + slot, tl.where(silent, float("inf"), row_lse / LN_2))
    tl.store(delta + slot, tl.where(silent, 0.0, row_delta))


@triton.jit
def walk_queries(
    dk, dk_tail, dv, k, k_tail, v, keys, start, stop, first, q, d_out, lse_log2, delta,
    q_strides, d_out_strides, pitch, kv_len, scale_log2,
    BLOCK_M: tl.constexpr, WIDTHS: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv of a tile of keys what the padded rows start <= i < stop of one query head give.

    With MASKED, keys that a row does not see are hidden from it, and no row before ``first`` is loaded.
    """
    # Two accumulators, two products in flight: the compiler must keep no address from one turn to the next.
    for tile in tl.range(start, stop, BLOCK_M, num_stages=STAGES, disable_licm=True):
        rows = tl.arange(0, BLOCK_M)
        visible = rows
        row_lse = tl.load(lse_log2 + tile + rows)
        row_delta = tl.load(delta + tile + rows)
        if MASKED:
            visible = visible_keys(tile + rows, pitch, kv_len, CAUSAL)
            rows = tl.maximum(rows, first - tile)
        qs, qs_tail = load_blocks(q, tile, rows, q_strides[2], q_strides[3], WIDTHS)
        do = load_tile(d_out, tile, rows, d_out_strides[2], d_out_strides[3], WIDTHS.v, WIDTHS.padded_v)
        p, ds = p_and_ds(
            k, k_tail, qs, qs_tail, v, do, row_lse[None, :], row_delta[None, :], keys[:, None], visible[None, :], scale_log2,
            WIDTHS, PRECISION, MASKED,
        )  # fmt: skip
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dk = tl.dot(ds.to(qs.dtype), qs, dk, input_precision=PRECISION)
        if WIDTHS.tail > 0:
            dk_tail = tl.dot(ds.to(qs.dtype), qs_tail, dk_tail, input_precision=PRECISION)
    return dk, dk_tail, dv


@triton.jit(do_not_specialize=["n_parts", "members", "splits", "q_len", "kv_len"])
def dkdv_kernel(
    q, k, v, d_out, lse_log2, delta, dk, dv,
    q_strides, k_strides, v_strides, d_out_strides,
    scale_log2, n_parts, members, splits, q_len, kv_len,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk [B, parts, N, Dqk] and dv [B, parts, N, Dv]: one program owns (sequence, part, tile of keys).

    A part is ``members`` query heads that share a KV head: with one split the whole group, with more a share of it.
    """
    # In a causal sequence the first keys are seen by the most queries: they start first.
    n_tiles = tl.cdiv(kv_len, BLOCK_N)
    program = tl.program_id(0)
    keys = program % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    part = program // n_tiles % n_parts
    kv_head = (part // splits).to(tl.int64)
    sequence = (program // (n_tiles * n_parts)).to(tl.int64)
    loaded = tl.minimum(keys, kv_len - 1)
    k += sequence * k_strides[0] + kv_head * k_strides[1]
    v += sequence * v_strides[0] + kv_head * v_strides[1]
    ks, ks_tail = load_blocks(k, 0, loaded, k_strides[2], k_strides[3], WIDTHS)
    vs = load_tile(v, 0, loaded, v_strides[2], v_strides[3], WIDTHS.v, WIDTHS.padded_v)

    # Rows are counted from the padding on. Then all tiles that need a mask come first: the one in which the real rows begin
    # and those on the diagonal. ``first`` is the first row to see a key of this tile, ``unmasked`` the first to see them all.
    pitch = padded_rows(q_len)
    first = pitch - q_len
    unmasked = first
    if CAUSAL:
        first_key = program % n_tiles * BLOCK_N
        last_key = tl.minimum(first_key + BLOCK_N, kv_len) - 1
        first = tl.maximum(first_key + pitch - kv_len, first)
        unmasked = tl.maximum(last_key + pitch - kv_len, unmasked)
    start = first // BLOCK_M * BLOCK_M
    unmasked = tl.cdiv(unmasked, BLOCK_M) * BLOCK_M
    padding = (pitch - q_len).to(tl.int64)
    q -= padding * q_strides[2]
    d_out -= padding * d_out_strides[2]

    dk_acc = zeros(BLOCK_N, WIDTHS.padded_head)
    dk_tail = zeros(BLOCK_N, WIDTHS.padded_tail)
    dv_acc = zeros(BLOCK_N, WIDTHS.padded_v)
    for member in tl.range(0, members, disable_licm=True):
        head = (part * members + member).to(tl.int64)
        q_head = q + sequence * q_strides[0] + head * q_strides[1]
        d_out_head = d_out + sequence * d_out_strides[0] + head * d_out_strides[1]
        slot = (sequence * n_parts * members + head) * pitch
        dk_acc, dk_tail, dv_acc = walk_queries(
            dk_acc, dk_tail, dv_acc, ks, ks_tail, vs, keys, start, unmasked, first,
            q_head, d_out_head, lse_log2 + slot, delta + slot, q_strides, d_out_strides, pitch, kv_len, scale_log2,
            BLOCK_M, WIDTHS, CAUSAL, STAGES, PRECISION, True,
        )  # fmt: skip
        dk_acc, dk_tail, dv_acc = walk_queries(
            dk_acc, dk_tail, dv_acc, ks, ks_tail, vs, keys, unmasked, pitch, first,
            q_head, d_out_head, lse_log2 + slot, delta + slot, q_strides, d_out_strides, pitch, kv_len, scale_log2,
            BLOCK_M, WIDTHS, CAUSAL, STAGES, PRECISION, False,
        )  # fmt: skip

    slot = (sequence * n_parts + part) * kv_len + keys
    scale = scale_log2 * LN_2
    store_blocks(dk, slot, keys < kv_len, dk_acc * scale, dk_tail * scale, WIDTHS)
    store_tile(dv, slot, keys < kv_len, dv_acc, 0, WIDTHS.v, WIDTHS.padded_v, WIDTHS.v)


@triton.jit
def walk_keys(
    dq, dq_tail, q, q_tail, do, lse_log2, delta, visible, start, stop, k, v, k_strides, v_strides, kv_len, scale_log2,
    BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dq of a tile of rows what the keys start <= j < stop give; with MASKED, row r sees key j when j < visible[r]."""
    for tile in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        rows = tl.arange(0, BLOCK_N)
        keys = tile + rows
        if MASKED:
            rows = tl.minimum(rows, kv_len - 1 - tile)
        ks, ks_tail = load_blocks(k, tile, rows, k_strides[2], k_strides[3], WIDTHS)
        vs = load_tile(v, tile, rows, v_strides[2], v_strides[3], WIDTHS.v, WIDTHS.padded_v)
        _, ds = p_and_ds(
            q, q_tail, ks, ks_tail, do, vs, lse_log2[:, None], delta[:, None], keys[None, :], visible[:, None], scale_log2,
            WIDTHS, PRECISION, MASKED,
        )  # fmt: skip
        dq = tl.dot(ds.to(ks.dtype), ks, dq, input_precision=PRECISION)
        if WIDTHS.tail > 0:
            dq_tail = tl.dot(ds.to(ks.dtype), ks_tail, dq_tail, input_precision=PRECISION)
    return dq, dq_tail


@triton.jit(do_not_specialize=["n_q_heads", "group_size", "q_len", "kv_len"])
def dq_kernel(
    q, k, v, d_out, lse_log2, delta, dq,
    q_strides, k_strides, v_strides, d_out_strides,
    scale_log2, n_q_heads, group_size, q_len, kv_len,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTHS: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq [B, Hq, M, Dqk]: one program owns (sequence, query head, tile of queries), as in the forward pass."""
    n_tiles = tl.cdiv(q_len, BLOCK_M)
    program = tl.program_id(0)
    first_row = (n_tiles - 1 - program % n_tiles) * BLOCK_M
    head = program // n_tiles % n_q_heads
    sequence = (program // (n_tiles * n_q_heads)).to(tl.int64)
    kv_head = (head // group_size).to(tl.int64)
    head = head.to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_M)
    visible = visible_keys(rows, q_len, kv_len, CAUSAL)
    loaded = rows
    if CAUSAL:
        loaded = tl.maximum(rows, q_len - kv_len)  # what rows without keys hold must not matter
    loaded = tl.minimum(loaded, q_len - 1)
    q += sequence * q_strides[0] + head * q_strides[1]
    k += sequence * k_strides[0] + kv_head * k_strides[1]
    v += sequence * v_strides[0] + kv_head * v_strides[1]
    d_out += sequence * d_out_strides[0] + head * d_out_strides[1]
    qs, qs_tail = load_blocks(q, 0, loaded, q_strides[2], q_strides[3], WIDTHS)
    do = load_tile(d_out, 0, loaded, d_out_strides[2], d_out_strides[3], WIDTHS.v, WIDTHS.padded_v)
    slot = (sequence * n_q_heads + head + 1) * padded_rows(q_len) - q_len + rows
    row_lse = tl.load(lse_log2 + slot, mask=rows < q_len, other=float("inf"))
    row_delta = tl.load(delta + slot, mask=rows < q_len, other=0.0)

    unmasked = kv_len
    stop = kv_len
    if CAUSAL:
        unmasked = tl.maximum(tl.minimum(first_row + 1 + kv_len - q_len, kv_len), 0)
        stop = tl.minimum(first_row + BLOCK_M + kv_len - q_len, kv_len)
    unmasked = unmasked // BLOCK_N * BLOCK_N
    dq_acc = zeros(BLOCK_M, WIDTHS.padded_head)
    dq_tail = zeros(BLOCK_M, WIDTHS.padded_tail)
    dq_acc, dq_tail = walk_keys(
        dq_acc, dq_tail, qs, qs_tail, do, row_lse, row_delta, visible, 0, unmasked, k, v, k_strides, v_strides, kv_len,
        scale_log2, BLOCK_N, WIDTHS, STAGES, PRECISION, False,
    )  # fmt: skip
    dq_acc, dq_tail = walk_keys(
        dq_acc, dq_tail, qs, qs_tail, do, row_lse, row_delta, visible, unmasked, stop, k, v, k_strides, v_strides, kv_len,
        scale_log2, BLOCK_N, WIDTHS, STAGES, PRECISION, True,
    )  # fmt: skip
    slot = (sequence * n_q_heads + head) * q_len + rows
    scale = scale_log2 * LN_2
    store_blocks(dq, slot, rows < q_len, dq_acc * scale, dq_tail * scale, WIDTHS)


def widths_of(head_dim_qk: int, head_dim_v: int) -> Widths:
    """The blocks of columns: 192 becomes 128 + 64 instead of 256. Up to 128, one block takes fewer instructions than two."""
    head, tail = split_width(head_dim_qk) if head_dim_qk > 128 else (head_dim_qk, 0)
    return Widths(head, tail, head_dim_v, pad(head), pad(tail) if tail else 1, pad(head_dim_v))


def _strides(tensor: torch.Tensor) -> tuple:
    """Strides as a kernel takes them: where columns are dense the step between rows is a constant.

    It belongs to a model then, not to a length, and a constant costs no registers.
    """
    batch, head, row, column = tensor.stride()
    return (batch, head, tl.constexpr(row), column) if column == 1 else (batch, head, row, column)


def _row_terms(out: torch.Tensor, lse: torch.Tensor, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> torch.Tensor:
    """lse_log2 and delta of ``delta_kernel``, [2, B, Hq, padded rows]."""
    batch, n_q_heads, q_len, head_dim_v = out.shape
    pitch = ceil_div(q_len, ROW_ALIGNMENT.value) * ROW_ALIGNMENT.value
    terms = lse.new_empty(2, batch, n_q_heads, pitch)
    if d_lse is None:
        d_lse = lse.new_zeros(()).expand_as(lse)
    programs = batch * n_q_heads * (pitch // ROW_ALIGNMENT.value)
    checks.launchable(programs)
    with launching(out):
        delta_kernel[(programs,)](
            out, d_out, lse, d_lse, *terms,
            _strides(out), _strides(d_out), d_lse.stride(),
            n_q_heads, q_len,
            ROWS=ROW_ALIGNMENT, WIDTHS=widths_of(head_dim_v, head_dim_v),
            num_warps=8,
        )  # fmt: skip
    return terms


def group_splits(programs: int, group_size: int, q_len: int, sm_count: int) -> int:
    """How many of the programs for dK and dV share a group's query heads: the fewest that keep the SMs busy, a divisor of it.

    Under a causal mask programs are unequal: it takes eight an SM to even them out, and sixteen are worth it where rows are
    many, for partials are a smaller part of the whole there; of few rows they are so large a part that they pay only where SMs
    would idle. Where nearly as many come without sharing, that costs less.
    """
    wanted = (16 if q_len > 2048 else 8 if q_len > 1024 else 2.5) * sm_count
    if 16 * programs >= 15 * wanted:
        return 1
    return next((n for n in range(2, group_size) if group_size % n == 0 and programs * n >= wanted), group_size)


def _dkdv(q, k, v, d_out, terms, dk, dv, causal: bool, scale: float, allow_tf32: bool, splits: int | None = None) -> None:
    """Fill dk and dv, contiguous and of any float dtype; ``splits`` programs share the query heads of a group.

    More than one leave a float32 partial each, B * Hkv * splits * N * (Dqk + Dv) numbers, which are summed in order.
    """
    tile, _ = _tiles(q, v)
    heads, group_size = k.shape[1], q.shape[1] // k.shape[1]
    programs = k.shape[0] * heads * ceil_div(k.shape[2], tile.block_n)
    if splits is None:
        splits = group_splits(programs, group_size, q.shape[2], device_of(q).sm_count)
    sums = dk, dv
    if splits > 1:
        sums = [out.new_empty(len(k), heads, splits, *out.shape[2:], dtype=torch.float32) for out in (dk, dv)]
    sizes = (heads * splits, group_size // splits, splits)
    _launch(dkdv_kernel, programs * splits, sizes, tile, (q, k, v, d_out), (*terms, *sums), causal, scale, allow_tf32)
    if splits > 1:
        for out, parts in zip((dk, dv), sums, strict=True):
            out.copy_(parts.sum(2))


def _dq(q, k, v, d_out, terms, dq, causal: bool, scale: float, allow_tf32: bool) -> None:
    """Fill dq, contiguous."""
    _, tile = _tiles(q, v)
    programs = q.shape[0] * q.shape[1] * ceil_div(q.shape[2], tile.rows)
    sizes = (q.shape[1], q.shape[1] // k.shape[1])
    _launch(dq_kernel, programs, sizes, tile, (q, k, v, d_out), (*terms, dq), causal, scale, allow_tf32)


def _tiles(q: torch.Tensor, v: torch.Tensor) -> tuple[Tile, Tile]:
    device, widths = device_of(q), widths_of(q.shape[-1], v.shape[-1])
    return backward_tile(widths.columns, q.element_size(), device.capability, device.shared_memory)


def _launch(kernel, programs, sizes, tile, inputs, contiguous, causal, scale, allow_tf32) -> None:
    """What the launches of the two kernels share; ``sizes`` say how the programs divide the heads among them."""
    q, k, v, _ = inputs
    checks.launchable(programs)
    with launching(q):
        kernel[(programs,)](
            *inputs, *contiguous, *map(_strides, inputs),
            scale * LOG2_E, *sizes, q.shape[2], k.shape[2],
            BLOCK_M=tile.rows, BLOCK_N=tile.block_n, WIDTHS=widths_of(q.shape[-1], v.shape[-1]),
            CAUSAL=causal, STAGES=tile.num_stages, PRECISION="tf32" if allow_tf32 else "ieee",
            num_warps=tile.num_warps,
        )  # fmt: skip


@operation("attention_backward")
def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    causal: bool,
    scale: float,
    allow_tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv, contiguous and shaped as q, k, v, from what went into the forward pass, what came out, and its gradients.

    Shapes as in ``attention``; lse contiguous, d_out [B, Hq, M, Dv] and d_lse [B, Hq, M] in any strides, None where there is
    none. The scale is positive.
    """
    dtype = q.dtype
    checks.runnable(dtype, device_of(q).capability)
    if out.numel() == 0 or k.numel() == 0:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    if d_out is None:
        d_out = out.new_zeros(()).expand_as(out)
    q, k, v, out, d_out = to_kernel(q, k, v, out, d_out)
    dq, dk, dv = (tensor.new_empty(tensor.shape) for tensor in (q, k, v))
    terms = _row_terms(out, lse, d_out, d_lse)
    if backward_hopper.faster(q, k, v, d_out):
        backward_hopper.launch(q, k, v, d_out, terms, dq, dk, dv, causal, scale)
    else:
        _dkdv(q, k, v, d_out, terms, dk, dv, causal, scale, allow_tf32)
        _dq(q, k, v, d_out, terms, dq, causal, scale, allow_tf32)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


@attention_backward.register_fake
def _(q, k, v, out, lse, d_out, d_lse, causal, scale, allow_tf32):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _no_second_derivative(ctx, *gradients):
    raise Unsupported("attention has no second derivative: its gradient cannot be differentiated again")


attention_backward.register_autograd(_no_second_derivative)


def setup_context(ctx, inputs, output) -> None:
    """What the forward pass keeps for its backward pass: nothing of size M * N."""
    q, k, v, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def backward(ctx, d_out: torch.Tensor | None, d_lse: torch.Tensor | None):
    """Gradients of the inputs (q, k, v, causal, scale, allow_tf32) of the forward pass."""
    gradients = attention_backward(*ctx.saved_tensors, d_out, d_lse, *ctx.settings)
    wanted = (gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False))
    return *wanted, None, None, None


def partials_then_sum(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv, the last two the other way: a float32 partial for every query head, written, read again and summed.

    The same kernel, with as many programs for a group as it has query heads. The partials hold Hq * N * (Dqk + Dv) floats,
    the gradients Hkv * N * (Dqk + Dv). ``group_splits`` says how many of them the backward pass makes by itself.

    Arguments and errors as in ``attention``, with the out and lse that it returned and the gradient of out.
    """
    named = {"q": (q, "B Hq M Dqk"), "k": (k, "B Hkv N Dqk"), "v": (v, "B Hkv N Dv")}
    named |= {"out": (out, "B Hq M Dv"), "d_out": (d_out, "B Hq M Dv")}
    sizes = checks.sequences("partials_then_sum", causal, allow_tf32, **named)
    if not isinstance(lse, torch.Tensor) or lse.dtype != torch.float32 or lse.device != q.device:
        came = getattr(lse, "dtype", type(lse).__name__)
        raise TypeError(f"lse must be a float32 tensor on {q.device}, as attention returns it, got {came}")
    checks.shape("lse", lse, "B Hq M", sizes)
    checks.no_gradient("partials_then_sum", q=q, k=k, v=v, out=out, lse=lse, d_out=d_out)
    scale = checks.softmax_scale(scale, q.shape[-1])
    if MODE == "reference":
        raise Unsupported("partials_then_sum compares two ways through a kernel, and Triton is not installed")
    checks.runnable(q.dtype, device_of(q).capability)
    dtype, lse = q.dtype, lse.contiguous()
    sign = 0 if abs(scale) < checks.SMALLEST_SCALE else -1 if scale < 0 else 1
    q, scale = checks.positive_scale(q, scale)
    q, k, v, out, d_out = to_kernel(q, k, v, out, d_out)
    dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
    if out.numel() and k.numel():
        terms = _row_terms(out, lse, d_out, None)
        _dq(q, k, v, d_out, terms, dq, causal, scale, allow_tf32)
        _dkdv(q, k, v, d_out, terms, dk, dv, causal, scale, allow_tf32, splits=q.shape[1] // k.shape[1])
    return (sign * dq).to(dtype), dk.to(dtype), dv.to(dtype)
