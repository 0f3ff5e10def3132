"""Softmax of one row that arrives tile by tile, one step at a time (chapter 3)."""

import math

import altair as alt

from .. import style
from .base import BLUE, GREY, ORANGE, Explorer, axis, chart, colour_scale, let, menu, table

# name -> scores and values of one row. The first is worked by hand in the text.
ROWS = {
    "by hand": ((2.0, 0.0, 3.0, 1.0), (1.0, 2.0, 3.0, 4.0)),
    "rising": ((-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 2.5, 4.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)),
    "falling": ((4.0, 2.5, 2.0, 1.0, 0.5, 0.0, -1.0, -2.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)),
    "mixed": ((0.5, 1.5, -1.0, 0.0, 3.0, 2.0, -2.0, 3.5), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)),
    "all equal": ((1.0,) * 8, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)),
}
BLOCKS = (1, 2, 4)
LONGEST = 8
STATES = {"taken in": BLUE, "this tile": ORANGE, "not loaded yet": GREY}

NOTHING = "Nothing is taken in yet: m = −∞, l = 0, acc = 0."
STEP = "After tile {step} of {tiles}: largest score m = {m:g}, sum l = {l:.4f}, weighted values acc = {acc:.4f}. {moved}{end}"
MOVED = "The maximum rose: l and acc from before were multiplied by {rescale:.4f}."
KEPT = "The maximum stayed: nothing was rescaled."
BEGUN = "The first tile sets the maximum."
END = " All tiles are in: output acc ÷ l = {out:.4f}, lse = m + ln l = {lse:.4f}."


def states(scores: tuple[float, ...], values: tuple[float, ...], block: int) -> list[tuple[float, float, float, float]]:
    """(m, l, acc, factor by which the old sums were multiplied) after 0, 1, 2, … tiles of ``block`` keys."""
    m, l, acc = -math.inf, 0.0, 0.0
    found = [(m, l, acc, 0.0)]
    for start in range(0, len(scores), block):
        tile = scores[start : start + block]
        m_new = max(m, *tile)
        rescale = math.exp(m - m_new)
        weights = [math.exp(x - m_new) for x in tile]
        l = l * rescale + sum(weights)
        acc = acc * rescale + sum(w * v for w, v in zip(weights, values[start : start + block], strict=True))
        m = m_new
        found.append((m, l, acc, rescale))
    return found


def online_softmax() -> Explorer:
    """Chapter 3: a row's weights, relative to the running maximum; step through its tiles."""
    settings = {"row": "by hand", "block": 2, "step": 1}
    every = {f"{row}/{block}": states(*ROWS[row], block) for row in ROWS for block in BLOCKS}
    parameters = [
        menu("row", "scores", ROWS, settings["row"]),
        menu("block", "keys of a tile", BLOCKS, settings["block"]),
        alt.param(
            name="step", value=settings["step"], bind=alt.binding_range(min=0, max=LONGEST, step=1, name="tiles taken in ")
        ),
        table("scores_by_row", {row: scores for row, (scores, _) in ROWS.items()}),
        table("phrases", {key: [_words(found, at) for at in range(len(found))] for key, found in every.items()}),
        table("m_by_step", {key: [None, *(m for m, *_ in found[1:])] for key, found in every.items()}),
        let("run", "row + '/' + block"),
        let("at", "min(step, length(phrases[run]) - 1)"),
        let("m", "m_by_step[run][at]"),
        let("n_keys", "length(scores_by_row[row])"),
    ]

    def expected(row: str, block: int, step: int) -> list[dict]:
        scores, found = ROWS[row][0], every[f"{row}/{block}"]
        at = min(step, len(found) - 1)
        m = found[at][0]
        return [
            {"key": f"{j}", "weight": math.exp(scores[j] - m) if j < min(len(scores), at * block) else 0.0}
            for j in range(LONGEST)
        ]

    def sentence(row: str, block: int, step: int) -> str:
        found = every[f"{row}/{block}"]
        return _words(found, min(step, len(found) - 1))

    keys = alt.Chart(alt.NamedData("keys")).transform_calculate(
        key="'' + datum.j",
        weight="datum.j < min(n_keys, at * block) ? exp(scores_by_row[row][datum.j] - m) : 0",
    )
    named = keys.transform_filter("datum.j < n_keys").transform_calculate(
        state="datum.j >= at * block ? 'not loaded yet' : datum.j >= (at - 1) * block ? 'this tile' : 'taken in'",
        score="format(scores_by_row[row][datum.j], '.2~f')",
    )
    x = alt.X("key:O", title="key", axis=axis(labelAngle=0), scale=alt.Scale(paddingInner=0.25))
    y = alt.Y(
        "weight:Q", title="weight exp(score − m)", scale=alt.Scale(domain=[0, 1.15]),
        axis=axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f"),
    )  # fmt: skip
    colours = colour_scale(STATES)
    layers = [
        keys.mark_bar(opacity=0).encode(x=x, y=y),
        named.mark_bar().encode(
            x=x, y=y, color=alt.Color("state:N", **colours),
            tooltip=[
                alt.Tooltip("key:N", title="key"),
                alt.Tooltip("score:N", title="score"),
                alt.Tooltip("weight:Q", title="weight now", format=".4f"),
            ],
        ),
        named.mark_text(baseline="bottom", dy=-3, fontSize=12, color=style.INK).encode(x=x, y=y, text="score:N"),
    ]  # fmt: skip
    return Explorer(
        name="online-softmax",
        chart=chart(
            "One row, tile by tile", layers, parameters, "phrases[run][at]",
            datasets={"keys": [{"j": j} for j in range(LONGEST)]},
        ),
        sentence=sentence(**settings) + " Bars: weights relative to the largest score so far; the score stands on each.",
        alt="Bars of the weights of four keys with the scores 2, 0, 3 and 1 after the first tile of two: the first has weight "
        "1, the second 0.14, the others are not loaded yet.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _words(found: list[tuple[float, float, float, float]], at: int) -> str:
    """What the chart says after ``at`` tiles."""
    if at == 0:
        return NOTHING
    m, l, acc, rescale = found[at]
    moved = BEGUN if at == 1 else MOVED.format(rescale=rescale) if rescale < 1 else KEPT
    end = END.format(out=acc / l, lse=m + math.log(l)) if at == len(found) - 1 else ""
    return STEP.format(step=at, tiles=len(found) - 1, m=m, l=l, acc=acc, moved=moved, end=end)
