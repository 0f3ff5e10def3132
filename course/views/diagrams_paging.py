"""Drawings of chapter 6: what reserving wastes, pages behind a block table, and a ragged batch in equal shares."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter

from kernels import plan

from .. import costs
from . import style
from .diagrams import _arrow, _box, _sheet
from .figures import Figure, figure

COLOURS = (style.BLUE, style.GOLD, style.GREEN, style.PURPLE, style.SKY)
SHARED = "#8a93a3"
WORK_UNIT = 128  # tokens that a share of a work list is a multiple of, as in kernels/work_list.py


def reservation_figure(*, mean: int = 2000, capacity: int = 32_768, page_size: int = 16, rows: int = 8) -> Figure:
    """The same memory twice: ``rows`` blocks of ``capacity`` tokens, one sequence each, and filled with pages instead.

    Lengths are quantiles of an exponential distribution; the longest must not exceed the capacity. ValueError otherwise.
    """
    budget = rows * capacity
    lengths = costs.lengths_like("exponential", mean)
    many = costs.sequences_that_fit(budget, lengths, page_size=page_size)
    # 101 has no factor in common with 256: short and long ones in turn, the same on every call.
    drawn = [lengths[(101 * i + 37) % len(lengths)] for i in range(len(lengths))]
    blocks = costs.reserved(drawn[:rows], capacity)

    fig, ax = _sheet(45)
    width, pitch = 48.0, 1.9

    def strip(x: float, y: float, tokens: float, colour: str) -> None:
        _box(ax, x, y, width * tokens / capacity, 1.45, fill=colour, edge=style.CARD, line=0.5)

    ax.text(1, 43.2, f"reserved: {capacity:,} tokens for each", fontsize=11, weight="bold", va="center")
    ax.text(
        1, 40.8, f"{rows} sequences; {blocks.wasted:.0%} of the memory is empty", fontsize=10, color=style.MUTED, va="center"
    )
    for row in range(rows):
        y = 37.6 - row * pitch
        _box(ax, 1, y, width, 1.45, fill=style.FAINT, edge=style.MUTED, line=0.8)
        strip(1, y, drawn[row], COLOURS[row % len(COLOURS)])
    ax.text(1, 20.6, f"the same memory in pages of {page_size} tokens", fontsize=11, weight="bold", va="center")
    ax.text(1, 18.2, f"room for about {many} such sequences", fontsize=10, color=style.MUTED, va="center")
    at, i = 0, 0
    while at < budget:
        taken = min(costs.pages_of(drawn[i % len(drawn)], page_size) * page_size, budget - at)
        while taken > 0:  # a sequence goes on in the next row
            row, place = divmod(at, capacity)
            piece = min(taken, capacity - place)
            strip(1 + width * place / capacity, 15.0 - row * pitch, piece, COLOURS[i % len(COLOURS)])
            at, taken = at + piece, taken - piece
        i += 1
    mean_drawn = sum(lengths) / len(lengths)
    return figure(
        fig,
        name=f"reservation-{mean}-{capacity}-{page_size}",
        caption=(
            f"Computed: room for {budget:,} tokens. Above, a block of {capacity:,} tokens for each sequence, of which its own "
            f"tokens (coloured) fill a part. Below, the same room handed out in pages of {page_size} tokens, drawn in order; "
            f"lengths are exponentially distributed with a mean of {mean_drawn:,.0f}."
        ),
        alt=(
            f"Two stacks of {rows} strips, each {capacity:,} tokens long. In the upper one every strip holds one sequence, a "
            f"short coloured piece at its left end; {blocks.wasted:.0%} is empty. In the lower one the strips are filled from "
            f"end to end with the coloured pieces of about {many} sequences."
        ),
    )


def pages_figure(
    tables: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
    *,
    n_pages: int = 8,
    page_size: int = 4,
    token: tuple[str, int] | None = None,
) -> Figure:
    """Sequences, their block table, and the pages where their tokens lie.

    tables   the pages of each sequence, in order; a name is one or two letters
    lengths  its tokens
    token    (sequence, position) whose way through the table is drawn

    At most four sequences, eight pages of at most four tokens and four pages a sequence can be drawn; ValueError otherwise, or
    for a table that does not fit its length.
    """
    names = list(tables)
    if not (1 <= len(names) <= 4 and n_pages <= 8 and 1 <= page_size <= 4):
        raise ValueError(f"at most 4 sequences and 8 pages of 4 tokens, got {len(names)}, {n_pages}, {page_size}")
    if any(len(name) > 2 for name in names):
        raise ValueError(f"names of sequences are one or two letters, got {', '.join(names)}")
    for name in names:
        if len(tables[name]) != costs.pages_of(lengths[name], page_size) or len(tables[name]) > 4:
            raise ValueError(f"sequence {name!r} of {lengths[name]} tokens has {len(tables[name])} pages of {page_size}")
        if not all(0 <= page < n_pages for page in tables[name]):
            raise ValueError(f"pages go from 0 to {n_pages - 1}, got {list(tables[name])} for {name!r}")
    if token is not None and (token[0] not in names or not 0 <= token[1] < lengths[token[0]]):
        raise ValueError(f"token must be (sequence, position) of a token that exists, got {token!r}")
    tone = dict(zip(names, COLOURS, strict=False))
    owners = {page: [name for name in names if page in tables[name]] for page in range(n_pages)}
    filled = {
        page: max((min(lengths[n] - list(tables[n]).index(page) * page_size, page_size) for n in owners[page]), default=0)
        for page in range(n_pages)
    }

    row, cell = 3.1, 1.5
    top = 30.8 + 2 * row * (len(names) - 1)
    fig, ax = _sheet(top)

    def heading(y: float, words: str) -> None:
        # An arrow runs behind the words.
        box = {"facecolor": style.CARD, "edgecolor": "none", "pad": 1.2}
        ax.text(1, y, words, fontsize=10, color=style.MUTED, va="center", zorder=3, bbox=box)

    def colour(page: int) -> str:
        return SHARED if len(owners[page]) > 1 else tone[owners[page][0]]

    where: dict[str, tuple[float, float]] = {}
    y = top - 2
    heading(y, "logical: each sequence counts its own tokens")
    for i, name in enumerate(names):
        base = y - 4.0 - i * row
        ax.text(1.6, base + 0.95, name, fontsize=11, weight="bold", va="center", color=tone[name] if tone[name] != style.GOLD
                else style.INK)  # fmt: skip
        for j in range(lengths[name]):
            x = 4.2 + j * cell * 1.28 + (j // page_size) * 1.1
            lit = token == (name, j)
            _box(ax, x, base, cell * 1.28, 1.9, fill=style.VERMILLION if lit else colour(tables[name][j // page_size]))
            ax.text(x + cell * 0.64, base + 0.9, str(j), ha="center", va="center", fontsize=9,
                    color=style.INK if not lit and colour(tables[name][j // page_size]) in (style.GOLD, style.SKY)
                    else "white")  # fmt: skip
            if lit:
                where["logical"] = (x + cell * 0.64, base)
    y -= 4.0 + (len(names) - 1) * row + 3.2
    heading(y, "block table: the page of tokens 0…, one entry a page")
    for i, name in enumerate(names):
        base = y - 4.0 - i * row
        ax.text(1.6, base + 0.95, name, fontsize=11, weight="bold", va="center", color=tone[name] if tone[name] != style.GOLD
                else style.INK)  # fmt: skip
        for entry in range(max(len(t) for t in tables.values())):
            x = 4.2 + entry * 4.4
            used = entry < len(tables[name])
            lit = token is not None and token[0] == name and token[1] // page_size == entry
            _box(ax, x, base, 3.8, 2.1, fill=style.CARD if used else style.FAINT, edge=style.VERMILLION if lit else style.MUTED,
                 line=2.0 if lit else 0.9)  # fmt: skip
            ax.text(x + 1.9, base + 1.0, str(tables[name][entry]) if used else "?", ha="center", va="center", fontsize=10,
                    color=style.INK if used else style.MUTED)  # fmt: skip
            if lit:
                where["entry"] = (x + 1.9, base + 1.0)
    y -= 4.0 + (len(names) - 1) * row + 3.4
    heading(y, f"physical: {n_pages} pages of {page_size} tokens")
    columns = (n_pages + 1) // 2
    pitch = 48.5 / max(columns, 4)
    for page in range(n_pages):
        x, base = 1 + (page % columns) * pitch, y - 5.0 - (page // columns) * 6.2
        shown = len(owners[page])
        for slot in range(page_size):
            live = slot < filled[page]
            lit = token is not None and tables[token[0]][token[1] // page_size] == page and token[1] % page_size == slot
            fill = style.VERMILLION if lit else colour(page) if live else style.CARD
            _box(ax, x + slot * 2.4, base, 2.4, 2.2, fill=fill, edge=style.GRID, line=0.7)
            if lit:
                where["slot"] = (x + slot * 2.4 + 1.2, base + 2.2)
        _box(ax, x, base, 2.4 * page_size, 2.2, fill="none", edge=style.INK if shown else style.MUTED, line=1.2,
             linestyle="-" if shown else (0, (2, 2)))  # fmt: skip
        said = ", ".join(owners[page]) or "free"
        ax.text(x, base - 1.2, f"page {page}: {said}", fontsize=9, va="center", color=style.INK if shown else style.MUTED)
    if token is not None:
        ex, ey = where["entry"]
        _arrow(ax, (where["logical"][0], where["logical"][1] - 0.1), (ex, ey + 1.3), colour=style.VERMILLION, bend=0.05)
        _arrow(ax, (ex, ey - 1.2), (where["slot"][0], where["slot"][1] + 0.1), colour=style.VERMILLION, bend=-0.08)

    told = "; ".join(f"{name}, {lengths[name]} tokens: pages {', '.join(map(str, tables[name]))}" for name in names)
    free = [str(page) for page in range(n_pages) if not owners[page]]
    shared = [str(page) for page in range(n_pages) if len(owners[page]) > 1]
    way = ""
    if token is not None:
        name, j = token
        way = (
            f" Token {j} of {name} (orange): entry {j // page_size} of its row says page {tables[name][j // page_size]}, "
            f"where it is slot {j % page_size}."
        )
    facts = f"{told}. Free: {', '.join(free) or 'none'}.{' Shared (grey): ' + ', '.join(shared) + '.' if shared else ''}{way}"
    return figure(
        fig,
        name="pages-" + "-".join(f"{name}{lengths[name]}" for name in names).lower(),
        caption=f"Where tokens lie, {n_pages} pages of {page_size} tokens. {facts}",
        alt=f"Three levels: the tokens of each sequence in order, the block table, and {n_pages} pages in memory. {facts}",
    )


def even_splits(seq_lens: Sequence[int], num_splits: int, block_n: int = WORK_UNIT) -> list[list[tuple[int, int]]]:
    """(sequence, tokens) of each program if every sequence is cut into ``num_splits``, as `kernels/decode.py` does it."""
    programs = []
    for b, n in enumerate(seq_lens):
        length = plan.ceil_div(plan.ceil_div(n, block_n), num_splits) * block_n
        programs += [[(b, max(0, min(n, (i + 1) * length) - i * length))] for i in range(num_splits)]
    return programs


def equal_shares(seq_lens: Sequence[int], shares: int) -> list[list[tuple[int, int]]]:
    """(sequence, tokens) of the pieces of each share, as `kernels/work_list.py` cuts the batch."""
    units = [plan.ceil_div(n, WORK_UNIT) for n in seq_lens]
    per_share = max(1, plan.ceil_div(sum(units), shares))
    programs: list[list[tuple[int, int]]] = [[] for _ in range(shares)]
    at = 0
    for b, (n, count) in enumerate(zip(seq_lens, units, strict=True)):
        for first in range(count):
            tokens = min(WORK_UNIT, n - first * WORK_UNIT)
            mine = programs[at // per_share]
            if mine and mine[-1][0] == b:
                mine[-1] = (b, mine[-1][1] + tokens)
            else:
                mine.append((b, tokens))
            at += 1
    return programs


def work_figure(seq_lens: Sequence[int], programs: int) -> Figure:
    """Tokens of each program for one KV head: every sequence cut into as many splits, and the batch cut into equal shares.

    ``programs`` is a multiple of the number of sequences; ValueError otherwise.
    """
    if not seq_lens or programs < 1 or programs % len(seq_lens):
        raise ValueError(f"programs must be a multiple of the {len(seq_lens)} sequences, got {programs}")
    num_splits = programs // len(seq_lens)
    split, shared = even_splits(seq_lens, num_splits), equal_shares(seq_lens, programs)
    longest = [max(sum(n for _, n in one) for one in each) for each in (split, shared)]
    mean = sum(seq_lens) / programs

    fig, axes = style.subplots(2, 1, height=4.6, sharex=True, sharey=True)
    titles = (f"each sequence in {num_splits} splits", f"the batch in {programs} equal shares")
    for ax, title, each in zip(axes, titles, (split, shared), strict=True):
        for x, pieces in enumerate(each):
            bottom = 0
            for b, tokens in pieces:
                ax.bar(
                    x, tokens, bottom=bottom, width=0.84, color=COLOURS[b % len(COLOURS)], edgecolor=style.CARD, linewidth=0.8
                )
                bottom += tokens
        ax.axhline(mean, color=style.INK, linewidth=1.2, linestyle=(0, (4, 2)))
        ax.set_title(title)
        ax.set_ylabel("tokens")
        ax.grid(axis="x", visible=False)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes[1].set_xlabel("program")
    axes[1].set_xticks(range(0, programs, max(1, programs // 8)))
    ratios = [f"{most / mean:.1f}" for most in longest]
    said = ", ".join(f"{n:,}" for n in seq_lens)
    return figure(
        fig,
        name=f"work-{len(seq_lens)}-{programs}",
        caption=(
            f"Computed: tokens that each of {programs} programs of one KV head walks over, for sequences of {said} tokens; one "
            f"colour a sequence, dashed the mean. The longest walk decides: {ratios[0]} times the mean with equal numbers of "
            f"splits, {ratios[1]} times with equal shares."
        ),
        alt=(
            f"Two bar charts over {programs} programs. Above, bars of very different heights, the highest {longest[0]:,} "
            f"tokens. Below, bars of one height, at most {longest[1]:,} tokens, some of them made of pieces of two or more "
            f"sequences. The mean is {mean:,.0f}."
        ),
    )
