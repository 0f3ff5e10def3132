"""Plausible wrong answers for chapter 7 that are no edit of shipped code."""

import torch

from course.layers import rotate, rotation
from tests.course.grading.right_answers import c07_mla_compress as right


def without_rotary_key(givens):
    return {**right.predicted(givens), "elements": givens["latent_dim"]}


def value_beside_the_latent(givens):
    return {**right.predicted(givens), "elements": 2 * givens["latent_dim"] + givens["rope_dim"]}


def bytes_of_all_heads(givens):
    elements = givens["n_heads"] * (givens["nope_dim"] + givens["rope_dim"] + givens["head_dim_v"])
    return {
        **right.predicted(givens),
        "cache_bytes": 2 * elements * givens["n_layers"] * givens["batch"] * givens["context_len"],
    }


def parameters_of_one_head(givens):
    per_head = givens["latent_dim"] * (givens["nope_dim"] + givens["head_dim_v"])
    return {
        **right.predicted(givens),
        "kv_parameters": givens["d_model"] * (givens["latent_dim"] + givens["rope_dim"]) + per_head,
    }


def _layer(keep="record", scale_width=None, top_left=False, rotary=True):
    def layer(x, weights, cache=None):
        start = 0 if cache is None else cache[0].shape[-2]
        w_uk, w_uv = weights["w_uk"], weights["w_uv"]
        rope_dim = weights["w_kr"].shape[1]
        turn = rotation(start + torch.arange(x.shape[1]), rope_dim, dtype=x.dtype)
        latent = x @ weights["w_dkv"]
        latent = torch.nn.functional.rms_norm(latent, latent.shape[-1:], eps=1e-6)
        k_rope = rotate(x @ weights["w_kr"], *turn)
        if keep == "heads":
            k = torch.cat([latent[:, None] @ w_uk, k_rope[:, None].expand(-1, len(w_uk), -1, -1)], -1)
            v = latent[:, None] @ w_uv
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            kept = k, v
        else:
            if cache:
                latent = torch.cat([cache[0], latent], 1)
                k_rope = torch.cat([cache[1] if keep == "record" else torch.zeros_like(cache[0][..., :rope_dim]), k_rope], 1)
            kept = (latent, k_rope) if keep == "record" else (latent,)
            if keep == "value beside it":
                kept = latent, k_rope, latent.clone()
            k = torch.cat([latent[:, None] @ w_uk, k_rope[:, None].expand(-1, len(w_uk), -1, -1)], -1)
            v = latent[:, None] @ w_uv
        q_rope = rotate(torch.einsum("bmd,hdr->bhmr", x, weights["w_qr"]), *turn)
        q = torch.cat([torch.einsum("bmd,hdn->bhmn", x, weights["w_uq"]), q_rope if rotary else 0 * q_rope], -1)
        scores = q @ k.mT / (scale_width(weights) if scale_width else q.shape[-1]) ** 0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(0 if top_left else start)
        out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return out.transpose(1, 2).flatten(2) @ weights["w_o"], kept

    return lambda: layer


def keys_and_values_apart():
    def compress(w_k, w_v, latent_dim):
        half, downs, ups = latent_dim // 2, [], []
        for w, rank in ((w_k, half), (w_v, latent_dim - half)):
            u, size, vh = torch.linalg.svd(w.transpose(0, 1).flatten(1), full_matrices=False)
            downs.append(u[:, :rank])
            ups.append((size[:rank, None] * vh[:rank]).unflatten(1, (len(w), -1)).transpose(0, 1))
        nothing_k = ups[0].new_zeros(len(w_k), latent_dim - half, w_k.shape[2])
        nothing_v = ups[1].new_zeros(len(w_v), half, w_v.shape[2])
        return torch.cat(downs, 1), torch.cat([ups[0], nothing_k], 1), torch.cat([nothing_v, ups[1]], 1)

    return compress


def the_keys_directions():
    def compress(w_k, w_v, latent_dim):
        u = torch.linalg.svd(w_k.transpose(0, 1).flatten(1), full_matrices=False).U[:, :latent_dim]
        return u, u.T @ w_k, u.T @ w_v

    return compress


WRONG = {
    "07_mla_compress.record": [
        ("no rotary key", without_rotary_key),
        ("value beside the latent", value_beside_the_latent),
        ("every head's keys and values", bytes_of_all_heads),
        ("one head's matrices", parameters_of_one_head),
    ],
    "07_mla_compress.layer": [
        ("keeps keys and values of every head", _layer("heads")),
        ("keeps the latent alone", _layer("latent")),
        ("keeps the latent twice", _layer("value beside it")),
        ("scale of the content", _layer(scale_width=lambda w: w["w_uk"].shape[2])),
        ("scale of the record", _layer(scale_width=lambda w: w["w_uk"].shape[1] + w["w_kr"].shape[1])),
        ("scale of hidden over heads", _layer(scale_width=lambda w: w["w_o"].shape[1] / len(w["w_uk"]))),
        ("mask from the top left", _layer(top_left=True)),
        ("no rotary query", _layer(rotary=False)),
    ],
    "07_mla_compress.compress": [
        ("a latent for keys and one for values", keys_and_values_apart),
        ("directions of the keys alone", the_keys_directions),
    ],
}
