"""Right answers for chapter 8, written otherwise than in the source."""

import itertools

import torch

from course import costs


def _layer(givens):
    names = ("n_heads", "nope_dim", "rope_dim", "head_dim_v", "latent_dim")
    return costs.LatentAttention(d_model=1, **{name: givens[name] for name in names})


def predicted(givens):
    """The crossing at a million tokens, the causal triangle counted, three digits, and milliseconds."""
    layer, gpu = _layer(givens), costs.gpu(givens["gpu"])
    share = layer.shard(givens["n_gpus"]).absorbed
    n_bytes = costs.cache_bytes(share, givens["context_len"])
    flops = costs.decode_flops(share, givens["context_len"], q_len=givens["q_len"])
    return {
        "crossover": layer.crossover(2**20),
        "intensity": float(f"{flops / n_bytes:.3g}"),
        "ridge_heads": float(f"{layer.n_heads * gpu.ridge() / costs.intensity(layer.absorbed):.3g}"),
        "floor_us": givens["batch"] * 1e3 * max(n_bytes / gpu.bandwidth, flops / gpu.peak_flops()),
    }


def one_record_in_two_parts():
    """Key as one record; two intervals of tokens, each with its own maximum, merged at the end."""

    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        q = torch.cat([(q_nope.transpose(0, 1) @ w_uk.mT).transpose(0, 1), q_rope], -1) * scale
        record, states, half = torch.cat([latent, k_rope], -1), [], latent.shape[1] // 2
        for part, values in ((record[:, :half], latent[:, :half]), (record[:, half:], latent[:, half:])):
            x = torch.bmm(q, part.mT)
            m = x.amax(-1, keepdim=True)
            p = (x - m).exp()
            states.append((torch.bmm(p, values), p.sum(-1, keepdim=True), m))
        m = torch.maximum(states[0][2], states[1][2])
        out, mass = (sum(state[i] * (state[2] - m).exp() for state in states) for i in (0, 1))
        return torch.einsum("bhc,hcv->bhv", out / mass, w_uv)

    return step


def sequence_by_sequence():
    """Plain matrix products of one sequence and, around them, one head at a time."""

    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        outs = []
        for qn, qr, c, r in zip(q_nope, q_rope, latent, k_rope, strict=True):
            q_hat = torch.stack([q @ u.T for q, u in zip(qn, w_uk, strict=True)])
            p = torch.softmax(scale * torch.addmm(qr @ r.T, q_hat, c.T), -1)
            outs.append(torch.stack([row @ u for row, u in zip(p @ c, w_uv, strict=True)]))
        return torch.stack(outs)

    return step


def head_by_head_with_vectors():
    """Products of a matrix and a vector, which torch counts otherwise than those of two matrices."""

    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        out = q_nope.new_empty(*q_nope.shape[:2], w_uv.shape[2])
        for b, h in itertools.product(*map(range, q_nope.shape[:2])):
            x = scale * (latent[b] @ (w_uk[h] @ q_nope[b, h]) + k_rope[b] @ q_rope[b, h])
            out[b, h] = ((x - x.logsumexp(0)).exp() @ latent[b]) @ w_uv[h]
        return out

    return step


def torchs_own_attention():
    """Heads as the rows of one attention over a shared key."""

    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        q = torch.cat([torch.einsum("bhn,hcn->bhc", q_nope, w_uk), q_rope], -1).unsqueeze(1)
        record = torch.cat([latent, k_rope], -1).unsqueeze(1)
        out = torch.nn.functional.scaled_dot_product_attention(q, record, latent.unsqueeze(1), scale=scale)
        return torch.einsum("bhc,hcv->bhv", out.squeeze(1), w_uv)

    return step


def plan_of_the_three_that_can_win():
    """Absorbing the prefix and expanding one's own tokens is never cheapest, so three plans are compared."""

    def plan(widths, users, shared, own, new):
        layer = costs.LatentAttention(**widths)
        absorbed = layer.flops("absorbed", new, shared + own, batch=users)
        over_own = {form: layer.flops(form, new, own, batch=users) for form in ("expanded", "absorbed")}
        prefix = shared * layer.up_flops + users * new * shared * layer.expanded.flops_per_pair
        found = {(prefix + flops, "expanded", form) for form, flops in over_own.items()} | {(absorbed, "absorbed", "absorbed")}
        flops, *forms = min(found)
        return [*forms, float(flops)]

    return plan


RIGHT = {
    "08_mla_absorb.regime": [("from the course's costs, in other units", predicted)],
    "08_mla_absorb.step": [
        ("one record, two intervals merged", one_record_in_two_parts),
        ("sequence by sequence", sequence_by_sequence),
        ("head by head with vectors", head_by_head_with_vectors),
        ("torch's own attention", torchs_own_attention),
    ],
    "08_mla_absorb.plan": [("three plans", plan_of_the_three_that_can_win)],
}
