"""Wrong answers to P3."""

import math

import torch

from tests.course.grading.right_answers.p3_attention import by_torch, with_a_floor


def but(key, value):
    return lambda givens: by_torch(givens) | {key: value(givens)}


def pairs(givens, hidden):
    return 4 * givens["n_q_heads"] * givens["head_dim"] * (givens["new"] * givens["tokens"] - hidden)


def naive(x):
    weights = x.exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total, total.log().squeeze(-1).float()


def in_place(x):
    x -= x.amax(-1, keepdim=True)
    weights = x.exp()
    return weights / weights.sum(-1, keepdim=True), weights.sum(-1).log().float()


def shift_forgotten_in_lse(x):
    scores = x.float() - x.float().amax(-1, keepdim=True)
    return torch.softmax(scores, -1).to(x.dtype), scores.exp().sum(-1).log()


def base_two(x):
    weights, lse = with_a_floor(x)
    return weights, lse / math.log(2)


def in_16_bits(x):
    largest = x.amax(-1, keepdim=True)
    weights = (x - largest).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total, (largest + total.log()).squeeze(-1).float()


def largest_of_all(x):
    scores = x.float() - x.float().max()
    total = scores.exp().sum(-1, keepdim=True)
    return (scores.exp() / total).to(x.dtype), (x.float().max() + total.log()).squeeze(-1)


def average(out, lse, scores, values):
    weights, new = with_a_floor(scores)
    return (out + weights @ values) / 2, torch.logaddexp(lse, new)


def unshifted(out, lse, scores, values):
    old, new = lse.exp()[:, None], scores.exp()
    total = old + new.sum(1, keepdim=True)
    return (out * old + new @ values) / total, total.log()[:, 0]


def nan_from_nothing(out, lse, scores, values):
    joined = torch.logaddexp(lse, scores.logsumexp(1))
    return out * (lse - joined).exp()[:, None] + (scores - joined[:, None]).exp() @ values, joined


WRONG = {
    "p3_attention.numbers": [
        ("half a step", but("step", lambda g: by_torch(g)["step"] / 2)),
        ("terms of one", but("stops_at", lambda g: by_torch(g)["stops_at"] / g["term"])),
        ("no mask", but("flops", lambda g: pairs(g, 0))),
        ("mask aligned at the start", but("flops", lambda g: pairs(g, g["new"] * (g["tokens"] - (g["new"] + 1) / 2)))),
        ("products once", but("flops", lambda g: pairs(g, g["new"] * (g["new"] - 1) / 2) / 2)),
        ("base 2", but("lse", lambda g: g["score"] + math.log2(g["keys"]))),
        ("a radian", but("turn", lambda g: by_torch(g)["turn"] / math.tau)),
    ],
    "p3_attention.softmax": [
        ("overflows", lambda: naive),
        ("in place", lambda: in_place),
        ("lse without the shift", lambda: shift_forgotten_in_lse),
        ("lse in base 2", lambda: base_two),
        ("sums in 16 bits", lambda: in_16_bits),
        ("one maximum for all rows", lambda: largest_of_all),
    ],
    "p3_attention.extend": [
        ("averaged", lambda: average),
        ("overflows", lambda: unshifted),
        ("NaN from nothing", lambda: nan_from_nothing),
    ],
}
