"""Absorbed MLA decode for Hopper: two warpgroups that score different tokens and own different columns of the output.

What changes against `decode.py`: nothing in what is computed, everything in who does it. From about 64 rows on the step is
bound by arithmetic. In plain Triton both warpgroups of a program compute the same scores, because either needs them for its
half of the output's columns, and all wait while a softmax runs. Here (`hopper.py` explains the words) a program takes 64 rows
of one sequence, or as many as there are beside rows of 0, and walks over its tokens in pairs of blocks of 64, block 0 and
block 1:

    consumer left     scores of block 0; output columns   0 to 255
    consumer right    scores of block 1; output columns 256 to 511
    four producers    one warp each, for one half of the latent's columns of one block; the right half of block 0 comes with
                      its rotary columns and brings the queries, the left half of block 1 comes with its rotary columns

The latent is key and value, so what is loaded for the scores of one consumer is multiplied again by the weights of both. One
pair, time from left to right (S scores, P weights, O output, m the running maximum before, between and after the blocks):

    left   | S0 = Q K0ᵀ      | softmax → m0, P0 | O += P0 K0left     | rescale to m1 | O += P1 K1left     | next pair …
    right  | S1 = Q K1ᵀ              | rescale to m0 | O += P0 K0right; softmax → m1, P1 | O += P1 K1right | next pair …
    K0     | … lands, in chunks of 64 columns        | left half free | right half free: the next block 0 is on its way
    K1     | … lands                                                                | left half, right half free

While one multiplies, the other takes exponentials. P0 and m0 go from left to right and P1 and m1 from right to left, through
shared memory. The sums l need not cross before the end: each consumer sums its own weights and rescales them as the maximum
moves.

    Q                64 x (512 + 64)       72 KiB
    K0, K1           64 x (512 + 64) each  144 KiB, in parts that are filled and freed on their own: left, right, rotary
    P0, P1           64 x 64 each          none: they overwrite the rotary columns, dead once their scores exist
    m, l             a few hundred bytes

There is no second buffer of K, so a part is freed as early as it can be, and loaded again at once. What the copy engine is told
to fetch from outside the tensor reads 0: blocks that lie wholly beyond a sequence are not read. Of a block that the sequence
ends in, the scores are masked, and as weight 0 times NaN would be NaN, its dead rows are cleared before they count as values.

A program may walk over several sequences (a share of `work_list.py`): the producers run ahead as far as free parts allow, so
the first loads of the next piece come in while the one before is written.

What decides the speed, and what is left:
- The products of a pair take the tensor cores 4352 cycles. No block has a second buffer, so one after the other it is on its
  way, scored, weighed and multiplied, and a pair takes longer than that; `book/ledger.md` has the times. Asking the L2 for the
  next pair or a line of it, making one consumer score after the other, and rescaling once a pair instead of twice brought
  nothing, rotary queries that stay in registers next to nothing. Scoring the two halves of a block by turns, chunk by chunk,
  took longer: the left half of block 0 is there before the right one.
- Results leave 16 bytes a thread. Straight from the accumulators, 4 bytes a thread, they took longer, and so did whole lines of
  128 bytes, by more shuffles or by the copy engine.
- The first loads are ordered: queries before the length is known, block 1 when they are there. Small pages are looked up a
  pair ahead, which brings nothing where a page is a whole block.
- What one waits for comes first: P0 before the rescaling, m1 before the product. A branch keeps the compiler from undoing it.
- Barriers of consumers are named ones: an arrival there stops nobody, where one in shared memory costs a bar.sync.

(Two consumers that share the columns, and weights in the place of dead columns: FlashMLA, DeepSeek 2025, whose schedule for
dense decoding this follows. Warp specialisation with TMA: FlashAttention-3, Shah et al. 2024, section 3.1.)
"""

from typing import NamedTuple

import torch

