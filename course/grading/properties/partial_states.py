"""What is true of partial attention states, however they are merged: mass, empty states, order, and the number of splits.

A state is an output and its natural log-sum-exp over some of the keys. Wherever a property says what the result should be, it
comes from attention over all of those keys in float64. The factories take ``how``: how the answer is called for a list of
states (`stacked`, `launched` or `in_turn`).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels import plan, reference

from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..tasks import Property, named
from .full_sequence import needs_triton

State = tuple[Tensor, Tensor]
Merge = Callable[[Answer, Sequence[State]], State]


def stacked(answer: Answer, states: Sequence[State]) -> State:
    """An answer (outs [S, …, Dv], lses [S, …]) -> (out, lse), asked once."""
    outs, lses = zip(*states, strict=True)
    return _checked(answer(torch.stack(outs), torch.stack(lses)), states[0])


def launched(answer: Answer, states: Sequence[State]) -> State:
    """As `stacked`, of a kernel: without Triton the definition would answer for it."""
    needs_triton()
    return stacked(answer, states)


def in_turn(answer: Answer, states: Sequence[State]) -> State:
    """An answer (out_a, lse_a, out_b, lse_b) -> (out, lse), asked for one state after the other."""
    first, *rest = states
    for state in rest:
        first = _checked(answer(*first, *state), state)
    return first


def _checked(result, like: State) -> State:
    out, lse = judge.parts(result, 2, "out, lse")
    device = like[0].device
    return judge.tensor(out, like[0].shape, "out").to(device), judge.tensor(lse, like[1].shape, "lse").to(device)


def _states(draw: Draw, lengths: Sequence[int], heads: int, width: int, std: float = 1.0) -> tuple[list[State], State]:
    """Float32 states [heads, width] of neighbouring intervals of keys, and the float64 state of all of them."""
    q, (k, v) = std * draw.tensor(1, heads, width), draw.tensor(2, 1, 1, sum(lengths), width)
    ends = torch.tensor(lengths).cumsum(0).tolist()
    cuts = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    whole = reference.decode(q, k, v)
    parts = [reference.decode(q, k[:, :, a:b], v[:, :, a:b]) for a, b in cuts]
    return [(out[0].float(), lse[0].float()) for out, lse in parts], (whole[0][0], whole[1][0])


def _empty(like: State) -> State:
    """A state without keys: its output may hold anything, so it holds NaN."""
    return torch.full_like(like[0], math.nan), torch.full_like(like[1], -math.inf)


def mass(how: Merge) -> Property:
    """States weigh as much as the softmax mass behind them."""

    @named("mass", "a state weighs as much as the softmax mass behind it: many keys more than a few")
    def check(answer: Answer, draw: Draw) -> None:
        # Scores of zero, so the mass is the number of keys.
        few, many = draw.integer(3, 6), draw.integer(3000, 5000)
        values = draw.tensor(2, 3, 8)
        lses = torch.tensor([many, few], dtype=torch.float64).log().float().to(values.device)
        states = [(out, lse.expand(3)) for out, lse in zip(values, lses, strict=True)]
        out, _ = how(answer, states)
        expected = (many * values[0].double() + few * values[1].double()) / (many + few)
        story = f"One state stands for {many} keys with scores of zero, the other for {few}. What share of the sum has each?"
        judge.close(out, expected, ("row", "column"), "out", 1e-5, story)
        lengths = [draw.integer(20, 40), draw.integer(1, 3), draw.integer(50, 90)]
        states, (expected, _) = _states(draw, lengths, draw.integer(3, 5), draw.choice((8, 24)))
        out, _ = how(answer, states)
        hint = f"The states are of {', '.join(map(str, lengths))} keys, and each row has masses of its own."
        judge.close(out, expected, ("row", "column"), "out", 1e-5, hint)

    return check


def log_sum_exp(how: Merge) -> Property:
    """The merged log-sum-exp is that of all keys, in natural log."""

    @named("log-sum-exp", "the merged log-sum-exp is that of all keys, in the base of those that came in")
    def check(answer: Answer, draw: Draw) -> None:
        lengths = [draw.integer(20, 40), draw.integer(1, 3), draw.integer(50, 90)]
        states, (_, expected) = _states(draw, lengths, draw.integer(3, 5), draw.choice((8, 24)))
        _, lse = how(answer, states)
        judge.close(lse, expected, ("row",), "lse", 1e-5, "Which base do the log-sum-exps that come in have? Do masses add?")

    return check


def empty_states(how: Merge) -> Property:
    """A state without keys changes no bit of the other, and many of them are one."""

    @named("empty states", "a state without keys changes no bit of the others, whatever its output holds")
    def check(answer: Answer, draw: Draw) -> None:
        state = draw.tensor(3, draw.choice((5, 16))), 20 * draw.tensor(3)
        for states, place in (([state, _empty(state)], "second"), ([_empty(state), state], "first")):
            out, lse = how(answer, states)
            hint = f"The {place} state has lse = -inf and an output of NaN; what is left is the other state, bit for bit."
            for name, got, axes in (("out", out, ("row", "column")), ("lse", lse, ("row",))):
                wanted = state[0] if name == "out" else state[1]
                judge.close(got, wanted, axes, name, 1e-5, hint)
                if not torch.equal(got, wanted):
                    raise judge.Wrong(f"{name} is right only to rounding where the {place} state has no keys. {hint}")
        out, lse = how(answer, [_empty(state)] * 3)
        hint = "No state has a key. What is -inf - -inf?"
        judge.close(lse, torch.full_like(state[1], -math.inf), ("row",), "lse", hint=hint)
        judge.close(out, torch.zeros_like(state[0]), ("row", "column"), "out", hint=hint)

    return check


def one_row_empty(how: Merge) -> Property:
    """Rows are empty one by one, not together."""

    @named("rows apart", "one row may have no keys in a state where the next row has some")
    def check(answer: Answer, draw: Draw) -> None:
        states, _ = _states(draw, [draw.integer(5, 9), draw.integer(5, 9)], 4, 8)
        gone = draw.some(range(4), 2)
        (out_a, lse_a), (out_b, lse_b) = states
        for (out, lse), row in (((out_a, lse_a), gone[0]), ((out_b, lse_b), gone[1])):
            out[row], lse[row] = math.nan, -math.inf
        expected = reference.merge(torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b]))
        hint = (
            f"Row {gone[0]} has no keys in the first state, row {gone[1]} none in the second; all other rows have keys in both."
        )
        for name, got, wanted, axes in zip(
            ("out", "lse"), how(answer, states), expected, (("row", "column"), ("row",)), strict=True
        ):
            judge.close(got, wanted, axes, name, 1e-5, hint)

    return check


def many_states(how: Merge) -> Property:
    """As many states as a long context on a large GPU leaves, more than one block of a kernel."""

    @named("many states", "every state counts, also the last of more than a hundred")
    def check(answer: Answer, draw: Draw) -> None:
        n = draw.integer(130, 160)
        outs, lses = draw.tensor(n, 2, 8), draw.tensor(n, 2)
        lses[-2:] += 6  # most of the mass is at the end
        expected, expected_lse = reference.merge(outs, lses)
        out, lse = how(answer, list(zip(outs, lses, strict=True)))
        hint = f"There are {n} states, and the last two have most of the mass."
        judge.close(out, expected, ("row", "column"), "out", 1e-4, hint)
        judge.close(lse, expected_lse, ("row",), "lse", 1e-4, hint)

    return check


def large_scores(how: Merge) -> Property:
    """Log-sum-exps whose exponentials are no float32 numbers."""

    @named("large scores", "log-sum-exps of hundreds, whose exponentials float32 cannot hold")
    def check(answer: Answer, draw: Draw) -> None:
        outs, shift = draw.tensor(2, 4, 8), draw.integer(150, 400)
        lses = draw.tensor(2, 4) + torch.tensor([shift, shift, -shift, -shift]).to(outs.device)
        expected, expected_lse = reference.merge(outs, lses)
        out, lse = how(answer, list(zip(outs, lses, strict=True)))
        hint = f"The log-sum-exps lie near {shift} in rows 0 and 1 and near -{shift} in rows 2 and 3."
        judge.close(out, expected, ("row", "column"), "out", 1e-4, hint)
        judge.close(lse, expected_lse, ("row",), "lse", 1e-5, hint)

    return check


@named("order", "three states give the same in either order of merging, to rounding")
def order(answer: Answer, draw: Draw) -> None:
    """For an answer (out_a, lse_a, out_b, lse_b) -> (out, lse)."""
    lengths = [draw.integer(2, 6), draw.integer(30, 60), draw.integer(8, 20)]
    states, (expected, expected_lse) = _states(draw, lengths, 3, 16, std=2.0)
    a, b, c = states
    for name, (out, lse) in {
        "(a, b), then c": in_turn(answer, [a, b, c]),
        "a, then (b, c)": in_turn(answer, [a, in_turn(answer, [b, c])]),
        "(c, a), then b": in_turn(answer, [c, a, b]),
    }.items():
        hint = f"The states a, b, c are of {', '.join(map(str, lengths))} keys. What you return must be a state again."
        judge.close(out, expected, ("row", "column"), f"out of {name}", 1e-5, hint)
        judge.close(lse, expected_lse, ("row",), f"lse of {name}", 1e-5, hint)


@named("number of splits", "the result does not depend on the number of splits")
def number_of_splits(answer: Answer, draw: Draw) -> None:
    """For an answer (out_a, lse_a, out_b, lse_b) -> (out, lse)."""
    heads, n = draw.integer(2, 4), draw.integer(40, 70)
    for splits in (2, draw.integer(5, 11), 16):
        size = -(-n // splits)
        lengths = [min(size, n - start) for start in range(0, n, size)]
        states, (expected, expected_lse) = _states(draw.of(splits), lengths, heads, 8)
        out, lse = in_turn(answer, states)
        hint = f"{n} keys in {len(lengths)} intervals."
        judge.close(out, expected, ("row", "column"), f"out of {len(lengths)} intervals", 1e-5, hint)
        judge.close(lse, expected_lse, ("row",), f"lse of {len(lengths)} intervals", 1e-5, hint)


@named("formats", "outputs in float16 with several leading axes; a log-sum-exp is float32 always")
def formats(answer: Answer, draw: Draw) -> None:
    """For an answer (out_a, lse_a, out_b, lse_b) -> (out, lse)."""
    outs, lses = draw.tensor(2, 2, 3, 5, dtype=torch.float16), draw.tensor(2, 2, 3)
    expected, expected_lse = reference.merge(outs, lses)
    out, lse = judge.parts(answer(outs[0], lses[0], outs[1], lses[1]), 2, "out, lse")
    axes = ("sequence", "query head", "column")
    judge.close(out, expected, axes, "out", 2e-3, "Outputs come in float16 here, and the sums want more.", torch.float16)
    judge.close(lse, expected_lse, axes[:2], "lse", 1e-5, "Outputs come in float16 here.", torch.float32)


def _decoded(answer: Answer, draw: Draw, lengths: Sequence[int], splits: Sequence[int], *, q_len: int = 1) -> None:
    """`decode` over a cache whose dead slots are NaN, as its partial results are before anyone writes them."""
    needs_triton()
    heads, width, capacity = 2, draw.choice((16, 24)), max(lengths)
    shape = (len(lengths), heads, width) if q_len == 1 else (len(lengths), q_len, heads, width)
    q, (k, v) = draw.tensor(*shape), draw.tensor(2, len(lengths), 1, capacity, width)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    expected, expected_lse = reference.decode(q.cpu(), k.cpu(), v.cpu(), seq_lens)
    for b, length in enumerate(lengths):
        k[b, :, length:] = v[b, :, length:] = math.nan
    axes = ("sequence", "query head", "column") if q_len == 1 else ("sequence", "new token", "query head", "column")
    for num_splits in splits:
        size = max(1, plan.decode_workspace(len(lengths), q_len, heads, width, num_splits))
        workspace = torch.full((size,), math.nan, device=q.device)
        result = answer(q, k, v, seq_lens.to(q.device), num_splits=num_splits, workspace=workspace)
        out, lse = judge.parts(result, 2, "out, lse")
        said = "one split" if num_splits == 1 else f"{num_splits} splits"
        hint = f"Lengths: {', '.join(map(str, lengths))} tokens."
        judge.close(out, expected, axes, f"out in {said}", 1e-4, hint)
        judge.close(lse, expected_lse, axes[:-1], f"lse in {said}", 1e-4, hint)


@named("more splits than tiles", "most splits have no tokens, and nobody notices")
def more_splits_than_tiles(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.decode`."""
    _decoded(answer, draw, [draw.integer(1, 19), draw.integer(97, 128)], (9,))


