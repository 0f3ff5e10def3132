"""Wrong answers to chapter 5 that are no edits of shipped code."""

import math

import torch

from tests.course.grading.right_answers import c05_flash_decoding as right


def average(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


def unshifted(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.exp(), lse_b.exp()
    out = (torch.where(a > 0, a, 0)[..., None] * out_a.nan_to_num() + b[..., None] * out_b.nan_to_num()) / (a + b)[..., None]
    return out, (a + b).log()


def base_two(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    a, b = torch.exp2(lse_a - lse), torch.exp2(lse_b - lse)
    return a[..., None] * out_a + b[..., None] * out_b, lse


def weighed_by_lse(out_a, lse_a, out_b, lse_b):
    total = (lse_a + lse_b)[..., None]
    return (lse_a[..., None] * out_a + lse_b[..., None] * out_b) / total, torch.logaddexp(lse_a, lse_b)


def unguarded(out_a, lse_a, out_b, lse_b):
    """NaN where both are empty, and where an empty state's output is NaN."""
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp()[..., None] * out_a + (lse_b - lse).exp()[..., None] * out_b, lse


def empty_is_asked_of_all_rows_together(out_a, lse_a, out_b, lse_b):
    empty_a, empty_b = ((lse == -torch.inf).all() for lse in (lse_a, lse_b))
    if empty_a and empty_b:
        return torch.zeros_like(out_a), lse_a
    if empty_a or empty_b:
        return (out_b, lse_b) if empty_a else (out_a, lse_a)
    return unguarded(out_a, lse_a, out_b, lse_b)


def not_normalised(out_a, lse_a, out_b, lse_b):
    largest = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - largest).exp(), (lse_b - largest).exp()
    return a[..., None] * out_a + b[..., None] * out_b, largest + (a + b).log()


def empty_counts_a_little(out_a, lse_a, out_b, lse_b):
    """A large negative number stands for -inf: right to rounding, and not the same bits where all is empty."""
    a, b = lse_a.clamp(min=-1e4), lse_b.clamp(min=-1e4)
    return right.logaddexp(out_a.nan_to_num(), a, out_b.nan_to_num(), b)


def larger_lse(out_a, lse_a, out_b, lse_b):
    out, _ = right.logaddexp(out_a, lse_a, out_b, lse_b)
    return out, torch.maximum(lse_a, lse_b)


def sink_turned_round(out, lse, sink):
    return out * torch.sigmoid(sink - lse)[..., None], torch.logaddexp(lse, sink.expand_as(lse))


def sink_without_its_mass(out, lse, sink):
    return out * torch.sigmoid(lse - sink)[..., None], lse


def sink_of_the_sequence(out, lse, sink):
    if len(sink) == len(lse):
        sink = sink[:, None]
    return right.sink_by_sigmoid(out, lse, sink)


def sink_by_exponentials(out, lse, sink):
    mass = lse.exp()
    return out * (mass / (mass + sink.exp()))[..., None], (mass + sink.exp()).log()


def off(key, change):
    return lambda givens: {**right.predicted(givens), key: change(givens)}


def _programs(givens, more=0):
    per_split = givens["batch"] * givens["n_kv_heads"]
    return per_split * (givens["sm_count"] // per_split + more)


WRONG = {
    "05_flash_decoding.splits": [
        ("a program for each query head", off("splits", lambda g: g["sm_count"] // (g["batch"] * g["n_q_heads"]))),
        ("the batch forgotten", off("splits", lambda g: g["sm_count"] // g["n_kv_heads"])),
        ("rounded up", off("splits", lambda g: math.ceil(g["sm_count"] / (g["batch"] * g["n_kv_heads"])))),
        ("waves forgotten", off("efficiency_one_more", lambda g: _programs(g, 1) / g["sm_count"])),
        ("idle instead of busy", off("efficiency", lambda g: 1 - _programs(g) / g["sm_count"])),
        ("tiles forgotten", off("empty_splits", lambda g: 0)),
        ("partial results in 16 bits", off("break_even_tokens", lambda g: g["n_q_heads"] / g["n_kv_heads"] / 2)),
        ("V forgotten", off("break_even_tokens", lambda g: 2 * g["n_q_heads"] / g["n_kv_heads"])),
        ("query heads in the cache", off("break_even_tokens", lambda g: 1.0)),
    ],
    "05_flash_decoding.weights": [
        ("mean over states", lambda: lambda outs, lses: (outs.mean(0), lses.logsumexp(0))),
        ("softmax without care for -inf", lambda: lambda outs, lses: (
            (lses.softmax(0)[..., None] * outs).sum(0), lses.logsumexp(0))),
        ("the log-sum-exp averaged too", lambda: lambda outs, lses: (
            (lses.softmax(0)[..., None] * outs).sum(0), lses.mean(0))),
    ],
    "05_flash_decoding.merge": [
        ("average", lambda: average),
        ("no maximum taken out", lambda: unshifted),
        ("base 2", lambda: base_two),
        ("weighed by the lse itself", lambda: weighed_by_lse),
        ("no care for empty states", lambda: unguarded),
        ("whole states empty or none", lambda: empty_is_asked_of_all_rows_together),
        ("not divided by the new mass", lambda: not_normalised),
        ("-1e4 for -inf", lambda: empty_counts_a_little),
        ("the larger lse", lambda: larger_lse),
    ],
    "05_flash_decoding.sink": [
        ("turned round", lambda: sink_turned_round),
        ("its mass not added", lambda: sink_without_its_mass),
        ("by sequence where that fits", lambda: sink_of_the_sequence),
        ("exponentials unshifted", lambda: sink_by_exponentials),
    ],
}  # fmt: skip