from .hopper import (
    UNIT,
    Pages,
    Work,
    arrive_named,
    available,
    barrier,
    box_rows,
    describe,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    outer_of,
    piece_of,
    placed,
    sequences_of,
    tma,
    wait_named,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from .online_softmax import LN_2

# What the kernel is made for: DeepSeek's record, and tiles of as many rows as one warpgroup multiplies at a time.
TILE_ROWS, LATENT_DIM, ROPE_DIM, BLOCK_TOKENS = 64, 512, 64, 64
FEW_ROWS = 16  # in the portable kernel's smallest tile

ROWS = gl.constexpr(TILE_ROWS)
BLOCK = gl.constexpr(BLOCK_TOKENS)
PAIR = UNIT  # two blocks
LATENT = gl.constexpr(LATENT_DIM)
HALF = gl.constexpr(LATENT_DIM // 2)
ROPE = gl.constexpr(ROPE_DIM)
CHUNK = gl.constexpr(64)  # columns of one copy: 128 bytes, the width of a swizzled line
# The maximum of no scores. Finite, so that its difference to itself is 0; below every score in base 2 that float32 can hold.
LOWEST = gl.constexpr(-3.4028234663852886e38)

# The consumers: each scores the block of its number, and owns the columns of its half.
LEFT, RIGHT = gl.constexpr(0), gl.constexpr(1)

# The parts of a pair in shared memory. The first four are numbered 2 * block + half.
K0_LEFT, K0_RIGHT, K1_LEFT, K1_RIGHT, ROPE0, ROPE1 = (gl.constexpr(part) for part in range(6))

# Named barriers between the warps, and how many threads each counts. Those of the parts are in the order of the parts.
P0_READY, M1_READY, P1_READY, SUMS_READY, Q_READ = (gl.constexpr(name) for name in range(7, 12))
K0_LEFT_READ, K0_RIGHT_READ, K1_LEFT_READ, K1_RIGHT_READ = (gl.constexpr(name) for name in range(12, 16))
CONSUMERS = gl.constexpr(256)
CONSUMER_AND_PRODUCER = gl.constexpr(160)
CONSUMERS_AND_PRODUCER = gl.constexpr(288)


class Rows(NamedTuple):
    """The rows of a sequence, new token by new token, and the first of the program's."""

    first: int
    count: int
    n_q_heads: int
    q_len: int


class Sources(NamedTuple):
    """Tensor descriptors of what is loaded, and where the pages of a sequence are."""

    q_latent: object
    q_rope: object
    latent: object
    k_rope: object
    pages: Pages


class Shared(NamedTuple):
    """What lies in shared memory, and its barriers."""

    q: object  # left and right half of the latent's columns, rotary columns
    k: object  # the six parts
    maxima: object  # [ROWS] each: m after block 0, m after block 1
    sums: object  # [ROWS] each, of the two consumers
    q_full: object
    k_full: object  # for each part one barrier a chunk


@gluon.jit
def new_barrier():
    # An allocation of its own: Triton looks for hazards by allocation, and orders any two uses of one by a bar.sync.
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    return bar


@gluon.jit
def new_barriers():
    return new_barrier(), new_barrier(), new_barrier(), new_barrier()


@gluon.jit
def new_part(dtype: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    return gl.allocate_shared_memory(dtype, [1, 1, BLOCK, WIDTH], layout)


# ---- producers: one warp each -------------------------------------------------------------------------------------------


@gluon.jit
def outers_of(token, kv_len, sequence, pages, PAGE: gl.constexpr, BOX: gl.constexpr):
    """The sequence, or the page, of a block's tokens, BOX at a time. In every lane: spreading them took longer."""
    outers = ()
    for i in gl.static_range(BLOCK // BOX):
        outers = outers + (outer_of(token + i * BOX, kv_len, sequence, pages, PAGE),)
    return outers


@gluon.jit
def load_part(source, full, part, outers, token, COLUMN: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Columns of a block from COLUMN on, with a barrier for each chunk, so that scores can begin with the first."""
    for c in gl.static_range(part.shape[2] // CHUNK):
        chunk = part.slice(c * CHUNK, CHUNK, 2)
        for i in gl.static_range(BLOCK // BOX):
            row = token + i * BOX
            place = [outers[i], row if PAGE == 0 else row % PAGE, COLUMN + c * CHUNK]
            tma.async_copy_global_to_shared(source, place, full[c], chunk.slice(i * BOX, BOX, 1))
    # After the copies, which need not wait for it: a phase cannot end before its one arrival, which this is.
    for c in gl.static_range(part.shape[2] // CHUNK):
        mbarrier.expect(full[c], BLOCK * CHUNK * 2)


@gluon.jit
def load_queries(sources, sequence, row0, shared):
    mbarrier.expect(shared.q_full, ROWS * (LATENT + ROPE) * 2)
    tma.async_copy_global_to_shared(sources.q_latent, [sequence, row0, 0], shared.q_full, shared.q[0].index(0))
    tma.async_copy_global_to_shared(sources.q_latent, [sequence, row0, HALF], shared.q_full, shared.q[1].index(0))
    tma.async_copy_global_to_shared(sources.q_rope, [sequence, row0, 0], shared.q_full, shared.q[2].index(0))


@gluon.jit
def producer(sources, work, row0, shared, PART: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Loads half the latent's columns of one block of every pair, and what comes with them."""
    LIST: gl.constexpr = work.bounds is not None
    used = 0
    first, end = sequences_of(work)
    for sequence in range(first, end):
        if PART == K0_RIGHT and not LIST:
            # Before the length is known, which takes a trip to memory.
            load_queries(sources, sequence, row0, shared)
        kv_len, start, pairs, _ = piece_of(sequence, work)
        if PART == K0_RIGHT and LIST and pairs > 0:
            if used > 0:
                wait_named(Q_READ, CONSUMERS_AND_PRODUCER)
            load_queries(sources, sequence, row0, shared)
        token = start + PART // 2 * BLOCK
        outers = outers_of(token, kv_len, sequence, sources.pages, PAGE, BOX)
        for _ in range(0, pairs):
            # Pages smaller than a block take several look-ups: they are under way a pair ahead.
            if BOX < BLOCK:
                ahead = outers_of(token + PAIR, kv_len, sequence, sources.pages, PAGE, BOX)
            if used > 0:
                wait_named(K0_LEFT_READ + PART, CONSUMER_AND_PRODUCER)
            elif PART // 2 == 1:
                # Everybody begins at once, and memory is busy: what the first scores need goes first.
                mbarrier.wait(shared.q_full, 0)
            full, part = shared.k_full[PART], shared.k[PART].index(0)
            load_part(sources.latent, full, part, outers, token, PART % 2 * HALF, PAGE, BOX)
            if PART == K0_RIGHT:
                load_part(sources.k_rope, shared.k_full[ROPE0], shared.k[ROPE0].index(0), outers, token, 0, PAGE, BOX)
            elif PART == K1_LEFT:
                load_part(sources.k_rope, shared.k_full[ROPE1], shared.k[ROPE1].index(0), outers, token, 0, PAGE, BOX)
            token += PAIR
            outers = ahead if BOX < BLOCK else outers_of(token, kv_len, sequence, sources.pages, PAGE, BOX)
            used += 1
    # Named barriers have no phase: none is left half full.
    if used > 0:
        wait_named(K0_LEFT_READ + PART, CONSUMER_AND_PRODUCER)
        if PART == K0_RIGHT:
            wait_named(Q_READ, CONSUMERS_AND_PRODUCER)


# ---- consumers: one warpgroup each --------------------------------------------------------------------------------------


@gluon.jit
def flat(part):
    """A part in shared memory [1, rows, columns] as the matrix it is."""
    return part.reshape([part.shape[1], part.shape[2]])


@gluon.jit
def add_scores(scores, q, k, full, phase, FIRST: gl.constexpr):
    """Queue scores (+)= q kᵀ over the columns of one part, chunk by chunk as they land."""
    q, k = flat(q), flat(k)
    for c in gl.static_range(k.shape[1] // CHUNK):
        mbarrier.wait(full[c], phase)
        scores = warpgroup_mma(
            q.slice(c * CHUNK, CHUNK, 1), k.slice(c * CHUNK, CHUNK, 1).permute((1, 0)), scores,
            use_acc=(not FIRST) or c > 0, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def mask_scores(scores, token, kv_len, rows, layout: gl.constexpr):
    """-inf where a row does not see a key: row r is new token r // Hq, which sees the keys up to its own."""
    if token + BLOCK > kv_len - rows.q_len + 1:
        columns = token + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
        row = rows.first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        visible = gl.minimum(kv_len - rows.q_len + 1 + row // rows.n_q_heads, kv_len)
        scores = gl.where(gl.expand_dims(columns, 0) < gl.expand_dims(visible, 1), scores, float("-inf"))
    return scores


@gluon.jit
def clear_dead(part, token, kv_len, layout: gl.constexpr):
    """0 in the rows of a part that are no token of the sequence, before they are multiplied as values."""
    if token + BLOCK > kv_len:
        live = token + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout)) < kv_len
        for c in gl.static_range(HALF // CHUNK):
            chunk = flat(part).slice(c * CHUNK, CHUNK, 1)
            values = chunk.load(layout)
            chunk.store(gl.where(gl.expand_dims(live, 1), values, gl.zeros_like(values)))
        fence_async_shared()
        barrier()


@gluon.jit
def rescale(acc, factor, layout: gl.constexpr):
    return acc * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, layout)), 1)


@gluon.jit
def store_half(acc, mass, out, slot, rows, COLUMN: gl.constexpr, layout: gl.constexpr):
    """Normalise half of the columns and write them to out [slot, row, 512]."""
    acc = rescale(acc, gl.where(mass > 0.0, 1.0 / mass, 0.0), layout).to(out.dtype.element_ty)
    # wgmma leaves a thread two columns side by side. With 16 bytes side by side, whole sectors of memory are written at once.
    if out.dtype.element_ty.primitive_bitwidth == 32:
        wide: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 16], [0, 32], [0, 64], [0, 128], [8, 0]],
            [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 256],
        )  # fmt: skip
    else:
        wide: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [0, 128], [8, 0]],
            [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 256],
        )  # fmt: skip
    acc = gl.convert_layout(acc, wide)
    row = rows.first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
    column = COLUMN + gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
    state = out + gl.to_tensor(slot).to(gl.int64) * rows.count * LATENT
    live = gl.expand_dims(row < rows.count, 1)
    gl.store(state + gl.expand_dims(row * LATENT, 1) + gl.expand_dims(column, 0), acc, mask=live)


