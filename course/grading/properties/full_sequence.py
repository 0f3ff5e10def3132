"""Attention over whole sequences: which keys a query sees, rows that see none, the log-sum-exp, tiles that are not loaded."""

import math

import torch

import kernels
from kernels import reference

from ...costs import tile_map
from ...costs.full_sequence import mask_offset
from ..answers import Answer, Observed
from ..draw import Draw
from ..judge import NotHere, Wrong, close, parts
from ..tasks import Property, named
from .heads import AXES, inputs, name_of_head, output

GROUPS = ((6, 2), (6, 3))
"""Query and KV heads, chosen as `heads.SHARED` is; few, because every head is a program."""

BLOCK = 32
"""Where an answer may choose its tiles: keys are counted in blocks of so many, so smaller tiles have room."""


def needs_triton() -> None:
    """A kernel of a learner cannot be launched without Triton, and ours are not the ones that answer."""
    if kernels.MODE == "reference":
        raise NotHere("Triton is not installed here, so no kernel can run")


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, with NaN in memory behind them, as much as a walk with too many heads reaches."""
    memory = torch.full((6 * tensor.numel(),), math.nan, device=tensor.device, dtype=tensor.dtype)
    memory[: tensor.numel()] = tensor.flatten()
    return memory[: tensor.numel()].view(tensor.shape)


def _inputs(draw: Draw, *shape) -> list[torch.Tensor]:
    return list(map(poisoned, inputs(draw, *shape)))


def state(result) -> tuple:
    """out and lse, as the function has to return them."""
    return parts(result, 2, "out, lse")


def _means(v: torch.Tensor, q_len: int) -> torch.Tensor:
    """Outputs [1, H, M, Dv] where all scores are 0: the mean of the values that each query sees; 0 where it sees none."""
    offset = mask_offset(q_len, v.shape[2], "bottom-right")
    sums = v.double().cumsum(2)
    rows = [sums[:, :, i + offset] / (i + offset + 1) if i + offset >= 0 else 0 * sums[:, :, 0] for i in range(q_len)]
    return torch.stack(rows, 2)


def mask_alignment(*, lengths: tuple[tuple[int, int], ...] = ((2, 5), (3, 40))) -> Property:
    """Query i sees key j when j <= i + N - M. All scores are 0, so outputs are plain means and tell which keys were seen."""

    @named("mask alignment", "the last query sees the last key, with a cached prefix too")
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        for q_len, kv_len in lengths:
            v = torch.arange(1.0, kv_len + 1, device=draw.device).view(1, 1, -1, 1).repeat(1, 1, 1, 16)
            q, k = torch.zeros(1, 1, q_len, 16, device=draw.device), draw.tensor(1, 1, kv_len, 16)
            close(
                output(answer(*map(poisoned, (q, k, v)), causal=True)), _means(v, q_len), AXES, "the output",
                hint=f"{q_len} queries, {kv_len} keys, values 1 to {kv_len}; queries are zero, so an output is the mean of the "
                "values that its query sees. Which token of the sequence is query 0?",
            )  # fmt: skip

    return check


@named("head map", "query head h reads KV head h // G")
def head_map(answer: Answer, draw: Draw) -> None:
    needs_triton()
    n_q_heads, n_kv_heads = draw.choice(GROUPS)
    q, k, _ = _inputs(draw, (n_q_heads, n_kv_heads), 1, 3)
    v = name_of_head(n_kv_heads, 3, 16, draw)
    wanted = torch.arange(n_q_heads) // (n_q_heads // n_kv_heads) + 1
    close(
        output(answer(q, poisoned(torch.zeros_like(k)), poisoned(v), causal=True)),
        wanted.view(1, -1, 1, 1).expand(1, -1, 1, 16), AXES, "the output",
        hint=f"{n_q_heads} query heads over {n_kv_heads} KV heads. Keys are zero and values the number of their KV head, "
        "counted from 1: whose values did these heads read?",
    )  # fmt: skip


def definition(name: str, about: str, *, q_len: tuple, kv_len: tuple, widths: tuple) -> Property:
    """4 query heads over 2: the output is that of the float64 definition, causal, for lengths and widths drawn from these."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        needs_triton()
        width_qk, width_v = draw.choice(widths)
        q, k, v = _inputs(draw, (4, 2), draw.integer(*q_len), draw.integer(*kv_len), width_qk, width_v)
        wanted, _ = reference.attention(q, k, v, causal=True)
        close(
            output(answer(q, k, v, causal=True)), wanted, AXES, "the output",
            hint=f"4 query heads over 2, {q.shape[2]} queries, {k.shape[2]} keys, {width_qk} wide, values "
            f"{width_v}. Behind each tensor lies NaN.",
        )  # fmt: skip

    return check


