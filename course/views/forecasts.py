"""How good the predictions are: the model's against recorded times, and the reader's own from their log."""

import math
from collections.abc import Collection, Sequence

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .. import costs
from . import style
from .figures import Figure, figure
from .predictions import prediction_log

SMALLEST = 10e6  # bytes; below, a call is so short that more than one fixed cost shows
WITHIN = 0.2


def predicted_against_measured(
    rows: Sequence[dict],
    prediction: costs.Prediction,
    gpu: costs.Gpu,
    *,
    label: str,
    seen: Collection[int] = (),
    name: str = "predicted-against-measured",
) -> Figure:
    """Predicted over measured time against bytes: the floor by the data sheet, and two constants.

    ``rows`` have ``cache_bytes``, ``flops`` and ``median_s``; those with fewer than 10 MB are left out. ``seen`` holds the
    places in ``rows`` that the constants were fitted on, which are drawn filled. ``label`` says where the times come from.
    """
    kept = [(i, row) for i, row in enumerate(rows) if row["cache_bytes"] >= SMALLEST]
    if not kept:
        raise ValueError("rows must hold at least one call of 10 MB or more")
    fig, ax = style.subplots(height=3.6)
    ax.axhspan(1 - WITHIN, 1 + WITHIN, color=style.FAINT, zorder=0)
    ax.axhline(1, color=style.INK, linewidth=1.2)
    off: dict[str, list[float]] = {}
    for words, colour, seconds in (
        ("floor, data sheet", style.VERMILLION,
         lambda row: costs.floor(row["cache_bytes"], row["flops"], gpu, dtype=gpu.half).seconds),
        (f"{costs.format_seconds(prediction.t0_s)} + bytes ÷ {costs.format_bytes(prediction.bandwidth, binary=False)}/s",
         style.BLUE, lambda row: prediction.seconds(row["cache_bytes"])),
    ):  # fmt: skip
        ratios = [seconds(row) / row["median_s"] for _, row in kept]
        off[words] = [ratio - 1 for ratio in ratios]
        look = style.STYLES["recorded"]
        ax.plot([row["cache_bytes"] for _, row in kept], ratios, color=colour, label=words, **look)
        if colour == style.BLUE:
            known = [(row["cache_bytes"], ratio) for (i, row), ratio in zip(kept, ratios, strict=True) if i in seen]
            ax.plot(*zip(*known, strict=True) if known else ([], []), color=colour, **look | {"markerfacecolor": colour})
    ax.set_xscale("log")
    ax.set_xlabel("bytes of the cache")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_bytes(value, binary=False)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    ax.set_ylabel("predicted ÷ measured")
    fig.legend(loc="outside upper left", ncols=1)
    worst = {words: max(map(abs, errors)) for words, errors in off.items()}
    many = {words: sum(abs(error) <= WITHIN for error in errors) for words, errors in off.items()}
    told = "; ".join(f"{words}: {many[words]} of {len(kept)} within 20%, worst {worst[words]:.0%}" for words in off)
    return figure(
        fig,
        name=name,
        caption=f"Predicted over measured time of decode calls of 10 MB and more; the band is 20% either way. {label}. "
        f"Filled: the calls that the two constants were fitted on. {told}.",
        alt=f"Points over the bytes of a call on a logarithmic axis; a level line at 1 is a perfect prediction. {told}.",
    )


def calibration(*, chapter: str = "9") -> Figure:
    """The reader's guesses over the answers, from the prediction log: each question's latest guess, one row each.

    Guesses of ``chapter`` are drawn in another colour. With an empty log the figure says so.
    """
    latest = {entry["name"]: entry for entry in prediction_log().entries if entry["guess"] > 0 and entry["answer"] > 0}
    entries = list(latest.values())
    fig, ax = style.subplots(height=1.6 + 0.28 * len(entries))
    ratios = [entry["guess"] / entry["answer"] for entry in entries]
    for place, (entry, ratio) in enumerate(zip(entries, ratios, strict=True)):
        tolerance = entry.get("tolerance", 0.1)
        ax.plot([1 - tolerance, 1 + tolerance], [place] * 2, color=style.GRID, linewidth=9, solid_capstyle="butt", zorder=1)
        colour = style.VERMILLION if entry["name"].startswith(f"{chapter}:") else style.BLUE
        ax.plot([ratio], [place], color=colour, zorder=3, **style.STYLES["live"])
    ax.axvline(1, color=style.INK, linewidth=1.2, zorder=2)
    ax.set_yticks(range(len(entries)), [entry["name"] for entry in entries])
    ax.set_ylim(max(1, len(entries)) - 0.5, -0.5)
    ax.set_xscale("log")
    reach = max([2.0, *(max(ratio, 1 / ratio) for ratio in ratios)]) * 1.15
    ax.set_xlim(1 / reach, reach)
    marks = [mark for mark in (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100) if 1 / reach <= mark <= reach]
    ax.xaxis.set_major_locator(FixedLocator(marks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    ax.set_xlabel("your guess ÷ the answer")
    ax.grid(axis="y", visible=False)
    if not entries:
        ax.text(1, 0, "no predictions yet", ha="center", va="center", color=style.MUTED,
                bbox={"facecolor": style.CARD, "edgecolor": "none"})  # fmt: skip
        told = "No predictions yet: give numbers in the predict cells of the chapters and run this cell again."
    else:
        right = sum(entry["within"] for entry in entries)
        lean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        spread = math.exp(sum(abs(math.log(ratio)) for ratio in ratios) / len(ratios))
        side = "high" if lean > 1 else "low"
        told = (
            f"{right} of {len(entries)} guesses within their tolerance; on average a factor {spread:.2f} away, leaning "
            f"{max(lean, 1 / lean):.2f} times to the {side} side."
        )
    return figure(
        fig,
        name="calibration",
        caption=f"Live: your guesses over the answers, each question's latest, with its tolerance in grey. {told}",
        alt=f"A row for each prediction, its place on a logarithmic axis the guess over the answer. {told}",
    )