@gluon.jit
def scores_of(shared, phase, z, SIDE: gl.constexpr):
    """Scores [ROWS, BLOCK] of block SIDE, before mask and scale, part by part as they land."""
    q, k, full = shared.q, shared.k, shared.k_full
    left: gl.constexpr = K0_LEFT + 2 * SIDE
    rope: gl.constexpr = ROPE0 + SIDE
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    s = gl.full([ROWS, BLOCK], 0.0, gl.float32, layout=s_layout)
    s = add_scores(s, q[0].index(z), k[left].index(z), full[left], phase, True)
    s = add_scores(s, q[1].index(z), k[left + 1].index(z), full[left + 1], phase, False)
    s = add_scores(s, q[2].index(z), k[rope].index(z), full[rope], phase, False)
    return warpgroup_mma_wait(0, deps=[s])


@gluon.jit
def left_turn(s, acc, m, l, shared, z, last, token, kv_len, rows, scale_log2):
    """A pair at the left consumer: weights of block 0 from its scores s, left columns of both blocks. Returns acc, m, l."""
    k, maxima = shared.k, shared.maxima
    s_layout: gl.constexpr = s.type.layout
    o_layout: gl.constexpr = acc.type.layout
    k0, k1, p0_part, p1_part = k[K0_LEFT].index(z), k[K1_LEFT].index(z), k[ROPE0].index(z), k[ROPE1].index(z)
    s = mask_scores(s, token, kv_len, rows, s_layout)
    m0 = gl.maximum(m, gl.max(s, 1) * scale_log2)
    p = gl.exp2(s * scale_log2 - gl.expand_dims(m0, 1))
    p_narrow = p.to(p0_part.dtype)
    maxima[0].store(m0)
    flat(p0_part).store(p_narrow)
    fence_async_shared()
    arrive_named(P0_READY, CONSUMERS)
    clear_dead(k0, token, kv_len, s_layout)
    alpha = gl.exp2(m - m0)
    acc = rescale(acc, alpha, o_layout)
    weights = gl.convert_layout(p_narrow, gl.DotOperandLayout(0, o_layout, 2))  # its own weights never leave the registers
    product = warpgroup_mma(weights, flat(k0), acc, is_async=True)
    if last:
        arrive_named(Q_READ, CONSUMERS_AND_PRODUCER)

    wait_named(M1_READY, CONSUMERS)
    m = maxima[1].load(m.type.layout)
    beta = gl.exp2(m0 - m)
    l = (l * alpha + gl.sum(p, 1)) * beta
    acc, weights = warpgroup_mma_wait(0, deps=[product, weights])
    arrive_named(K0_LEFT_READ, CONSUMER_AND_PRODUCER)
    clear_dead(k1, token + BLOCK, kv_len, s_layout)
    acc = rescale(acc, beta, o_layout)
    wait_named(P1_READY, CONSUMERS)
    product = warpgroup_mma(flat(p1_part), flat(k1), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[product])
    arrive_named(K1_LEFT_READ, CONSUMER_AND_PRODUCER)
    return acc, m, l


