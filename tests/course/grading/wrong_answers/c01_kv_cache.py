"""Wrong answers to chapter 1."""

import torch

from course import costs
from course.layers.rope import rotate, rotation
from tests.course.grading.right_answers.c01_kv_cache import per_layer


def but(key, value):
    return lambda givens: per_layer(givens) | {key: value(givens)}


def seen(key, **changed):
    """The value of an entry for changed sizes."""
    return but(key, lambda givens: per_layer(givens | {name: value(givens) for name, value in changed.items()})[key])


def step(*, scale=None, head=lambda r, group, n: r // group, turn_key=True, turn_query=True, upto=1, late=False, copy=False):
    """A decode step with one thing changed."""

    def decode_step(x, weights, k_cache, v_cache, position):
        batch, n_kv_heads, capacity, d = k_cache.shape
        cos, sin = rotation(torch.tensor(position), d, dtype=torch.float64)
        q, k = ((x @ weights[name]).view(batch, -1, d) for name in ("w_q", "w_k"))
        q = rotate(q, cos, sin) if turn_query else q
        k = rotate(k, cos, sin) if turn_key else k
        v = (x @ weights["w_v"]).view(batch, n_kv_heads, -1)
        if copy:
            padded = k_cache.clone()
            padded[:, :, position] = k
            k_cache.copy_(padded)
        elif not late:
            k_cache[:, :, position] = k
        v_cache[:, :, position] = v
        keys, values = k_cache[:, :, : position + upto], v_cache[:, :, : position + upto]
        group, heads = q.shape[1] // n_kv_heads, []
        for r in range(q.shape[1]):
            own = head(r, group, n_kv_heads)
            scores = torch.einsum("bd,bld->bl", q[:, r], keys[:, own]) * (scale or d**-0.5)
            heads.append(torch.einsum("bl,blv->bv", scores.softmax(-1), values[:, own]))
        if late:
            k_cache[:, :, position] = k
        return torch.cat(heads, 1) @ weights["w_o"]

    return lambda: decode_step


def over_the_whole_room(x, weights, k_cache, v_cache, position):
    """Attends to all the room and masks what is not filled."""
    batch, n_kv_heads, capacity, d = k_cache.shape
    cos, sin = rotation(torch.tensor(position), d, dtype=torch.float64)
    q = rotate((x @ weights["w_q"]).view(batch, n_kv_heads, -1, d), cos, sin)
    k_cache[:, :, position] = rotate((x @ weights["w_k"]).view(batch, n_kv_heads, d), cos, sin)
    v_cache[:, :, position] = (x @ weights["w_v"]).view(batch, n_kv_heads, -1)
    hidden = torch.arange(capacity) > position
    scores = (q @ k_cache.mT / d**0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v_cache.nan_to_num()).flatten(1) @ weights["w_o"]


def loop(layers_share=False, recompute=False):
    """Text from the plain step, with one thing changed."""
    plain = step()()

    def generate(weights, prompt, n_new):
        batch, length = prompt.shape
        shape = (2, batch, weights["n_kv_heads"], length + n_new, weights["head_dim"])
        caches = [torch.zeros(shape, dtype=torch.float64) for _ in weights["layers"]]
        if layers_share:
            caches = caches[:1] * len(caches)
        text, logits, done = prompt, [], 0
        for _ in range(n_new):
            for position in range(0 if recompute else done, text.shape[1]):
                x = weights["embed"][text[:, position]]
                for layer, cache in zip(weights["layers"], caches, strict=True):
                    x = x + plain(x, layer, *cache, position)
            done = text.shape[1]
            logits.append(x @ weights["unembed"])
            text = torch.cat((text, logits[-1].argmax(-1, keepdim=True)), 1)
        return text, torch.stack(logits, 1)

    return lambda: generate


WRONG = {
    "01_kv_cache.floors": [
        ("every model is MHA", seen("cache", n_kv_heads=lambda g: g["n_q_heads"])),
        ("values as wide as keys", seen("cache", head_dim_v=lambda g: g["head_dim_qk"])),
        ("values forgotten", seen("cache", head_dim_v=lambda g: 0)),
        ("windows ignored", seen("cache", n_window_layers=lambda g: 0)),
        ("one sequence", seen("cache", batch=lambda g: 1)),
        ("two bytes or one", seen("cache", bytes_per_element=lambda g: 3 - g["bytes_per_element"])),
        ("reads of query heads", seen("memory", n_kv_heads=lambda g: g["n_q_heads"])),
        ("products of KV heads", seen("compute", n_q_heads=lambda g: g["n_kv_heads"])),
        ("multiply-adds", but("compute", lambda g: per_layer(g)["compute"] / 2)),
        ("windows ignored in FLOPs", seen("compute", n_window_layers=lambda g: 0)),
        ("batching cures attention", but("growth", lambda g: 2.0)),
        ("the sum of both terms", but("memory", lambda g: per_layer(g)["memory"] * 1.03)),
        ("GB for GiB", but("memory", lambda g: per_layer(g)["cache"] / costs.GiB * 1e9 / costs.gpu(g["gpu"]).bandwidth)),
    ],
    "01_kv_cache.step": [
        ("heads by modulo", step(head=lambda r, group, n: r % n)),
        ("key not turned", step(turn_key=False)),
        ("query not turned", step(turn_query=False)),
        ("no scale", step(scale=1.0)),
        ("does not see itself", step(late=True)),
        ("reads one too many", step(upto=2)),
        ("copies the cache", step(copy=True)),
        ("the whole room", lambda: over_the_whole_room),
    ],
    "01_kv_cache.loop": [
        ("one cache for all layers", loop(layers_share=True)),
        ("everything again", loop(recompute=True)),
    ],
}
