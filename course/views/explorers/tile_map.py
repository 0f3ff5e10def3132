"""Which tiles of the score matrix a full-sequence kernel computes (chapter 3)."""

import json

import altair as alt

from ... import costs
from ...costs.full_sequence import MASKS, mask_offset
from .. import style
from .base import (
    BLUE,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    digits,
    let,
    menu,
    vega_count,
    vega_sentence,
)

LONGEST = 1024
BLOCKS = (32, 64, 128, 256)
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
HEAD_DIM = 128
MOST = LONGEST // BLOCKS[0]  # tiles along an edge
KINDS = {"full": "whole: no mask needed", "masked": "diagonal or edge: masked", "skipped": "hidden: never loaded"}

MAP = (
    "{q_len} over {kv_len}, mask {mask}, tiles of {rows} × {block_n}. Of {total} a head computes {computed}, {full} of "
    "them without a mask, and never loads {skipped}. {n_q_heads} over {n_kv_heads}, {width} wide: {programs}; {flops} "
    "GFLOP in tiles for {needed} GFLOP that the mask leaves; {requested} million elements of K and V requested, "
    "{distinct} million distinct.{empty}"
)
EMPTY = " The first {queries} see no key at all: they give 0."


def tile_map() -> Explorer:
    """Chapter 3: queries against keys, tile by tile; what the alignment of a causal mask does when N > M."""
    settings = {
        "q_len": 384, "kv_len": 1024, "mask": "bottom-right", "rows": 128, "block_n": 128,
        "n_q_heads": 32, "n_kv_heads": 8,
    }  # fmt: skip
    shared = "min(n_kv_heads, n_q_heads)"
    last = "clamp(min({0} * rows, q_len) + offset, 0, kv_len)"  # keys that the last query of row tile {0} - 1 sees
    first = "clamp({0} * rows + 1 + offset, 0, kv_len)"  # and the first query of row tile {0}

    def over_row_tiles(term: str) -> str:
        return " + ".join(f"({tile} * rows < q_len ? {term.format(tile, tile + 1)} : 0)" for tile in range(MOST))

    parameters = [
        alt.param(
            name="q_len", value=settings["q_len"], bind=alt.binding_range(min=1, max=LONGEST, step=1, name="queries M ")
        ),
        alt.param(
            name="kv_len", value=settings["kv_len"], bind=alt.binding_range(min=1, max=LONGEST, step=1, name="keys N ")
        ),
        menu("mask", "causal mask", MASKS, settings["mask"]),
        menu("rows", "queries of a tile", BLOCKS, settings["rows"]),
        menu("block_n", "keys of a tile", BLOCKS, settings["block_n"]),
        menu("n_q_heads", "query heads", HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", HEADS, settings["n_kv_heads"]),
        let("offset", "mask == 'bottom-right' ? kv_len - q_len : mask == 'top-left' ? 0 : kv_len"),
        let("full", over_row_tiles(f"floor({first.format('{0}')} / block_n)")),
        let("computed", over_row_tiles(f"ceil({last.format('{1}')} / block_n)")),
        let("keys", over_row_tiles(last.format("{1}"))),
        let("total", "ceil(q_len / rows) * ceil(kv_len / block_n)"),
        let("shorter", "min(q_len, kv_len)"),
        let(
            "pairs",
            "mask == 'none' ? q_len * kv_len : mask == 'top-left' ? "
            "shorter * (shorter + 1) / 2 + (q_len - shorter) * kv_len : shorter * kv_len - shorter * (shorter - 1) / 2",
        ),
    ]  # fmt: skip
    number = "format({}, '.4~r')".format
    words = vega_sentence(
        MAP,
        q_len="format(q_len, ',') + (q_len == 1 ? ' query' : ' queries')",
        kv_len=vega_count("kv_len", "key"),
        mask="mask",
        rows="rows",
        block_n="block_n",
        total=vega_count("total", "tile"),
        computed="format(computed, ',')",
        full="format(full, ',')",
        skipped="format(total - computed, ',')",
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count(shared, "KV head"),
        width=str(HEAD_DIM),
        programs=vega_count("n_q_heads * ceil(q_len / rows)", "program"),
        flops=number(f"computed * rows * block_n * n_q_heads * {4 * HEAD_DIM} / 1e9"),
        needed=number(f"pairs * n_q_heads * {4 * HEAD_DIM} / 1e9"),
        requested=number(f"keys * n_q_heads * {2 * HEAD_DIM} / 1e6"),
        distinct=number(f"(keys > 0 ? {last.format('ceil(q_len / rows)')} : 0) * {shared} * {2 * HEAD_DIM} / 1e6"),
        empty=(
            f"mask == 'bottom-right' && q_len > kv_len ? {vega_sentence(EMPTY, queries=vega_count('q_len - kv_len', 'row'))}"
            " : ''"
        ),
    )

    def expected(q_len: int, kv_len: int, mask: str, rows: int, block_n: int, **heads) -> list[dict]:
        found = []
        for r in range(MOST):
            full, computed, _ = costs.tile_row(r, q_len, kv_len, rows, block_n, mask)
            for c in range(MOST):
                kind = "full" if c < full else "masked" if c < computed else "skipped"
                edges = {
                    "key": min(c * block_n, kv_len),
                    "key_end": min((c + 1) * block_n, kv_len),
                    "query": min(r * rows, q_len),
                    "query_end": min((r + 1) * rows, q_len),
                }
                found.append({"tile": f"{r}/{c}", "kind": KINDS[kind], **edges})
        return found

    def sentence(q_len: int, kv_len: int, mask: str, rows: int, block_n: int, n_q_heads: int, n_kv_heads: int) -> str:
        n_kv_heads = min(n_kv_heads, n_q_heads)
        attention = costs.Attention.gqa(n_q_heads, n_kv_heads, HEAD_DIM)
        tiles = costs.tile_map(q_len, kv_len, rows, block_n, mask=mask)
        if mask == "top-left":
            shorter = min(q_len, kv_len)
            needed = costs.attention_flops(attention, shorter, shorter, causal=True)
            needed += costs.attention_flops(attention, q_len - shorter, kv_len)
        else:
            needed = costs.attention_flops(attention, q_len, kv_len, causal=mask != "none")
        seen = min(max(q_len + mask_offset(q_len, kv_len, mask), 0), kv_len)
        return MAP.format(
            q_len=f"{q_len:,} {'query' if q_len == 1 else 'queries'}",
            kv_len=count(kv_len, "key"),
            mask=mask,
            rows=rows,
            block_n=block_n,
            total=count(tiles.total, "tile"),
            computed=f"{tiles.computed:,}",
            full=f"{tiles.full:,}",
            skipped=f"{tiles.skipped:,}",
            n_q_heads=count(n_q_heads, "query head"),
            n_kv_heads=count(n_kv_heads, "KV head"),
            width=HEAD_DIM,
            programs=count(n_q_heads * -(-q_len // rows), "program"),
            flops=digits(tiles.computed * rows * block_n * attention.flops_per_pair / 1e9, 4),
            needed=digits(needed / 1e9, 4),
            requested=digits(tiles.keys * n_q_heads * 2 * HEAD_DIM / 1e6, 4),
            distinct=digits(seen * n_kv_heads * 2 * HEAD_DIM / 1e6, 4),
            empty=EMPTY.format(queries=count(q_len - kv_len, "row")) if mask == "bottom-right" and q_len > kv_len else "",
        )

    # A tile outside the rectangle has no area.
    tiles = alt.Chart(alt.NamedData("tiles")).transform_calculate(
        key="min(datum.c * block_n, kv_len)",
        key_end="min((datum.c + 1) * block_n, kv_len)",
        query="min(datum.r * rows, q_len)",
        query_end="min((datum.r + 1) * rows, q_len)",
        tile="datum.r + '/' + datum.c",
        kind=(
            f"datum.c < floor({first.format('datum.r')} / block_n) ? {json.dumps(KINDS['full'])} : "
            f"datum.c < ceil({last.format('(datum.r + 1)')} / block_n) ? {json.dumps(KINDS['masked'])} : "
            f"{json.dumps(KINDS['skipped'])}"
        ),
    )
    x = alt.X(
        "key:Q", title="key position", scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef("kv_len"), nice=False),
        axis=axis(tickCount=5, format=",d", grid=False),
    )  # fmt: skip
    y = alt.Y(
        "query:Q", title="query position",
        scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef("q_len"), nice=False, reverse=True),
        axis=axis(tickCount=5, tickMinStep=1, format=",d", grid=False),
    )  # fmt: skip
    colours = colour_scale(dict(zip(KINDS.values(), (BLUE, ORANGE, "#d5d9e0"), strict=True)))
    layers = [
        tiles.mark_rect(stroke=style.CARD, strokeWidth=1).encode(
            x=x, x2="key_end:Q", y=y, y2="query_end:Q", color=alt.Color("kind:N", **colours),
            tooltip=[
                alt.Tooltip("kind:N", title="tile"),
                alt.Tooltip("query:Q", title="from query", format=",d"),
                alt.Tooltip("key:Q", title="from key", format=",d"),
            ],
        ),
        # The exact edge of the mask: where query i's last key lies.
        alt.Chart(alt.InlineData([{"end": 0}, {"end": 1}]))
        .transform_calculate(
            query="datum.end ? (mask == 'none' ? q_len : min(q_len, kv_len - offset)) : max(0, -offset)",
            key="mask == 'none' ? kv_len : datum.end ? min(q_len + offset, kv_len) : max(0, offset)",
        )
        .mark_line(color=style.INK, strokeWidth=1.5, strokeDash=[4, 3])
        .encode(x=x, y=y),
    ]  # fmt: skip
    return Explorer(
        name="tile-map",
        chart=chart(
            "Which tiles of the scores exist", layers, parameters, words,
            datasets={"tiles": [{"r": r, "c": c} for r in range(MOST) for c in range(MOST)]},
        ),
        sentence=sentence(**settings),
        alt="A rectangle of 384 queries, from top to bottom, by 1,024 keys, from left to right, cut into tiles of 128 by 128: "
        "in each row of tiles those on the left are whole, one lies on the diagonal, and those to its right are hidden. The "
        "diagonal ends in the bottom right corner.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