@gluon.jit
def right_turn(s, acc, m, l, shared, z, last, token, kv_len, rows, scale_log2):
    """A pair at the right consumer: weights of block 1 from its scores s, right columns of both blocks. Returns acc, m, l."""
    k, maxima = shared.k, shared.maxima
    s_layout: gl.constexpr = s.type.layout
    o_layout: gl.constexpr = acc.type.layout
    k0, k1, p0_part, p1_part = k[K0_RIGHT].index(z), k[K1_RIGHT].index(z), k[ROPE0].index(z), k[ROPE1].index(z)
    if last:
        arrive_named(Q_READ, CONSUMERS_AND_PRODUCER)
    s = mask_scores(s, token + BLOCK, kv_len, rows, s_layout)
    largest = gl.max(s, 1) * scale_log2
    clear_dead(k1, token + BLOCK, kv_len, s_layout)

    wait_named(P0_READY, CONSUMERS)
    m0 = maxima[0].load(m.type.layout)
    alpha = gl.exp2(m - m0)
    m = gl.maximum(m0, largest)
    maxima[1].store(m)
    arrive_named(M1_READY, CONSUMERS)
    clear_dead(k0, token, kv_len, s_layout)
    acc = rescale(acc, alpha, o_layout)
    product = warpgroup_mma(flat(p0_part), flat(k0), acc, is_async=True)
    # Its softmax runs under this product.
    p = gl.exp2(s * scale_log2 - gl.expand_dims(m, 1))
    p_narrow = p.to(p1_part.dtype)
    flat(p1_part).store(p_narrow)
    fence_async_shared()
    arrive_named(P1_READY, CONSUMERS)
    weights = gl.convert_layout(p_narrow, gl.DotOperandLayout(0, o_layout, 2))
    beta = gl.exp2(m0 - m)
    l = l * (alpha * beta) + gl.sum(p, 1)
    acc = warpgroup_mma_wait(0, deps=[product])
    arrive_named(K0_RIGHT_READ, CONSUMER_AND_PRODUCER)

    acc = rescale(acc, beta, o_layout)
    product = warpgroup_mma(weights, flat(k1), acc, is_async=True)
    acc, weights = warpgroup_mma_wait(0, deps=[product, weights])
    arrive_named(K1_RIGHT_READ, CONSUMER_AND_PRODUCER)
    return acc, m, l


