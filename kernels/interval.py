"""What one decode program does: one tile of rows over one interval of one sequence's tokens.

What changes against `forward.py`: a *row* is no longer a query position but a query head. The G heads that share a KV head
become the rows of one matrix product, so a program loads each key and value once where G programs loaded it G times. Every row
keeps its own running maximum, sum and accumulator: sharing a load mixes nothing. With q_len new tokens a sequence (drafts to
verify, several tokens predicted at once) the rows are the G * q_len pairs of token and head. (Groups: Ainslie et al. 2023,
section 2.2.)

Which interval it is, the kernels decide that call this: a split in `decode.py`, a share of the batch in `work_list.py`.
"""

from ._mode import tl, triton
from .attend import attend, load_queries, store_states


@triton.jit
def load_tokens(q, strides, sequence, token, head, live, STEP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """One block of columns, every STEP-th, of the queries of (token, head) pairs, [ROWS, PADDED]."""
    rows = sequence * strides[0] + token.to(tl.int64) * strides[1] + head.to(tl.int64) * strides[2]
    return load_queries(q, rows, strides[3] * STEP, live, WIDTH, PADDED)


@triton.jit
def attend_interval(
    q, q_tail, q_strides, q_tail_strides, load_tile: tl.constexpr, cache, out, lse,
    slot, sequence, kv_head, row_tile, start, stop, kv_len, scale_log2, n_q_heads, group_size, q_len,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One row tile of one KV head over tokens start <= j < stop; writes out [slot, T, Hq, v] and lse [slot, T, Hq].

    Row r of a KV head is token r // G, head r % G of the group.
    """
    # A tile ends at its group, so no row ever meets another KV head's keys.
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    token = rows // group_size
    head = kv_head * group_size + rows % group_size
    in_group = rows < group_size * q_len
    # Over an 8-bit cache the even columns and the odd ones go apart.
    APART: tl.constexpr = 1 if cache.k_scale is None else 2
    q_tile = load_tokens(q, q_strides, sequence, token, head, in_group, APART, LAYOUT.head, LAYOUT.padded_head)
    q_odd_tile, q_tail_tile = q_tile, q_tile
    if APART == 2:
        odd = q + q_strides[3]
        q_odd_tile = load_tokens(odd, q_strides, sequence, token, head, in_group, APART, LAYOUT.head, LAYOUT.padded_head)
    if LAYOUT.tail > 0:
        q_tail_tile = load_tokens(q_tail, q_tail_strides, sequence, token, head, in_group, 1, LAYOUT.tail, LAYOUT.padded_tail)

    # Of the q_len new tokens, all in the cache already, token t sees the keys up to its own.
    visible = kv_len - q_len + token + 1
    m, l, acc, acc_odd = attend(
        q_tile, q_odd_tile, q_tail_tile, visible, load_tile, cache, sequence, kv_head,
        start, kv_len - q_len + 1, stop, scale_log2, ROWS, BLOCK_N, LAYOUT, STAGES, PRECISION,
    )  # fmt: skip
    out_rows = (slot * q_len + token) * n_q_heads + head
    store_states(out, lse, out_rows, in_group, m, l, acc, LAYOUT, APART, 0)
    if APART == 2:
        store_states(out, lse, out_rows, in_group, m, l, acc_odd, LAYOUT, APART, 1)


@triton.jit
def length_of(seq_lens, seq_lens_stride, sequence, capacity):
    """Tokens of a sequence; a length outside the cache must not lead outside the cache."""
    kv_len = capacity
    if seq_lens is not None:
        kv_len = tl.minimum(tl.maximum(tl.load(seq_lens + sequence * seq_lens_stride), 0), capacity).to(tl.int32)
    return kv_len
