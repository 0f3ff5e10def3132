"""What is true of a kernel that copies: all arrives, nothing else is touched, each element is asked for once.

The answer is a function (x, out) that fills ``out`` and returns nothing of interest.
"""

import torch

from .. import judge
from ..answers import Answer, Observed
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named
from .launching import counted, observed

MARK = -777.0
MOST_OF_A_PROGRAM = 4096


def _vector(draw: Draw, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [n], behind which NaN lie, and a longer out full of marks: a kernel without masks does no harm beyond them."""
    wide = torch.full((n + MOST_OF_A_PROGRAM,), float("nan"), device=draw.device)
    wide[:n] = draw.tensor(n)
    return wide[:n], torch.full((n + MOST_OF_A_PROGRAM,), MARK, device=draw.device)


def _looked_at(answer: Answer, x: torch.Tensor, out: torch.Tensor) -> tuple[Observed, torch.Tensor]:
    seen = observed(answer, x, out)
    return seen, judge.tensor(seen.arguments[1], out.shape, "out")


def _arrived(answer: Answer, x: torch.Tensor, out: torch.Tensor) -> None:
    _, got = _looked_at(answer, x, out)
    n = len(x)
    judge.close(got[:n], x, ["element"], f"out, for {n:,} elements,", tolerance=0, hint="Which elements does a program own?")
    if (got[n:] != MARK).any():
        raise Wrong(
            f"{n:,} elements were to be copied, and {int((got[n:] != MARK).sum())} places behind them were overwritten: they "
            "belong to somebody else. What do the lanes of the last program do that have no element?"
        )


@named("every element arrives", "out begins with the elements of x, in order, and nothing behind them is touched")
def arrives(answer: Answer, draw: Draw) -> None:
    for n in (4096, draw.integer(700, 1000)):
        _arrived(answer, *_vector(draw, n))


@named("odd lengths", "a single element, and one more or fewer than powers of two")
def odd_lengths(answer: Answer, draw: Draw) -> None:
    for n in (1, draw.choice((3, 31, 63)), draw.choice((129, 513, 1025, 2049)), draw.integer(4097, 5000)):
        _arrived(answer, *_vector(draw, n))


@named("special values", "infinities, NaN and negative zero arrive too")
def special_values(answer: Answer, draw: Draw) -> None:
    x, out = _vector(draw, 200)
    x[: 5 * 8] = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 0.0], device=draw.device).repeat(8)
    _, got = _looked_at(answer, x, out)
    wrong = torch.nonzero(got[:200].view(torch.int32) != x.cpu().view(torch.int32)).flatten().tolist()
    if wrong:
        at = wrong[0]
        raise Wrong(f"element {at} of 200 should be {float(x[at])}, got {float(got[at])}: a copy does no arithmetic")


@named("loads", "the kernel requests each element once and nothing else")
def loads(answer: Answer, draw: Draw) -> None:
    n = draw.integer(2100, 3000)
    counted(_looked_at(answer, *_vector(draw, n))[0], 0, n, "x")


@named("programs", f"the work is cut up: no program copies more than {MOST_OF_A_PROGRAM:,} elements")
def programs(answer: Answer, draw: Draw) -> None:
    n = draw.integer(5, 7) * MOST_OF_A_PROGRAM // 2 + 1
    seen, _ = _looked_at(answer, *_vector(draw, n))
    if seen.programs is None:
        raise judge.NotHere("programs are counted in Triton's interpreter")
    least = -(-n // MOST_OF_A_PROGRAM)
    if seen.programs < least:
        raise Wrong(f"{n:,} elements were copied by {seen.programs} programs: with so few most of a GPU would be idle")


def _matrix(draw: Draw, view: str) -> torch.Tensor:
    rows, columns = draw.integer(5, 12), draw.integer(33, 70)
    if view == "transposed":
        return draw.tensor(columns, rows).T
    wide = torch.full((rows, columns + 9), float("nan"), device=draw.device)
    wide[:, :columns] = draw.tensor(rows, columns)
    return wide[:, :columns] if view == "columns of a wider one" else wide[:, :columns].contiguous()


def _matrix_arrived(answer: Answer, draw: Draw, view: str) -> Observed:
    x = _matrix(draw, view)
    # A part of a larger buffer, for kernels without masks.
    out = torch.full((x.numel() + 65536,), MARK, device=draw.device)[: x.numel()].view(x.shape)
    seen, got = _looked_at(answer, x, out)
    hint = f"x has the strides {x.stride()} (a matrix that is {view}); where does element (r, c) lie?"
    judge.close(got, x, ["row", "column"], "out", tolerance=0, hint=hint)
    return seen


@named("any strides", "rows, columns of a wider matrix and a transpose are copied")
def any_strides(answer: Answer, draw: Draw) -> None:
    for view in ("contiguous", "columns of a wider one", "transposed"):
        _matrix_arrived(answer, draw, view)


@named("loads of the matrix", "each element is requested once, whatever the strides")
def matrix_loads(answer: Answer, draw: Draw) -> None:
    for view in ("columns of a wider one", "transposed"):
        seen = _matrix_arrived(answer, draw, view)
        counted(seen, 0, seen.arguments[1].numel(), "x")
