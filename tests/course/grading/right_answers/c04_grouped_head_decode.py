"""Right answers to chapter 4: larger tiles, base e, rows in the other order, programs on one axis."""

import torch

from kernels._mode import launching, tl, triton


@triton.jit
def rows_kernel(
    q, k, v, seq_lens, out, lse, scale, batch, n_kv_heads, readers, group_size, q_len, capacity,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """Row r of a KV head is head r // T, token r % T. ``FAULT`` names what is wrong in the wrong answers; '' is right."""
    program = tl.program_id(0)
    sequence = program % batch
    kv_head = program // batch % n_kv_heads
    rows = program // (batch * n_kv_heads) * ROWS + tl.arange(0, ROWS)
    head = kv_head * group_size + rows // q_len
    if FAULT == "rows by modulo":
        head = rows // q_len * n_kv_heads + kv_head
    token = rows % q_len
    live = rows < group_size * q_len
    if FAULT == "rows run over into the next group":
        live = head < n_kv_heads * group_size
    kv_len = tl.load(seq_lens + sequence)
    stop = kv_len
    if FAULT == "keys behind the length are loaded":
        stop = capacity
    last = kv_len - q_len + token
    if FAULT == "drafts see each other":
        last = kv_len - 1 + 0 * token
    columns = tl.arange(0, D)
    places = (sequence * q_len + token) * n_kv_heads * group_size + head
    queries = tl.load(q + places[:, None] * D + columns[None, :], mask=live[:, None], other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, stop, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        cells = ((sequence * n_kv_heads + kv_head) // readers * capacity + keys)[:, None] * D + columns[None, :]
        there = (keys < stop)[:, None]
        x = tl.dot(queries, tl.trans(tl.load(k + cells, mask=there, other=0.0)), input_precision="ieee") * scale
        x = tl.where((keys[None, :] <= last[:, None]) & (keys[None, :] < kv_len), x, float("-inf"))
        highest = tl.maximum(m, tl.max(x, 1))
        guard = tl.where(highest == float("-inf"), 0.0, highest)
        if FAULT == "one maximum for the tile":
            guard = tl.zeros_like(guard)
        p, shrink = tl.exp(x - guard[:, None]), tl.exp(m - guard)
        if FAULT == "one maximum for the tile":
            shrink = tl.where(shrink < 0.0, 0.0, 1.0)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p, tl.load(v + cells, mask=there, other=0.0), input_precision="ieee")
        m = highest
    safe = tl.where(total > 0.0, total, 1.0)
    tl.store(out + places[:, None] * D + columns[None, :], acc / safe[:, None], mask=live[:, None])
    found = tl.where(total > 0.0, m + tl.log(safe), float("-inf"))
    if FAULT == "lse of an empty sequence is 0":
        found = tl.where(total > 0.0, found, 0.0)
    tl.store(lse + places, found, mask=live)


def over(rows: int, block_n: int, fault: str = ""):
    """grouped_decode and grouped_tokens with tiles of so many rows and keys."""

    def grouped_tokens(q, k, v, seq_lens):
        tokens = q if q.dim() == 4 else q.unsqueeze(1)
        batch, q_len, n_q_heads, width = tokens.shape
        n_kv_heads, capacity = k.shape[1:3]
        group = n_q_heads // n_kv_heads
        readers = 1  # programs that walk over the same keys, each for a part of the group
        if fault == "a program for each query head":
            n_kv_heads, readers, group = n_q_heads, group, 1
        tiles = 1 if fault == "one tile, whatever the group" else -(-group * q_len // rows)
        out = torch.empty_like(tokens)
        lse = tokens.new_empty(batch, q_len, n_q_heads)
        with launching(q):
            rows_kernel[(batch * n_kv_heads * tiles,)](
                tokens.contiguous(), k, v, seq_lens, out, lse, width**-0.5, batch, n_kv_heads, readers, group, q_len, capacity,
                ROWS=rows, BLOCK_N=block_n, D=width, FAULT=fault,
            )  # fmt: skip
        return (out, lse) if q.dim() == 4 else (out.squeeze(1), lse.squeeze(1))

    return grouped_tokens


def by_hand(given):
    """From the group, in MB."""
    group = given["n_q_heads"] // given["n_kv_heads"]
    one_head = 4 * given["head_dim"] * given["context_len"] / 1e6
    programs = given["batch"] * given["n_kv_heads"] * ((group + given["rows"] - 1) // given["rows"])
    before = given["batch"] * given["n_q_heads"]
    return {
        "programs_before": before,
        "programs": programs,
        "requested_before": before * one_head,
        "requested": programs * one_head,
        "executed": given["rows"],
    }


RIGHT = {
    "04_grouped_head_decode.predict": [("by hand, in MB", lambda given: by_hand(given))],
    "04_grouped_head_decode.grouped": [("32 x 16, base e", lambda: over(32, 16))],
    "04_grouped_head_decode.tokens": [("16 x 64, heads before tokens", lambda: lambda *given: over(16, 64)(*given)[0])],
}