@named("log-sum-exp", "lse is the natural logarithm of the sum of exp(score)")
def lse_natural(answer: Answer, draw: Draw) -> None:
    needs_triton()
    kv_len = draw.integer(40, 60)
    q, k, v = _inputs(draw, (1, 1), 2, kv_len)
    zero = "All scores are zero: what is the sum of exp(0) over the keys seen, and its logarithm to which base? "
    for factor, hint in ((0.0, zero), (1.0, "")):
        _, lse = state(answer(poisoned(factor * q), k, v, causal=True))
        _, wanted = reference.attention(factor * q, k, v, causal=True)
        close(lse, wanted, ("sequence", "query head", "query"), "lse", hint=f"{hint}2 queries, {kv_len} keys.")


@named("empty rows", "a query that sees no key gives 0 and -inf")
def empty_rows(answer: Answer, draw: Draw) -> None:
    needs_triton()
    kv_len = draw.integer(1, 4)
    q_len = kv_len + draw.integer(1, 3)
    q, k, v = _inputs(draw, (1, 1), q_len, kv_len)
    out, lse = state(answer(q, k, v, causal=True))
    wanted, wanted_lse = reference.attention(q, k, v, causal=True)
    hint = f"M = {q_len} queries, N = {kv_len} keys: the first M - N queries see nothing. What is -inf - (-inf)?"
    close(out, wanted, AXES, "the output", hint=hint)
    close(lse, wanted_lse, AXES[:3], "lse", hint=hint)


def _row_tiles(seen: Observed, n_heads: int, q_len: int) -> int:
    """Tiles of queries of one head, from the programs of the launch; all queries in one where that does not come out even."""
    if seen.programs is None or seen.programs % n_heads or seen.programs < n_heads:
        return 1
    return min(seen.programs // n_heads, q_len)


def _loaded(seen: Observed, argument: int, elements: int) -> int:
    """Elements requested of K or V; `Wrong` if the launch did not load all of it at least once."""
    distinct = seen.distinct(argument)
    if distinct < elements:
        raise Wrong(
            f"of {'KV'[argument - 1]}'s {elements} elements kernels loaded {distinct} from where they lie: this task asks for "
            "a Triton kernel, and for one that reads no copy"
        )
    return seen.requested(argument)


@named("hidden tiles", "tiles that no query of a program sees are not loaded")
def hidden_tiles(answer: Answer, draw: Draw) -> None:
    needs_triton()
    n_tokens, n_heads, width = 64, 1, 16
    q, k, v = _inputs(draw, (n_heads, 1), n_tokens, n_tokens, width, width)
    seen = answer.observe(q, k, v, causal=True)
    close(output(seen.result), reference.attention(q, k, v, causal=True)[0], AXES, "the output")
    tiles = _row_tiles(seen, n_heads, n_tokens)
    computed = tile_map(n_tokens, n_tokens, -(-n_tokens // tiles), BLOCK).computed * BLOCK
    for argument, name in ((1, "K"), (2, "V")):
        requested = _loaded(seen, argument, k.numel()) // (n_heads * width)
        if requested > computed:
            raise Wrong(
                f"{n_tokens} queries and as many keys, causal: the {tiles} row tiles of a head request {requested} keys of "
                f"{name} in all; without a mask it is {tiles * n_tokens}. Which key is the last that a program's rows see?"
            )


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of queries that see the last ``window`` keys up to their own, in float64."""
    group_size = q.shape[1] // k.shape[1]
    i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2], device=q.device)
    scores = q.double() @ k.double().repeat_interleave(group_size, 1).mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill((j > i) | (j <= i - window), -torch.inf)
    return reference.softmax_state(scores, v.double().repeat_interleave(group_size, 1))[0]


@named("window", "a query sees the last W keys up to its own")
def window(answer: Answer, draw: Draw) -> None:
    needs_triton()
    q_len, kv_len, width = draw.integer(5, 12), draw.integer(36, 48), draw.integer(3, 20)
    q, k, v = _inputs(draw, (4, 2), q_len, kv_len)
    close(
        output(answer(q, k, v, width)), _windowed(q, k, v, width), AXES, "the output",
        hint=f"4 query heads over 2, {q_len} queries, {kv_len} keys, a window of {width}. Its own key counts.",
    )  # fmt: skip


@named("tiles outside the window", "tiles before the window are not loaded either")
def outside_the_window(answer: Answer, draw: Draw) -> None:
    needs_triton()
    n_tokens, n_heads, width = 96, 1, draw.integer(8, 16)
    q, k, v = _inputs(draw, (n_heads, 1), n_tokens, n_tokens)
    seen = answer.observe(q, k, v, width)
    close(output(seen.result), _windowed(q, k, v, width), AXES, "the output")
    tiles = _row_tiles(seen, n_heads, n_tokens)
    rows = -(-n_tokens // tiles)
    needed = 0
    for first in range(0, n_tokens, rows):
        begin, end = max(first - width + 1, 0), min(first + rows, n_tokens)
        needed += -(-end // BLOCK) * BLOCK - begin // BLOCK * BLOCK
    for argument, name in ((1, "K"), (2, "V")):
        requested = _loaded(seen, argument, k.numel()) // (n_heads * 16)
        if requested > needed:
            raise Wrong(
                f"{n_tokens} tokens, a window of {width}: the {tiles} row tiles of a head request {requested} keys of {name} "
                "in all. Which key is the first that any row of a program sees?"
            )
