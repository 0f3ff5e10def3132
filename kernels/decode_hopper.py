"""Decode for Hopper where many rows share their keys: the consumers of `forward_hopper.py` on the intervals of `interval.py`.

What changes against `decode.py`: who does what. A row is a pair of new token and query head, and every row of a KV head meets
the same keys, so a byte of the cache brings one FLOP for each row (in 16 bits). From 33 rows on plain Triton's tile has 64 of
them and falls behind memory; from some 128 on the step is bound by arithmetic (MQA with 32 heads that verifies drafts, or with
128 heads). Here (`hopper.py` explains the words) a program takes 128 rows of one KV head, 64 for each of two consumer
warpgroups, and walks over its interval in blocks of 128 tokens:

    two producers    one warp each, for keys and for values; that of the keys brings the queries too
    two consumers    the loop of the full-sequence kernel: the softmax of a block under the product of the block before

    Q       2 buffers of 128 x 128        64 KiB: the rows of the next piece arrive during this one
    K, V    2 buffers of 128 x 128 each  128 KiB; a third of each made nothing faster

As there, blocks go from right to left, so that what has to be masked comes first: the end of the sequence, and the last few
tokens, which not every new token sees. As in `mla_hopper.py`, what lies wholly beyond a sequence is not read, and of the block
in which it ends, the dead values are cleared before they are multiplied: weight 0 times NaN would be NaN. A program may walk
over several sequences (a share of `work_list.py`). Where rows are 64 or fewer, the second consumer only gives buffers back.
A chunk of a prompt, few tokens over many cached ones, comes here from `forward.py`.

(Rows as in Ainslie et al. 2023, section 2.2; the warps and their schedule: FlashAttention-3, Shah et al. 2024, section 3.)
"""

import math
from typing import NamedTuple

import torch

from ._mode import Device
from .forward_hopper import (
    ALL,
    BLOCK_N,
    BUFFERS,
    K_EMPTY,
    ROWS,
    V_EMPTY,
    issue_scores,
    issue_values,
    take_block,
    thread_sums,
    weigh,
)
from .hopper import (
    Pages,
    Work,
    arrive_named,
    available,
    box_rows,
    describe,
    fence_async_shared,
    from_lane,
    gl,
    gluon,
    lane_id,
    mbarrier,
    outer_of,
    pack,
    piece_of,
    placed,
    sequences_of,
    tma,
    wait_named,
    warpgroup_mma_wait,
)
from .online_softmax import LN_2
from .tiles import Tile

HEAD_DIM, CHUNK_COLUMNS = 128, 64
# The rows of two consumers and the blocks of keys, as `forward_hopper.py` has them.
TILE = Tile(rows=128, block_n=128, num_warps=10, num_stages=2)
# From so many rows of a KV head on this form is the faster one: plain Triton's tile has 32 for up to 32. Measured on an H200.
MANY_ROWS = 33

HEAD = gl.constexpr(HEAD_DIM)
CHUNK = gl.constexpr(CHUNK_COLUMNS)  # columns of one copy: 128 bytes, the width of a swizzled line
CLEARED = gl.constexpr(12)  # named barrier of both consumers


class Rows(NamedTuple):
    """The rows of a KV head, new token by new token, and the first of the program's."""

    first: int
    count: int
    kv_head: int
    n_q_heads: int
    group_size: int
    q_len: int


class Sources(NamedTuple):
    """Tensor descriptors of what is loaded, and where the pages of a sequence are."""

    q: object
    k: object
    v: object
    pages: Pages


class Shared(NamedTuple):
    """What lies in shared memory, by the names that `forward_hopper.py` uses: for each buffer its barriers."""

    q: object  # [2 buffers * 2 consumers, 1, tokens, heads, HEAD], with tokens * heads = ROWS
    q_tail: object
    k: object  # [BUFFERS, 1, 1, BLOCK_N, HEAD]
    k_tail: object
    v: object
    q_full: object
    q_empty: object
    k_full: object
    v_full: object


@gluon.jit
def blocks_of(sequence, work):
    """A program's piece of a sequence: the sequence's tokens, first block, number of blocks, place among the states.

    A split without tokens has a state to write. It takes a block that lies beyond the sequence: not read, and all masked.
    """
    kv_len, start, blocks, slot = piece_of(sequence, work)
    if work.bounds is None:
        blocks = gl.maximum(blocks, 1)
    return kv_len, start // BLOCK_N, blocks, slot


# The producers


