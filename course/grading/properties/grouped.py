"""Decode with the heads of a group as rows: tiles that end at their group, loads that happen once, lengths of their own."""

import math

import torch

import kernels
from kernels import reference

from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong, close
from ..tasks import Property, named
from .full_sequence import needs_triton, state
from .heads import name_of_head, output

AXES = ("sequence", "query head", "column")
TOKEN_AXES = ("sequence", "token", "query head", "column")
STRADDLING = ((48, 2), (40, 2), (80, 4), (36, 2), (72, 4))
"""Query and KV heads whose group is no multiple of a tile: a tile that takes 16 heads, whosever, takes some of two groups."""
GROUPS = ((8, 2), (12, 3), (14, 2), (10, 2))
"""Groups that fit a tile of 16 rows; no power of two among all."""
KEYS = 64
"""Loads may be rounded up to tiles of so many keys."""


def cache(
    draw: Draw, heads: tuple[int, int], lengths: list[int], capacity: int, width: int = 16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """k and v [B, Hkv, capacity, width], NaN behind each length, and seq_lens [B] int32."""
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=draw.device)
    behind = torch.arange(capacity, device=draw.device) >= seq_lens[:, None]
    k, v = (draw.tensor(len(lengths), heads[1], capacity, width) for _ in range(2))
    return *(x.masked_fill(behind[:, None, :, None], math.nan) for x in (k, v)), seq_lens


def _ended(heads: tuple[int, int]) -> str:
    return f"{heads[0]} query heads over {heads[1]}, so {heads[0] // heads[1]} share a KV head."


def _leave_nan(like: torch.Tensor) -> None:
    """Free memory of this size now holds NaN: a row that nobody writes must not find a right answer that was there before."""
    memory = [torch.full_like(like, math.nan) for _ in range(16)]
    del memory


def tiles_end_at_groups(heads: tuple = STRADDLING, n: int = 1) -> Property:
    """No row meets another group's keys, every row is in one program, and none is left out."""

    @named("tiles end at groups", "no tile holds heads of two groups, for any size of a group")
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        for one in draw.some(heads, n):
            n_q_heads, n_kv_heads = one
            q, k = draw.tensor(1, n_q_heads, 16), torch.zeros(1, n_kv_heads, 3, 16, device=draw.device)
            v = name_of_head(n_kv_heads, 3, 16, draw)
            _leave_nan(q)
            seen = answer.observe(q, k, v, torch.tensor([3], dtype=torch.int32, device=draw.device))
            wanted = torch.arange(n_q_heads) // (n_q_heads // n_kv_heads) + 1
            close(
                output(seen.result), wanted.view(1, -1, 1).expand(1, -1, 16), AXES, "the output",
                hint=f"{_ended(one)} Keys are zero and values the number of their KV head, counted from 1. In a tile of "
                "16 rows, which heads come after the last of a group?",
            )  # fmt: skip
            if kernels.MODE == "interpreter" and seen.requested(0) > q.numel():
                raise Wrong(
                    f"{_ended(one)} Programs load {seen.requested(0) // 16} query rows: some are in two programs, and which "
                    "of them writes last is luck. Where does a tile's mask end?"
                )

    return check


def definition(name: str, about: str, *, lengths: tuple, heads: tuple = GROUPS) -> Property:
    """out and lse are those of the definition, over a ragged cache with NaN behind each length."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        one, lens = draw.choice(heads), list(draw.choice(lengths))
        k, v, seq_lens = cache(draw, one, lens, 40)
        q = draw.tensor(len(lens), one[0], 16)
        wanted, wanted_lse = reference.decode(q, k, v, seq_lens)
        out, lse = state(answer(q, k, v, seq_lens))
        hint = f"{_ended(one)} Lengths {lens}, room for 40 tokens; NaN lies behind each length."
        close(out, wanted, AXES, "the output", hint=hint)
        close(lse, wanted_lse, AXES[:2], "lse", hint=hint)

    return check


def requested_once(call=None, shapes: tuple = tuple((1, *heads) for heads in GROUPS)) -> Property:
    """Programs together request each element of K and V once; shapes are (query tokens, query heads, KV heads)."""

    @named("requested once", "all programs together request each element of K and V once")
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        q_len, *heads = draw.choice(shapes)
        length = draw.integer(33, 48)
        k, v, seq_lens = cache(draw, tuple(heads), [length], length)
        q = draw.tensor(1, q_len, heads[0], 16)
        seen = answer.observe(q if call else q.squeeze(1), k, v, seq_lens)
        wanted, _ = reference.decode(q, k, v, seq_lens)
        close(output(seen.result), wanted if call else wanted.squeeze(1), TOKEN_AXES if call else AXES, "the output")
        for argument, what in ((1, "K"), (2, "V")):
            if seen.distinct(argument) < k.numel():
                raise Wrong(
                    f"of {what}'s {k.numel()} elements kernels loaded {seen.distinct(argument)} from where they lie: this task "
                    "asks for a Triton kernel, and for one that reads no copy"
                )
            if seen.requested(argument) > k.numel():
                raise Wrong(
                    f"{_ended(tuple(heads))} {length} tokens: programs request {seen.requested(argument) / k.numel():.2f} "
                    f"times the elements of {what}. Which programs ask for the same key, and what would make one of them?"
                )

    return check


@named("own length", "the walk ends at the sequence's own length, not at the longest")
def own_length(answer: Answer, draw: Draw) -> None:
    needs_triton()
    capacity, width = 2 * KEYS, 16
    lengths = [draw.integer(100, capacity), draw.integer(20, 40), draw.integer(1, 12)]
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=draw.device)
    k, v = (draw.tensor(3, 1, capacity, width) for _ in range(2))
    q = draw.tensor(3, 4, width)
    seen = answer.observe(q, k, v, seq_lens)
    close(output(seen.result), reference.decode(q, k, v, seq_lens)[0], AXES, "the output", hint=f"Lengths {lengths}.")
    most = sum(-(-length // KEYS) * KEYS for length in lengths)
    requested = seen.requested(1) // width
    if requested > most:
        raise Wrong(
            f"Three sequences of {lengths} tokens in a cache with room for {capacity}: programs request {requested} keys; the "
            f"sequences hold {sum(lengths)}. Masking a score does not take back the load"
        )


def several_tokens(lengths: tuple = ((20, 9), (17, 33))) -> Property:
    """T new tokens are the last of the cache and causal among themselves: rows are pairs of token and head."""

    @named("several tokens", "new tokens see the cache and each other, up to themselves")
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        # T and G with a common divisor: rows taken apart in two ways that do not fit show.
        q_len, heads = draw.choice([(2, (8, 2)), (3, (6, 2)), (2, (12, 2))])
        lens = list(draw.choice(lengths))
        k, v, seq_lens = cache(draw, heads, lens, 40)
        q = draw.tensor(len(lens), q_len, heads[0], 16)
        close(
            output(answer(q, k, v, seq_lens)), reference.decode(q, k, v, seq_lens)[0], TOKEN_AXES, "the output",
            hint=f"{_ended(heads)} {q_len} new tokens in each sequence; lengths, new tokens included, {lens}.",
        )  # fmt: skip

    return check