@gluon.jit
def consumer(work, rows, shared, out, lse, scale_log2, SIDE: gl.constexpr):
    """Walks over the pairs of all pieces, and writes half of the columns of each; the left one writes the log-sum-exp too."""
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    LIST: gl.constexpr = work.bounds is not None
    used = 0
    walked = 0
    first, end = sequences_of(work)
    for sequence in range(first, end):
        kv_len, token, pairs, slot = piece_of(sequence, work)
        if not LIST or pairs > 0:  # a split without tokens has a state to write, a share has none
            acc = gl.full([ROWS, HALF], 0.0, gl.float32, layout=o_layout)
            m = gl.full([ROWS], LOWEST, gl.float32, layout=row_layout)
            l = gl.full([ROWS], 0.0, gl.float32, layout=row_layout)
            mbarrier.wait(shared.q_full, walked & 1)
            for j in range(0, pairs):
                # 0, but the compiler cannot know. Else it takes some 70 wgmma descriptors out of the loop and spills them.
                z = j >> 30
                s = scores_of(shared, used & 1, z, SIDE)
                if SIDE == LEFT:
                    acc, m, l = left_turn(s, acc, m, l, shared, z, j == pairs - 1, token, kv_len, rows, scale_log2)
                else:
                    acc, m, l = right_turn(s, acc, m, l, shared, z, j == pairs - 1, token, kv_len, rows, scale_log2)
                token += PAIR
                used += 1
            shared.sums[SIDE].store(l)
            wait_named(SUMS_READY, CONSUMERS)
            l += shared.sums[1 - SIDE].load(row_layout)
            store_half(acc, l, out, slot, rows, SIDE * HALF, o_layout)
            if SIDE == LEFT:
                row = rows.first + gl.arange(0, ROWS, layout=row_layout)
                value = gl.where(l > 0.0, (m + gl.log2(l)) * LN_2, float("-inf"))
                gl.store(lse + gl.to_tensor(slot).to(gl.int64) * rows.count + row, value, mask=row < rows.count)
            walked += 1


