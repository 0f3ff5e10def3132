"""Wrong answers to chapter 3: other corners, other heads, walks that are too long or too short, lse of another base."""

import torch.nn.functional as F

from kernels import reference
from tests.course.grading.right_answers.c03_full_sequence import attention, in_millions, windowed


def predicted(**slips):
    """The right numbers with some replaced, each a function of what was given."""
    return lambda given: in_millions(given) | {key: slip(given) for key, slip in slips.items()}


def faulty(made, fault: str):
    """A factory of the kernel with one fault."""
    return lambda: made(16, 16, fault)


def top_left(given):
    return in_millions(given | {"kv_len": given["q_len"]})


def sdpa(q, k, v, causal=False):
    """PyTorch's own attention, as it is often called."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True), reference.attention(q, k, v)[1].float()


WRONG = {
    "03_full_sequence.predict": [
        ("top-left", predicted(full=lambda g: top_left(g)["full"], skipped=lambda g: top_left(g)["skipped"])),
        ("masked are all computed", predicted(masked=lambda g: in_millions(g)["masked"] + in_millions(g)["full"])),
        ("KV heads walk", predicted(requested=lambda g: in_millions(g)["requested"] * g["n_kv_heads"] / g["n_q_heads"])),
        ("V forgotten", predicted(requested=lambda g: in_millions(g)["requested"] / 2)),
        ("prefill is bound by bytes", predicted(fewer_heads=lambda g: g["n_q_heads"] / g["n_kv_heads"])),
    ],
    "03_full_sequence.gqa": [
        ("a KV head for each query head", faulty(attention, "a KV head for each query head")),
        ("head map by modulo", faulty(attention, "head map by modulo")),
        ("hidden tiles are loaded", faulty(attention, "hidden tiles are loaded")),
        ("the walk ends at the first row's keys", faulty(attention, "the walk ends at the first row's keys")),
        ("keys behind the end are loaded", faulty(attention, "keys behind the end are loaded")),
        ("lse of an empty row is 0", faulty(attention, "lse of an empty row is 0")),
        ("SDPA", lambda: sdpa),
        ("no kernel", lambda: lambda q, k, v, causal: reference.attention(q, k, v, causal=causal)),
    ],
    "03_full_sequence.window": [
        ("tiles before the window are loaded", faulty(windowed, "tiles before the window are loaded")),
        ("the window has one key too many", faulty(windowed, "the window has one key too many")),
    ],
}