@gluon.jit
def load_queries(sources, shared, turn, sequence, rows, PART: gl.constexpr):
    """The queries of a consumer, in boxes of rows that follow one another in the tensor; dead rows read 0."""
    TOKENS: gl.constexpr = sources.q.block_shape[1]
    HEADS: gl.constexpr = sources.q.block_shape[2]
    first = rows.first + PART * ROWS
    slot = 2 * (turn % 2) + PART
    if first < rows.count:
        full = shared.q_full.index(slot)
        mbarrier.wait(shared.q_empty.index(slot), turn // 2 & 1 ^ 1)
        mbarrier.expect(full, ROWS * HEAD * 2)
        for i in gl.static_range(ROWS // (TOKENS * HEADS)):
            row = first + i * (TOKENS * HEADS)
            token, head = row // rows.group_size, rows.kv_head * rows.group_size + row % rows.group_size
            for c in gl.static_range(HEAD // CHUNK):
                box = shared.q.index(slot).slice(i * TOKENS, TOKENS, 1).slice(c * CHUNK, CHUNK, 3)
                tma.async_copy_global_to_shared(sources.q, [sequence, token, head, c * CHUNK], full, box)


@gluon.jit
def producer(sources, work, rows, shared, VALUES: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Loads the keys, after the queries, or the values of every block."""
    source = sources.v if VALUES else sources.k
    buffers = shared.v if VALUES else shared.k
    full = shared.v_full if VALUES else shared.k_full
    EMPTY: gl.constexpr = V_EMPTY if VALUES else K_EMPTY
    BOXES: gl.constexpr = BLOCK_N // BOX
    # Swizzled memory holds the left half of all rows of a block, then the right half.
    boxes = buffers._reinterpret(source.dtype, [BUFFERS * (HEAD // CHUNK) * BOXES, 1, 1, BOX, CHUNK], source.layout)
    turn = 0
    kv_turn = 0
    first_sequence, end = sequences_of(work)
    for sequence in range(first_sequence, end):
        kv_len, first, blocks, _ = blocks_of(sequence, work)
        if not VALUES and blocks > 0:
            load_queries(sources, shared, turn, sequence, rows, 0)
            load_queries(sources, shared, turn, sequence, rows, 1)
            turn += 1
        for i in range(blocks):
            token = (first + blocks - 1 - i) * BLOCK_N
            outers = outer_of(token + lane_id() * BOX, kv_len, sequence, sources.pages, PAGE)  # of each box in one lane
            slot = kv_turn % BUFFERS
            if kv_turn >= BUFFERS:
                wait_named(EMPTY + slot, ALL)
            mbarrier.expect(full.index(slot), BLOCK_N * HEAD * 2)
            # slot >> 30 is 0, but the compiler cannot know. Else it writes out all copies, and the consumers spill.
            for b in range(BOXES + (slot >> 30)):
                row = token + b * BOX
                if PAGE > 0:
                    row = row % PAGE
                outer = from_lane(outers, b)
                for c in gl.static_range(HEAD // CHUNK):
                    box = boxes.index((slot * (HEAD // CHUNK) + c) * BOXES + b)
                    tma.async_copy_global_to_shared(source, [outer, rows.kv_head, row, c * CHUNK], full.index(slot), box)
            kv_turn += 1
    # Named barriers have no phase: none is left half full.
    for back in gl.static_range(1, BUFFERS + 1):
        if kv_turn >= back:
            wait_named(EMPTY + (kv_turn - back) % BUFFERS, ALL)


# The consumers


@gluon.jit
def clear_dead(values, token, kv_len, PART: gl.constexpr):
    """0 in the rows of a block of values that are no token of the sequence. Each consumer clears half of the columns."""
    if token + BLOCK_N > kv_len:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        live = token + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, layout)) < kv_len
        half = values.reshape([BLOCK_N, HEAD]).slice(PART * CHUNK, CHUNK, 1)
        numbers = half.load(layout)
        half.store(gl.where(gl.expand_dims(live, 1), numbers, gl.zeros_like(numbers)))
        fence_async_shared()
        wait_named(CLEARED, 2 * 128)


@gluon.jit
def place_of(row, slot, rows):
    """The place of a row in out [slot, T, Hq, …] and lse [slot, T, Hq]."""
    token = gl.to_tensor(slot).to(gl.int64) * rows.q_len + row // rows.group_size
    return token * rows.n_q_heads + (rows.kv_head * rows.group_size + row % rows.group_size)


@gluon.jit
def store_rows(acc, share, out, slot, rows, PART: gl.constexpr, OUTPUT: gl.constexpr):
    """Normalise the rows of a consumer and write them."""
    # wgmma leaves a thread two columns side by side. With four, whole sectors of memory are written at once.
    wide: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 16], [0, 32], [0, 64], [8, 0]],
        [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 128],
    )  # fmt: skip
    acc = gl.convert_layout(acc * gl.expand_dims(gl.convert_layout(share, gl.SliceLayout(1, OUTPUT)), 1), wide)
    row = rows.first + PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, wide))
    columns = gl.arange(0, HEAD, layout=gl.SliceLayout(0, wide))
    places = gl.expand_dims(place_of(row, slot, rows) * HEAD, 1) + gl.expand_dims(columns, 0)
    gl.store(out + places, acc.to(out.dtype.element_ty), mask=gl.expand_dims(row < rows.count, 1))


@gluon.jit
def attend(out, lse, shared, work, rows, scale_log2, PART: gl.constexpr):
    """Rows PART * ROWS, … of the program's tile over its pieces of sequences."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    row = rows.first + PART * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    token = row // rows.group_size
    turn = 0
    kv_turn = 0
    first_sequence, end = sequences_of(work)
    for sequence in range(first_sequence, end):
        kv_len, first, blocks, slot = blocks_of(sequence, work)
        if blocks > 0:
            last = first + blocks - 1
            # Row r is new token r // G, which sees the keys up to its own.
            visible = gl.minimum(kv_len - rows.q_len + 1 + token, kv_len)
            whole = gl.maximum(kv_len - rows.q_len + 1, 0) // BLOCK_N  # blocks that all rows see whole; the last is not asked
            masked = last - gl.minimum(gl.maximum(whole, first), last)

            q_slot = 2 * (turn % 2) + PART
            k_slot = kv_turn % BUFFERS
            mbarrier.wait(shared.q_full.index(q_slot), turn // 2 & 1)
            mbarrier.wait(shared.k_full.index(k_slot), kv_turn // BUFFERS & 1)
            scores = issue_scores(shared, q_slot, k_slot, SCORES)
            scores = warpgroup_mma_wait(0, deps=[scores])
            arrive_named(K_EMPTY + k_slot, ALL)
            m = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
            m, shift, weights = weigh(m, scores, scale_log2, visible, last, True, SCORES)
            l = thread_sums(weights)
            pairs = pack(weights, shared.v.dtype)
            acc = gl.full([ROWS, HEAD], 0.0, gl.float32, layout=OUTPUT)
            mbarrier.wait(shared.v_full.index(k_slot), kv_turn // BUFFERS & 1)
            clear_dead(shared.v.index(k_slot), last * BLOCK_N, kv_len, PART)

            for i in range(masked):
                m, l, acc, pairs = take_block(
                    shared, q_slot, kv_turn + i, last - 1 - i, visible, scale_log2, m, l, acc, pairs, True, SCORES, OUTPUT
                )
            for i in range(masked, blocks - 1):
                m, l, acc, pairs = take_block(
                    shared, q_slot, kv_turn + i, last - 1 - i, visible, scale_log2, m, l, acc, pairs, False, SCORES, OUTPUT
                )
            kv_turn += blocks - 1

            # The last product; under it the log-sum-exp goes out.
            acc, p = issue_values(shared, pairs, kv_turn % BUFFERS, acc, OUTPUT)
            mbarrier.arrive(shared.q_empty.index(q_slot))
            total = gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, SCORES))
            shift = gl.where(m == float("-inf"), 0.0, m * scale_log2)
            gl.store(lse + place_of(row, slot, rows), (shift + gl.log2(total)) * LN_2, mask=row < rows.count)
            share = gl.where(total > 0, 1.0 / total, 0.0)
            acc, p = warpgroup_mma_wait(0, deps=[acc, p])
            arrive_named(V_EMPTY + kv_turn % BUFFERS, ALL)
            kv_turn += 1
            store_rows(acc, share, out, slot, rows, PART, OUTPUT)
            turn += 1


@gluon.jit
def stand_by(shared, work, PART: gl.constexpr):
    """Give back all buffers as they are filled, and help to clear, for a consumer that has no rows."""
    kv_turn = 0
    first_sequence, end = sequences_of(work)
    for sequence in range(first_sequence, end):
        kv_len, first, blocks, _ = blocks_of(sequence, work)
        for i in range(blocks):
            slot = kv_turn % BUFFERS
            mbarrier.wait(shared.k_full.index(slot), kv_turn // BUFFERS & 1)
            arrive_named(K_EMPTY + slot, ALL)
            mbarrier.wait(shared.v_full.index(slot), kv_turn // BUFFERS & 1)
            if i == 0:
                clear_dead(shared.v.index(slot), (first + blocks - 1) * BLOCK_N, kv_len, PART)
            arrive_named(V_EMPTY + slot, ALL)
            kv_turn += 1


@gluon.jit
def consumer(out, lse, shared, work, rows, scale_log2, PART: gl.constexpr):
    if rows.first + PART * ROWS < rows.count:
        attend(out, lse, shared, work, rows, scale_log2, PART)
    else:
        stand_by(shared, work, PART)


# The program


@gluon.jit(
    do_not_specialize=[
        "table_sequence", "table_entry", "seq_lens_stride", "batch", "capacity", "n_kv_heads", "n_q_heads",
        "group_size", "q_len", "n_rows", "num_splits",
    ]
)  # fmt: skip
def many_rows_kernel(
    q, k, v, block_table, table_sequence, table_entry, seq_lens, seq_lens_stride, bounds, out, lse,
    scale_log2, batch, capacity, n_kv_heads, n_q_heads, group_size, q_len, n_rows, num_splits,
    PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Descriptors of queries [B, T, Hq, …] and of a cache [sequence or page, Hkv, token, …] -> out [S, B, T, Hq, HEAD], lse.

    One program owns (sequence, split, KV head, row tile) or, with ``bounds``, (share, KV head, row tile) and writes the states
    of a work list.
    """
    # Neighbouring programs take the row tiles of one piece, so that a second tile finds the keys in the L2.
    n_tiles = gl.cdiv(n_rows, 2 * ROWS)
    piece = gl.program_id(0) // n_tiles
    rows = Rows(gl.program_id(0) % n_tiles * (2 * ROWS), n_rows, piece % n_kv_heads, n_q_heads, group_size, q_len)
    work = Work(piece // n_kv_heads, num_splits, batch, bounds, seq_lens, seq_lens_stride, capacity)
    sources = Sources(q, k, v, Pages(block_table, table_sequence, table_entry))

    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        q=gl.allocate_shared_memory(q.dtype, [4, 1, ROWS // q.block_shape[2], q.block_shape[2], HEAD], q.layout),
        q_tail=None,
        k=gl.allocate_shared_memory(k.dtype, [BUFFERS, 1, 1, BLOCK_N, HEAD], k.layout),
        k_tail=None,
        v=gl.allocate_shared_memory(v.dtype, [BUFFERS, 1, 1, BLOCK_N, HEAD], v.layout),
        q_full=gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        q_empty=gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        k_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
        v_full=gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barriers),
    )
    for i in gl.static_range(4):
        mbarrier.init(shared.q_full.index(i), count=1)
        mbarrier.init(shared.q_empty.index(i), count=1)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(shared.k_full.index(i), count=1)
        mbarrier.init(shared.v_full.index(i), count=1)
    fence_async_shared()

    gl.warp_specialize(
        [
            (consumer, (out, lse, shared, work, rows, scale_log2, 0)),
            (consumer, (out, lse, shared, work, rows, scale_log2, 1)),
            (producer, (sources, work, rows, shared, False, PAGE, BOX)),
            (producer, (sources, work, rows, shared, True, PAGE, BOX)),
        ],
        [4, 1, 1],  # warps of all but the first, which has those of the launch
        [240, 32, 32],  # registers of their threads; what they leave, 232, the first has
    )


def query_box(group_size: int) -> tuple[int, int]:
    """New tokens and heads whose queries one copy moves: a consumer's rows, or as many as lie in a box of the tensor."""
    rows = TILE.rows // 2
    heads = math.gcd(group_size, rows)
    return rows // heads if heads == group_size else 1, heads


def faster(
    group_size: int, q_len: int, head_dim_qk: int, head_dim_v: int, itemsize: int, device: Device, page_size: int | None = None
) -> bool:
    """Whether this form is for such a decode step, and is the faster one; ``takes`` judges the tensors, ``plan_decode`` how far
    programs walk.

    Fewer rows are bound by memory, where the portable kernel is as fast. What one copy moves, of queries or of a page, must be
    a multiple of 8 rows, after which the swizzled lines of shared memory repeat.
    """
    return (
        device.capability == (9, 0)
        and group_size * q_len >= MANY_ROWS
        and head_dim_qk == head_dim_v == HEAD_DIM
        and itemsize == 2
        and math.prod(query_box(group_size)) >= 8
        and box_rows(page_size or 0, TILE.block_n) >= 8
    )


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether it can run on these tensors, as ``launch`` of `decode.py` has them."""
    return k.dtype == q.dtype and available(q, k, v)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
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
    """In the place of ``decode_kernel`` or ``work_kernel``, planned with ``TILE``: the same states in the same places."""
    batch, q_len, n_q_heads, _ = q.shape
    n_kv_heads = k.shape[1]
    group_size = n_q_heads // n_kv_heads
    box = box_rows(page_size, TILE.block_n)
    many_rows_kernel[(programs,)](
        describe(q, *query_box(group_size), CHUNK_COLUMNS),
        describe(k, 1, box, CHUNK_COLUMNS), describe(v, 1, box, CHUNK_COLUMNS),
        *placed(block_table, seq_lens), bounds, out, lse,
        scale_log2, batch, capacity, n_kv_heads, n_q_heads, group_size, q_len, group_size * q_len, num_splits,
        PAGE=page_size, BOX=box, num_warps=4,
    )  # fmt: skip
