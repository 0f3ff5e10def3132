"""What is true of a softmax that leaves its log-sum-exp behind, and of adding keys to it later. Plain PyTorch.

The answer is a function x […, N] -> weights […, N] in x's dtype and lse […] in float32, or, to add keys,
(out […, Dv], lse […], scores […, N], values [N, Dv]) -> out, lse.
"""

import torch

from kernels import reference

from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

WEIGHTS_AND_LSE = "weights and log-sum-exp"


def _right(answer: Answer, x: torch.Tensor, hint: str, tolerance: float = 1e-5) -> None:
    weights, lse = judge.parts(answer(x), 2, WEIGHTS_AND_LSE)
    axes = ["head", "row", "column"][-x.dim() :]
    judge.close(weights, reference.softmax(x), axes, "the weights", tolerance, hint=hint, dtype=x.dtype)
    judge.close(lse, x.double().logsumexp(-1), axes[:-1], "the log-sum-exp", tolerance, hint=hint, dtype=torch.float32)


@named("the definition", "weights are exp(x) over their sum along the last axis, lse is the natural logarithm of that sum")
def definition(answer: Answer, draw: Draw) -> None:
    _right(answer, draw.tensor(draw.integer(2, 5), draw.integer(6, 40)), "The logarithm is the natural one.")
    _right(answer, draw.tensor(2, draw.integer(2, 5), draw.integer(6, 40)), "Here x has three axes.")


@named("large scores", "scores of a thousand, of either sign, are no trouble; a shift moves lse by itself")
def large(answer: Answer, draw: Draw) -> None:
    x = draw.tensor(4, draw.integer(5, 30))
    x[1] += draw.integer(500, 1500)
    x[2] -= draw.integer(500, 1500)
    x[3, 2] += 200.0
    _right(answer, x, "Each row has its own largest score. Where does it come back in lse?", 2e-4)


@named("the argument stays", "x is as it was")
def untouched(answer: Answer, draw: Draw) -> None:
    x = draw.tensor(3, draw.integer(5, 30))
    seen = answer.observe(x)
    judge.parts(seen.result, 2, WEIGHTS_AND_LSE)
    if not torch.equal(judge.tensor(seen.arguments[0], x.shape, "x"), x.cpu()):
        raise Wrong("the function changed x, which belongs to whoever called it: which operation wrote in place?")


@named("16-bit scores", "scores in 16 bits are summed in float32")
def half(answer: Answer, draw: Draw) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = draw.tensor(2, draw.integer(3000, 4000), std=0.5).to(dtype)
        _right(answer, x, f"x is {dtype}: where do its digits go?", 1e-4)


@named("rows without a key", "hidden keys (-inf) weigh nothing; where all are hidden, weights are 0 and lse is -inf")
def empty(answer: Answer, draw: Draw) -> None:
    x = draw.tensor(4, draw.integer(6, 20))
    x[draw.integer(0, 1)] = float("-inf")
    x[2, : draw.integer(1, 5)] = float("-inf")
    _right(answer, x, "What is -inf minus -inf?")


def _extended(answer: Answer, x: torch.Tensor, values: torch.Tensor, cuts: list[int], hint: str) -> None:
    out, lse = (part.float() for part in reference.softmax_state(x[:, : cuts[0]].double(), values[: cuts[0]].double()))
    for start, end in zip(cuts, [*cuts[1:], x.shape[1]], strict=True):
        out, lse = judge.parts(answer(out, lse, x[:, start:end], values[start:end]), 2, "out and log-sum-exp")
        out, lse = judge.tensor(out, (len(x), values.shape[1]), "out"), judge.tensor(lse, (len(x),), "lse")
        out, lse = out.to(x.device), lse.to(x.device)
    wanted_out, wanted_lse = reference.softmax_state(x.double(), values.double())
    judge.close(out, wanted_out, ["row", "column"], "out", 1e-4, hint=hint)
    judge.close(lse, wanted_lse, ["row"], "lse", 1e-5, hint=hint)


@named("all at once", "keys added in parts give what all keys together give, however unequal the parts")
def in_parts(answer: Answer, draw: Draw) -> None:
    x, values = draw.tensor(3, 60, std=2.0), draw.tensor(60, 5)
    _extended(answer, x, values, [draw.integer(40, 50)], "How much does each part weigh? Look at their lse.")
    _extended(answer, x, values, [5, 6, draw.integer(20, 40)], "Keys were added three times, once a single one.")


@named("from nothing", "a row that has seen no key yet (out 0, lse -inf) is a start like any other")
def from_nothing(answer: Answer, draw: Draw) -> None:
    x, values = draw.tensor(2, draw.integer(5, 9)), draw.tensor(9, 4)
    values = values[: x.shape[1]]
    _extended(answer, x, values, [0], "The first part is empty.")
    out, lse = judge.parts(
        answer(torch.zeros(2, 4, device=x.device), torch.full((2,), float("-inf"), device=x.device), x - torch.inf, values),
        2,
        "out and log-sum-exp",
    )
    judge.close(out, torch.zeros(2, 4), ["row", "column"], "out", hint="Nothing and only hidden keys: still nothing.")
    judge.close(lse, torch.full((2,), float("-inf")), ["row"], "lse", hint="Nothing and only hidden keys: still nothing.")


@named("large parts", "parts whose scores are hundreds apart, in either order")
def large_parts(answer: Answer, draw: Draw) -> None:
    x, values = draw.tensor(2, 24), draw.tensor(24, 3)
    x[0, : draw.integer(3, 9)] += 300.0
    x[1, 16:] += 300.0
    _extended(answer, x, values, [12], "Which of the exponents can be positive?")
