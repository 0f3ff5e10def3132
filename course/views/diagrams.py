"""Drawings of ideas: where a cached token goes, the shapes of a decode step, what one program owns."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from kernels import plan

from . import style
from .figures import Figure, figure

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"

UNIT = 0.1  # inches; drawings count in tenths of an inch, so that a text of 10 points is 1.4 units high


def _sheet(height: float):
    """An empty drawing of 50 units by ``height``; returns the figure and its axes."""
    fig, ax = style.subplots(height=height * UNIT)
    fig.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, style.WIDTH / UNIT), ylim=(0, height))
    ax.axis("off")
    return fig, ax


def _box(ax, x: float, y: float, width: float, height: float, *, fill: str, edge: str = style.CARD, line: float = 0.8, **more):
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, linewidth=line, **more))


def _card(ax, x: float, y: float, width: float, height: float, *, edge: str, fill: str = "none", line: float = 1.0, **more):
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.7")
    shape.set(facecolor=fill, edgecolor=edge, linewidth=line, **more)
    ax.add_patch(shape)


def _arrow(ax, start, end, *, colour: str, line: float = 1.4, bend: float = 0.0):
    shape = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0)
    shape.set(color=colour, linewidth=line)
    shape.set_connectionstyle("arc3", rad=bend)
    ax.add_patch(shape)


def written_chapters() -> frozenset[int]:
    """Numbers of the chapters that have a notebook."""
    return frozenset(int(path.name[:2]) for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


# Each question a cached token raises on its way: key, words, the chapters that answer it.
QUESTIONS = (
    ("interval", "whose interval?", (5,)),
    ("address", "which address?", (6,)),
    ("gpu", "which GPU?", (10,)),
    ("record", "which record?", (2, 7)),
    ("bits", "how many bits?", (11,)),
    ("tile", "who shares\nthe tile?", (4,)),
    ("softmax", "how does it enter the\nrunning softmax?", (3,)),
    ("merge", "how do the\nintervals join?", (5,)),
)


def token_path(lit: int | Iterable[int] | None = None, *, chapters: Iterable[int] | None = None) -> Figure:
    """The map of the course: one cached token's way through a decode step, top to bottom.

    ``lit``: chapter number(s) whose part keeps its colour while the rest fades; None lights everything. ``chapters``: numbers
    to print beside the questions; None prints those that have a notebook. ValueError if no question belongs to ``lit``.
    """
    wanted = None if lit is None else frozenset([lit] if isinstance(lit, int) else lit)
    known = {number for _, _, numbers in QUESTIONS for number in numbers}
    if wanted is not None and not wanted & known:
        raise ValueError(f"lit must name a chapter of the figure ({sorted(known)}), got {lit!r}")
    named = written_chapters() if chapters is None else frozenset(chapters)
    on = {key: wanted is None or bool(wanted & set(numbers)) for key, _, numbers in QUESTIONS}

    fig, ax = _sheet(69)
    token, faded = style.VERMILLION, "#c3c8d0"

    def tone(key: str, colour: str = style.BLUE) -> str:
        return colour if on[key] else faded

    def soft(key: str, colour: str = "#cfe4f2") -> str:
        return colour if on[key] else style.FAINT

    def ask(key: str, y: float) -> None:
        _, words, numbers = next(question for question in QUESTIONS if question[0] == key)
        shown = [number for number in numbers if number in named]
        x = 31.6
        for number in shown or [None]:
            ax.add_patch(Circle((x, y), 1.15 if number is not None else 0.45, color=tone(key), linewidth=0))
            if number is not None:
                ax.text(x, y - 0.05, str(number), color="white", ha="center", va="center", fontsize=9.5, weight="bold")
            x += 2.6
        bold = on[key] and wanted is not None
        # Bold letters are wider: the longest question would leave the sheet.
        size = 9.5 if bold and max(map(len, words.split("\n"))) > 20 else 10.5
        ax.text(x - 0.8, y, words, va="center", fontsize=size, weight="bold" if bold else "normal",
                color=style.INK if on[key] else style.MUTED, linespacing=1.15)  # fmt: skip

    def heading(y: float, words: str) -> None:
        # The path runs behind the words.
        ax.text(1, y, words, fontsize=10, color=style.MUTED, va="center", zorder=3,
                bbox={"facecolor": style.CARD, "edgecolor": "none", "pad": 1.2})  # fmt: skip

    # 1 the sequence, cut into intervals
    heading(66.4, "the cached tokens of one sequence, in order")
    cell, marked = 1.1, 13
    columns = [1.4 + i * cell + (i // 8) * 0.9 for i in range(24)]
    for i, x in enumerate(columns):
        _box(ax, x, 62.2, cell, 1.9, fill=token if i == marked else soft("interval"), line=0.6)
    for part in range(3):
        left, right = columns[part * 8], columns[part * 8 + 7] + cell
        ax.plot([left, left, right, right], [61.5, 61.0, 61.0, 61.5], color=tone("interval"), linewidth=1.6)
    ask("interval", 62.6)

    # 2 pages, on GPUs
    heading(58.2, "where its bytes lie")
    for x, edge in ((1.0, tone("gpu", style.GREEN)), (15.6, tone("gpu", style.GREEN))):
        _card(ax, x, 49.8, 13.4, 6.6, edge=edge, line=1.6)
    slots = [(1.9, 53.5), (8.2, 53.5), (1.9, 50.7), (16.5, 53.5), (22.8, 53.5), (16.5, 50.7), (22.8, 50.7), (8.2, 50.7)]
    place = {3: 6, 0: 4, 1: 2, 2: 0, 4: 1, 5: 3}  # logical page -> slot
    for slot, (x, y) in enumerate(slots):
        held = [page for page, where in place.items() if where == slot]
        for i in range(4):
            mine = bool(held) and held[0] * 4 + i == marked
            fill = token if mine else soft("address") if held else style.CARD
            _box(ax, x + i * 1.3, y, 1.3, 1.9, fill=fill, line=0.6)
        _box(ax, x, y, 5.2, 1.9, fill="none", edge=tone("address"), line=1.1, linestyle="-" if held else (0, (2, 2)))
    spot = (slots[6][0] + 1.3 * 1 + 0.65, slots[6][1])
    _arrow(ax, (columns[marked] + cell / 2, 60.7), (spot[0], spot[1] + 2.1), colour=token, bend=-0.22)
    ask("address", 54.6)
    ask("gpu", 51.3)

    # 3 the record
    heading(47.5, "what one token leaves behind, per layer")
    names = ("K₀", "V₀", "K₁", "V₁")
    for i, name in enumerate(names):
        left = 2.0 + i * 6.6
        _box(ax, left, 41.8, 6.2, 3.0, fill=soft("record"), edge=tone("record"), line=1.1)
        for step in range(1, 8):
            ax.plot([left + step * 6.2 / 8] * 2, [41.8, 42.5], color=tone("bits", style.PURPLE), linewidth=1.1)
        ax.text(
            left + 3.1,
            43.6,
            name,
            ha="center",
            va="center",
            fontsize=10,
            color=style.INK if on["record"] else style.MUTED,
        )
    _box(ax, 1.4, 41.2, 27.2, 4.2, fill="none", edge=token, line=1.6)
    _arrow(ax, (spot[0], spot[1] - 0.1), (spot[0], 45.6), colour=token)
    ask("record", 44.6)
    ask("bits", 41.6)

    # 4 the tile and its rows
    heading(38.7, "a tile of keys meets the query heads of its group")
    rows = (style.BLUE, style.GOLD, style.GREEN, style.PURPLE)
    top, left = 35.6, 8.6
    for r, colour in enumerate(rows):
        y = top - 1.9 * (r + 1)
        _box(ax, 2.0, y, 4.6, 1.6, fill=tone("tile", colour), line=0)
        ax.text(
            4.3,
            y + 0.75,
            f"q{'₀₁₂₃'[r]}",
            color=style.MUTED if not on["tile"] else style.INK if colour == style.GOLD else "white",
            ha="center",
            va="center",
            fontsize=9,
        )
        for c in range(8):
            mine = c == 5
            shade = soft("tile") if not mine else token
            _box(
                ax,
                left + c * 2.4,
                y,
                2.2,
                1.6,
                fill=shade,
                line=0,
                alpha=1 if not mine else (1.0 if on["tile"] else 0.55),
            )
    _arrow(ax, (spot[0] - 3.5, 41.0), (left + 5 * 2.4 + 1.1, top + 0.1), colour=token, bend=-0.1)
    ask("tile", 31.8)

    # 5 the running softmax
    heading(25.2, "each row folds it into three running values")
    for x, width, name in ((2.0, 4.6, "max"), (8.0, 4.6, "sum"), (14.0, 14.2, "weighted values")):
        _card(ax, x, 19.6, width, 3.2, edge=tone("softmax"), fill=soft("softmax"), line=1.2)
        ax.text(
            x + width / 2,
            21.15,
            name,
            ha="center",
            va="center",
            fontsize=9.5,
            color=style.INK if on["softmax"] else style.MUTED,
        )
    _arrow(ax, (left + 5 * 2.4 + 1.1, top - 7.7), (left + 5 * 2.4 + 1.1, 23.0), colour=token)
    ask("softmax", 21.2)

    # 6 the merge
    heading(17.0, "and the parts become one output")
    for part in range(3):
        x = 2.0 + part * 9.6
        mine = part == 1
        _card(ax, x, 11.4, 7.4, 2.9, edge=token if mine else tone("merge"), fill=soft("merge"), line=1.8 if mine else 1.2)
        ax.text(
            x + 3.7,
            12.8,
            f"part {part}",
            ha="center",
            va="center",
            fontsize=9.5,
            color=style.INK if on["merge"] else style.MUTED,
        )
        _arrow(ax, (x + 3.7, 11.2), (15.3 + (part - 1) * 1.6, 7.2), colour=token if mine else tone("merge"))
    _arrow(ax, (15.3, 19.4), (15.3, 14.5), colour=token)
    _card(ax, 8.6, 3.6, 13.4, 3.4, edge=tone("merge"), fill=soft("merge"), line=1.4)
    ax.text(
        15.3,
        5.25,
        "output, lse",
        ha="center",
        va="center",
        fontsize=10,
        color=style.INK if on["merge"] else style.MUTED,
    )
    ask("merge", 9.6)

    asked = "; ".join(
        words.replace("\n", " ")
        + (f" (chapter {', '.join(map(str, shown))})" if (shown := [n for n in numbers if n in named]) else "")
        for _, words, numbers in QUESTIONS
    )
    lighted = "" if wanted is None else f" Lit here: {'; '.join(w.replace(chr(10), ' ') for k, w, _ in QUESTIONS if on[k])}"
    suffix = "" if wanted is None else "-" + "-".join(map(str, sorted(wanted)))
    return figure(
        fig,
        name=f"token-path{suffix}",
        caption=(
            "One cached token's way through a decode step: follow the orange square. Each stage asks a question "
            f"that the course answers.{lighted}"
        ),
        alt=(
            "A path from top to bottom: the tokens of a sequence cut into three intervals; the pages on two GPUs "
            "that hold their bytes; the "
            "token's record of keys and values; a tile of keys against the four query heads of a group; the "
            "running maximum, sum and weighted "
            f"values; three parts merged into one output. Questions on the way: {asked}.{lighted}"
        ),
    )


ROW_COLOURS = (style.BLUE, style.GOLD, style.GREEN, style.PURPLE, style.SKY, style.VERMILLION)


def _rows(ax, x: float, top: float, width: float, height: float, colours: list[str | None]) -> None:
    """A stack of equal rows, top to bottom; None is a padded row, hatched."""
    step = height / len(colours)
    for i, colour in enumerate(colours):
        _box(ax, x, top - step * (i + 1), width, step, fill=colour or style.FAINT, line=0.4)
    padded = sum(colour is None for colour in colours)
    if padded:
        _box(ax, x, top - height, width, step * padded, fill="none", edge="#9aa1ad", line=0, hatch="////")
    _box(ax, x, top - height, width, height, fill="none", edge=style.MUTED, line=1.0)


def head_tiles_figure(n_q_heads: int = 32, n_kv_heads: int = 8, block_h: int = 16, *, q_len: int = 1) -> Figure:
    """What one program owns: the full-sequence kernel with one query head a program, above the grouped kernel.

    Drawn for one KV head: the rows of each program's tile coloured by query head, padded rows hatched, and one arrow for every
    time the same tile of keys and values is requested. ``block_h`` is the number of rows of a tile. ValueError if
    ``n_kv_heads`` does not divide ``n_q_heads`` or a number is not positive.
    """
    if min(n_q_heads, n_kv_heads, block_h, q_len) < 1 or n_q_heads % n_kv_heads:
        raise ValueError(
            f"n_kv_heads must divide n_q_heads and all numbers be at least 1, got {n_q_heads} query heads, "
            f"{n_kv_heads} KV heads, "
            f"block_h {block_h}, q_len {q_len}"
        )
    group_size = n_q_heads // n_kv_heads
    rows = group_size * q_len
    tiles = plan.head_tiles(group_size, 1, block_h=block_h, q_len=q_len)
    programs = plan.decode_programs(1, n_q_heads, n_kv_heads, block_h=block_h, q_len=q_len)
    colours = [ROW_COLOURS[r % group_size % len(ROW_COLOURS)] for r in range(rows)]
    shown = min(group_size, 4)

    fig, ax = _sheet(60)

    def memory(y: float, width: float) -> None:
        _card(ax, 1, y, width, 3.0, edge=style.BLUE, fill="#cfe4f2", line=1.3)
        ax.text(1 + width / 2, y + 1.45, "one tile of K and V, in memory", ha="center", va="center", fontsize=10)

    ax.text(1, 58.3, "one query head a program", fontsize=11.5, weight="bold", va="center")
    ax.text(1, 55.6, f"{n_q_heads} programs; each tile is requested {group_size} times" if group_size > 1
            else f"{n_q_heads} programs; no tile is shared", fontsize=10, color=style.MUTED, va="center")  # fmt: skip
    memory(50.6, 48)
    pitch, width = 48 / shown, min(9.0, 48 / shown - 2)
    for i in range(shown):
        x = 1 + pitch * i + (pitch - width) / 2
        last = i == shown - 1 and group_size > shown
        _arrow(ax, (x + width / 2, 50.4), (x + width / 2, 46.2), colour=style.VERMILLION, line=2.0)
        _rows(
            ax,
            x,
            45.8,
            width,
            10.0,
            ([ROW_COLOURS[(group_size - 1 if last else i) % len(ROW_COLOURS)]] * q_len + [None] * block_h)[:block_h],
        )
        ax.text(x + width / 2, 34.2, f"head {group_size - 1 if last else i}", ha="center", va="center", fontsize=10)
        if last:
            ax.text(x - (pitch - width) / 2, 41, "…", ha="center", va="center", fontsize=16, color=style.MUTED)

    ax.plot([1, 49], [31.6, 31.6], color=style.GRID, linewidth=1)
    ax.text(1, 29.4, "the group's heads as rows", fontsize=11.5, weight="bold", va="center")
    times = "once" if tiles == 1 else f"{tiles} times"
    ax.text(
        1,
        26.7,
        f"{programs} program{'s' * (programs > 1)}; each tile is requested {times}",
        fontsize=10,
        color=style.MUTED,
        va="center",
    )
    drawn = min(tiles, 2)
    memory(21.7, 26)
    pitch, width = 26 / drawn, 26 / drawn - (2 if drawn > 1 else 6)
    for i in range(drawn):
        x = 1 + pitch * i + (pitch - width) / 2
        _arrow(ax, (x + width / 2, 21.5), (x + width / 2, 17.3), colour=style.VERMILLION, line=2.0)
        first = i if i == 0 or tiles <= 2 else tiles - 1
        mine = colours[first * block_h : (first + 1) * block_h]
        _rows(ax, x, 16.9, width, 15.4, [*mine, *[None] * (block_h - len(mine))])
        if i and tiles > 2:
            ax.text(x - (pitch - width) / 2, 9, "…", ha="center", va="center", fontsize=16, color=style.MUTED)

    # What the rows of the last tile are.
    used = (rows - 1) % block_h + 1
    split = 16.9 - 15.4 * used / block_h
    at_work = f"{used} row{'s' * (used > 1)} at work"
    whose = f"{group_size} heads" if q_len == 1 else f"{q_len} tokens × {group_size} heads"
    notes = [((16.9 + split) / 2, f"{at_work}:\n{whose}" if tiles == 1 else f"the last tile:\n{at_work}")]
    if used < block_h:
        notes.append(((split + 1.5) / 2, f"{block_h - used} padded rows:\nmasked"))
    for y, words in notes:
        ax.text(30.4, y, words, va="center", fontsize=10, linespacing=1.25)
    for lo, hi in [(split, 16.9), (1.5, split)] if used < block_h else [(1.5, 16.9)]:
        ax.plot([28.4, 29.2, 29.2, 28.4], [hi - 0.3, hi - 0.3, lo + 0.3, lo + 0.3], color=style.MUTED, linewidth=1.2)

    shape = f"{n_q_heads} query heads over {n_kv_heads} KV head{'s' * (n_kv_heads > 1)}" + (
        f", {q_len} query tokens" if q_len > 1 else ""
    )
    return figure(
        fig,
        name=f"head-tiles-{n_q_heads}-{n_kv_heads}-{block_h}-{q_len}",
        caption=(
            f"What one program owns, drawn for one KV head ({shape}, tiles of {block_h} rows; computed). With one "
            "query head a program "
            f"{group_size} programs request the same tile; with the group as rows it is requested {times}. Padded "
            "rows are hatched."
        ),
        alt=(
            f"Above: {group_size} programs for one KV head, each with {q_len} row{'s' * (q_len > 1)} at work of "
            f"{block_h} and its own arrow from the same tile "
            f"of keys and values. Below: {tiles} program{'s' * (tiles > 1)} with {rows} rows at work, coloured by "
            f"query head, {tiles * block_h - rows} padded "
            f"rows, and {tiles} arrow{'s' * (tiles > 1)} from the tile. In all {n_q_heads} programs against {programs}."
        ),
    )


def decode_step_figure(*, n_q_heads: int = 8, n_kv_heads: int = 2, head_dim: int = 4, context_len: int = 6) -> Figure:
    """The shapes of one decode step, for one KV head of one sequence: q, cached K and V with the new row, weights, output.

    Cells are drawn one by one, so the sizes must be small (head_dim and context_len at most 12); ValueError otherwise.
    """
    if n_q_heads % n_kv_heads or not (1 <= head_dim <= 12 and 2 <= context_len <= 12):
        raise ValueError(
            "n_kv_heads must divide n_q_heads, head_dim be 1 to 12 and context_len 2 to 12 to be drawn, got "
            f"{n_q_heads}, {n_kv_heads}, "
            f"{head_dim}, {context_len}"
        )
    group_size = n_q_heads // n_kv_heads
    cell = min(1.9, 22 / context_len, 10.5 / head_dim, 9 / group_size)
    long, wide, tall = context_len * cell, head_dim * cell, group_size * cell
    fig, ax = _sheet(57)

    def grid(x: float, top: float, n_rows: int, n_columns: int, fill, edge: str = style.CARD) -> None:
        for r in range(n_rows):
            for c in range(n_columns):
                _box(ax, x + c * cell, top - (r + 1) * cell, cell, cell, fill=fill(r, c), edge=edge, line=0.8)
        _box(ax, x, top - n_rows * cell, n_columns * cell, n_rows * cell, fill="none", edge=style.MUTED, line=0.9)

    def label(x: float, y: float, name: str, shape: str, *, ha: str = "center") -> None:
        ax.text(x, y, name, ha=ha, va="center", fontsize=10.5, weight="bold")
        ax.text(x, y - 1.9, shape, ha=ha, va="center", fontsize=9.5, color=style.MUTED)

    def head(r: int, c: int) -> str:
        return ROW_COLOURS[r % len(ROW_COLOURS)]

    new, old = style.VERMILLION, "#cfe4f2"
    left, middle = 2.5, 15.5

    # q and the transposed keys
    ax.text(1, 55.3, "1  append the new token's key and value", fontsize=10.5, va="center")
    ax.text(1, 52.9, "2  scores: its queries against every cached key", fontsize=10.5, va="center")
    top = 46.4
    label(left + wide / 2, top + 3.4, "q", f"{group_size} × {head_dim}")
    grid(left, top, group_size, head_dim, head)
    ax.text((left + wide + middle) / 2, top - tall / 2, "×", ha="center", va="center", fontsize=14)
    label(middle + long / 2, top + 3.4, "cached Kᵀ", f"{head_dim} × {context_len}")
    grid(middle, top, head_dim, context_len, lambda r, c: new if c == context_len - 1 else old)
    ax.text(middle + long + 1.0, top - wide / 2, "← new", va="center", fontsize=10, color=new, weight="bold")

    # scores and the values
    top2 = top - max(wide, tall) - 11.2
    ax.text(1, top2 + 7.2, "3  softmax over each row, then its weighted values", fontsize=10.5, va="center")
    label(left + long / 2, top2 + 3.4, "weights", f"{group_size} × {context_len}")
    grid(left, top2, group_size, context_len, head)
    cross = left + long + 2.4
    ax.text(cross, top2 - tall / 2, "×", ha="center", va="center", fontsize=14)
    values = cross + 2.4
    label(values + wide / 2, top2 + 3.4, "cached V", f"{context_len} × {head_dim}")
    grid(values, top2, context_len, head_dim, lambda r, c: new if r == context_len - 1 else old)
    ax.text(values + wide + 0.8, top2 - long + cell / 2, "← new", va="center", fontsize=10, color=new, weight="bold")
    equals = values + wide + 4.6
    ax.text(equals, top2 - tall / 2, "=", ha="center", va="center", fontsize=14)
    label(equals + 2.4 + wide / 2, top2 + 3.4, "out", f"{group_size} × {head_dim}")
    grid(equals + 2.4, top2, group_size, head_dim, head)

    bottom = top2 - max(long, tall) - 2.6
    ax.set_ylim(bottom - 1.0, 57)
    fig.set_figheight((57 - bottom + 1.0) * UNIT)
    ax.text(
        1,
        bottom,
        f"the same for each of {n_kv_heads} KV head{'s' * (n_kv_heads > 1)}, each layer, each sequence",
        fontsize=10,
        color=style.MUTED,
        va="center",
    )
    return figure(
        fig,
        name=f"decode-step-{n_q_heads}-{n_kv_heads}-{head_dim}-{context_len}",
        caption=(
            f"Shapes of one decode step, drawn for one of {n_kv_heads} KV heads and its {group_size} query heads "
            f"({head_dim} wide, {context_len} cached tokens "
            "with the new one in orange). Every cell of K and V is read once; each query head has its own row of "
            "weights."
        ),
        alt=(
            f"Matrices drawn as cells. q, {group_size} by {head_dim}, times the cached keys transposed, "
            f"{head_dim} by {context_len}, gives {group_size} by "
            f"{context_len} scores; after a softmax of each row they multiply the cached values, {context_len} by "
            f"{head_dim}, to the output, {group_size} by "
            f"{head_dim}. The last column of the keys and the last row of the values belong to the new token."
        ),
    )
