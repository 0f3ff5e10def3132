"""Wrong answers to chapter 2: copies that hide, maps and means of other heads, layouts taken for one another."""

import torch

from tests.course.grading.right_answers.c02_sharing_heads import by_a_list, by_a_matrix, by_einsum, by_hand


def predicted(**slips):
    """The right numbers with some replaced, each a function of what was given."""
    return lambda given: by_hand(given) | {key: slip(given) for key, slip in slips.items()}


def softmax_attention(q, k, v, causal, scale=None):
    x = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        x = x.masked_fill(torch.ones_like(x, dtype=torch.bool).triu(k.shape[-2] - q.shape[-2] + 1), -torch.inf)
    return x.softmax(-1) @ v


def copied(q, k, v, causal=False):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return softmax_attention(q, k, v, causal)


def expanded(q, k, v, causal=False):
    group = q.shape[1] // k.shape[1]
    k, v = (x.unsqueeze(2).expand(-1, -1, group, -1, -1).reshape(len(x), -1, *x.shape[2:]) for x in (k, v))
    return softmax_attention(q, k, v, causal)


def broadcast(q, k, v, causal=False):
    grouped = q.unflatten(1, (k.shape[1], -1))
    return softmax_attention(grouped, k.unsqueeze(2), v.unsqueeze(2), causal).flatten(1, 2)


def by_modulo(q, k, v, causal=False):
    heads = [
        by_einsum(q[:, h : h + 1], *(x[:, h % k.shape[1]].unsqueeze(1) for x in (k, v)), causal) for h in range(q.shape[1])
    ]
    return torch.cat(heads, 1)


def scaled_by_values(q, k, v, causal=False):
    return by_einsum(q * (q.shape[-1] / v.shape[-1]) ** 0.5, k, v, causal)


def from_the_top_left(q, k, v, causal=False):
    return by_einsum(q, k[:, :, : q.shape[2]], v[:, :, : q.shape[2]], True) if causal else by_einsum(q, k, v)


def first_heads(w_k, w_v, b_k, b_v, *, n_heads, n_kv_heads, layout):
    axis = {"out_in": 0, "in_out": 1, "in_heads": 1}[layout]
    keep = lambda x, axis: x if x is None else x.narrow(axis, 0, x.shape[axis] * n_kv_heads // n_heads)  # noqa: E731
    return keep(w_k, axis), keep(w_v, axis), keep(b_k, 0), keep(b_v, 0)


def rows_whatever_the_layout(w_k, w_v, b_k, b_v, *, n_heads, n_kv_heads, layout):
    """One layout taken for another; where the sizes don't allow it, right."""
    if layout == "in_out" and not len(w_k) % n_heads:
        layout = "out_in"
    if layout == "in_out":
        pooled = [w.unflatten(1, (-1, n_heads)).unflatten(2, (n_kv_heads, -1)).mean(-1).flatten(1) for w in (w_k, w_v)]
        return *pooled, *by_a_matrix(w_k, w_v, b_k, b_v, n_heads=n_heads, n_kv_heads=n_kv_heads, layout=layout)[2:]
    return by_a_matrix(w_k, w_v, b_k, b_v, n_heads=n_heads, n_kv_heads=n_kv_heads, layout=layout)


def without_biases(w_k, w_v, b_k, b_v, **rest):
    return *by_a_matrix(w_k, w_v, None, None, **rest)[:2], b_k, b_v


def values_first_heads(w_k, w_v, b_k, b_v, **rest):
    pooled, first = by_a_matrix(w_k, w_v, b_k, b_v, **rest), first_heads(w_k, w_v, b_k, b_v, **rest)
    return pooled[0], first[1], pooled[2], first[3]


def queries_only(w_q, w_o, n_q_heads, n_kv_heads):
    return by_a_list(w_q, w_o, n_q_heads, n_kv_heads)[0], w_o


def the_other_way(w_q, w_o, n_q_heads, n_kv_heads):
    return by_a_list(w_q, w_o, n_q_heads, n_q_heads // n_kv_heads)


WRONG = {
    "02_sharing_heads.predict": [
        ("G is the number in the name", predicted(cache=lambda g: 1 / g["n_kv_heads"])),
        ("sharing saves FLOPs", predicted(flops=lambda g: g["n_kv_heads"] / g["n_q_heads"])),
        ("copies are written only", predicted(copied=lambda g: 1 + g["n_kv_heads"] / g["n_q_heads"])),
        ("against the shared cache", predicted(copied=lambda g: 1 + 2 * g["n_q_heads"] / g["n_kv_heads"])),
        ("V forgotten", predicted(copied_bytes=lambda g: by_hand(g)["copied_bytes"] / 2)),
        ("batch forgotten", predicted(copied_bytes=lambda g: by_hand(g)["copied_bytes"] / g["batch"])),
    ],
    "02_sharing_heads.attention": [
        ("repeat_interleave", lambda: copied),
        ("expand and reshape", lambda: expanded),
        ("a product that broadcasts", lambda: broadcast),
        ("head map by modulo", lambda: by_modulo),
        ("scale of the values' width", lambda: scaled_by_values),
        ("top-left mask", lambda: from_the_top_left),
    ],
    "02_sharing_heads.convert": [
        ("first heads", lambda: first_heads),
        ("mean for K, first heads for V", lambda: values_first_heads),
        ("layout ignored", lambda: rows_whatever_the_layout),
        ("biases kept", lambda: without_biases),
    ],
    "02_sharing_heads.reorder": [("W_O forgotten", lambda: queries_only), ("the other way", lambda: the_other_way)],
}
