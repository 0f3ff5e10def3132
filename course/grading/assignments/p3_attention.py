"""P3: digits, pairs and turns; a rotation in the wrong convention; a softmax that leaves its log-sum-exp behind."""

import functools
import math

import torch

from ... import costs
from ..draw import Draw
from ..properties import rotary, softmax_state
from ..properties.predictions import number
from ..tasks import Assignment, Task

FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def givens(draw: Draw) -> dict:
    n_kv_heads, group_size = draw.choice((2, 4, 8)), draw.choice((2, 4, 5))
    width = draw.choice((64, 96, 128))
    new = draw.integer(3, 12) * 16
    return {
        "number": 8 * draw.choice((33, 50, 75, 100, 150, 200)),
        "number_format": draw.choice(tuple(FORMATS)),
        "term": draw.choice((2, 4, 8)),
        "sum_format": draw.choice(tuple(FORMATS)),
        "n_q_heads": n_kv_heads * group_size,
        "n_kv_heads": n_kv_heads,
        "head_dim": width,
        "new": new,
        "tokens": new + draw.integer(20, 40) * 16,
        "keys": draw.choice((500, 700, 3000, 5000)),
        "score": draw.choice((3, 5, 7)),
        "pair": draw.integer(width // 8, width // 4),
    }


def _step(givens: dict, name: str) -> float:
    x = torch.tensor(float(givens["number"]), dtype=FORMATS[name])
    return (torch.nextafter(x, torch.tensor(torch.inf, dtype=x.dtype)) - x).item()


def _other(name: str) -> str:
    return next(other for other in FORMATS if other != name)


@functools.cache
def _stops_at(term: int, name: str) -> float:
    """Where a sum of equal terms in this format stops growing."""
    total, before = torch.zeros((), dtype=FORMATS[name]), None
    while total != before:
        before, total = total, total + term
    return total.item()


def _flops(givens: dict, *, causal: bool = True, heads: str = "n_q_heads") -> int:
    layer = costs.Attention.mha(givens[heads], givens["head_dim"])
    return costs.attention_flops(layer, givens["new"], givens["tokens"], causal=causal)


def _top_left(givens: dict) -> int:
    """FLOPs if query i saw the keys up to i only."""
    layer = costs.Attention.mha(givens["n_q_heads"], givens["head_dim"])
    return costs.attention_flops(layer, givens["new"], givens["new"], causal=True)


def _turn(givens: dict, exponent: float = 2) -> float:
    return 2 * math.pi * rotary.BASE ** (exponent * givens["pair"] / givens["head_dim"])


NUMBERS = Task(
    name="numbers",
    kind="predict",
    title="Digits, pairs and turns",
    answer="predicted",
    points=(
        (
            number(
                "step",
                "distance to the next larger number of the format",
                right=lambda g: _step(g, g["number_format"]),
                traps={
                    "that is the step of the other 16-bit format": lambda g: _step(g, _other(g["number_format"])),
                    "that is how far off a rounded number may be": lambda g: _step(g, g["number_format"]) / 2,
                    "how many bits of mantissa are stored?": lambda g: _step(g, g["number_format"]) * 2,
                },
            ),
            1,
        ),
        (
            number(
                "stops_at",
                "where the sum stops growing",
                right=lambda g: _stops_at(g["term"], g["sum_format"]),
                tolerance=0,
                traps={
                    "that is where it stops with terms of 1": lambda g: _stops_at(1, g["sum_format"]),
                    "that is where it stops in the other 16-bit format": lambda g: _stops_at(
                        g["term"], _other(g["sum_format"])
                    ),
                    "half a step is rounded to the even neighbour: which of the two is it there?": lambda g: (
                        _stops_at(g["term"], g["sum_format"]) / 2
                    ),
                },
            ),
            1,
        ),
        (
            number(
                "flops",
                "FLOPs of the chunk's attention",
                right=_flops,
                unit="FLOP",
                traps={
                    "that is without the mask": lambda g: _flops(g, causal=False),
                    "the queries are the last tokens: what does the first of them see?": _top_left,
                    "each query head has scores of its own": lambda g: _flops(g, heads="n_kv_heads"),
                    "how many FLOPs is one multiply-add, and are the values multiplied as well?": lambda g: _flops(g) / 2,
                },
                other_units={"MFLOP": 1e6, "GFLOP": 1e9},
            ),
            1,
        ),
        (
            number(
                "lse",
                "log-sum-exp of equal scores",
                right=lambda g: g["score"] + math.log(g["keys"]),
                traps={
                    "that is what scores of 0 would leave": lambda g: math.log(g["keys"]),
                    "the logarithm is the natural one": lambda g: g["score"] + math.log2(g["keys"]),
                    "the logarithm is the natural one, not that of 10": lambda g: g["score"] + math.log10(g["keys"]),
                },
            ),
            1,
        ),
        (
            number(
                "turn",
                "tokens for one full turn of a pair",
                right=_turn,
                unit="tokens",
                traps={
                    "that is one radian": lambda g: _turn(g) / (2 * math.pi),
                    "a head of d columns has d / 2 pairs": lambda g: _turn(g, 1),
                    "larger pairs turn more slowly": lambda g: _turn(g, -2),
                },
            ),
            1,
        ),
    ),
)

ROTATION = Task(
    name="rotation",
    kind="fix",
    title="A rotation that raises no error",
    answer="mended.layers.rope",
    points=((rotary.pairs, 2), (rotary.speeds, 1), (rotary.conversion, 1), (rotary.far_positions, 1)),
    hidden=(rotary.far_positions.name,),
    shipped=lambda course: course.layers.rope,
    package="course",
)

SOFTMAX = Task(
    name="softmax",
    kind="build",
    title="A stable softmax and its log-sum-exp",
    answer="softmax_lse",
    points=(
        (softmax_state.definition, 1),
        (softmax_state.large, 1),
        (softmax_state.untouched, 1),
        (softmax_state.half, 1),
        (softmax_state.empty, 1),
    ),
    hidden=(softmax_state.half.name, softmax_state.empty.name),
)

EXTEND = Task(
    name="extend",
    kind="stretch",
    title="More keys, later",
    answer="extend",
    points=((softmax_state.in_parts, 1), (softmax_state.from_nothing, 1), (softmax_state.large_parts, 1)),
)

ASSIGNMENT = Assignment(
    name="p3_attention",
    title="Attention, rotation, rounding",
    minutes=75,
    objectives=(
        "say how far apart neighbouring 16-bit numbers are, and where a sum in them stops",
        "count the FLOPs of attention over a cached prefix",
        "tell the two pairings of rotary positions apart, and test for a wrong one",
        "write a softmax that cannot overflow and leaves its log-sum-exp behind",
    ),
    tasks=(NUMBERS, ROTATION, SOFTMAX, EXTEND),
    givens=givens,
    rubric=(
        (1, "says that nothing is turned at distance 0, or that query and key of one kind agree, so such a test cannot fail"),
        (
            1,
            "proposes a test with several keys at distances other than 0 and a comparison with a trained or independent result",
        ),
        (1, "explains how weights are converted: rows of W_Q and W_K reordered within each head, values left alone"),
    ),
)
