"""Right answers to chapter 5, written in ways that are not ours."""

import torch

import kernels
from course.grading.assignments import c05_flash_decoding as ours


def logaddexp(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    shares = torch.stack([lse_a, lse_b]).sub(lse).exp().nan_to_num(0.0)[..., None]
    outs = torch.stack([out_a, out_b]).masked_fill(shares == 0, 0.0)
    return (shares * outs).sum(0).to(out_a.dtype), lse


def softmax_over_states(out_a, lse_a, out_b, lse_b):
    """The lse are scores; a state that has none counts as one of -1e30 with an output of 0."""
    lses, outs = torch.stack([lse_a, lse_b], -1), torch.stack([out_a, out_b], -1)
    keyless = lses == -torch.inf
    weights = torch.softmax(lses.masked_fill(keyless, -1e30), -1).masked_fill(keyless, 0.0)
    outs = outs.masked_fill(keyless.unsqueeze(-2), 0.0)
    return torch.einsum("...vs,...s->...v", outs.to(weights.dtype), weights).to(out_a.dtype), torch.logsumexp(lses, -1)


def in_float64_by_sigmoid(out_a, lse_a, out_b, lse_b):
    """Two weights are a sigmoid of the difference."""
    gap = (lse_a.double() - lse_b.double()).nan_to_num(0.0)
    a, b = torch.sigmoid(gap), torch.sigmoid(-gap)
    a, b = torch.where(lse_a == -torch.inf, 0.0, a), torch.where(lse_b == -torch.inf, 0.0, b)
    out = (
        torch.where(a > 0, out_a.double().T, 0.0).T
        if out_a.dim() == 1
        else torch.where((a > 0)[..., None], out_a.double(), 0.0)
    )
    other = torch.where((b > 0)[..., None], out_b.double(), 0.0)
    merged = a[..., None] * out + b[..., None] * other
    lse = torch.logaddexp(lse_a.double(), lse_b.double())
    return merged.to(out_a.dtype), lse.float()


def kernel_merge(outs, lses):
    """A merge of many by a running state, the last state first."""
    out, lse = outs[-1], lses[-1]
    out = torch.where((lse == -torch.inf)[..., None], 0.0, out)
    for one, one_lse in zip(outs[:-1].flip(0), lses[:-1].flip(0), strict=True):
        out, lse = logaddexp(out, lse, one, one_lse)
    return out, lse


def sink_by_sigmoid(out, lse, sink):
    return out * torch.sigmoid(lse - sink)[..., None], torch.logaddexp(lse, sink.expand_as(lse))


def sink_by_merge(out, lse, sink):
    states = torch.stack([out, torch.zeros_like(out)]), torch.stack([lse, sink.expand_as(lse).contiguous()])
    return kernels.merge(*states)


def predicted(givens):
    """By counting, without the course's functions."""
    per_split = givens["batch"] * givens["n_kv_heads"]
    splits = max(s for s in range(1, 1000) if s * per_split <= givens["sm_count"])
    tiles = givens["context_len"] // ours.BLOCK_N
    each = -(-tiles // givens["many_splits"])
    return {
        "splits": splits,
        "efficiency": 100 * splits * per_split / givens["sm_count"],
        "efficiency_one_more": (splits + 1) * per_split / (2 * givens["sm_count"]),
        "empty_splits": sum(i * each >= tiles for i in range(givens["many_splits"])),
        "break_even_tokens": 4
        * givens["n_q_heads"]
        * (givens["head_dim"] + 1)
        / (4 * givens["n_kv_heads"] * givens["head_dim"]),
    }


RIGHT = {
    "05_flash_decoding.splits": [("counted, in per cent", lambda givens: predicted(givens))],
    "05_flash_decoding.merge": [
        ("logaddexp and shares", lambda: logaddexp),
        ("softmax over two scores, einsum", lambda: softmax_over_states),
        ("a sigmoid in float64", lambda: in_float64_by_sigmoid),
    ],
    "05_flash_decoding.weights": [("one state after the other, backwards", lambda: kernel_merge)],
    "05_flash_decoding.sink": [("sigmoid", lambda: sink_by_sigmoid), ("one more state", lambda: sink_by_merge)],
}
