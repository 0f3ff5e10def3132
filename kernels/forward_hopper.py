"""Full-sequence attention for Hopper: the loop of `attend.py` spread over warps that each do one thing.

What changes against `forward.py`: there, all warps of a program multiply, then all compute the softmax, then all multiply
again, and while one unit works the other waits. Here a program is one producer warp, which only starts copies, and two consumer
warpgroups of 64 query rows each. A consumer keeps two products in flight and does the softmax of one block of keys under the
product of the block before; the two consumers run apart, so that what one leaves idle the other takes.

    producer     K0 Q    K1 V0      K2 V1      K3 V2   …                     (copies: each waits until its buffer is empty)
                  ↓        ↓          ↓
    consumer     S0 = QK0ᵀ        S1 = QK1ᵀ, O += P0·V0     S2 = QK2ᵀ, O += P1·V1      …     O += Pn·Vn     O / l  →  global
      its warps            P0 = …             P1 = exp2(S1 - …)         P2 = exp2(S2 - …)
      tensor cores  ■■■■          ■■■■■■■■■■■■■■■■■■■■■        ■■■■■■■■■■■■■■■■■■■■■        ■■■■■■■■■■

S and O are accumulators in registers, and P is the register operand of its product: scores never leave the registers. Blocks go
from right to left: the one on the diagonal comes first, before the loop, and in the loop most tiles need no mask.

A program is not one tile: as many programs as the GPU has SMs take tile after tile, and the producer asks for the first keys of
the next before the last values of the one at hand. Tiles with the most keys come first, and the next one is that which no
program has drawn yet. Heads go in sections, few enough that several programs want the same keys at the same time. Where rows
are short and causal the order is fixed: long tiles in pairs with short ones, all of one length, so that nobody has to draw.

Keys 128 wide leave room for the queries of two tiles, and the output leaves through those it was made of. Keys 192 wide leave
room for one: there the output has a small buffer of its own, queries are given back before the last product of their tile, and
the next tile's first product is on its way while the output is written. Under a mask the loop has the last 64 columns of these
queries in registers, which shared memory need not bring for each block.

Four habits give the compiler no reason to undo this. What each is worth, alone and on top of the others, page 8b has from
recordings; on some shapes a few of them are worth nothing.
- The compiler moves the wait for a product up over independent arithmetic, unless a branch stands between. The wait for the
  next V, a polling loop, is that branch: it stands between the softmax and the wait for O.
- P travels from turn to turn as pairs of 16-bit numbers in int32: a tensor of 16-bit numbers is unpacked and packed every time.
- Row sums are kept for each thread, and added up over the threads once a tile.
- Buffers of Q, K and V are given back through named barriers, at which nobody but the producer waits.

Sources: the schedule is FlashAttention-3's (Shah et al. 2024, 2407.08608, sections 3.1 and 3.2), without its ping-pong: taking
turns at the tensor cores brought nothing on long rows here. The tile counter is the dynamic scheduler of the same code base.
"""

from typing import NamedTuple

import torch

