"""Right answers to chapter 1, written in other ways."""

import math

import torch
import torch.nn.functional as F

from course import costs
from course.grading import packages
from course.layers.rope import rotate, rotation


def per_layer(givens):
    gpu, pairs = costs.gpu(givens["gpu"]), 0
    for layer in range(givens["n_layers"]):
        kept = givens["context_len"]
        if layer < givens["n_window_layers"]:
            kept = min(kept, givens["window"])
        pairs += givens["batch"] * kept
    both = givens["head_dim_qk"] + givens["head_dim_v"]
    numbers = pairs * givens["n_kv_heads"] * both
    cache, weights = numbers * givens["bytes_per_element"], givens["weights_gb"] * 1e9
    return {
        "cache": cache,
        "memory": cache / gpu.bandwidth,
        "compute": pairs * givens["n_q_heads"] * both * 2 / gpu.peak_flops() * 1e6,
        "growth": 1 / ((weights / 2 + cache) / (weights + cache)),
    }


def counter_in_two_sums():
    text = """
def cache_bytes(attention, context_len, *, batch=1, n_layers=1, bytes_per_element=2, window=None):
    tokens = context_len if window is None or window > context_len else window
    return exact(sum(batch * tokens * attention.bytes_per_token(bytes_per_element) for _ in range(n_layers)))
"""
    return packages.changed("course/costs/attention.py", text).costs


def einsum_step(x, weights, k_cache, v_cache, position):
    batch, n_kv_heads, _, d = k_cache.shape
    cos, sin = rotation(torch.tensor([position]), d, dtype=torch.float64)
    q = rotate(torch.einsum("bm,mn->bn", x, weights["w_q"]).reshape(batch, -1, d), cos, sin)
    k_cache[:, :, position].copy_(rotate((x @ weights["w_k"]).reshape(batch, n_kv_heads, d), cos, sin))
    v_cache.select(2, position).copy_((x @ weights["w_v"]).reshape(batch, n_kv_heads, -1))
    group, heads = q.shape[1] // n_kv_heads, []
    for head in range(q.shape[1]):
        keys, values = k_cache[:, head // group, : position + 1], v_cache[:, head // group, : position + 1]
        weights_of_head = torch.softmax(torch.einsum("bd,bld->bl", q[:, head], keys) * d**-0.5, 1)
        heads.append(torch.einsum("bl,blv->bv", weights_of_head, values))
    return torch.cat(heads, 1) @ weights["w_o"]


def online_step(x, weights, k_cache, v_cache, position):
    """One stored token after another, with a running maximum and sum."""
    batch, n_kv_heads, _, d = k_cache.shape
    turn = rotation(torch.tensor(position), d, dtype=torch.float64)
    q = rotate((x @ weights["w_q"]).view(batch, n_kv_heads, -1, d), *turn)
    k_cache[:, :, position] = rotate((x @ weights["w_k"]).view(batch, n_kv_heads, d), *turn)
    v_cache[:, :, position] = (x @ weights["w_v"]).view(batch, n_kv_heads, -1)
    m, total, out = torch.full(q.shape[:3], -math.inf, dtype=x.dtype), 0.0, 0.0
    for j in range(position + 1):
        score = (q * k_cache[:, :, None, j]).sum(-1) / math.sqrt(d)
        larger = torch.maximum(m, score)
        keep, new = (m - larger).exp(), (score - larger).exp()
        total, m = total * keep + new, larger
        out = out * keep[..., None] + new[..., None] * v_cache[:, :, None, j]
    return (out / total[..., None]).reshape(batch, -1) @ weights["w_o"]


def prompt_at_once(weights, prompt, n_new):
    """The prompt in one go with a causal mask, then word by word; caches in one tensor."""
    batch, length = prompt.shape
    heads, d = weights["n_kv_heads"], weights["head_dim"]
    room = torch.zeros(len(weights["layers"]), 2, batch, heads, length + n_new, d, dtype=torch.float64)

    def forward(words, start):
        x, end = weights["embed"][words], start + words.shape[1]
        turn = rotation(torch.arange(start, end), d, dtype=torch.float64)
        mask = torch.ones(words.shape[1], end, dtype=torch.bool).tril(start)
        for layer, (keys, values) in zip(weights["layers"], room, strict=True):
            q, k, v = ((x @ layer[n]).unflatten(-1, (-1, d)).transpose(1, 2) for n in ("w_q", "w_k", "w_v"))
            keys[:, :, start:end], values[:, :, start:end] = rotate(k, *turn), v
            out = F.scaled_dot_product_attention(
                rotate(q, *turn), keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True
            )
            x = x + out.transpose(1, 2).flatten(2) @ layer["w_o"]
        return x[:, -1] @ weights["unembed"]

    text, logits, new = prompt, [], prompt
    for _ in range(n_new):
        logits.append(forward(new, text.shape[1] - new.shape[1]))
        new = logits[-1].argmax(-1, keepdim=True)
        text = torch.cat((text, new), 1)
    return text, torch.stack(logits, 1)


RIGHT = {
    "01_kv_cache.floors": [("layer by layer, in bytes, s and µs", per_layer)],
    "01_kv_cache.counter": [("a sum over layers", counter_in_two_sums)],
    "01_kv_cache.step": [("einsum, head by head", lambda: einsum_step), ("online softmax", lambda: online_step)],
    "01_kv_cache.loop": [("the prompt at once", lambda: prompt_at_once)],
}
