"""What is true of a softmax over the rows of a matrix, written as a kernel.

The answer is a function of x [R, N] float32, or a module with such functions: a property is made for the names of those that it
looks at, each with the options of the call.
"""

from collections.abc import Iterator

import torch

import kernels

from .. import judge
from ..answers import Answer, Observed
from ..draw import Draw
from ..tasks import Property, named
from .launching import counted, observed

Functions = dict[str, dict]
ITSELF = ""  # the name of an answer that is the function
ALONE = {ITSELF: {}}
ROOM = 4096  # elements behind a matrix, so that a kernel without masks does no harm beyond it


def _each(answer: Answer, functions: Functions) -> Iterator[tuple[str, Answer, dict]]:
    """(name in messages, function, options)."""
    for name, options in functions.items():
        if name == ITSELF:
            yield "the result", answer, options
        else:
            yield f"the result of {name}", answer.get(name), options


def _matrix(draw: Draw, rows: int, columns: int, *, width: int | None = None, std: float = 1.0) -> torch.Tensor:
    """A matrix [rows, columns], NaN in each row's rest up to ``width`` and behind all of it."""
    width = columns if width is None else width
    memory = torch.full((rows * width + ROOM,), float("nan"), device=draw.device)
    x = memory[: rows * width].view(rows, width)[:, :columns]
    x.copy_(draw.tensor(rows, columns, std=std))
    return x


def _right(answer: Answer, functions: Functions, x: torch.Tensor, hint: str, tolerance: float = 1e-5) -> list[Observed]:
    seen = []
    for name, function, options in _each(answer, functions):
        seen.append(observed(function, x, **options))
        expected = kernels.reference.softmax(x)
        judge.close(seen[-1].result, expected, ["row", "column"], f"{name} for x {list(x.shape)}", tolerance, hint=hint)
    return seen


def definition(functions: Functions = ALONE) -> Property:
    @named("the definition", "each row is exp(x) over its sum, for widths that are powers of two and others")
    def check(answer: Answer, draw: Draw) -> None:
        for rows, columns in ((2, 128), (draw.integer(2, 3), draw.integer(129, 250)), (1, draw.integer(1, 9))):
            _right(
                answer,
                functions,
                _matrix(draw, rows, columns),
                "Which elements should the sum of a row hold, and which does it?",
            )

    return check


def neighbours(functions: Functions = ALONE) -> Property:
    @named("neighbours", "what lies between the rows, and is no part of them, changes nothing")
    def check(answer: Answer, draw: Draw) -> None:
        columns = draw.integer(70, 120)
        x = _matrix(draw, draw.integer(2, 3), columns, width=columns + draw.integer(5, 40))
        _right(answer, functions, x, f"Behind column {columns - 1} of each row lie NaN that belong to somebody else.")

    return check


def any_strides(functions: Functions = ALONE) -> Property:
    @named("any strides", "a transpose is as good as a matrix")
    def check(answer: Answer, draw: Draw) -> None:
        x = _matrix(draw, draw.integer(65, 90), draw.integer(2, 3)).T
        _right(answer, functions, x, f"x is a transpose, with the strides {x.stride()}. Where does element (r, c) lie?")

    return check


def far_apart(functions: Functions = ALONE) -> Property:
    @named("large scores", "scores of hundreds neither overflow nor vanish, wherever in the row they stand")
    def check(answer: Answer, draw: Draw) -> None:
        x = _matrix(draw, 4, draw.integer(130, 200), std=3.0)
        x[0] += 300.0
        x[1] -= 300.0
        x[2, : draw.integer(5, 20)] += 400.0
        x[3, -draw.integer(5, 20) :] += 400.0
        # Neighbours of a float32 number of hundreds are 3e-5 apart, which is what exp(x - lse) may be off.
        _right(answer, functions, x, "exp overflows in float32 above 88. Which shift keeps every exponent at most 0?", 1e-4)

    return check


def empty_rows(functions: Functions = ALONE) -> Property:
    @named("rows without a score", "a row of -inf gives zeros; a few -inf in a row give zeros there")
    def check(answer: Answer, draw: Draw) -> None:
        x = _matrix(draw, 3, draw.integer(20, 150))
        x[draw.integer(0, 1)] = float("-inf")
        x[2, : draw.integer(2, 9)] = float("-inf")
        _right(answer, functions, x, "What is -inf minus -inf?")

    return check


def requests(functions: Functions = ALONE, *, times: int = 1) -> Property:
    how = "once" if times == 1 else f"{times} times"

    @named("loads", f"each element is requested {how}")
    def check(answer: Answer, draw: Draw) -> None:
        columns = draw.integer(300, 400)
        x = _matrix(draw, 2, columns, width=columns + 7)
        for seen in _right(answer, functions, x, ""):
            counted(seen, 0, x.numel(), "x", times)

    return check
