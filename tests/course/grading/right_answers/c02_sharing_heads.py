"""Right answers to chapter 2, written in other ways than ours."""

import torch
import torch.nn.functional as F


def by_hand(given):
    """Arithmetic of the group size alone, and bytes in MiB."""
    group = given["n_q_heads"] // given["n_kv_heads"]
    unit = 2 * given["n_kv_heads"] * given["head_dim"] * given["context_len"] * given["batch"] * 2
    return {
        "cache": 1 / group, "flops": 1, "time": round(1 / group * 1.08, 4), "copied": 2 + 1 / group,
        "copied_bytes": (1 + 2 * group) * unit / 2**20,
    }  # fmt: skip


def by_einsum(q, k, v, causal=False):
    batch, n_q_heads, q_len, width = q.shape
    x = torch.einsum("bhgmd,bhnd->bhgmn", q.reshape(batch, k.shape[1], -1, q_len, width), k) / width**0.5
    if causal:
        x = x.masked_fill(torch.ones_like(x, dtype=torch.bool).triu(k.shape[2] - q_len + 1), -torch.inf)
    return torch.einsum("bhgmn,bhnd->bhgmd", x.softmax(-1), v).reshape(batch, n_q_heads, q_len, -1)


def head_by_head(q, k, v, causal=False):
    group, hidden = q.shape[1] // k.shape[1], torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if causal:
        past = k.shape[2] - q.shape[2]
        hidden = torch.arange(k.shape[2], device=q.device) > torch.arange(q.shape[2], device=q.device)[:, None] + past
    outs = []
    for h in range(q.shape[1]):
        x = (q[:, h] @ k[:, h // group].mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        outs.append(x.softmax(-1) @ v[:, h // group])
    return torch.stack(outs, 1)


def group_by_group(q, k, v, causal=False):
    """SDPA with G * M rows for each KV head, in float64, and an explicit mask."""
    rows = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if causal:
        mask = mask.tril(k.shape[2] - q.shape[2])
    mask = mask.repeat(q.shape[1] // k.shape[1], 1)
    out = F.scaled_dot_product_attention(rows.double(), k.double(), v.double(), attn_mask=mask)
    return out.unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def by_a_matrix(w_k, w_v, b_k, b_v, *, n_heads, n_kv_heads, layout):
    """The mean as a product with a matrix [n_kv_heads, n_heads]."""
    mean = torch.eye(n_kv_heads).repeat_interleave(n_heads // n_kv_heads, 1) * n_kv_heads / n_heads

    def pooled(x, axis):
        if x is None:
            return None
        heads = x.cpu() if layout == "in_heads" else x.cpu().unflatten(axis, (n_heads, -1))
        out = torch.tensordot(mean, heads, ([1], [axis])).movedim(0, axis)
        return out if layout == "in_heads" else out.flatten(axis, axis + 1)

    axis = {"out_in": 0, "in_out": 1, "in_heads": 1}[layout]
    return pooled(w_k, axis), pooled(w_v, axis), pooled(b_k, 0), pooled(b_v, 0)


def by_a_list(w_q, w_o, n_q_heads, n_kv_heads):
    """The members of each group backwards: any order within a group will do."""
    order = [h for kv in range(n_kv_heads) for h in reversed(range(kv, n_q_heads, n_kv_heads))]
    rows, columns = w_q.split(len(w_q) // n_q_heads), w_o.split(w_o.shape[1] // n_q_heads, dim=1)
    return torch.cat([rows[h] for h in order]), torch.cat([columns[h] for h in order], 1)


RIGHT = {
    "02_sharing_heads.predict": [("by hand, in MiB", lambda given: by_hand(given))],
    "02_sharing_heads.attention": [
        ("einsum", lambda: by_einsum),
        ("head by head", lambda: head_by_head),
        ("SDPA with rows, float64", lambda: group_by_group),
    ],
    "02_sharing_heads.convert": [("a matrix of means", lambda: by_a_matrix)],
    "02_sharing_heads.reorder": [("members backwards", lambda: by_a_list)],
}
