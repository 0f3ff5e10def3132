"""The backward pass for Hopper, in one kernel: five products a tile, where `backward.py` needs seven.

What changes against `backward.py`: one walk instead of two. A program owns 128 keys, 64 for each of two consumer warpgroups,
and walks over the queries of its group that see them. dK and dV stay in registers, as there. dQ, which sums over keys, is added
up in global memory in float32, by the copy engine: a consumer stages its part of 64 rows in shared memory, and one instruction
adds it. A last kernel scales the sums and rounds them. Programs add to the same rows in any order, so dQ is not the same bits
every time; where that is asked for (``torch.use_deterministic_algorithms``) the two kernels of `backward.py` run.

Everything is the transpose of the forward pass: Sᵀ = K Qᵀ has keys for rows, so Pᵀ and dSᵀ are, in the registers where they are
computed, already the left operands of dV += Pᵀ dO and dK += dSᵀ Q. Only dQ = dS K needs the keys of both consumers: each puts
its dSᵀ into shared memory, and each computes half of the columns, one turn later, when the other's is sure to be there.

    producer        K V; then a block of rows:  Q dO lse delta                           the next block
    tensor cores    Sᵀ = K Qᵀ   dPᵀ = V dOᵀ   dV += Pᵀ dO   dQ' = dS' K   dK += dSᵀ Q                      Sᵀ …
    its warps                Pᵀ = exp2(Sᵀ - lse)   dSᵀ = Pᵀ (dPᵀ - delta)   dSᵀ → shared    dQ' → shared → added

(dS' and dQ' are those of the turn before.) The last three products are all under way before the warps turn to moving data.

Keys of 192 columns, MLA's expanded form, come as 128 and a tail of 64, for what Gluon divides among threads has a power of two
for a size. dK and dV then fill 160 of a thread's 240 registers, and the rest holds one of Sᵀ, dPᵀ and dQ at a time: a consumer
waits for each of them, and the tensor cores live on what the other one sends (``take_wide_rows``). Shared memory has room for
dS of two turns, not four, so dS is passed last, when its place is known to be free. Of dQ's three blocks of 64 columns each
consumer computes one, and the two compute the third by turns.

Where KV heads and keys are few, several programs share a group's query heads, and add up dK and dV in the same way.

lse and delta come from ``backward._row_terms``, padded at the front to whole blocks of 64 rows. Rows count from that padding on
here too, and so does the float32 dQ, because the copy engine adds only from the first row of a tensor on.

Sources: Dao 2023 (2307.08691), algorithm 2, for the walk; Shah et al. 2024 (2407.08608), section 3, for the roles.
"""

from typing import NamedTuple

import torch

from . import checks
from ._mode import device_of, launching, tl, triton
from .hopper import (
    arrive_named,
    available,
    describe,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    pack,
    tile_of,
    tma,
    tma_add,
    unpack,
    wait_named,
    warpgroup_mma,
    warpgroup_mma_wait,
    widen,
)
from .online_softmax import LN_2, LOG2_E
from .plan import ceil_div

HALF: gl.constexpr = gl.constexpr(64)  # keys of a consumer; columns of dQ of a consumer; half of the head's columns
ROWS: gl.constexpr = gl.constexpr(64)  # queries of a block
# For a block of rows. A power of two: turn & BUFFERS - 1 is a turn's buffer. For % of a number that may be below 0 the compiler
# keeps more in registers, and has longer sums to do before a product can begin; that took 9% of the time.
BUFFERS: gl.constexpr = gl.constexpr(2)

# Named barriers, one for each buffer. The first few are Triton's own.
EMPTY: gl.constexpr = gl.constexpr(8)
ALL: gl.constexpr = gl.constexpr(2 * 128 + 32)  # the threads that meet there: two consumers arrive, the producer waits

# Up to so many queries the two kernels of `backward.py` are as fast: to set the sums of dQ to 0 and to scale them costs passes.
FEW_QUERIES = 128
# The widths, of keys and values, that there are tiles for.
WIDTHS = {(128, 128), (192, 128)}


