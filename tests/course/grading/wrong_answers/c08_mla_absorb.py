"""Plausible wrong answers for chapter 8 that are no edit of shipped code."""

import torch

from tests.course.grading.right_answers import c08_mla_absorb as right


def _instead(key, factor):
    def answer(givens):
        predicted = right.predicted(givens)
        return {**predicted, key: predicted[key] * factor(givens)}

    return answer


def _record(givens):
    return givens["latent_dim"] + givens["rope_dim"]


def _one_product(givens):
    """The value's product with the latent forgotten, over the right crossing."""
    dearer = 2 * givens["latent_dim"] - givens["nope_dim"] - givens["head_dim_v"]
    return dearer / (givens["latent_dim"] - givens["nope_dim"])


def expands():
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        k, v = latent[:, None] @ w_uk, latent[:, None] @ w_uv
        x = (q_nope[:, :, None] @ k.mT).squeeze(2) + q_rope @ k_rope.mT
        return torch.einsum("bhl,bhlv->bhv", (x * scale).softmax(-1), v)

    return step


def expands_head_by_head():
    """No large tensor, all the FLOPs."""

    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        outs = []
        for h in range(len(w_uk)):
            k, v = latent @ w_uk[h], latent @ w_uv[h]
            x = torch.einsum("bn,bln->bl", q_nope[:, h], k) + torch.einsum("br,blr->bl", q_rope[:, h], k_rope)
            outs.append(torch.einsum("bl,blv->bv", (x * scale).softmax(-1), v))
        return torch.stack(outs, 1)

    return step


def expands_the_values():
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        q = torch.einsum("bhn,hcn->bhc", q_nope, w_uk)
        x = q @ latent.mT + q_rope @ k_rope.mT
        return torch.einsum("bhl,bhlv->bhv", (x * scale).softmax(-1), torch.einsum("blc,hcv->bhlv", latent, w_uv))

    return step


def copies_the_latents_for_every_head():
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        q = torch.einsum("bhn,hcn->bhc", q_nope, w_uk)
        c = latent.unsqueeze(1).repeat(1, len(w_uk), 1, 1)
        x = (c @ q.unsqueeze(-1)).squeeze(-1) + q_rope @ k_rope.mT
        return torch.einsum("bhc,hcv->bhv", ((x * scale).softmax(-1).unsqueeze(2) @ c).squeeze(2), w_uv)

    return step


def _absorbed(width=None, rotary=True, average=False):
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        q = torch.einsum("bhn,hcn->bhc", q_nope, w_uk)
        if average:  # one distribution for all heads
            q, q_rope = q.mean(1, keepdim=True).expand_as(q), q_rope.mean(1, keepdim=True).expand_as(q_rope)
        x = q @ latent.mT + (q_rope @ k_rope.mT if rotary else 0)
        x = x * (scale if width is None else width(q_nope, q_rope, latent) ** -0.5)
        return torch.einsum("bhc,hcv->bhv", x.softmax(-1) @ latent, w_uv)

    return lambda: step


def nothing_computed():
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        return q_nope.new_zeros(*q_nope.shape[:2], w_uv.shape[2])

    return step


def _plan(expand):
    def plan(widths, users, shared, own, new):
        w, up = widths, 2 * widths["n_heads"] * widths["latent_dim"] * (widths["nope_dim"] + widths["head_dim_v"])
        pairs = users * (new * (shared + own) - new * (new - 1) // 2)
        form = "expanded" if expand(w, users, new) else "absorbed"
        if form == "absorbed":
            return form, form, users * new * up + pairs * 2 * w["n_heads"] * (2 * w["latent_dim"] + w["rope_dim"])
        width = w["nope_dim"] + w["rope_dim"] + w["head_dim_v"]
        return form, form, (shared + users * own) * up + pairs * 2 * w["n_heads"] * width

    return lambda: plan


WRONG = {
    "08_mla_absorb.regime": [
        ("an absorbed pair with one product", _instead("crossover", _one_product)),
        ("all heads on each GPU", _instead("intensity", lambda g: g["n_gpus"])),
        ("value counted twice", _instead("intensity", lambda g: _record(g) / (_record(g) + g["latent_dim"]))),
        ("one query token", _instead("intensity", lambda g: 1 / g["q_len"])),
        ("the ridge itself", _instead("ridge_heads", lambda g: (_record(g) + g["latent_dim"]) / _record(g))),
        ("cache divided", _instead("floor_us", lambda g: 1e3 / g["n_gpus"])),
        ("one byte a number", _instead("floor_us", lambda g: 500)),
    ],
    "08_mla_absorb.step": [
        ("expands keys and values", expands),
        ("expands head by head", expands_head_by_head),
        ("expands the values alone", expands_the_values),
        ("copies the latents for every head", copies_the_latents_for_every_head),
        ("scale of the record", _absorbed(lambda n, r, c: c.shape[-1] + r.shape[-1])),
        ("scale of the head", _absorbed(lambda n, r, c: n.shape[-1] + r.shape[-1])),
        ("no rotary part", _absorbed(rotary=False)),
        ("one softmax for all heads", _absorbed(average=True)),
        ("zeros", nothing_computed),
    ],
    "08_mla_absorb.plan": [
        ("always absorbs", _plan(lambda w, users, new: False)),
        ("always expands", _plan(lambda w, users, new: True)),
        ("the batch cancels", _plan(lambda w, users, new: new > 171)),
    ],
}
