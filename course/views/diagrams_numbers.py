"""Drawings of numbers: the bits of the formats, and where the elements of a matrix lie in memory."""

import torch

from . import style
from .diagrams import _box, _sheet
from .figures import Figure, figure

# Name, dtype, exponent bits, mantissa bits; a sign bit comes first.
FORMATS = (
    ("float32", torch.float32, 8, 23),
    ("bfloat16", torch.bfloat16, 8, 7),
    ("float16", torch.float16, 5, 10),
    ("float8 e4m3", torch.float8_e4m3fn, 4, 3),
)


def number_formats_figure() -> Figure:
    """Bits of sign, exponent and mantissa of the four formats of the course, with the largest number and the spacing at 1."""
    fig, ax = _sheet(39)
    cell = 48 / 32
    colours = {"sign": style.MUTED, "exponent": style.BLUE, "mantissa": style.GOLD}
    told = []
    for i, (name, dtype, exponent, mantissa) in enumerate(FORMATS):
        info, y = torch.finfo(dtype), 31.0 - 8.2 * i
        bits = ["sign"] + ["exponent"] * exponent + ["mantissa"] * mantissa
        for at, kind in enumerate(bits):
            _box(ax, 1 + at * cell, y, cell - 0.15, 2.6, fill=colours[kind], line=0)
        largest = f"{info.max:,.0f}" if info.max < 1e6 else f"{info.max:.1e}".replace("e+", " · 10^")
        largest = largest if "^" not in largest else "$" + largest.replace(" · ", r" \cdot ").replace("10^", "10^{") + "}$"
        spacing = f"1/{round(1 / info.eps):,}"
        ax.text(1, y + 4.4, name, weight="bold", va="center", fontsize=10.5)
        ax.text(49, y + 4.4, f"largest {largest},  step at 1: {spacing}", va="center", ha="right", fontsize=10)
        highest = f"{info.max:,.0f}" if info.max < 1e6 else f"{info.max:.1e}"
        told.append(f"{name}: {exponent} exponent and {mantissa} mantissa bits, largest {highest}, step at 1 {spacing}")
    for x, kind in ((1, "sign"), (11, "exponent"), (26, "mantissa")):
        _box(ax, x, 1.2, 1.4, 2.2, fill=colours[kind], line=0)
        ax.text(x + 2.2, 2.3, {"sign": "sign", "exponent": "exponent: range", "mantissa": "mantissa: precision"}[kind],
                va="center", fontsize=10)  # fmt: skip
    return figure(
        fig,
        name="number-formats",
        caption="Bits of the four formats of the course. The exponent bits give the range, the mantissa bits the step between "
        "neighbours: relative to the number, always the same.",
        alt="Bit patterns. " + "; ".join(told) + ".",
    )


def strides_figure(rows: int = 3, columns: int = 5, row: int = 1, column: int = 2) -> Figure:
    """A small row-major matrix above its strip of memory: one row is a run of neighbours, one column is scattered.

    ValueError unless the row and the column exist and the strip has at most 24 places.
    """
    if not (0 <= row < rows and 0 <= column < columns and rows * columns <= 24):
        raise ValueError(f"row {row} and column {column} must lie in a matrix of at most 24 elements, got {rows} x {columns}")
    fig, ax = _sheet(2.6 * rows + 18)
    side, top = 2.6, 2.6 * rows + 16.4
    here = columns * row + column

    def colour(r: int, c: int) -> str:
        return (
            style.GREEN
            if (r, c) == (row, column)
            else style.BLUE
            if r == row
            else style.VERMILLION
            if c == column
            else "#e3e7ee"
        )

    def ink(r: int, c: int) -> str:
        return "white" if r == row or c == column else style.INK

    left = 1.0
    for r in range(rows):
        for c in range(columns):
            x, y = left + c * side, top - 2.4 - (r + 1) * side
            _box(ax, x, y, side - 0.2, side - 0.2, fill=colour(r, c), line=0)
            ax.text(x + side / 2 - 0.1, y + side / 2 - 0.15, str(r * columns + c), ha="center", va="center", fontsize=9.5,
                    color=ink(r, c))  # fmt: skip
    ax.text(left, top - 0.9, f"x [{rows}, {columns}], strides ({columns}, 1)", va="center", fontsize=10.5, weight="bold")
    x = left + columns * side + 2
    notes = (
        (style.BLUE, f"x[{row}, :] starts at {row * columns},\nstep 1: neighbours"),
        (style.VERMILLION, f"x[:, {column}] starts at {column},\nstep {columns}: scattered"),
        (style.GREEN, f"x[{row}, {column}] lies at\n{row} · {columns} + {column} · 1 = {here}"),
    )
    for i, (tone, text) in enumerate(notes):
        y = top - 3.0 - i * max(3.4, side * rows / 3)
        _box(ax, x, y - 1.2, 1.2, 2.0, fill=tone, line=0)
        ax.text(x + 2.2, y - 0.2, text, va="center", fontsize=10, linespacing=1.15)
    cell = min(2.6, 48 / (rows * columns))
    ax.text(1, 6.9, "the same in memory, addresses in elements", va="center", fontsize=10, color=style.MUTED)
    for at in range(rows * columns):
        r, c = divmod(at, columns)
        _box(ax, 1 + at * cell, 2.4, cell - 0.15, 2.6, fill=colour(r, c), line=0)
        ax.text(1 + at * cell + cell / 2 - 0.1, 3.6, str(at), ha="center", va="center", fontsize=9.5, color=ink(r, c))
    return figure(
        fig,
        name=f"strides-{rows}-{columns}",
        caption=f"A matrix of {rows} rows and {columns} columns and the memory that holds it. An element's address is the "
        "base plus index times stride, summed over the axes.",
        alt=f"A grid of {rows} by {columns} numbered cells above one strip of {rows * columns} cells. Row {row} is a run of "
        f"{columns} neighbours in the strip; column {column} is every {columns}th cell; element [{row}, {column}] lies at "
        f"{here}.",
    )