@named("sequence without tokens", "a sequence without tokens gives 0 and -inf, in one split and in several")
def sequence_without_tokens(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.decode`."""
    _decoded(answer, draw, [draw.integer(33, 64), 0], (1, 2))


@named("several new tokens", "the first of several new tokens sees no key in a split that the last one has keys in")
def several_new_tokens(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.decode`."""
    # The second tile begins with the last token: the tokens before it have nothing there.
    _decoded(answer, draw, [33], (2,), q_len=3)


@named("splits that divide nothing evenly", "all tokens are read, whatever the number of tiles and of splits")
def uneven_splits(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.decode`."""
    _decoded(answer, draw, [draw.integer(161, 190)], (4,))


@named("sink", "a sink takes its share of the mass and gives nothing, head by head")
def sink(answer: Answer, draw: Draw) -> None:
    """For an answer (out [B, Hq, Dv], lse [B, Hq], sink [Hq]) -> (out, lse)."""
    heads, n, width = 3, draw.integer(5, 20), 8
    q, (k, v) = draw.tensor(heads, heads, width), draw.tensor(2, heads, 1, n, width)
    logits = 2 * draw.tensor(heads) + draw.integer(0, 3)
    out, lse = reference.decode(q, k, v)
    scores = torch.einsum("bhd,bnd->bhn", q.double(), k[:, 0].double()) / math.sqrt(width)
    joined = torch.cat([scores, logits.double().expand(heads, heads)[..., None]], -1)
    expected = torch.einsum("bhn,bnd->bhd", joined.softmax(-1)[..., :-1], v[:, 0].double())
    got, got_lse = judge.parts(answer(out.float(), lse.float(), logits), 2, "out, lse")
    axes = ("sequence", "query head", "column")
    hint = "The sink is one more score of its query head, with a value of zeros; there are as many sequences as heads here."
    judge.close(got, expected, axes, "out", 1e-5, hint)
    judge.close(got_lse, joined.logsumexp(-1), axes[:2], "lse", 1e-5, hint)


@named("sink at the ends", "a row without keys, and sinks far above and far below the scores")
def sink_at_the_ends(answer: Answer, draw: Draw) -> None:
    """For an answer (out [B, Hq, Dv], lse [B, Hq], sink [Hq]) -> (out, lse)."""
    far = float(draw.integer(150, 300))
    out, lse = draw.tensor(2, 3, 8), draw.tensor(2, 3)
    out[1], lse[1] = 0.0, -math.inf
    logits = torch.tensor([far, -far, 0.5]).to(out.device)
    outs = torch.stack([out, torch.zeros_like(out)])
    expected, expected_lse = reference.merge(outs, torch.stack([lse, logits.expand(2, 3)]))
    got, got_lse = judge.parts(answer(out, lse, logits), 2, "out, lse")
    hint = f"The sinks are {far:.0f}, -{far:.0f} and 0.5; sequence 1 has no keys, so all of its mass is the sink's."
    axes = ("sequence", "query head", "column")
    judge.close(got, expected, axes, "out", 1e-5, hint)
    judge.close(got_lse, expected_lse, axes[:2], "lse", 1e-5, hint)
