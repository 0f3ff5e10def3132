"""Right answers to chapter 3b: a kernel that walks queries outside and heads inside, torch by tiles of keys or head by head."""

import torch

from kernels._mode import launching, tl, triton


@triton.jit
def members_inside_kernel(
    q, k, v, d_out, lse, delta, dk, dv, scale, n_kv_heads, group_size, q_len, kv_len,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """The heads of a group for each tile of queries, keys as rows. ``FAULT`` names what is wrong in the wrong answers."""
    n_tiles = tl.cdiv(kv_len, BLOCK_N)
    program = tl.program_id(0)
    owner = program // n_tiles  # sequence and KV head
    keys, columns = program % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, D)
    places = (owner * kv_len + keys)[:, None] * D + columns[None, :]
    there = (keys < kv_len)[:, None]
    k_tile, v_tile = tl.load(k + places, mask=there, other=0.0), tl.load(v + places, mask=there, other=0.0)
    dk_tile, dv_tile = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, D], tl.float32)
    for first in range(0, q_len, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        live = rows < q_len
        for member in range(0, group_size):
            head = owner * group_size + member
            if FAULT == "members by modulo":
                head = owner // n_kv_heads * n_kv_heads * group_size + member * n_kv_heads + owner % n_kv_heads
            line = head * q_len + rows
            q_tile = tl.load(q + line[:, None] * D + columns[None, :], mask=live[:, None], other=0.0)
            do_tile = tl.load(d_out + line[:, None] * D + columns[None, :], mask=live[:, None], other=0.0)
            row_lse = tl.load(lse + line, mask=live, other=float("inf"))
            row_delta = tl.load(delta + line, mask=live, other=0.0)
            x = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee") * scale
            seen = keys[:, None] <= rows[None, :] + kv_len - q_len
            p = tl.where(seen, tl.exp(x - row_lse[None, :]), 0.0)
            dp = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
            ds = p * (dp - row_delta[None, :])
            if FAULT == "the last member's alone":
                dk_tile = tl.where(member < group_size - 1, 0.0, dk_tile)
                ds = tl.where(member < group_size - 1, 0.0, ds)
            if FAULT == "dv of the first member":
                p = tl.where(member > 0, 0.0, p)
            dv_tile += tl.dot(p, do_tile, input_precision="ieee")
            dk_tile += tl.dot(ds, q_tile, input_precision="ieee")
    if FAULT == "mean over the group":
        dk_tile = dk_tile / group_size
    if FAULT != "scale forgotten":
        dk_tile = dk_tile * scale
    tl.store(dk + places, dk_tile, mask=there)
    tl.store(dv + places, dv_tile, mask=there)


def dk_dv(fault: str = ""):
    """dk_dv with tiles of 32 queries and 16 keys."""

    def of(q, k, v, d_out, lse, delta):
        batch, n_kv_heads, kv_len, width = k.shape
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        with launching(q):
            members_inside_kernel[(batch * n_kv_heads * -(-kv_len // 16),)](
                q, k, v, d_out, lse, delta, dk, dv, width**-0.5, n_kv_heads, q.shape[1] // n_kv_heads, q.shape[2], kv_len,
                BLOCK_M=32, BLOCK_N=16, D=width, FAULT=fault,
            )  # fmt: skip
        return dk, dv

    return of


def by_tiles_of_keys(q, k, v, out, lse, d_out, d_lse, tile: int = 8, minus_lse: bool = True):
    """All heads at once for a few keys at a time; a group is folded by einsum."""
    scale, offset = q.shape[-1] ** -0.5, k.shape[2] - q.shape[2]
    grouped = lambda x: x.unflatten(1, (k.shape[1], -1))  # noqa: E731
    delta = (d_out * out).sum(-1)
    if d_lse is not None:
        delta = delta - d_lse if minus_lse else delta + d_lse
    dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for j in range(0, k.shape[2], tile):
        keys, values = k[:, :, j : j + tile], v[:, :, j : j + tile]
        x = torch.einsum("bkgmd,bknd->bkgmn", grouped(q), keys) * scale
        at = j + torch.arange(keys.shape[2], device=q.device)
        hidden = at > torch.arange(q.shape[2], device=q.device)[:, None] + offset
        p = torch.exp(x - grouped(lse)[..., None]).masked_fill(hidden, 0)
        ds = p * (torch.einsum("bkgmd,bknd->bkgmn", grouped(d_out), values) - grouped(delta)[..., None])
        dv[:, :, j : j + tile] = torch.einsum("bkgmn,bkgmd->bknd", p, grouped(d_out))
        dk[:, :, j : j + tile] = torch.einsum("bkgmn,bkgmd->bknd", ds, grouped(q)) * scale
        dq += torch.einsum("bkgmn,bknd->bkgmd", ds, keys).flatten(1, 2) * scale
    return dq, dk, dv


def head_by_head(q, k, v, out, lse, d_out, d_lse):
    """One head's weights at a time, in float64."""
    group, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(k.shape[2] - q.shape[2] + 1)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for h in range(q.shape[1]):
        mine, keys, values, gradient = (x.double() for x in (q[:, h], k[:, h // group], v[:, h // group], d_out[:, h]))
        p = torch.exp(scale * mine @ keys.mT - lse[:, h, :, None]).masked_fill(hidden, 0)
        inner = gradient @ values.mT - (gradient * out[:, h]).sum(-1, keepdim=True)
        if d_lse is not None:
            inner = inner + d_lse[:, h, :, None]
        ds = scale * p * inner
        dq[:, h] = ds @ keys
        dk[:, h // group] += ds.mT @ mine
        dv[:, h // group] += p.mT @ gradient
    return dq, dk, dv


def by_hand(given):
    """Numbers of elements first, in MB."""
    elements = given["batch"] * given["n_tokens"] * (given["head_dim_qk"] + given["head_dim_v"])
    group = given["n_q_heads"] / given["n_kv_heads"]
    return {
        "partial_bytes": 4 * elements * given["n_q_heads"] / 1e6,
        "result_bytes": 2 * elements * given["n_kv_heads"] / 1e6,
        "traffic": 4 * group + 1,
        "products": (3 * given["head_dim_qk"] + 2 * given["head_dim_v"]) / (given["head_dim_qk"] + given["head_dim_v"]),
    }


RIGHT = {
    "03b_backward.predict": [("by hand, in MB", lambda given: by_hand(given))],
    "03b_backward.group": [("32 x 16, members inside", lambda: dk_dv())],
    "03b_backward.gradients": [("tiles of keys", lambda: by_tiles_of_keys), ("head by head, float64", lambda: head_by_head)],
}
