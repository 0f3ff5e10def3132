"""What one absorbed query misses when the content key is rotated (chapter 7)."""

import json
import math

import altair as alt

from .base import (
    BLUE,
    GREEN,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    digits,
    let,
    menu,
    power,
    table,
    vega_sentence,
)

NOPE_DIM = 128
ROTATED = (16, 32, 64, 128)
BASES = {"10,000": 10_000.0, "500,000": 500_000.0, "1,000,000": 1_000_000.0}
DISTANCES = tuple(2**n for n in range(18))  # how many distances, from 0 on, one query has to serve
LINES = {
    "best query for all distances so far": ORANGE,
    "query made for distance 0": BLUE,
    "content key left unrotated (decoupled)": GREEN,
}

RESIDUAL = (
    "RoPE (base {base}) turns {rotated} of the {width} columns of a content key. {served} In the decoupled form nothing "
    "between query and latent turns, and one absorbed query is exact at every distance."
)
ONE = "One absorbed query serves one distance exactly."
MANY = (
    "The best single absorbed query for distances 0 to {last} misses {best} of the vectors it stands for (root mean square); "
    "the one made for distance 0 is off by {first} at distance {last}."
)


def speeds(rotated: int, base: float) -> list[float]:
    """Angle that each pair of columns turns by from one position to the next."""
    return [base ** (-2 * i / rotated) for i in range(rotated // 2)]


def best_residual(n_distances: int, rotated: int, base: float) -> float:
    """Relative residual of the best fixed vector for q R_0 U^T … q R_{n-1} U^T, all columns rotated, random U.

    The best vector is their mean. A pair that turns by an angle a step keeps the length of the mean of n unit vectors:
    sin(n a / 2) / (n sin(a / 2)). A random U leaves lengths in proportion.
    """
    kept = [(math.sin(n_distances * a / 2) / (n_distances * math.sin(a / 2))) ** 2 for a in speeds(rotated, base)]
    return math.sqrt(max(0.0, 1 - sum(kept) / len(kept)))


def first_residual(distance: int, rotated: int, base: float) -> float:
    """How far q R_distance U^T is from q U^T, relative to its length, all columns rotated."""
    cosines = [math.cos(distance * a) for a in speeds(rotated, base)]
    return math.sqrt(max(0.0, 2 - 2 * sum(cosines) / len(cosines)))


def rotary_residual() -> Explorer:
    """Chapter 7: the residual of a fixed absorbed query against the distances it serves, with RoPE on the content key."""
    settings = {"base_word": "10,000", "rotated": 128, "log2_distances": 10}
    keys = {f"{word}/{rotated}": (rotated, base) for word, base in BASES.items() for rotated in ROTATED}
    names = list(LINES)
    parameters = [
        menu("rotated", f"rotated columns of {NOPE_DIM}", ROTATED, settings["rotated"]),
        menu("base_word", "base of RoPE", BASES, settings["base_word"]),
        power("log2_distances", "distances served", 0, 17, settings["log2_distances"]),
        table("best_by", {key: [best_residual(n, *of) for n in DISTANCES] for key, of in keys.items()}),
        table("first_by", {key: [first_residual(n - 1, *of) for n in DISTANCES] for key, of in keys.items()}),
        let("turning", "base_word + '/' + rotated"),
        let("share", f"sqrt(rotated / {NOPE_DIM})"),
    ]
    percent = "format({}, '.3~p')".format
    words = vega_sentence(
        RESIDUAL,
        base="base_word",
        rotated="rotated",
        width=str(NOPE_DIM),
        served="log2_distances == 0 ? "
        + json.dumps(ONE)
        + " : "
        + vega_sentence(
            MANY,
            last="format(pow(2, log2_distances) - 1, ',')",
            best=percent("share * best_by[turning][log2_distances]"),
            first=percent("share * first_by[turning][log2_distances]"),
        ),
    )

    def at(base_word: str, rotated: int, n_distances: int) -> tuple[float, float]:
        share, base = math.sqrt(rotated / NOPE_DIM), BASES[base_word]
        best, first = best_residual(n_distances, rotated, base), first_residual(n_distances - 1, rotated, base)
        return share * best, share * first

    def expected(base_word: str, rotated: int, log2_distances: int) -> list[dict]:
        return [
            {"line": line, "context_len": n, "residual": value}
            for n in DISTANCES
            for line, value in zip(LINES, (*at(base_word, rotated, n), 0.0), strict=True)
        ]

    def sentence(base_word: str, rotated: int, log2_distances: int) -> str:
        best, first = at(base_word, rotated, 2**log2_distances)
        served = MANY.format(last=f"{2**log2_distances - 1:,}", best=_percent(best), first=_percent(first))
        return RESIDUAL.format(base=base_word, rotated=rotated, width=NOPE_DIM, served=served if log2_distances else ONE)

    x = alt.X(
        "context_len:Q", title="distances served, from 0 on",
        scale=alt.Scale(type="log", base=2, domain=[1, DISTANCES[-1]]),
        axis=axis(values=[1, 16, 256, 4096, 65536], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "residual:Q", title="relative residual", scale=alt.Scale(domain=[0, 1.6]), axis=axis(format="%", tickCount=6)
    )  # fmt: skip
    rows = alt.Chart(alt.NamedData("residuals")).transform_calculate(
        residual=f"datum.line == '{names[2]}' ? 0 : "
        f"share * (datum.line == '{names[0]}' ? best_by : first_by)[turning][datum.at]"
    )
    colour = alt.Color("line:N", **colour_scale(LINES))
    layers = [
        rows.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour),
        rows.transform_filter("datum.at == log2_distances")
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("line:N", title="query"),
                alt.Tooltip("context_len:Q", title="distances", format=","),
                alt.Tooltip("residual:Q", title="misses", format=".3~p"),
            ],
        ),
    ]
    return Explorer(
        name="rotary-residual",
        chart=chart(
            "One absorbed query for many distances", layers, parameters, words,
            datasets={
                "residuals": [{"line": line, "at": i, "context_len": n} for line in LINES for i, n in enumerate(DISTANCES)]
            },
        ),
        sentence=sentence(**settings),
        alt="Relative residual against the number of distances: zero for the unrotated content key; with rotation it is zero "
        "at one distance and grows, to most of the vector's length at a thousand distances.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _percent(share: float) -> str:
    """As d3's '.3~p' writes it."""
    return f"{digits(100 * share)}%"