# ---- the program ----------------------------------------------------------------------------------------------------------


@gluon.jit(
    do_not_specialize=[
        "table_sequence", "table_entry", "seq_lens_stride", "batch", "capacity", "n_rows", "n_q_heads", "q_len", "num_splits"
    ]
)  # fmt: skip
def mla_kernel(
    q_latent, q_rope, latent, k_rope, block_table, table_sequence, table_entry, seq_lens, seq_lens_stride, bounds, out, lse,
    scale_log2, batch, capacity, n_rows, n_q_heads, q_len, num_splits, PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Descriptors of queries [B, T * Hq, …] and of a cache [sequence or page, token, …] -> out [S, B, T, Hq, 512], lse.

    One program owns (sequence, split, row tile) or, with ``bounds``, (share, row tile) and writes the states of a work list.
    """
    # Neighbouring programs take the row tiles of one piece, so that a second tile finds the keys in the L2.
    n_tiles = gl.cdiv(n_rows, ROWS)
    rows = Rows(gl.program_id(0) % n_tiles * ROWS, n_rows, n_q_heads, q_len)
    work = Work(gl.program_id(0) // n_tiles, num_splits, batch, bounds, seq_lens, seq_lens_stride, capacity)
    sources = Sources(q_latent, q_rope, latent, k_rope, Pages(block_table, table_sequence, table_entry))

    tile: gl.constexpr = latent.layout
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    shared = Shared(
        q=(new_part(latent.dtype, HALF, tile), new_part(latent.dtype, HALF, tile), new_part(latent.dtype, ROPE, tile)),
        k=(
            new_part(latent.dtype, HALF, tile), new_part(latent.dtype, HALF, tile),
            new_part(latent.dtype, HALF, tile), new_part(latent.dtype, HALF, tile),
            new_part(latent.dtype, ROPE, tile), new_part(latent.dtype, ROPE, tile),
        ),
        maxima=(gl.allocate_shared_memory(gl.float32, [ROWS], vector), gl.allocate_shared_memory(gl.float32, [ROWS], vector)),
        sums=(gl.allocate_shared_memory(gl.float32, [ROWS], vector), gl.allocate_shared_memory(gl.float32, [ROWS], vector)),
        q_full=new_barrier(),
        k_full=(new_barriers(), new_barriers(), new_barriers(), new_barriers(), (new_barrier(),), (new_barrier(),)),
    )  # fmt: skip
    fence_async_shared()

    gl.warp_specialize(
        [
            (consumer, (work, rows, shared, out, lse, scale_log2, LEFT)),
            (consumer, (work, rows, shared, out, lse, scale_log2, RIGHT)),
            (producer, (sources, work, rows.first, shared, K0_LEFT, PAGE, BOX)),
            (producer, (sources, work, rows.first, shared, K0_RIGHT, PAGE, BOX)),
            (producer, (sources, work, rows.first, shared, K1_LEFT, PAGE, BOX)),
            (producer, (sources, work, rows.first, shared, K1_RIGHT, PAGE, BOX)),
        ],
        [4, 1, 1, 1, 1],  # warps of all but the first, which has those of the launch
        [240, 32, 32, 32, 32],  # registers of their threads; what they leave, 232, the first has
    )


def by_row(q: torch.Tensor) -> torch.Tensor:
    """Queries [B, T, Hq, …] as [B, T * Hq, …]; a view wherever strides allow it."""
    return q.flatten(1, 2)


def faster(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor | None,
    latent: torch.Tensor,
    k_rope: torch.Tensor | None,
    page_size: int,
    capacity: int,
    num_splits: int,
) -> bool:
    """Whether this form can run a decode step, and is the faster one. Tensors as ``launch`` of `decode.py` has them.

    Rows that are missing in a tile of 64 cost the tensor cores as much as others, but memory nothing, and it is memory that few
    rows wait for. For up to 16 the portable kernel keeps more bytes on their way: it is the faster one where programs write
    partial results after walks of more than a pair of blocks, and where all there is is one block. Measured on an H200.
    """
    few = q_latent.shape[1] * q_latent.shape[2] <= FEW_ROWS and page_size % BLOCK_TOKENS == 0
    if few and (capacity <= BLOCK_TOKENS or num_splits > 1 and capacity > num_splits * 2 * BLOCK_TOKENS):
        return False
    return (
        q_rope is not None
        and (q_latent.shape[-1], q_rope.shape[-1]) == (LATENT_DIM, ROPE_DIM)
        and latent.dtype == q_latent.dtype
        and box_rows(page_size, BLOCK_TOKENS) >= 8
        and available(by_row(q_latent), by_row(q_rope), latent.squeeze(1), k_rope.squeeze(1))
    )


def launch(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    block_table: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    bounds: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale_log2: float,
    capacity: int,
    page_size: int,
    num_splits: int,
    programs: int,
) -> None:
    """In the place of ``decode_kernel`` or ``work_kernel``, for what ``faster`` accepts: the same states in the same places."""
    batch, q_len, n_q_heads, _ = q_latent.shape
    box = box_rows(page_size, BLOCK_TOKENS)
    mla_kernel[(programs,)](
        describe(by_row(q_latent), TILE_ROWS, LATENT_DIM // 2), describe(by_row(q_rope), TILE_ROWS, ROPE_DIM),
        describe(latent.squeeze(1), box, ROPE_DIM), describe(k_rope.squeeze(1), box, ROPE_DIM),
        *placed(block_table, seq_lens), bounds, out, lse,
        scale_log2, batch, capacity, q_len * n_q_heads, n_q_heads, q_len, num_splits,
        PAGE=page_size, BOX=box, num_warps=4,
    )  # fmt: skip
