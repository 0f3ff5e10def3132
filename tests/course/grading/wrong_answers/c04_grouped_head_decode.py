"""Wrong answers to chapter 4: rows of other groups, groups cut off, keys asked for too often or never."""

import torch

from kernels import reference
from tests.course.grading.right_answers.c04_grouped_head_decode import by_hand, over


def predicted(**slips):
    """The right numbers with some replaced, each a function of what was given."""
    return lambda given: by_hand(given) | {key: slip(given) for key, slip in slips.items()}


def faulty(fault: str) -> tuple:
    """Name and factory of the kernel with one fault."""
    return fault, lambda: over(16, 16, fault)


def definition(q, k, v, seq_lens):
    return tuple(x.float() for x in reference.decode(q, k, v, seq_lens))


def token_by_token(q, k, v, seq_lens):
    """Right, and every key is asked for as often as there are tokens."""
    outs = [over(16, 16)(q[:, t], k, v, seq_lens - q.shape[1] + 1 + t)[0] for t in range(q.shape[1])]
    return torch.stack(outs, 1)


WRONG = {
    "04_grouped_head_decode.predict": [
        ("tiles over all heads", predicted(programs=lambda g: g["batch"] * -(-g["n_q_heads"] // g["rows"]))),
        ("one tile a KV head", predicted(programs=lambda g: g["batch"] * g["n_kv_heads"])),
        ("requested is distinct", predicted(requested=lambda g: by_hand(g)["requested"] / 2)),
        ("useful FLOPs", predicted(executed=lambda g: g["n_q_heads"] / g["n_kv_heads"])),
    ],
    "04_grouped_head_decode.grouped": [
        faulty("rows by modulo"),
        faulty("rows run over into the next group"),
        faulty("keys behind the length are loaded"),
        faulty("one maximum for the tile"),
        faulty("lse of an empty sequence is 0"),
        faulty("a program for each query head"),
        faulty("one tile, whatever the group"),
        ("no kernel", lambda: definition),
    ],
    "04_grouped_head_decode.tokens": [
        ("drafts see each other", lambda: lambda *given: over(16, 16, "drafts see each other")(*given)[0]),
        ("token by token", lambda: token_by_token),
    ],
}
