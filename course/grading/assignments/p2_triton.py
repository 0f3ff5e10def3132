"""P2: passes over memory, a softmax that reads what is not its own, a softmax in one pass."""

import functools

import torch

from ... import costs
from ...measure import tensors_made
from ..draw import Draw
from ..properties import row_softmax
from ..properties.predictions import number
from ..tasks import Assignment, Task

SHIPPED = {"softmax": {}, "softmax_three_passes": {"block": 128}}
IN_BLOCKS = {row_softmax.ITSELF: {"block": 64}}
UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "MB": 1e6, "GB": 1e9}


def givens(draw: Draw) -> dict:
    block = draw.choice((256, 512, 1024))
    return {
        "rows": draw.integer(20, 60) * 1000,
        "columns": draw.choice((1536, 2560, 3072, 5120, 6144)),
        "bytes_per_element": draw.choice((2, 4)),
        "block": block,
        "elements": draw.integer(20, 90) * block + draw.integer(block // 4, block // 3),
        "stride": draw.choice((2, 3, 5, 6)),
    }


@functools.cache
def passes_in_steps() -> tuple[int, int]:
    """Reads and writes of the whole matrix in the steps of PyTorch: each operation reads it, and some write one."""
    x = torch.zeros(2, 3)

    def in_steps(x):
        weights = (x - x.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)

    made = tensors_made(in_steps, x)
    return len(made), sum(one.shape == x.shape for one in made)


def _matrix(givens: dict) -> int:
    return givens["rows"] * givens["columns"] * givens["bytes_per_element"]


def _programs(givens: dict) -> int:
    return -(-givens["elements"] // givens["block"])


def _sectors(givens: dict, stride: int) -> int:
    return costs.sectors(0, givens["block"] - 1, stride, bytes_per_element=4)


TRAFFIC = Task(
    name="traffic",
    kind="predict",
    title="Passes over memory",
    answer="predicted",
    points=(
        (
            number(
                "bytes_in_steps",
                "bytes that the five steps move",
                right=lambda g: sum(passes_in_steps()) * _matrix(g),
                unit="bytes",
                traps={
                    "do all five steps write a matrix?": lambda g: 2 * passes_in_steps()[0] * _matrix(g),
                    "what is read has to be written by somebody": lambda g: passes_in_steps()[0] * _matrix(g),
                    "do all five steps write a matrix, and how large is an element?": lambda g: (
                        2 * passes_in_steps()[0] * _matrix(g) / g["bytes_per_element"]
                    ),
                    "how large is an element?": lambda g: sum(passes_in_steps()) * _matrix(g) / g["bytes_per_element"],
                },
                other_units=UNITS,
            ),
            2,
        ),
        (
            number(
                "bytes_fused",
                "bytes that one kernel moves",
                right=lambda g: 2 * _matrix(g),
                unit="bytes",
                traps={"the result has to be written too": lambda g: _matrix(g)},
                other_units=UNITS,
            ),
            1,
        ),
        (
            number(
                "masked",
                "lanes without an element, over all programs",
                right=lambda g: _programs(g) * g["block"] - g["elements"],
                tolerance=0,
                traps={"those are the lanes of the last program that have one": lambda g: g["elements"] % g["block"]},
            ),
            1,
        ),
        (
            number(
                "sectors",
                "sectors of 32 bytes that one program touches",
                right=lambda g: _sectors(g, g["stride"]),
                tolerance=0,
                traps={
                    "that would be enough with a stride of 1": lambda g: _sectors(g, 1),
                    "how many elements lie in one sector with this stride?": lambda g: g["block"],
                },
            ),
            1,
        ),
    ),
)

MENDED = Task(
    name="mask",
    kind="fix",
    title="A softmax that is right most of the time",
    answer="mended.first",
    points=(
        (row_softmax.definition(SHIPPED), 1),
        (row_softmax.neighbours(SHIPPED), 1),
        (row_softmax.any_strides(SHIPPED), 1),
        (row_softmax.far_apart(SHIPPED), 1),
        (row_softmax.empty_rows(SHIPPED), 1),
    ),
    hidden=("large scores", "rows without a score"),
    shipped=lambda kernels: kernels.first,
)

ONE_PASS = Task(
    name="softmax",
    kind="build",
    title="Softmax in one pass",
    answer="softmax",
    points=(
        (row_softmax.definition(), 1),
        (row_softmax.neighbours(), 1),
        (row_softmax.far_apart(), 1),
        (row_softmax.requests(), 2),
        (row_softmax.any_strides(), 1),
        (row_softmax.empty_rows(), 1),
    ),
    hidden=("any strides", "rows without a score"),
)

TWO_PASSES = Task(
    name="two_passes",
    kind="stretch",
    title="Softmax of wide rows in two passes",
    answer="softmax_two_passes",
    points=(
        (row_softmax.definition(IN_BLOCKS), 1),
        (row_softmax.far_apart(IN_BLOCKS), 1),
        (row_softmax.requests(IN_BLOCKS, times=2), 1),
    ),
)

ASSIGNMENT = Assignment(
    name="p2_triton",
    title="Triton in one page",
    minutes=75,
    objectives=(
        "count passes, programs, masked lanes and sectors before anything runs",
        "find a mask, a filling or a stride that is wrong, with inputs that show it",
        "write a kernel that reduces a row and requests each element once",
    ),
    tasks=(TRAFFIC, MENDED, ONE_PASS, TWO_PASSES),
    givens=givens,
    rubric=(
        (1, "says that a masked lane still holds a value, and that it takes part in reductions"),
        (1, "gives the neutral value of each reduction: -inf for a maximum, 0 for a sum, and what follows for exp(x - m)"),
        (
            1,
            "explains why zeros behind a tensor hide the fault, and proposes a test that shows it (NaN, a marker, odd lengths)",
        ),
    ),
)
