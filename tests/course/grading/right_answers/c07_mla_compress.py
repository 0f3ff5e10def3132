"""Right answers for chapter 7, written otherwise than in the source."""

import torch

import kernels
from course import costs
from course.layers import rotate, rotation


def predicted(givens):
    names = ("d_model", "n_heads", "nope_dim", "rope_dim", "head_dim_v", "latent_dim")
    layer = costs.LatentAttention(**{name: givens[name] for name in names})
    size = costs.cache_bytes(layer.absorbed, givens["context_len"], batch=givens["batch"], n_layers=givens["n_layers"])
    return {
        "elements": float(layer.elements_per_token),
        "kv_heads": round(layer.equivalent_kv_heads(), 2),
        "kv_parameters": float(f"{layer.kv_parameters:.4g}"),
        "cache_bytes": size / costs.GiB,  # another unit than was asked for
    }


def head_by_head():
    """A loop over heads and tokens; one packed record, normalised by hand."""

    def layer(x, weights, cache=None):
        batch, q_len, _ = x.shape
        start = 0 if cache is None else cache[0].shape[1]
        w_uk, w_uv = weights["w_uk"], weights["w_uv"]
        latent_dim, rope_dim = w_uk.shape[1], weights["w_kr"].shape[1]
        turn = rotation(torch.arange(start, start + q_len), rope_dim, dtype=x.dtype)
        latent = x @ weights["w_dkv"]
        latent = latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        record = torch.cat([latent, rotate(x @ weights["w_kr"], *turn)], -1)
        if cache is not None:
            record = torch.cat([cache[0], record], 1)
        outs = x.new_empty(batch, q_len, len(w_uk), w_uv.shape[2])
        for h in range(len(w_uk)):
            q = torch.cat([x @ weights["w_uq"][h], rotate(x @ weights["w_qr"][h], *turn)], -1)
            k = torch.cat([record[..., :latent_dim] @ w_uk[h], record[..., latent_dim:]], -1)
            v = record[..., :latent_dim] @ w_uv[h]
            for i in range(q_len):
                seen = start + i + 1
                p = torch.softmax((k[:, :seen] @ q[:, i, :, None]).squeeze(-1) / q.shape[-1] ** 0.5, -1)
                outs[:, i, h] = (p.unsqueeze(1) @ v[:, :seen]).squeeze(1)
        return outs.reshape(batch, q_len, -1) @ weights["w_o"], (record,)

    return layer


def latent_before_its_norm():
    """Keeps the latent as it came and normalises it in every call; scaled queries; the course's own attention."""

    def layer(x, weights, cache=None):
        raw, keys = x @ weights["w_dkv"], x @ weights["w_kr"]
        if cache is not None:
            raw, keys = torch.cat([cache[0], raw], 1), torch.cat([cache[1], keys], 1)
        n, q_len = raw.shape[1], x.shape[1]
        cos, sin = rotation(torch.arange(n), keys.shape[2], dtype=x.dtype)
        c = torch.nn.functional.rms_norm(raw, raw.shape[-1:], eps=1e-6)
        q = torch.einsum("bmd,hdw->bhmw", x, torch.cat([weights["w_uq"], weights["w_qr"]], 2))
        nope_dim = weights["w_uq"].shape[2]
        q = torch.cat([q[..., :nope_dim], rotate(q[..., nope_dim:], cos[n - q_len :], sin[n - q_len :])], -1)
        k = torch.cat([c[:, None] @ weights["w_uk"], rotate(keys, cos, sin)[:, None].repeat(1, q.shape[1], 1, 1)], -1)
        out, _ = kernels.reference.attention(q, k, c[:, None] @ weights["w_uv"], causal=True)
        return torch.einsum("bhmv,hvd->bmd", out, weights["w_o"].unflatten(0, (q.shape[1], -1))), (raw, keys)

    return layer


def from_eigenvectors():
    """The directions are the eigenvectors of W Wᵀ, and the factors up are projections on them."""

    def compress(w_k, w_v, latent_dim):
        gram = sum(w @ w.T for w in (*w_k, *w_v))
        down = torch.linalg.eigh(gram).eigenvectors[:, -latent_dim:]
        return 2 * down, down.T @ w_k / 2, down.T @ w_v / 2

    return compress


RIGHT = {
    "07_mla_compress.record": [("rounded, the cache in GiB", predicted)],
    "07_mla_compress.layer": [
        ("head by head over a packed record", head_by_head),
        ("the latent kept before its norm", latent_before_its_norm),
    ],
    "07_mla_compress.compress": [("eigenvectors of W Wᵀ", from_eigenvectors)],
}