class Shared(NamedTuple):
    """What lies in shared memory. In brackets how many, then what each holds."""

    q: object  # [BUFFERS] ROWS queries
    q_tail: object  # their columns from 128 on; None where there are none
    d_out: object
    lse: object
    delta: object
    k: object  # [2 halves of the columns * 2 consumers] HALF keys, HALF columns
    k_tail: object  # [2 consumers] HALF keys, their columns from 128 on
    v: object  # [2 consumers] HALF keys; takes dK and dV at the end
    ds: object  # [turns * 2 consumers] HALF keys, ROWS queries
    sums: object  # [2 consumers] ROWS rows, HALF columns, float32: dQ on its way to memory
    kv_full: object
    full: object  # of q, d_out, lse and delta
    ds_full: object  # [turns]


class Outputs(NamedTuple):
    """Descriptors of what is written; the ``_total`` are float32 and added to. None where another takes its place."""

    dq_total: object
    dk: object
    dk_tail: object
    dv: object
    dk_total: object
    dv_total: object


class Sizes(NamedTuple):
    """Of the whole launch. ``splits`` programs share the query heads of a group, ``members`` each: a part. ``n_parts`` counts
    the parts of a sequence, ``n_all_parts`` those of all sequences, and ``section`` of them go together.
    """

    n_parts: int
    n_all_parts: int
    members: int
    splits: int
    q_len: int
    kv_len: int
    section: int


@gluon.jit
def own_tile(sizes):
    """Tile of keys, sequence, and part of this program. In a causal sequence the first keys have the most queries."""
    n_tiles = (sizes.kv_len + 2 * HALF - 1) // (2 * HALF)
    tile, part = tile_of(gl.program_id(0), n_tiles, sizes.n_all_parts, sizes.section)
    return tile, part // sizes.n_parts, part % sizes.n_parts


@gluon.jit
def key_blocks(sizes):
    """Blocks of HALF keys of a sequence, whole tiles of two."""
    return (sizes.kv_len + 2 * HALF - 1) // (2 * HALF) * 2


@gluon.jit
def row_blocks(tile, sizes, CAUSAL: gl.constexpr):
    """The first and the end of the blocks of rows that see a tile of keys, and the padding before the first row."""
    stop = (sizes.q_len + ROWS - 1) // ROWS
    padding = stop * ROWS - sizes.q_len
    first = padding
    if CAUSAL:
        first = gl.maximum(tile * 2 * HALF + stop * ROWS - sizes.kv_len, first)
    return first // ROWS, stop, padding


@gluon.jit
def producer(q, q_tail, d_out, lse, delta, k, v, shared, sizes, CAUSAL: gl.constexpr):
    tile, sequence, part = own_tile(sizes)
    kv_head = part // sizes.splits
    start, stop, padding = row_blocks(tile, sizes, CAUSAL)
    BLOCKS: gl.constexpr = 2 if q_tail is None else 3  # of columns of K
    q_bytes: gl.constexpr = q.block_type.nbytes if q_tail is None else q.block_type.nbytes + q_tail.block_type.nbytes
    mbarrier.expect(shared.kv_full, 2 * v.block_type.nbytes + 2 * BLOCKS * k.block_type.nbytes)
    for i in gl.static_range(2):
        row = (2 * tile + i) * HALF
        tma.async_copy_global_to_shared(v, [sequence, kv_head, row, 0], shared.kv_full, shared.v.index(i))
        for half in gl.static_range(2):
            columns = [sequence, kv_head, row, half * HALF]
            tma.async_copy_global_to_shared(k, columns, shared.kv_full, shared.k.index(2 * half + i))
        if q_tail is not None:
            columns = [sequence, kv_head, row, 2 * HALF]
            tma.async_copy_global_to_shared(k, columns, shared.kv_full, shared.k_tail.index(i))
    turn = 0
    for member in range(sizes.members):
        head = part * sizes.members + member
        for block in range(start, stop):
            slot = turn & BUFFERS - 1
            if turn >= BUFFERS:
                wait_named(EMPTY + slot, ALL)
            full = shared.full.index(slot)
            row = block * ROWS
            mbarrier.expect(full, q_bytes + d_out.block_type.nbytes + lse.block_type.nbytes + delta.block_type.nbytes)
            tma.async_copy_global_to_shared(q, [sequence, head, row - padding, 0], full, shared.q.index(slot))
            if q_tail is not None:
                columns = [sequence, head, row - padding, 2 * HALF]
                tma.async_copy_global_to_shared(q_tail, columns, full, shared.q_tail.index(slot))
            tma.async_copy_global_to_shared(lse, [sequence, head, row], full, shared.lse.index(slot))
            tma.async_copy_global_to_shared(d_out, [sequence, head, row - padding, 0], full, shared.d_out.index(slot))
            tma.async_copy_global_to_shared(delta, [sequence, head, row], full, shared.delta.index(slot))
            turn += 1
    # A program must not end with a named barrier half full.
    for back in gl.static_range(BUFFERS):
        if turn > back:
            wait_named(EMPTY + (turn - 1 - back) % BUFFERS, ALL)


