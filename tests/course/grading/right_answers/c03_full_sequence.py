"""Right answers to chapter 3: a kernel in other tiles, base e, keys from the last to the first, one axis of programs."""

import torch

from kernels._mode import launching, tl, triton


@triton.jit
def backwards_kernel(
    q, k, v, out, lse, scale, n_q_heads, group_size, q_len, kv_len, window,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """The loop without `online_softmax`. ``FAULT`` names what is wrong in the wrong answers; '' is right."""
    n_tiles = tl.cdiv(q_len, ROWS)
    program = tl.program_id(0)
    first = program % n_tiles * ROWS
    head = program // n_tiles % n_q_heads
    sequence = program // (n_tiles * n_q_heads)
    n_kv_heads = n_q_heads // group_size
    kv_head = head // group_size
    if FAULT == "a KV head for each query head":
        kv_head = head
    if FAULT == "head map by modulo":
        kv_head = head % n_kv_heads
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, D)
    live = rows < q_len
    q_rows = ((sequence * n_q_heads + head) * q_len + rows)[:, None] * D + columns[None, :]
    queries = tl.load(q + q_rows, mask=live[:, None], other=0.0)
    last = kv_len + 0 * rows - 1
    stop = kv_len
    if CAUSAL:
        last = rows + kv_len - q_len
        stop = tl.minimum(tl.minimum(first + ROWS, q_len) + kv_len - q_len, kv_len)
    if FAULT == "hidden tiles are loaded":
        stop = kv_len
    if FAULT == "the walk ends at the first row's keys":
        stop = tl.minimum(first + 1 + kv_len - q_len, kv_len)
    begin = 0
    if FAULT != "tiles before the window are loaded":
        begin = tl.maximum(first + kv_len - q_len - window + 1, 0) // BLOCK_N * BLOCK_N
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for turn in range(0, tl.cdiv(tl.maximum(stop - begin, 0), BLOCK_N)):
        keys = begin + (tl.cdiv(stop - begin, BLOCK_N) - 1 - turn) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = (keys < stop)[:, None]
        if FAULT == "keys behind the end are loaded":
            there = keys[:, None] >= 0
        places = ((sequence * n_kv_heads + kv_head) * kv_len + keys)[:, None] * D + columns[None, :]
        x = tl.dot(queries, tl.trans(tl.load(k + places, mask=there, other=0.0)), input_precision="ieee") * scale
        seen = (keys[None, :] <= last[:, None]) & (keys[None, :] < kv_len)
        if FAULT == "the window has one key too many":
            seen = seen & (keys[None, :] >= last[:, None] - window)
        else:
            seen = seen & (keys[None, :] > last[:, None] - window)
        x = tl.where(seen, x, float("-inf"))
        highest = tl.maximum(m, tl.max(x, 1))
        guard = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp(x - guard[:, None])
        shrink = tl.exp(m - guard)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p, tl.load(v + places, mask=there, other=0.0), input_precision="ieee")
        m = highest
    safe = tl.where(total > 0.0, total, 1.0)
    tl.store(out + q_rows, acc / safe[:, None], mask=live[:, None])
    found = tl.where(total > 0.0, m + tl.log(safe), float("-inf"))
    if FAULT == "lse of an empty row is 0":
        found = tl.where(total > 0.0, found, 0.0)
    tl.store(lse + (sequence * n_q_heads + head) * q_len + rows, found, mask=live)


def attention(rows: int, block_n: int, fault: str = ""):
    """gqa_attention with tiles of so many rows and keys."""

    def gqa_attention(q, k, v, causal=False, window=2**30):
        batch, n_q_heads, q_len, width = q.shape
        n_kv_heads, kv_len = k.shape[1:3]
        out = torch.empty_like(q)
        lse = q.new_empty(batch, n_q_heads, q_len)
        with launching(q):
            backwards_kernel[(batch * n_q_heads * -(-q_len // rows),)](
                q, k, v, out, lse, width**-0.5, n_q_heads, n_q_heads // n_kv_heads, q_len, kv_len, window,
                ROWS=rows, BLOCK_N=block_n, D=width, CAUSAL=causal, FAULT=fault,
            )  # fmt: skip
        return out, lse

    return gqa_attention


def windowed(rows: int, block_n: int, fault: str = ""):
    """windowed_attention in the same tiles."""
    return lambda q, k, v, window: attention(rows, block_n, fault)(q, k, v, True, window)[0]


def in_millions(given):
    """Tiles counted one by one, from the corners of each."""
    rows, block_n, offset = given["rows"], given["block_n"], given["kv_len"] - given["q_len"]
    counts, keys = {"full": 0, "masked": 0, "skipped": 0}, 0
    for top in range(0, given["q_len"], rows):
        bottom = min(top + rows, given["q_len"]) - 1
        keys += min(bottom + offset + 1, given["kv_len"])
        for left in range(0, given["kv_len"], block_n):
            # The last tile of keys may be cut by the end, which takes a mask too.
            right = left + block_n - 1
            counts["skipped" if left > bottom + offset else "full" if right <= top + offset else "masked"] += 1
    elements = 2 * given["head_dim"] * given["n_q_heads"] * keys
    return counts | {"requested": elements / 1e6, "fewer_heads": 1}


RIGHT = {
    "03_full_sequence.predict": [("tiles one by one, in millions", lambda given: in_millions(given))],
    "03_full_sequence.gqa": [("32 x 16, base e, keys backwards", lambda: attention(32, 16))],
    "03_full_sequence.window": [("32 x 16, keys backwards", lambda: windowed(32, 16))],
}
