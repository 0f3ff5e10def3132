"""Drawings of whole-sequence kernels: what one program owns, forward and backward."""

from kernels import plan

from .. import costs
from . import style
from .diagrams import _arrow, _box, _card, _sheet
from .figures import Figure, figure

WHOLE, MASKED, HIDDEN = "#9ccbe8", "#f0a878", style.FAINT


def _scores(ax, x: float, top: float, cell: tuple[float, float], rows: int, columns: int, offset: int, keep) -> None:
    """The tiles of one head's scores: row tile r sees column tiles up to r + offset. ``keep(r, c)`` keeps its colour."""
    width, height = cell
    for r in range(rows):
        for c in range(columns):
            fill = HIDDEN if c > r + offset else MASKED if c == r + offset else WHOLE
            faded = fill != HIDDEN and not keep(r, c)
            _box(ax, x + c * width, top - (r + 1) * height, width, height, fill=fill, alpha=0.35 if faded else 1.0)
            if fill == HIDDEN:
                _box(
                    ax, x + c * width, top - (r + 1) * height, width, height, fill="none", edge="#9aa1ad", line=0,
                    hatch="///",
                )  # fmt: skip


def query_tile_figure(
    *, n_q_heads: int = 32, q_len: int = 512, kv_len: int = 768, rows: int = 128, block_n: int = 128
) -> Figure:
    """What one program of the full-sequence kernel owns: a tile of queries of one head, and the walk over its keys.

    Drawn tile by tile, so at most 8 tiles along each edge, and lengths that tiles fill; ValueError otherwise.
    """
    if q_len % rows or kv_len % block_n or rows != block_n or not q_len <= kv_len <= 8 * block_n:
        raise ValueError(
            f"q_len and kv_len must be multiples of equal tiles, at most 8 of them, and q_len no more than kv_len; got "
            f"{q_len}, {kv_len}, {rows}, {block_n}"
        )
    down, across = q_len // rows, kv_len // block_n
    offset = across - down
    mine = min(1, down - 1)
    tiles = costs.tile_map(q_len, kv_len, rows, block_n)
    programs = n_q_heads * plan.ceil_div(q_len, rows)

    fig, ax = _sheet(56)
    left, top, cell = 12.5, 42.0, (36 / across, 15.2 / down)
    ax.text(1, 54.4, f"{kv_len:,} keys, {kv_len - q_len:,} of them cached before", fontsize=10, color=style.MUTED, va="center")
    for c in range(across):
        x = left + c * cell[0]
        walked = c <= mine + offset
        for y, name in ((47.9, "K"), (44.2, "V")):
            _box(ax, x + 0.25, y, cell[0] - 0.5, 3.0, fill="#cfe4f2" if walked else style.FAINT, edge=style.BLUE if walked
                 else style.GRID, line=1.0)  # fmt: skip
            ax.text(x + cell[0] / 2, y + 1.45, f"{name}{'₀₁₂₃₄₅₆₇'[c]}", ha="center", va="center", fontsize=9.5,
                    color=style.INK if walked else style.MUTED)  # fmt: skip
    _arrow(ax, (left, 52.3), (left + (mine + offset + 1) * cell[0], 52.3), colour=style.VERMILLION, line=2.0)
    ax.text(left - 0.8, 52.3, "the walk", ha="right", va="center", fontsize=10, color=style.VERMILLION, weight="bold")
    for r in range(down):
        y = top - (r + 1) * cell[1]
        on = r == mine
        _box(
            ax, 6.2, y + 0.2, 5.2, cell[1] - 0.4, fill=style.GOLD if on else style.FAINT, edge=style.GOLD if on else style.GRID
        )
        ax.text(8.8, y + cell[1] / 2, f"Q{'₀₁₂₃₄₅₆₇'[r]}", ha="center", va="center", fontsize=9.5,
                color=style.INK if on else style.MUTED)  # fmt: skip
    ax.text(1, top - cell[1] * down / 2, f"{q_len:,} queries", fontsize=10, color=style.MUTED, va="center", rotation=90)
    _scores(ax, left, top, cell, down, across, offset, lambda r, c: r == mine)
    y = top - (mine + 1) * cell[1]
    _box(ax, left, y, cell[0] * across, cell[1], fill="none", edge=style.VERMILLION, line=2.0)

    legend = 23.4
    for x, fill, words in ((1, WHOLE, "whole: no mask"), (17.4, MASKED, "diagonal: masked"), (35.4, HIDDEN, "never loaded")):
        _box(ax, x, legend - 0.8, 1.8, 1.6, fill=fill, edge=style.MUTED, line=0.6)
        ax.text(x + 2.5, legend, words, va="center", fontsize=9.5)

    ax.text(1, 18.9, "stays in the program, one entry a row", fontsize=10, color=style.MUTED, va="center")
    for x, width, name in ((1, 8.2, "Q₁"), (11.2, 5, "m"), (18.2, 5, "l"), (25.2, 23.8, "acc")):
        fill = style.GOLD if name == "Q₁" else "#cfe4f2"
        _card(ax, x, 12.4, width, 4.4, edge=style.MUTED, fill=fill)
        ax.text(x + width / 2, 14.6, name, ha="center", va="center", fontsize=11)
    _arrow(ax, (34, 12.2), (34, 8.6), colour=style.VERMILLION, line=1.8)
    ax.text(32.6, 10.4, "after the last tile", ha="right", va="center", fontsize=10, color=style.MUTED)
    _card(ax, 25.2, 4.4, 16.2, 4.0, edge=style.MUTED, fill=style.CARD, line=1.2)
    ax.text(33.3, 6.4, "out = acc ÷ l", ha="center", va="center", fontsize=10.5)
    _card(ax, 42.4, 4.4, 6.6, 4.0, edge=style.MUTED, fill=style.CARD, line=1.2)
    ax.text(45.7, 6.4, "lse", ha="center", va="center", fontsize=10.5)
    ax.text(1, 1.7, f"{programs} such programs a sequence: {n_q_heads} query heads × {down} tiles", fontsize=10, va="center")
    return figure(
        fig,
        name="query-tile",
        caption=(
            f"What one program owns (computed): {rows} query positions of one head, and the keys they may see, drawn for "
            f"{q_len:,} queries over {kv_len:,} keys in tiles of {rows} × {block_n}. K and V pass by once, tile by tile; the "
            f"scores of a tile live only while it passes. Of {tiles.total} tiles a head computes {tiles.computed}."
        ),
        alt=(
            f"A map of {down} by {across} tiles of scores with the tiles of queries at its left and those of keys and values "
            f"above. One row of tiles is framed: its program walks over {mine + offset + 1} tiles of K and V from left to "
            f"right, the last of them on the diagonal and masked, and skips {across - mine - offset - 1} hatched ones. Below: "
            f"the query tile, m, l and acc stay in the program; after the last tile it writes acc divided by l, and lse. "
            f"{programs} programs in all."
        ),
    )


