"""Wrong answers to chapter 3b: one head's gradient for a group's, partials in memory, the whole attention matrix."""

import torch

from kernels import reference
from tests.course.grading.right_answers.c03b_backward import by_hand, by_tiles_of_keys, dk_dv


def predicted(**slips):
    """The right numbers with some replaced, each a function of what was given."""
    return lambda given: by_hand(given) | {key: slip(given) for key, slip in slips.items()}


def faulty(fault: str):
    """A factory of the kernel with one fault."""
    return lambda: dk_dv(fault)


def partials(q, k, v, d_out, lse, delta):
    """Right, by way of a gradient for every query head."""
    group = q.shape[1] // k.shape[1]
    dk, dv = dk_dv()(q, *(x.repeat_interleave(group, 1) for x in (k, v)), d_out, lse, delta)
    return tuple(x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))


def differentiated(q, k, v, out, lse, d_out, d_lse):
    """Right, by automatic differentiation of the definition, which keeps the weights."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        found, found_lse = reference.attention(*leaves, causal=True)
        loss = (found * d_out).sum() + (0 if d_lse is None else (found_lse * d_lse).sum())
    return torch.autograd.grad(loss, leaves)


WRONG = {
    "03b_backward.predict": [
        ("KV heads", predicted(partial_bytes=lambda g: by_hand(g)["partial_bytes"] * g["n_kv_heads"] / g["n_q_heads"])),
        ("16 bits for both", predicted(traffic=lambda g: 2 * g["n_q_heads"] / g["n_kv_heads"] + 1)),
        ("result forgotten", predicted(traffic=lambda g: 4 * g["n_q_heads"] / g["n_kv_heads"])),
        ("equal widths", predicted(products=lambda g: 2.5)),
    ],
    "03b_backward.group": [
        ("the last member's alone", faulty("the last member's alone")),
        ("dv of the first member", faulty("dv of the first member")),
        ("members by modulo", faulty("members by modulo")),
        ("mean over the group", faulty("mean over the group")),
        ("scale forgotten", faulty("scale forgotten")),
        ("partials, then their sum", lambda: partials),
    ],
    "03b_backward.gradients": [
        ("automatic differentiation", lambda: differentiated),
        ("all keys in one tile", lambda: lambda *given: by_tiles_of_keys(*given, tile=10**6)),
        ("gradient of lse added to delta", lambda: lambda *given: by_tiles_of_keys(*given, minus_lse=False)),
        ("gradient of lse forgotten", lambda: lambda *given: by_tiles_of_keys(*given[:-1], None)),
    ],
}
