"""Drawings of a split decode step: who owns which interval and how the parts join, and how programs fill waves."""

from .. import costs
from . import style
from .diagrams import _arrow, _box, _card, _sheet
from .figures import Figure, figure

PARTS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE)


def split_merge_figure(*, context_len: int = 8192, num_splits: int = 4, rows: int = 4) -> Figure:
    """What a program owns: stage 1, one program an interval of the keys; the merge, one program a row.

    At most 4 splits and rows are drawn; ValueError for more, or for a context that the splits do not divide.
    """
    if not (2 <= num_splits <= len(PARTS) and 1 <= rows <= 4) or context_len % num_splits:
        raise ValueError(
            f"2 to {len(PARTS)} splits that divide context_len and 1 to 4 rows can be drawn, got {num_splits} splits of "
            f"{context_len} tokens and {rows} rows"
        )
    colours = PARTS[:num_splits]
    fig, ax = _sheet(53)
    pitch = 48 / num_splits
    width = pitch - 1.6

    def centre(part: int) -> float:
        return 1 + pitch * part + pitch / 2

    ax.text(1, 51.4, f"keys and values of one KV head: {context_len:,} tokens", fontsize=10.5, va="center")
    for part, colour in enumerate(colours):
        left = 1 + pitch * part + 0.8
        for cell in range(6):
            _box(ax, left + cell * width / 6, 46.6, width / 6, 3.0, fill=colour, line=0.8)
        ax.text(centre(part), 45.1, f"{context_len // num_splits:,}", ha="center", va="center", fontsize=10,
                color=style.MUTED)  # fmt: skip
        _arrow(ax, (centre(part), 43.9), (centre(part), 40.6), colour=colour, line=1.8)

    ax.text(1, 39.2, "stage 1: one program an interval, all rows of the group", fontsize=10.5, weight="bold", va="center")
    for part, colour in enumerate(colours):
        left = 1 + pitch * part + 0.8
        _card(ax, left, 32.2, width, 5.4, edge=colour, line=1.6)
        ax.text(centre(part), 35.9, f"program {part}", ha="center", va="center", fontsize=10)
        ax.text(centre(part), 33.6, "m, l, acc", ha="center", va="center", fontsize=10, color=style.MUTED)
        _arrow(ax, (centre(part), 32.0), (centre(part), 28.6), colour=colour, line=1.8)

    ax.text(1, 27.2, "partial results, in memory: of each row O and ℓ, float32", fontsize=10.5, va="center")
    top, step = 25.6, 2.2
    for part, colour in enumerate(colours):
        left = 1 + pitch * part + 0.8
        for r in range(rows):
            y = top - step * (r + 1)
            _box(ax, left, y, width - 2.4, step - 0.4, fill=colour, line=0)
            _box(ax, left + width - 2.0, y, 2.0, step - 0.4, fill=colour, line=0, alpha=0.55)
    bottom = top - step * rows
    _box(ax, 1.2, top - step - 0.2, 47.6, step, fill="none", edge=style.INK, line=1.6)
    _arrow(ax, (25, bottom - 0.3), (25, bottom - 3.6), colour=style.INK, line=1.8)
    ax.text(1, bottom - 5.0, "merge: one program a row (the frame), all splits", fontsize=10.5, weight="bold", va="center")
    _card(ax, 10, bottom - 11.2, 30, 4.4, edge=style.INK, line=1.6)
    ax.text(25, bottom - 8.95, "weights  exp(ℓᵢ − ℓ),  then  O, ℓ", ha="center", va="center", fontsize=10.5)
    ax.set_ylim(bottom - 12.4, 53)
    fig.set_figheight((53 - bottom + 12.4) * 0.1)
    return figure(
        fig,
        name=f"split-merge-{context_len}-{num_splits}-{rows}",
        caption=(
            f"What one program owns, drawn for one KV head with {rows} query head{'s' * (rows > 1)} and {num_splits} splits. "
            "Stage 1 cuts the keys; each program runs the loop of chapter 4 over its interval and leaves an output and a "
            "log-sum-exp for each row. The merge cuts the rows; each program meets every split of its row."
        ),
        alt=(
            f"Top to bottom: {context_len:,} keys cut into {num_splits} intervals of {context_len // num_splits:,}; a program "
            f"for each with its own m, l and acc; {num_splits} blocks of partial results with {rows} rows each, an output O "
            "and a log-sum-exp; a frame around the first row across all blocks, which one merge program turns into the row's O "
            "and log-sum-exp."
        ),
    )


def waves_figure(*, programs: tuple[int, ...] = (128, 136), sm_count: int = 132, tokens_in_all: int = 8 * 131_072) -> Figure:
    """How programs of one call fill the SMs: time to the right, SMs upwards, for each number of programs.

    Every program reads an equal share of the tokens. While all SMs read, the memory decides; a few programs left over read at
    their own speed. Drawn by ``costs.WaveModel`` without its fixed times, for the recorded speeds of an H200 where there is a
    recording.
    """
    from .explorers.split_sweep import _constants

    recording, model, _ = _constants()
    fig, axes = style.subplots(len(programs), 1, height=1.55 * len(programs) + 0.5, sharex=True)
    axes = axes if len(programs) > 1 else [axes]
    told, ends = [], []
    for ax, n in zip(axes, programs, strict=True):
        full, rest = divmod(n, sm_count)
        n_bytes = tokens_in_all / n * 512
        start = 0.0
        for wave, running in enumerate([sm_count] * full + [rest] * (rest > 0)):
            rate = min(model.program_rate, model.bandwidth / running)
            end = start + n_bytes / rate
            colour = style.BLUE if running > sm_count / 2 else style.VERMILLION
            ax.barh(running / 2, (end - start) * 1e6, left=start * 1e6, height=running, color=colour, edgecolor=style.CARD)
            # Words inside a wide bar, beside a thin one.
            thin = running < sm_count / 3
            x, y, colour = (start + end) / 2 * 1e6, running + 10 if thin else running / 2, style.INK if thin else "white"
            ax.text(x, y, f"{running} programs", ha="center", va="center", color=colour, fontsize=10)
            start = end
            told.append(f"{n} programs, wave {wave + 1}: {running} running, until {costs.format_seconds(end)}")
        ends.append(start)
        ax.set_title(f"{n} programs: {costs.format_seconds(start)}")
        ax.set_ylim(0, sm_count)
        ax.set_yticks([0, sm_count])
        ax.set_ylabel("SMs")
        ax.grid(visible=False)
    axes[-1].set_xlabel("µs")
    axes[-1].set_xlim(0, max(ends) * 1.02e6)
    kept = f"speeds {recording.label}" if recording else "assumed speeds"
    return figure(
        fig,
        name="waves-" + "-".join(map(str, programs)),
        caption=(
            f"The same keys in {' and in '.join(map(str, programs))} programs on {sm_count} SMs, one program an SM (computed, "
            f"with {kept}; without launch and merge). White is idle: the last few programs have the GPU to themselves and "
            "cannot use it."
        ),
        alt="Bars of SMs over time. " + "; ".join(told) + ".",
    )
