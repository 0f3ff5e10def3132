"""Right answers to P3, written in other ways."""

import math

import torch

from course.grading import packages


def by_torch(givens):
    def step(name, x):
        number = torch.tensor(float(x), dtype=getattr(torch, name))
        return 2.0 ** math.floor(math.log2(x)) * torch.finfo(number.dtype).eps

    seen = torch.ones(givens["new"], givens["tokens"]).tril(givens["tokens"] - givens["new"]).sum().item()
    return {
        "step": step(givens["number_format"], givens["number"]),
        "stops_at": 2 * givens["term"] / torch.finfo(getattr(torch, givens["sum_format"])).eps,
        "flops": 4 * givens["n_q_heads"] * givens["head_dim"] * seen / 1e6,
        "lse": torch.full((givens["keys"],), float(givens["score"])).logsumexp(0).item(),
        "turn": math.tau / 10_000 ** (-givens["pair"] / (givens["head_dim"] / 2)),
    }


def rotation_by_matrices():
    """rotate as a product with 2 x 2 matrices."""
    text = """
def rotate(x, cos, sin, *, pairing="interleaved"):
    width = x.shape[-1]
    order = torch.arange(width)
    pairs = order.view(-1, 2) if pairing == "interleaved" else order.view(2, -1).T
    turn = torch.stack((torch.stack((cos, sin), -1), torch.stack((-sin, cos), -1)), -2)
    turned = (x[..., pairs].unsqueeze(-2) @ turn).squeeze(-2)
    out = torch.empty_like(x)
    out[..., pairs.flatten()] = turned.flatten(-2).to(x.dtype)
    return out
"""
    return packages.changed("course/layers/rope.py", text).layers.rope


def running_sum_first(x):
    """Log-sum-exp first, as the end of a running one; the weights from it."""
    scores = x.to(torch.float64)
    lse = scores.logcumsumexp(-1)[..., -1]
    weights = torch.nan_to_num((scores - lse[..., None]).exp(), nan=0.0)
    return weights.to(x.dtype), lse.float()


def with_a_floor(x):
    largest = x.float().amax(dim=-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp2((x.float() - largest) * math.log2(math.e))
    total = torch.einsum("...n->...", weights)
    lse = largest[..., 0] + torch.log(total)
    return torch.div(weights, total.clamp(min=1e-38)[..., None]).to(x.dtype), torch.where(total > 0, lse, -torch.inf)


def key_by_key(out, lse, scores, values):
    for j in range(scores.shape[1]):
        joined = torch.logaddexp(lse, scores[:, j])
        known = joined > -torch.inf
        old = torch.where(known, (lse - joined).exp(), 0.0)
        new = torch.where(known, (scores[:, j] - joined).exp(), 0.0)
        out, lse = old[:, None] * out + new[:, None] * values[j], joined
    return out, lse


RIGHT = {
    "p3_attention.numbers": [("by torch, in MFLOP", by_torch)],
    "p3_attention.rotation": [("by matrices", rotation_by_matrices)],
    "p3_attention.softmax": [("lse first", lambda: running_sum_first), ("base 2 with a floor", lambda: with_a_floor)],
    "p3_attention.extend": [("key by key", lambda: key_by_key)],
}