def backward_walks_figure(*, group_size: int = 4, tiles: int = 5) -> Figure:
    """The two walks of the backward pass over the same rectangle: dQ along the keys, dK and dV down the queries of a group.

    ValueError unless group_size is 1 to 4 and tiles 3 to 6: more cannot be drawn.
    """
    if not (1 <= group_size <= 4 and 3 <= tiles <= 6):
        raise ValueError(f"group_size must be 1 to 4 and tiles 3 to 6 to be drawn, got {group_size} and {tiles}")
    fig, ax = _sheet(46)
    side = 16.0
    cell = (side / tiles, side / tiles)
    row, column = tiles // 2 + 1, 1

    ax.text(1, 44.2, "dQ", fontsize=12, weight="bold", va="center")
    ax.text(1, 41.6, "owns a tile of queries,\nwalks along the keys", fontsize=10, va="top", linespacing=1.2)
    x, top = 2.5, 33.0
    _scores(ax, x, top, cell, tiles, tiles, 0, lambda r, c: r == row)
    y = top - (row + 0.5) * cell[1]
    _box(ax, x, top - (row + 1) * cell[1], cell[0] * (row + 1), cell[1], fill="none", edge=style.VERMILLION, line=2.0)
    _arrow(ax, (x + 0.3, y), (x + (row + 1) * cell[0] - 0.3, y), colour=style.VERMILLION, line=2.2)
    ax.text(x, 13.6, "3 products a tile:\nscores, dP, dQ", fontsize=10, va="top", linespacing=1.2)

    ax.text(25, 44.2, "dK and dV", fontsize=12, weight="bold", va="center")
    heads = "its head" if group_size == 1 else f"all {group_size} heads"
    ax.text(25, 41.6, f"owns a tile of keys, walks\ndown the queries of {heads}", fontsize=10, va="top", linespacing=1.2)
    for g in reversed(range(group_size)):
        dx, dy = 26.0 + 1.7 * g, top - 1.1 * (group_size - 1) + 1.1 * g
        _box(ax, dx - 0.25, dy - side - 0.25, side + 0.5, side + 0.5, fill=style.CARD, edge=style.GRID, line=0.8)
        _scores(ax, dx, dy, cell, tiles, tiles, 0, lambda r, c: c == column)
        if g == 0:
            cx = dx + (column + 0.5) * cell[0]
            _box(ax, dx + column * cell[0], dy - side, cell[0], side - column * cell[1], fill="none", edge=style.VERMILLION,
                 line=2.0)  # fmt: skip
            _arrow(ax, (cx, dy - column * cell[1] - 0.3), (cx, dy - side + 0.3), colour=style.VERMILLION, line=2.2)
    if group_size > 1:
        _arrow(ax, (26 + side + 0.9, top - side - 1.1 * (group_size - 1) + 0.6), (26 + side + 1.7 * (group_size - 1) + 0.9,
               top - side + 0.6), colour=style.VERMILLION, line=2.0)  # fmt: skip
    ax.text(26, 11.2, "4 products a tile:\nscores, dP, dV, dK", fontsize=10, va="top", linespacing=1.2)
    ax.text(1, 3.6, "Each sum stays in one program; nothing is added in memory.", fontsize=10, va="center",
            color=style.MUTED)  # fmt: skip
    return figure(
        fig,
        name="backward-walks",
        caption=(
            "Two kernels over the same tiles. A program of the first owns queries and sums dQ over keys; a program of the "
            f"second owns keys of one KV head and sums dK and dV over the queries of {heads} that share it."
        ),
        alt=(
            f"Left: a causal triangle of tiles with one row framed and an arrow along the keys, for dQ, three products a tile. "
            f"Right: {group_size} such triangle{'s' * (group_size > 1)} one behind the other, one for each query head of the "
            "group, with a column framed and an arrow down the queries"
            + (", and a second arrow from head to head" if group_size > 1 else "")
            + "; four products a tile, for dK and dV."
        ),
    )