from ._mode import device_of, launching
from .hopper import (
    arrive_named,
    available,
    describe,
    draw,
    drawn,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    pack,
    tile_of,
    tma,
    unpack,
    wait_named,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from .online_softmax import LN_2, LOG2_E
from .plan import ceil_div

ROWS: gl.constexpr = gl.constexpr(64)  # queries of a consumer; a tile has those of two
BLOCK_N: gl.constexpr = gl.constexpr(128)  # keys of a block
BUFFERS: gl.constexpr = gl.constexpr(2)  # for K, and as many for V
COLUMNS: gl.constexpr = gl.constexpr(64)  # of the output that leave together, where it has a buffer of its own

# Named barriers, one for each buffer, and for the tile one for each consumer. The first few are Triton's own.
TILE_FULL: gl.constexpr = gl.constexpr(4)
TILE_EMPTY: gl.constexpr = gl.constexpr(6)
K_EMPTY: gl.constexpr = gl.constexpr(8)
V_EMPTY: gl.constexpr = gl.constexpr(10)
Q_EMPTY: gl.constexpr = gl.constexpr(12)
ALL: gl.constexpr = gl.constexpr(2 * 128 + 32)  # the threads that meet there: two consumers arrive, the producer waits
ONE: gl.constexpr = gl.constexpr(128 + 32)  # likewise, of what one consumer reads for itself

# The widths, of keys and values, that there are tiles for, and how many tiles of queries find room in shared memory then.
QUERY_BUFFERS = {(128, 128): 2, (192, 128): 1}
# Up to so many queries the portable form is faster: it has a tile of 64 rows for them, and here one consumer would be idle.
FEW_QUERIES = 64
# Up to so many tiles a program their order is fixed, and with so many row tiles a head they go in pairs, see ``tile_order``.
FEW_TILES, PAIRED_ROW_TILES = 4, range(7, 17)
# KV heads that go together, and tiles: no less than either, see ``section_heads``.
SECTION_HEADS, SECTION_TILES = 16, 256


class Shared(NamedTuple):
    """What lies in shared memory: for each buffer its barriers."""

    q: object  # [buffers * 2 consumers, 1, 1, ROWS, head]; with two buffers takes the output when its tile is done
    q_tail: object
    k: object  # [BUFFERS, 1, 1, BLOCK_N, head]
    k_tail: object
    v: object  # [BUFFERS, 1, 1, BLOCK_N, Dv]
    out: object  # [2 consumers, 1, ROWS, COLUMNS] where q has one buffer, otherwise None
    tile: object  # [1] the tile drawn, as head * 2**32 + row tile; -1 after the last
    q_full: object
    k_full: object
    v_full: object


class Sizes(NamedTuple):
    """Of the whole launch. ``n_heads`` counts the query heads of all sequences: the first ``n_paired`` of them go in pairs of
    tiles, and then ``section`` together."""

    n_q_heads: int
    group_size: int
    q_len: int
    kv_len: int
    n_heads: int
    n_tiles: int
    n_paired: int
    section: int


@gluon.jit
def key_blocks(row_tile, sizes, CAUSAL: gl.constexpr):
    """Blocks of keys that a row tile walks over; at least one, which for rows without keys is all masked."""
    stop = sizes.kv_len
    if CAUSAL:
        stop += gl.minimum((row_tile + 1) * 2 * ROWS, sizes.q_len) - sizes.q_len
    return (gl.maximum(stop, 1) + BLOCK_N - 1) // BLOCK_N


# The order of tiles. These three compute with integers only, and run as Python too.


@gluon.jit
def place_of(turn, program, n_programs, n_paired):
    """The place in the fixed order that a program takes in a turn.

    Whole rounds of the first ``n_paired`` places are dealt two by two, all others one by one, back and forth: who had the
    longest tile gets the shortest.
    """
    turns = n_paired // (2 * n_programs) * 2
    if turn < turns:
        place = 2 * (turn // 2 * n_programs + program) + turn % 2
    else:
        place = turn * n_programs + program + turn % 2 * (n_programs - 1 - 2 * program)
    return place


@gluon.jit
def paired_tile(place, n_tiles):
    """(tile, head) of a place, of heads whose tiles go in pairs: the longest and the shortest, the next and the last but one, …

    An odd number of tiles leaves one over, the middle one. Every other head goes backwards, so that two middle ones meet.
    """
    head = place // n_tiles
    i = place % n_tiles
    i += head % 2 * (n_tiles - 1 - 2 * i)
    return i // 2 + i % 2 * (n_tiles - 1 - i // 2 * 2), head


@gluon.jit
def row_tile_of(place, n_row_tiles, sizes):
    """(row tile, head) of a place; the last row tile has the most keys."""
    paired = sizes.n_paired * n_row_tiles
    if place < paired:
        tile, head = paired_tile(place, n_row_tiles)
    else:
        tile, head = tile_of(place - paired, n_row_tiles, sizes.n_heads - sizes.n_paired, sizes.section)
        head += sizes.n_paired
    return n_row_tiles - 1 - tile, head


# The producer


@gluon.jit
def load(first, tail, s_first, s_tail, slot, full, sequence, head, row):
    """Start the copy of rows of one head, in one or two blocks of columns; ``full`` hears of their bytes."""
    if tail is None:
        mbarrier.expect(full, first.block_type.nbytes)
    else:
        mbarrier.expect(full, first.block_type.nbytes + tail.block_type.nbytes)
        tma.async_copy_global_to_shared(tail, [sequence, head, row, first.block_shape[3]], full, s_tail.index(slot))
    tma.async_copy_global_to_shared(first, [sequence, head, row, 0], full, s_first.index(slot))


@gluon.jit
def load_q(q, q_tail, shared, turn, part, sequence, head, row):
    Q_BUFFERS: gl.constexpr = shared.q.type.shape[0] // 2
    slot = 2 * (turn % Q_BUFFERS) + part
    if turn >= Q_BUFFERS:
        wait_named(Q_EMPTY + slot, ONE)
    load(q, q_tail, shared.q, shared.q_tail, slot, shared.q_full.index(slot), sequence, head, row + part * ROWS)


@gluon.jit
def load_k(k, k_tail, shared, turn, sequence, kv_head, block):
    slot = turn % BUFFERS
    if turn >= BUFFERS:
        wait_named(K_EMPTY + slot, ALL)
    load(k, k_tail, shared.k, shared.k_tail, slot, shared.k_full.index(slot), sequence, kv_head, block * BLOCK_N)


@gluon.jit
def load_v(v, shared, turn, sequence, kv_head, block):
    slot = turn % BUFFERS
    if turn >= BUFFERS:
        wait_named(V_EMPTY + slot, ALL)
    load(v, None, shared.v, None, slot, shared.v_full.index(slot), sequence, kv_head, block * BLOCK_N)


@gluon.jit
def announce(shared, turn, tile):
    """Tell both consumers the tile of this turn, when they have read the one before."""
    if turn > 0:
        for part in gl.static_range(2):
            wait_named(TILE_EMPTY + part, ONE)
    shared.tile.store(gl.full([1], tile, gl.int64, layout=gl.BlockedLayout([1], [32], [1], [0])))
    for part in gl.static_range(2):
        arrive_named(TILE_FULL + part, ONE)


@gluon.jit
def heads_of(head, sizes):
    """(sequence, query head, KV head) of a query head of all sequences."""
    sequence = head // sizes.n_q_heads
    head = head % sizes.n_q_heads
    return sequence, head, head // sizes.group_size


@gluon.jit
def producer(q, q_tail, k, k_tail, v, counter, shared, sizes, CAUSAL: gl.constexpr):
    Q_BUFFERS: gl.constexpr = shared.q.type.shape[0] // 2
    n_row_tiles = (sizes.q_len + 2 * ROWS - 1) // (2 * ROWS)
    n_paired = sizes.n_paired * n_row_tiles
    n_programs = gl.num_programs(0)
    program = gl.program_id(0)
    turn = 0  # tiles, and blocks of keys, that this program has begun: they name buffer and phase
    kv_turn = 0
    place = place_of(0, program, n_programs, n_paired) if counter is None else program
    row_tile, tile_head = row_tile_of(place, n_row_tiles, sizes)
    announce(shared, 0, tile_head.to(gl.int64) << 32 | row_tile)
    sequence, head, kv_head = heads_of(tile_head, sizes)
    last = key_blocks(row_tile, sizes, CAUSAL) - 1
    load_k(k, k_tail, shared, 0, sequence, kv_head, last)
    for part in gl.static_range(2):
        load_q(q, q_tail, shared, 0, part, sequence, head, row_tile * 2 * ROWS)
    while place < sizes.n_tiles:
        # Which tile is next is asked a whole tile ahead: the counter answers from the other end of the chip.
        if counter is None:
            place = place_of(turn + 1, program, n_programs, n_paired)
            if place < sizes.n_tiles:
                row_tile, tile_head = row_tile_of(place, n_row_tiles, sizes)
        else:
            ticket = draw(counter)
        for i in range(last):  # in the order of use: the next K before this V
            load_k(k, k_tail, shared, kv_turn + 1, sequence, kv_head, last - 1 - i)
            load_v(v, shared, kv_turn, sequence, kv_head, last - i)
            kv_turn += 1
        if counter is not None:
            place = n_programs + drawn(ticket)
            if place < sizes.n_tiles:
                row_tile, tile_head = row_tile_of(place, n_row_tiles, sizes)
        turn += 1
        v_sequence = sequence
        v_head = kv_head
        sequence, head, kv_head = heads_of(tile_head, sizes)
        last = key_blocks(row_tile, sizes, CAUSAL) - 1
        announce(shared, turn, gl.where(place < sizes.n_tiles, tile_head.to(gl.int64) << 32 | row_tile, -1))
        if place < sizes.n_tiles:
            load_k(k, k_tail, shared, kv_turn + 1, sequence, kv_head, last)
        load_v(v, shared, kv_turn, v_sequence, v_head, 0)
        kv_turn += 1
        if place < sizes.n_tiles:  # after the values, because it waits for the tile before to be over
            for part in gl.static_range(2):
                load_q(q, q_tail, shared, turn, part, sequence, head, row_tile * 2 * ROWS)
    # A program must not end with a named barrier half full. By now the consumers know that there is no next tile.
    for back in gl.static_range(1, BUFFERS + 1):
        if kv_turn >= back:
            wait_named(K_EMPTY + (kv_turn - back) % BUFFERS, ALL)
            wait_named(V_EMPTY + (kv_turn - back) % BUFFERS, ALL)
    for part in gl.static_range(2):
        wait_named(TILE_EMPTY + part, ONE)
        if Q_BUFFERS == 1:
            wait_named(Q_EMPTY + part, ONE)
        elif turn > 1:  # the queries of the last tile are not given back
            wait_named(Q_EMPTY + 2 * ((turn - 2) % Q_BUFFERS) + part, ONE)


# The consumers


@gluon.jit
def next_tile(shared, PART: gl.constexpr):
    """Query head (of all sequences) and row tile that ``announce`` wrote; a negative head after the last."""
    wait_named(TILE_FULL + PART, ONE)
    tile = gl.max(shared.tile.load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    arrive_named(TILE_EMPTY + PART, ONE)
    return (tile >> 32).to(gl.int32), tile.to(gl.int32)


@gluon.jit
def issue_scores(shared, q_slot, k_slot, SCORES: gl.constexpr, q_tail=None):
    """Start S = Q Kᵀ, [ROWS, BLOCK_N]; ``q_tail``: a copy in registers of what lies in ``shared.q_tail``."""
    HEAD: gl.constexpr = shared.q.type.shape[4]
    zero = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, layout=SCORES)
    q = shared.q.index(q_slot).reshape([ROWS, HEAD])
    k = shared.k.index(k_slot).reshape([BLOCK_N, HEAD])
    scores = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
    if shared.q_tail is not None:
        TAIL: gl.constexpr = shared.q_tail.type.shape[4]
        q = shared.q_tail.index(q_slot).reshape([ROWS, TAIL])
        k = shared.k_tail.index(k_slot).reshape([BLOCK_N, TAIL])
        scores = warpgroup_mma(q if q_tail is None else q_tail, k.permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def issue_values(shared, pairs, v_slot, acc, OUTPUT: gl.constexpr):
    """Start O += P V. Returns P too, whose registers must not be touched before the product is done."""
    p = unpack(pairs, shared.v.dtype, gl.DotOperandLayout(0, OUTPUT, 2))
    v = shared.v.index(v_slot).reshape([BLOCK_N, shared.v.type.shape[4]])
    return warpgroup_mma(p, v, acc, is_async=True), p


@gluon.jit
def thread_sums(p):
    """Sums of the weights that a thread holds, [ROWS, 8]: eight neighbours of a row lie in four threads, in pairs."""
    return gl.sum(gl.reshape(p, [ROWS, BLOCK_N // 8, 8]), 1)


@gluon.jit
def weigh(m, scores, scale_log2, visible, block, MASKED: gl.constexpr, SCORES: gl.constexpr):
    """``online_softmax.weigh`` of a block, but m stays unscaled and the sums are left to the caller.

    Returns the new m, what is subtracted in the exponent, and the weights.
    """
    if MASKED:
        keys = block * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SCORES))
        scores = gl.where(gl.expand_dims(keys, 0) < gl.expand_dims(visible, 1), scores, float("-inf"))
    m = gl.maximum(m, gl.max(scores, 1))
    shift = m * scale_log2
    if MASKED:  # a row that still has no key: -inf - -inf must not be computed
        shift = gl.where(m == float("-inf"), 0.0, shift)
    return m, shift, gl.exp2(scores * scale_log2 - gl.expand_dims(shift, 1))


@gluon.jit
def take_block(
    shared, q_slot, turn, block, visible, scale_log2, m, l, acc, pairs,
    MASKED: gl.constexpr, SCORES: gl.constexpr, OUTPUT: gl.constexpr, q_tail=None,
):  # fmt: skip
    """One turn of the loop: the scores and weights of a block, under the weighted values of the block before."""
    k_slot = (turn + 1) % BUFFERS
    v_slot = turn % BUFFERS
    mbarrier.wait(shared.k_full.index(k_slot), (turn + 1) // BUFFERS & 1)
    scores = issue_scores(shared, q_slot, k_slot, SCORES, q_tail)
    acc, p = issue_values(shared, pairs, v_slot, acc, OUTPUT)
    if q_tail is None:
        scores = warpgroup_mma_wait(1, deps=[scores])
    else:
        scores, q_tail = warpgroup_mma_wait(1, deps=[scores, q_tail])
    arrive_named(K_EMPTY + k_slot, ALL)
    m_new, shift, weights = weigh(m, scores, scale_log2, visible, block, MASKED, SCORES)
    rescale = gl.exp2(m * scale_log2 - shift)
    sums = thread_sums(weights)
    l = l * gl.convert_layout(gl.expand_dims(rescale, 1), sums.type.layout) + sums
    # The branch that keeps the next wait below the softmax.
    mbarrier.wait(shared.v_full.index((turn + 1) % BUFFERS), (turn + 1) // BUFFERS & 1)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])
    arrive_named(V_EMPTY + v_slot, ALL)
    acc = acc * gl.expand_dims(gl.convert_layout(rescale, gl.SliceLayout(1, OUTPUT)), 1)
    return m_new, l, acc, pack(weights, shared.v.dtype)


@gluon.jit
def issue_first_scores(shared, head, turn, kv_turn, PART: gl.constexpr, SCORES: gl.constexpr):
    """Start S of a tile's last block of keys. After the last tile it is of what lies there, and nobody looks at it."""
    Q_BUFFERS: gl.constexpr = shared.q.type.shape[0] // 2
    q_slot = 2 * (turn % Q_BUFFERS) + PART
    k_slot = kv_turn % BUFFERS
    if head >= 0:
        mbarrier.wait(shared.q_full.index(q_slot), turn // Q_BUFFERS & 1)
        mbarrier.wait(shared.k_full.index(k_slot), kv_turn // BUFFERS & 1)
    return issue_scores(shared, q_slot, k_slot, SCORES)


@gluon.jit
def write(out, shared, tile, q_slot, head, row, PART: gl.constexpr):
    """Copy a tile to the output: whole, through the queries that are used up, or half by half through its own buffer."""
    if shared.out is None:
        done = shared.q.index(q_slot)
        done.reshape(tile.shape).store(tile)
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [head, row, 0], done.reshape(out.block_shape))
    else:
        staged = shared.out.index(PART)
        halves = gl.split(gl.permute(gl.reshape(tile, [ROWS, 2, COLUMNS]), (0, 2, 1)))
        for half in gl.static_range(2):
            tma.store_wait(0)  # until the copy engine has read what lay there
            staged.reshape([ROWS, COLUMNS]).store(halves[half])
            fence_async_shared()
            tma.async_copy_shared_to_global(out, [head, row, half * COLUMNS], staged)


@gluon.jit
def consumer(out, lse, shared, sizes, scale_log2, PART: gl.constexpr, CAUSAL: gl.constexpr):
    """Rows PART * ROWS, … of each tile."""
    Q_BUFFERS: gl.constexpr = shared.q.type.shape[0] // 2
    V: gl.constexpr = shared.v.type.shape[4]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V, 16])
    turn = 0
    kv_turn = 0
    head, row_tile = next_tile(shared, PART)
    if Q_BUFFERS == 1:
        scores = warpgroup_mma_wait(0, deps=[issue_first_scores(shared, head, turn, kv_turn, PART, SCORES)])
    while head >= 0:
        row = (2 * row_tile + PART) * ROWS
        rows = row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
        last = key_blocks(row_tile, sizes, CAUSAL) - 1
        visible = gl.zeros_like(rows) + sizes.kv_len
        unmasked = last  # blocks, counted from the left, that all rows see whole; the last one is not asked
        if CAUSAL:
            visible += rows + 1 - sizes.q_len
            unmasked = gl.minimum(gl.maximum(row + 1 + sizes.kv_len - sizes.q_len, 0) // BLOCK_N, last)

        # The first block of keys, the last of the row. With one buffer of queries its scores are there.
        q_slot = 2 * (turn % Q_BUFFERS) + PART
        if Q_BUFFERS > 1:
            scores = issue_first_scores(shared, head, turn, kv_turn, PART, SCORES)
            if turn > 0:
                # The copy engine has read the output out of the buffer of the queries: the producer may fill it.
                tma.store_wait(0)
                arrive_named(Q_EMPTY + 2 * ((turn - 1) % Q_BUFFERS) + PART, ONE)
            scores = warpgroup_mma_wait(0, deps=[scores])
        arrive_named(K_EMPTY + kv_turn % BUFFERS, ALL)
        q_tail = None
        if CAUSAL and shared.q_tail is not None:  # without a mask the compiler does not find the registers
            q_tail = shared.q_tail.index(q_slot).reshape([ROWS, shared.q_tail.type.shape[4]])
            q_tail = q_tail.load(gl.DotOperandLayout(0, SCORES, 2))
        m = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
        m, shift, weights = weigh(m, scores, scale_log2, visible, last, True, SCORES)
        l = thread_sums(weights)
        pairs = pack(weights, shared.v.dtype)
        acc = gl.full([ROWS, V], 0.0, gl.float32, layout=OUTPUT)
        mbarrier.wait(shared.v_full.index(kv_turn % BUFFERS), kv_turn // BUFFERS & 1)

        if CAUSAL:
            for i in range(last - unmasked):
                m, l, acc, pairs = take_block(
                    shared, q_slot, kv_turn + i, last - 1 - i, visible, scale_log2, m, l, acc, pairs,
                    True, SCORES, OUTPUT, q_tail,
                )  # fmt: skip
        for i in range(last - unmasked, last):
            m, l, acc, pairs = take_block(
                shared, q_slot, kv_turn + i, last - 1 - i, visible, scale_log2, m, l, acc, pairs,
                False, SCORES, OUTPUT, q_tail,
            )  # fmt: skip
        kv_turn += last

        # The last product; under it the log-sum-exp goes out and the next tile comes in.
        if Q_BUFFERS == 1:
            arrive_named(Q_EMPTY + q_slot, ONE)
        acc, p = issue_values(shared, pairs, kv_turn % BUFFERS, acc, OUTPUT)
        total = gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, SCORES))
        shift = gl.where(m == float("-inf"), 0.0, m * scale_log2)
        gl.store(lse + head.to(gl.int64) * sizes.q_len + rows, (shift + gl.log2(total)) * LN_2, mask=rows < sizes.q_len)
        share = gl.convert_layout(gl.where(total > 0, 1.0 / total, 0.0), gl.SliceLayout(1, OUTPUT))
        turn += 1
        next_head, row_tile = next_tile(shared, PART)
        if Q_BUFFERS == 1:
            scores = issue_first_scores(shared, next_head, turn, kv_turn + 1, PART, SCORES)
        acc, p = warpgroup_mma_wait(2 - Q_BUFFERS, deps=[acc, p])
        arrive_named(V_EMPTY + kv_turn % BUFFERS, ALL)
        kv_turn += 1
        write(out, shared, (acc * gl.expand_dims(share, 1)).to(shared.v.dtype), q_slot, head, row, PART)
        if Q_BUFFERS == 1:
            scores = warpgroup_mma_wait(0, deps=[scores])
        head = next_head
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_q_heads", "group_size", "q_len", "kv_len", "n_heads", "n_tiles", "n_paired", "section"])
def attention_kernel(
    q, q_tail, k, k_tail, v, out, lse, counter, scale_log2,
    n_q_heads, group_size, q_len, kv_len, n_heads, n_tiles, n_paired, section,
    CAUSAL: gl.constexpr, Q_BUFFERS: gl.constexpr,
):  # fmt: skip
    """q [B, Hq, M, Dqk], k [B, Hkv, N, Dqk], v [B, Hkv, N, Dv] -> out [B * Hq, M, Dv], lse [B, Hq, M].

    All but lse and counter are tensor descriptors; q_tail and k_tail, of the same q and k, bring the columns beyond 128.
    """
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    s_q_tail = None
    s_k_tail = None
    s_out = None
    s_q = gl.allocate_shared_memory(q.dtype, [2 * Q_BUFFERS] + q.block_shape, q.layout)
    s_k = gl.allocate_shared_memory(k.dtype, [BUFFERS] + k.block_shape, k.layout)
    if q_tail is not None:
        s_q_tail = gl.allocate_shared_memory(q.dtype, [2 * Q_BUFFERS] + q_tail.block_shape, q_tail.layout)
        s_k_tail = gl.allocate_shared_memory(k.dtype, [BUFFERS] + k_tail.block_shape, k_tail.layout)
    if Q_BUFFERS == 1:
        s_out = gl.allocate_shared_memory(out.dtype, [2] + out.block_shape, out.layout)
    shared = Shared(
        s_q, s_q_tail, s_k, s_k_tail,
        v=gl.allocate_shared_memory(v.dtype, [BUFFERS] + v.block_shape, v.layout),
        out=s_out,
        tile=gl.allocate_shared_memory(gl.int64, [1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        q_full=gl.allocate_shared_memory(gl.int64, [2 * Q_BUFFERS, 1], barriers),
        k_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        v_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
    )  # fmt: skip
    for i in gl.static_range(2 * Q_BUFFERS):
        mbarrier.init(shared.q_full.index(i), count=1)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(shared.k_full.index(i), count=1)
        mbarrier.init(shared.v_full.index(i), count=1)
    fence_async_shared()
    sizes = Sizes(n_q_heads, group_size, q_len, kv_len, n_heads, n_tiles, n_paired, section)
    gl.warp_specialize(
        [
            (consumer, (out, lse, shared, sizes, scale_log2, 0, CAUSAL)),
            (consumer, (out, lse, shared, sizes, scale_log2, 1, CAUSAL)),
            (producer, (q, q_tail, k, k_tail, v, counter, shared, sizes, CAUSAL)),
        ],
        [4, 1],  # warps of the second consumer and of the producer; the first consumer has those of the launch
        [240, 24],  # registers of their threads; what the producer leaves, a consumer needs for S, O and P
    )


def faster(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether this form can take these tensors, and is the faster one."""
    return (q.shape[-1], v.shape[-1]) in QUERY_BUFFERS and q.shape[2] > FEW_QUERIES and available(q, k, v)


def section_heads(n_kv_heads: int, tiles: int, causal: bool) -> int:
    """KV heads that go together, of ``n_kv_heads`` in all sequences; the queries of each make ``tiles`` row tiles.

    Programs at the same head want the same keys at about the same time, and memory gives them once. With a head for each
    program it would have to give a block in less time than its products take, which it cannot. Eight programs for each head,
    as 16 heads leave on an H200, ask for an eighth of that, whether or not the L2 cache holds the heads whole. Causal sections
    of short sequences have more heads, so that each has about two tiles for each program: found by measuring.

    Sections are as few as can be, and about equally wide. A section starts with its longest tiles, so a last one with few of
    them ends with some programs in a long tile and all others idle.
    """
    wanted = max(SECTION_HEADS, SECTION_TILES // tiles) if causal else SECTION_HEADS
    return ceil_div(n_kv_heads, max(1, n_kv_heads // wanted))


def paired_heads(n_heads: int, row_tiles: int, programs: int) -> int:
    """Heads, an even number, whose tiles go in pairs in the fixed order.

    Programs take whole rounds of pairs, but for two to four tiles each: these go one by one, the longest first, because a last
    round of pairs for some of the programs would leave the others idle twice as long.
    """
    rounds = max(0, n_heads * row_tiles // (2 * programs) - 1)
    return ceil_div(rounds * programs, row_tiles) * 2


class Order(NamedTuple):
    """Of the tiles: what ``Sizes`` says, and whether they are drawn from a counter, or each program knows its own."""

    n_paired: int
    section: int
    drawn: bool


def tile_order(q_len: int, kv_len: int, n_heads: int, group_size: int, programs: int, causal: bool, wide: bool) -> Order:
    """The order for ``n_heads`` query heads in all sequences; ``wide`` if keys are.

    A counter evens out what programs differ by, but has to be set to 0 by a launch of its own, and asked for every tile. It is
    for long rows, for rows without a mask, and for those whose keys are mostly older than the queries: their tiles are alike.
    The fixed orders are for few tiles, and for short causal rows, where all that happens between two tiles is felt and a fixed
    order can be even: pairs of a long and a short tile are all of one length. Rows of four tiles are so short that memory
    decides: there heads go in sections of two tiles for each program, back and forth, which is as even, and all tiles of a head
    are taken at about the same time. Other short rows, and wide keys, were not faster with either.
    """
    row_tiles = ceil_div(q_len, 128)
    if n_heads * row_tiles <= FEW_TILES * programs:
        return Order(0, n_heads, False)
    if causal and not wide and q_len <= kv_len < 2 * q_len:
        if row_tiles in PAIRED_ROW_TILES:
            return Order(paired_heads(n_heads, row_tiles, programs), n_heads, False)
        if row_tiles == 4 and programs % 2 == 0:
            return Order(0, programs // 2, False)
    return Order(0, section_heads(n_heads // group_size, group_size * row_tiles, causal) * group_size, True)


def launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, causal: bool, scale: float
) -> None:
    """Fill out and lse, contiguous. The scale is positive, and there is at least one key."""
    batch, n_q_heads, q_len, head_dim_qk = q.shape
    n_kv_heads, kv_len, head_dim_v = v.shape[1:]
    group_size, tail = n_q_heads // n_kv_heads, head_dim_qk - 128
    n_heads = batch * n_q_heads
    buffers = QUERY_BUFFERS[head_dim_qk, head_dim_v]
    columns = COLUMNS.value if buffers == 1 else head_dim_v
    n_tiles = n_heads * ceil_div(q_len, 128)
    programs = min(n_tiles, device_of(q).sm_count)
    order = tile_order(q_len, kv_len, n_heads, group_size, programs, causal, tail > 0)
    counter = lse.new_zeros(1, dtype=torch.int32) if order.drawn else None
    with launching(q):
        attention_kernel[(programs,)](
            describe(q, 64, 128), describe(q, 64, tail) if tail else None,
            describe(k, 128, 128), describe(k, 128, tail) if tail else None,
            describe(v, 128, head_dim_v), describe(out.flatten(0, 1), 64, columns), lse, counter,
            scale * LOG2_E, n_q_heads, group_size, q_len, kv_len, n_heads, n_tiles, order.n_paired, order.section,
            CAUSAL=causal, Q_BUFFERS=buffers, num_warps=4,
        )  # fmt: skip