@gluon.jit
def issue_dq(shared, turn, zero, k, FIRST: gl.constexpr):
    """Start dQ = dS K of a turn, [ROWS, HALF]: all keys of the tile, the columns that ``k`` has in FIRST and the next."""
    TURNS: gl.constexpr = shared.ds_full.type.shape[0]
    slot = turn & TURNS - 1
    # Always 0, which the compiler does not know: it would keep the address of every part of K, and has no registers for it.
    hidden = turn >> 30
    mbarrier.wait(shared.ds_full.index(slot), turn // TURNS & 1)
    first = shared.ds.index(2 * slot).reshape([HALF, ROWS]).permute((1, 0))
    second = shared.ds.index(2 * slot + 1).reshape([HALF, ROWS]).permute((1, 0))
    dq = warpgroup_mma(first, k.index(FIRST + hidden).reshape([HALF, HALF]), zero, use_acc=False, is_async=True)
    return warpgroup_mma(second, k.index(FIRST + 1 + hidden).reshape([HALF, HALF]), dq, is_async=True)


@gluon.jit
def add(total, shared, tile, place, PART: gl.constexpr):
    """Add [ROWS, HALF], float32, to tile ``place`` of the sums in global memory, when what was staged before has been read.

    Its numbers lie there in the order in which the threads hold them, and ``scale_kernel`` puts them in rows. In rows here,
    pairs of a thread's 2 numbers would meet in the same banks of shared memory, for the copy engine's swizzle moves 16 bytes:
    the products read nearly all that shared memory can give, and would wait.
    """
    tma.store_wait(0)
    # A row is (warp, half, row of 8), a column (block of 8, thread, number): a thread has both halves' numbers, 4 together.
    pieces = gl.permute(gl.reshape(tile, [4, 2, 8, 8, 4, 2]), (3, 0, 2, 4, 1, 5))
    shared.sums.index(PART).store(gl.reshape(pieces, total.block_shape))
    fence_async_shared()
    tma_add(total, [place * total.block_shape[0], 0], shared.sums.index(PART))


@gluon.jit
def add_tail(dq_total, shared, place, turn, zero, PART: gl.constexpr):
    """The last columns of dQ of a turn, which the consumers compute by turns."""
    if (turn + PART) & 1 == 0:
        dq = warpgroup_mma_wait(0, deps=[issue_dq(shared, turn, zero, shared.k_tail, 0)])
        add(dq_total, shared, dq, place * 3 + 2, PART)


@gluon.jit
def put(
    out, total, buffer, tile, first, shared, sizes, WIDTH: gl.constexpr, PART: gl.constexpr, SPLIT: gl.constexpr
):  # fmt: skip
    """dK or dV of this consumer's keys, from the row and column in ``first`` on: the result, or with SPLIT a summand of it.

    WIDTH are the columns of the whole, ``tile`` may have fewer.
    """
    sequence, part, row, column = first
    kv_head = part // sizes.splits
    if SPLIT:
        head = sequence * (sizes.n_parts // sizes.splits) + kv_head
        place = (head * key_blocks(sizes) + row // HALF) * (WIDTH // HALF) + column // HALF
        if tile.shape[1] == HALF:
            add(total, shared, tile, place, PART)
        else:
            left, right = gl.split(gl.permute(gl.reshape(tile, [HALF, 2, HALF]), (0, 2, 1)))
            add(total, shared, left, place, PART)
            add(total, shared, right, place + 1, PART)
    else:
        staged = buffer.index(PART)
        tma.store_wait(0)
        staged.reshape([HALF, tile.shape[1]]).store(tile.to(buffer.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [sequence, kv_head, row, column], staged)


@gluon.jit
def issue_scores(shared, turn, zero, PART: gl.constexpr):
    """Start Sᵀ = K Qᵀ, [HALF, ROWS], of this consumer's keys."""
    slot = turn & BUFFERS - 1
    hidden = turn >> 30  # as in ``issue_dq``
    q = shared.q.index(slot).reshape([ROWS, shared.q.type.shape[4]])
    k = shared.k.index(PART + hidden).reshape([HALF, HALF])
    scores = warpgroup_mma(k, q.slice(0, HALF, dim=1).permute((1, 0)), zero, use_acc=False, is_async=True)
    k = shared.k.index(2 + PART + hidden).reshape([HALF, HALF])
    scores = warpgroup_mma(k, q.slice(HALF, HALF, dim=1).permute((1, 0)), scores, is_async=True)
    if shared.q_tail is not None:
        q = shared.q_tail.index(slot).reshape([ROWS, HALF])
        k = shared.k_tail.index(PART + hidden).reshape([HALF, HALF])
        scores = warpgroup_mma(k, q.permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def issue_dp(shared, turn, zero, PART: gl.constexpr):
    """Start dPᵀ = V dOᵀ, [HALF, ROWS], of this consumer's keys."""
    V: gl.constexpr = shared.v.type.shape[4]
    v = shared.v.index(PART + (turn >> 30)).reshape([HALF, V])
    d_out = shared.d_out.index(turn & BUFFERS - 1).reshape([ROWS, V])
    return warpgroup_mma(v, d_out.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def weigh(shared, scores, turn, seen, block, scale_log2, MASKED: gl.constexpr, CAUSAL: gl.constexpr):
    """Pᵀ of a block of rows. The first ``seen`` keys are seen, or with CAUSAL, as many and ``row`` more by row ``row``."""
    SCORES: gl.constexpr = scores.type.layout
    if MASKED:
        keys = gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(1, SCORES)), 1)
        if CAUSAL:
            seen += block * ROWS + gl.expand_dims(gl.arange(0, ROWS, layout=gl.SliceLayout(0, SCORES)), 0)
        scores = gl.where(keys < seen, scores, float("-inf"))
    return gl.exp2(scores * scale_log2 - shared.lse.index(turn & BUFFERS - 1).reshape([1, ROWS]).load(SCORES))


@gluon.jit
def less_delta(shared, dp, turn):
    """dPᵀ - delta."""
    return dp - shared.delta.index(turn & BUFFERS - 1).reshape([1, ROWS]).load(dp.type.layout)


@gluon.jit
def hand_over(shared, ds, turn, PART: gl.constexpr):
    """Put dSᵀ of a turn where both consumers read it."""
    slot = turn & shared.ds_full.type.shape[0] - 1
    shared.ds.index(2 * slot + PART).reshape([HALF, ROWS]).store(ds)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(slot))


@gluon.jit
def take_rows(
    dq_total, shared, seen, block, before, turn, scale_log2, dk, dv,
    PART: gl.constexpr, MASKED: gl.constexpr, FIRST: gl.constexpr, CAUSAL: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """One turn of the loop: what a block of rows adds to dk and dv, and the dQ of the turn before."""
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    dtype: gl.constexpr = shared.q.dtype
    slot = turn & BUFFERS - 1
    zero = gl.full([HALF, ROWS], 0.0, gl.float32, layout=SCORES)
    q = shared.q.index(slot).reshape([ROWS, dk[0].shape[1]])
    d_out = shared.d_out.index(slot).reshape([ROWS, dv.shape[1]])
    mbarrier.wait(shared.full.index(slot), turn // BUFFERS & 1)
    scores = issue_scores(shared, turn, zero, PART)
    dp = issue_dp(shared, turn, zero, PART)
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = weigh(shared, scores, turn, seen, block, scale_log2, MASKED, CAUSAL)
    dv = warpgroup_mma(gl.convert_layout(p.to(dtype), OPERAND), d_out, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=[dp])
    ds = (p * less_delta(shared, dp, turn)).to(dtype)
    if not FIRST:
        dq = issue_dq(shared, turn - 1, zero, shared.k, 2 * PART)
    dk_head = warpgroup_mma(gl.convert_layout(ds, OPERAND), q, dk[0], is_async=True)
    # The tensor cores have work for a while: time to pass dS to the other consumer.
    hand_over(shared, ds, turn, PART)
    if FIRST:
        dv, dk_head = warpgroup_mma_wait(0, deps=[dv, dk_head])
    else:
        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        add(dq_total, shared, dq, before * 2 + PART, PART)
        dk_head = warpgroup_mma_wait(0, deps=[dk_head])
    arrive_named(EMPTY + slot, ALL)
    return (dk_head,), dv


@gluon.jit
def take_wide_rows(
    dq_total, shared, seen, block, before, turn, scale_log2, dk, dv,
    PART: gl.constexpr, MASKED: gl.constexpr, FIRST: gl.constexpr, CAUSAL: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """``take_rows`` with a tail: one float32 tile at a time beside dk and dv. Of Pᵀ and dSᵀ the 16-bit pairs stay."""
    HEAD_OPERAND: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    TAIL_OPERAND: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    dtype: gl.constexpr = shared.q.dtype
    slot = turn & BUFFERS - 1
    zero = gl.full([HALF, ROWS], 0.0, gl.float32, layout=SCORES)
    q = shared.q.index(slot).reshape([ROWS, dk[0].shape[1]])
    q_tail = shared.q_tail.index(slot).reshape([ROWS, HALF])
    d_out = shared.d_out.index(slot).reshape([ROWS, dv.shape[1]])
    mbarrier.wait(shared.full.index(slot), turn // BUFFERS & 1)
    scores = warpgroup_mma_wait(0, deps=[issue_scores(shared, turn, zero, PART)])
    p = pack(weigh(shared, scores, turn, seen, block, scale_log2, MASKED, CAUSAL), dtype)
    dp = issue_dp(shared, turn, zero, PART)
    dv = warpgroup_mma(unpack(p, dtype, HEAD_OPERAND), d_out, dv, is_async=True)
    dp, dv = warpgroup_mma_wait(0, deps=[dp, dv])
    ds = pack(widen(p, dtype, SCORES) * less_delta(shared, dp, turn), dtype)
    dk_head = warpgroup_mma(unpack(ds, dtype, HEAD_OPERAND), q, dk[0], is_async=True)
    dk_tail = warpgroup_mma(unpack(ds, dtype, TAIL_OPERAND), q_tail, dk[1], is_async=True)
    if FIRST:
        dk_head, dk_tail = warpgroup_mma_wait(0, deps=[dk_head, dk_tail])
        arrive_named(EMPTY + slot, ALL)
    else:
        dq = issue_dq(shared, turn - 1, zero, shared.k, 2 * PART)
        dk_head, dk_tail = warpgroup_mma_wait(2, deps=[dk_head, dk_tail])
        arrive_named(EMPTY + slot, ALL)
        dq = warpgroup_mma_wait(0, deps=[dq])
        add(dq_total, shared, dq, before * 3 + PART, PART)
        add_tail(dq_total, shared, before, turn - 1, zero, PART)
    # Its place is free: the other consumer passed dS of the turn before only when it had used that of the turn before that.
    hand_over(shared, unpack(ds, dtype, SCORES), turn, PART)
    return (dk_head, dk_tail), dv


@gluon.jit
def consumer(outputs, shared, sizes, scale_log2, PART: gl.constexpr, CAUSAL: gl.constexpr, SPLIT: gl.constexpr):
    """Keys PART * HALF, … of the tile."""
    HEAD: gl.constexpr = shared.q.type.shape[4]
    WIDTH: gl.constexpr = HEAD if shared.q_tail is None else HEAD + HALF
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    take: gl.constexpr = take_rows if shared.q_tail is None else take_wide_rows
    tile, sequence, part = own_tile(sizes)
    start, stop, padding = row_blocks(tile, sizes, CAUSAL)
    # Blocks of rows from ``unmasked`` on need no mask: their rows see all keys of this consumer.
    seen = sizes.kv_len - (2 * tile + PART) * HALF
    if CAUSAL:
        seen += 1 - stop * ROWS
        unmasked = (gl.maximum(HALF - seen, 0) + ROWS - 1) // ROWS
    else:
        unmasked = gl.where(seen >= HALF, 0, stop)
    unmasked = gl.minimum(gl.maximum(unmasked, start), stop)

    dk = (gl.full([HALF, HEAD], 0.0, gl.float32, layout=OUTPUT),)
    if shared.q_tail is not None:
        dk = (dk[0], gl.full([HALF, HALF], 0.0, gl.float32, layout=SCORES))
    dv = gl.full([HALF, HEAD], 0.0, gl.float32, layout=OUTPUT)
    mbarrier.wait(shared.kv_full, 0)
    dk, dv = take(outputs.dq_total, shared, seen, start, 0, 0, scale_log2, dk, dv, PART, True, True, CAUSAL, SCORES)
    turn = 1
    begin = start + 1
    first_block = (sequence * sizes.n_parts + part) * sizes.members * stop  # of the head, as ``dq_total`` counts them
    before = first_block + start
    for _ in range(sizes.members):
        for block in range(begin, unmasked):
            dk, dv = take(
                outputs.dq_total, shared, seen, block, before, turn, scale_log2, dk, dv, PART, True, False, CAUSAL, SCORES
            )
            turn += 1
            before = first_block + block
        for block in range(gl.maximum(begin, unmasked), stop):
            dk, dv = take(
                outputs.dq_total, shared, seen, block, before, turn, scale_log2, dk, dv, PART, False, False, CAUSAL, SCORES
            )
            turn += 1
            before = first_block + block
        begin = start
        first_block += stop
    zero = gl.full([ROWS, HALF], 0.0, gl.float32, layout=SCORES)
    dq = warpgroup_mma_wait(0, deps=[issue_dq(shared, turn - 1, zero, shared.k, 2 * PART)])
    add(outputs.dq_total, shared, dq, before * (WIDTH // HALF) + PART, PART)
    if shared.q_tail is not None:
        add_tail(outputs.dq_total, shared, before, turn - 1, zero, PART)

    # This consumer's values are used up, and both consumers' queries: dV and dK leave through their places.
    row = (2 * tile + PART) * HALF
    scale = scale_log2 * LN_2
    place = [sequence, part, row, 0]
    put(outputs.dv, outputs.dv_total, shared.v, dv, place, shared, sizes, HEAD, PART, SPLIT)
    put(outputs.dk, outputs.dk_total, shared.v, dk[0] * scale, place, shared, sizes, WIDTH, PART, SPLIT)
    if shared.q_tail is not None:
        place = [sequence, part, row, HEAD]
        put(outputs.dk_tail, outputs.dk_total, shared.q_tail, dk[1] * scale, place, shared, sizes, WIDTH, PART, SPLIT)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_parts", "n_all_parts", "members", "splits", "q_len", "kv_len", "section"])
def gradients_kernel(
    q, q_tail, k, v, d_out, lse_log2, delta, dq_total, dk, dk_tail, dv, dk_total, dv_total, scale_log2,
    n_parts, n_all_parts, members, splits, q_len, kv_len, section, CAUSAL: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """dk, dv [B, Hkv, N, D]; with SPLIT, what is added up to them in dk_total, dv_total [B * Hkv, N, D], float32.

    Adds dQ / scale to dq_total [B * Hq * padded rows, D], float32. q, k, v, d_out as in ``attention``; lse_log2 and delta
    [B, Hq, padded rows]. All are tensor descriptors.
    """
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    TURNS: gl.constexpr = 4 if q_tail is None else 2
    tail = None
    second_k = None
    if q_tail is not None:
        tail = gl.allocate_shared_memory(q.dtype, [BUFFERS] + q_tail.block_shape, q_tail.layout)
        second_k = gl.allocate_shared_memory(q.dtype, [2] + k.block_shape, k.layout)
    shared = Shared(
        q=gl.allocate_shared_memory(q.dtype, [BUFFERS] + q.block_shape, q.layout),
        q_tail=tail,
        d_out=gl.allocate_shared_memory(q.dtype, [BUFFERS] + d_out.block_shape, d_out.layout),
        lse=gl.allocate_shared_memory(gl.float32, [BUFFERS] + lse_log2.block_shape, lse_log2.layout),
        delta=gl.allocate_shared_memory(gl.float32, [BUFFERS] + delta.block_shape, delta.layout),
        k=gl.allocate_shared_memory(q.dtype, [4] + k.block_shape, k.layout),
        k_tail=second_k,
        v=gl.allocate_shared_memory(q.dtype, [2] + v.block_shape, v.layout),
        ds=gl.allocate_shared_memory(q.dtype, [2 * TURNS] + k.block_shape, k.layout),
        sums=gl.allocate_shared_memory(gl.float32, [2] + dq_total.block_shape, dq_total.layout),
        kv_full=gl.allocate_shared_memory(gl.int64, [1], barriers),
        full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        ds_full=gl.allocate_shared_memory(gl.int64, [TURNS, 1], barriers),
    )
    mbarrier.init(shared.kv_full, count=1)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(shared.full.index(i), count=1)
    for i in gl.static_range(TURNS):
        mbarrier.init(shared.ds_full.index(i), count=2)
    fence_async_shared()
    sizes = Sizes(n_parts, n_all_parts, members, splits, q_len, kv_len, section)
    outputs = Outputs(dq_total, dk, dk_tail, dv, dk_total, dv_total)
    gl.warp_specialize(
        [
            (consumer, (outputs, shared, sizes, scale_log2, 0, CAUSAL, SPLIT)),
            (consumer, (outputs, shared, sizes, scale_log2, 1, CAUSAL, SPLIT)),
            (producer, (q, q_tail, d_out, lse_log2, delta, k, v, shared, sizes, CAUSAL)),
        ],
        [4, 1],  # warps of the second consumer and of the producer; the first consumer has those of the launch
        [240, 24],  # registers of their threads; what the producer leaves, a consumer needs for its accumulators
    )


@triton.jit(do_not_specialize=["blocks", "padding", "rows", "all_rows"])
def scale_kernel(total, out, scale, blocks, padding, rows, all_rows, WIDTH: tl.constexpr):
    """out [heads, rows of all_rows, WIDTH] = scale * total, which has so many ``blocks`` of 64 rows for a head.

    The first ``padding`` rows are left out, and those behind so many ``rows``. One program for a tile of 64 rows and 64
    columns, whose numbers lie as ``add`` put them.
    """
    block = tl.program_id(0) // (WIDTH // 64)
    columns = tl.program_id(0) % (WIDTH // 64) * 64 + tl.arange(0, 64)
    head = (block // blocks).to(tl.int64)
    row = block % blocks * 64 + tl.arange(0, 64) - padding
    sums = tl.load(total + tl.program_id(0).to(tl.int64) * 4096 + tl.arange(0, 4096))
    sums = tl.reshape(tl.permute(tl.reshape(sums, [8, 4, 8, 4, 2, 2]), [1, 4, 2, 0, 3, 5]), [64, 64])
    place = out + (head * all_rows + row)[:, None] * WIDTH + columns[None, :]
    tl.store(place, (sums * scale).to(out.dtype.element_ty), mask=((row >= 0) & (row < rows))[:, None])


def faster(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor) -> bool:
    """Whether this form can take these tensors, and is the faster one."""
    return (
        (q.shape[-1], v.shape[-1]) in WIDTHS
        and q.shape[2] > FEW_QUERIES
        and not torch.are_deterministic_algorithms_enabled()
        and available(q, k, v, d_out)
    )


def group_splits(programs: int, group_size: int, sm_count: int) -> int:
    """How many programs share a group's query heads: the fewest that keep the SMs busy, a divisor of the group.

    About two programs an SM, so that a long one and a short one can pair; eight, where a program walks more than seven heads,
    for then the last one is waited for longer than sharing costs. What is shared are float32 sums of
    B * Hkv * N * (Dqk + Dv) numbers, however many programs add to them.
    """
    for splits in (n for n in range(1, group_size) if group_size % n == 0):
        wanted = 8 if group_size // splits > 7 else 1.9
        if programs * splits >= wanted * sm_count:
            return splits
    return group_size


def section_parts(n_tiles: int) -> int:
    """Parts of a section: about 128 tiles of keys, one for each SM, but no less than 4 parts."""
    return max(4, 128 // n_tiles)


def launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, terms: torch.Tensor,
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, causal: bool, scale: float,
) -> None:  # fmt: skip
    """Fill dq, dk and dv, contiguous; ``terms`` are those of ``backward._row_terms``."""
    q_len, kv_len, width = q.shape[2], *k.shape[2:]
    all_rows, tail = q_len, width - 128
    if causal and q_len > kv_len:  # rows without keys are left out: what they hold must not matter
        dq[:, :, : q_len - kv_len] = 0
        q, d_out, dq = (tensor[:, :, -kv_len:] for tensor in (q, d_out, dq))
        q_len = kv_len
    pitch = ceil_div(q_len, 64) * 64
    lse_log2, delta = terms[..., -pitch:]
    heads, group_size = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
    n_tiles = ceil_div(kv_len, 128)
    splits = group_splits(heads * n_tiles, group_size, device_of(q).sm_count)
    parts = heads * splits
    # Sums lie in tiles of 64 rows and 64 columns, as ``add`` puts them: a line here is a sixteenth of one.
    dq_total = terms.new_zeros(q.shape[0] * q.shape[1] * pitch * width // 256, 256)
    totals = []
    if splits > 1:
        totals = [terms.new_zeros(heads * n_tiles * 128 * out.shape[-1] // 256, 256) for out in (dk, dv)]
        outs = (None, None, None, *(describe(total, 16, 256, dense=True) for total in totals))
    else:
        outs = (describe(dk, 64, 128), describe(dk, 64, tail) if tail else None, describe(dv, 64, 128), None, None)
    checks.launchable(parts * n_tiles)
    with launching(q):
        gradients_kernel[(parts * n_tiles,)](
            describe(q, 64, 128), describe(q, 64, tail) if tail else None, describe(k, 64, 64), describe(v, 64, 128),
            describe(d_out, 64, 128), describe(lse_log2, 64), describe(delta, 64), describe(dq_total, 16, 256, dense=True),
            *outs, scale * LOG2_E, k.shape[1] * splits, parts, group_size // splits, splits, q_len, kv_len,
            section_parts(n_tiles), CAUSAL=causal, SPLIT=splits > 1, num_warps=4,
        )  # fmt: skip
        summed = [(dq_total, dq, scale, pitch // 64, pitch - q_len, q_len, all_rows)]
        if splits > 1:
            summed += [(total, out, 1.0, 2 * n_tiles, 0, kv_len, kv_len) for total, out in zip(totals, (dk, dv), strict=True)]
        for total, out, *sizes in summed:
            scale_kernel[(total.numel() // 4096,)](total, out, *sizes, WIDTH=out.shape[-1], num_warps=4)
