"""What a token leaves behind, against heads: free for a latent, paid for by everything else (chapter 7)."""

import altair as alt

from ... import costs
from .base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    digits,
    let,
    menu,
    power,
    table,
    vega_bytes,
    vega_count,
    vega_digits,
    vega_sentence,
)

LATENT_DIMS = (128, 256, 384, 512, 768, 1024)
ROPE_DIMS = (32, 64, 128)
WIDTHS = (64, 128, 192, 256)
HEADS = tuple(2**n for n in range(3, 9))
D_MODEL = 7168  # DeepSeek-V3's, for the parameters
LINES = {
    "the latent and the rotary key": BLUE,
    "the same heads, expanded": ORANGE,
    "GQA-8, 128 wide": GREY,
    "GQA-2, 128 wide": GREEN,
}
MARK = "published models with MLA"

RECORD = (
    "A latent of {latent_dim} and a rotary key of {rope_dim}: {elements} numbers a token and layer, as many as {equivalent} "
    "KV heads of 128, whatever the heads. {heads} expanded, {nope_dim} + {rope_dim} and {head_dim_v} wide, would be "
    "{expanded}, {times} times as many. At {context} tokens one layer keeps {cache} instead of {expanded_cache} in 16 bits. "
    "The matrices of keys and values hold {parameters} million numbers ({direct} without a latent; model {d_model} wide), "
    "and an absorbed pair costs {pairs} times the FLOPs of an expanded one."
)


def latent_record() -> Explorer:
    """Chapter 7: bytes of one layer's cache against query heads, with latent, rotary part, widths and context to choose."""
    settings = {"latent_dim": 512, "rope_dim": 64, "log2_heads": 7, "nope_dim": 128, "head_dim_v": 128, "log2_context": 15}
    marks = [
        {"model": str(one), "n_heads": one.attention.n_q_heads, "elements": one.attention.elements_per_token, "line": MARK}
        for one in costs.models(doubtful=True)
        if one.latent
    ]
    parameters = [
        menu("latent_dim", "latent", LATENT_DIMS, settings["latent_dim"]),
        menu("rope_dim", "rotary part", ROPE_DIMS, settings["rope_dim"]),
        menu("nope_dim", "content key", WIDTHS, settings["nope_dim"]),
        menu("head_dim_v", "value", WIDTHS, settings["head_dim_v"]),
        power("log2_heads", "query heads", 3, 8, settings["log2_heads"]),
        power("log2_context", "tokens", 9, 17, settings["log2_context"]),
        table("of_a_token", {name: _grouped(name) for name in LINES if name.startswith("GQA")}),
        let("n_heads", "pow(2, log2_heads)"),
        let("context", "pow(2, log2_context)"),
        let("elements", "latent_dim + rope_dim"),
        let("of_a_head", "nope_dim + rope_dim + head_dim_v"),
        let("up", "latent_dim * n_heads * (nope_dim + head_dim_v)"),
    ]
    words = vega_sentence(
        RECORD,
        latent_dim="latent_dim",
        rope_dim="rope_dim",
        elements="format(elements, ',')",
        equivalent=vega_digits("elements / 256", 4),
        heads=vega_count("n_heads", "query head"),
        nope_dim="nope_dim",
        head_dim_v="head_dim_v",
        expanded="format(n_heads * of_a_head, ',')",
        times=vega_digits("n_heads * of_a_head / elements"),
        context="format(context, ',')",
        cache=vega_bytes("2 * context * elements"),
        expanded_cache=vega_bytes("2 * context * n_heads * of_a_head"),
        parameters=vega_digits(f"({D_MODEL} * elements + up) / 1e6", 4),
        direct=vega_digits(f"{D_MODEL} * n_heads * of_a_head / 1e6", 4),
        d_model=f"format({D_MODEL}, ',')",
        pairs=vega_digits("(latent_dim + elements) / of_a_head"),
    )

    def layer(n_heads: int, latent_dim: int, rope_dim: int, nope_dim: int, head_dim_v: int) -> costs.LatentAttention:
        return costs.LatentAttention(D_MODEL, n_heads, nope_dim, rope_dim, head_dim_v, latent_dim)

    def expected(log2_heads: int, log2_context: int, **widths) -> list[dict]:
        rows = []
        for n_heads in HEADS:
            one = layer(n_heads, **widths)
            shapes = (one.absorbed, one.expanded, *(costs.Attention.gqa(n_heads, kv, 128) for kv in (8, 2)))
            rows += [
                {"line": line, "heads_of_row": n_heads, "bytes": costs.cache_bytes(shape, 2**log2_context)}
                for line, shape in zip(LINES, shapes, strict=True)
            ]
        return rows

    def sentence(log2_heads: int, log2_context: int, **widths) -> str:
        one = layer(2**log2_heads, **widths)
        caches = [costs.cache_bytes(shape, 2**log2_context) for shape in (one.absorbed, one.expanded)]
        cache, expanded_cache = (costs.format_bytes(n_bytes, binary=False) for n_bytes in caches)
        return RECORD.format(
            latent_dim=one.latent_dim,
            rope_dim=one.rope_dim,
            elements=f"{one.elements_per_token:,}",
            equivalent=digits(one.equivalent_kv_heads(), 4),
            heads=count(one.n_heads, "query head"),
            nope_dim=one.nope_dim,
            head_dim_v=one.head_dim_v,
            expanded=f"{one.expanded.elements_per_token:,}",
            times=digits(one.expanded.elements_per_token / one.elements_per_token),
            context=f"{2**log2_context:,}",
            cache=cache,
            expanded_cache=expanded_cache,
            parameters=digits(one.kv_parameters / 1e6, 4),
            direct=digits(one.d_model * one.expanded.elements_per_token / 1e6, 4),
            d_model=f"{D_MODEL:,}",
            pairs=digits(one.absorbed.flops_per_pair / one.expanded.flops_per_pair),
        )

    x = alt.X(
        "heads_of_row:Q", title="query heads", scale=alt.Scale(type="log", base=2, domain=[HEADS[0], HEADS[-1]]),
        axis=axis(values=list(HEADS), format="d"),
    )  # fmt: skip
    y = alt.Y(
        "bytes:Q", title="cache of one layer", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[10.0**n for n in range(5, 12)], labelExpr=vega_bytes("datum.value", 1)),
    )  # fmt: skip
    names = list(LINES)
    lines = alt.Chart(alt.NamedData("records")).transform_calculate(
        bytes=f"2 * context * (datum.line == '{names[0]}' ? elements : datum.line == '{names[1]}' ? "
        "datum.heads_of_row * of_a_head : of_a_token[datum.line])"
    )
    colours = colour_scale(LINES)
    colour = alt.Color("line:N", **colours)
    published = (
        alt.Chart(alt.NamedData("published"))
        .transform_calculate(bytes="2 * context * datum.elements")
        .mark_point(filled=False, strokeWidth=2, size=80, opacity=1, shape="diamond")
        .encode(
            x=alt.X("n_heads:Q", title="query heads", scale=alt.Scale(type="log", base=2, domain=[HEADS[0], HEADS[-1]])),
            y=y,
            stroke=alt.Stroke("line:N", scale=alt.Scale(domain=[MARK], range=[GREY]), legend=alt.Legend(
                title=None, orient="bottom", direction="vertical", labelFontSize=12, labelLimit=0, symbolType="diamond",
                offset=6)),
            tooltip=[
                alt.Tooltip("model:N", title="model"),
                alt.Tooltip("n_heads:Q", title="query heads"),
                alt.Tooltip("elements:Q", title="numbers a token and layer"),
            ],
        )
    )  # fmt: skip
    tip = [alt.Tooltip("line:N", title="kept"), alt.Tooltip("text:N", title="one layer keeps")]
    layers = [
        lines.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour),
        published,
        lines.transform_filter("datum.heads_of_row == n_heads")
        .transform_calculate(text=vega_bytes("datum.bytes"))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tip),
    ]
    return Explorer(
        name="latent-record",
        chart=chart(
            "What a token leaves behind", layers, parameters, words,
            datasets={
                "records": [{"line": line, "heads_of_row": n} for line in LINES for n in HEADS],
                "published": marks,
            },
        ),
        sentence=sentence(**settings) + " Lines are computed; diamonds are published configurations (‡: doubtful).",
        alt="Cache of one layer against query heads, both logarithmic: the line of the latent is flat and lies between GQA-2 "
        "and GQA-8, the line of the expanded heads rises with the heads far above them; diamonds mark published models.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _grouped(name: str) -> int:
    """Elements a token of 'GQA-8, 128 wide'."""
    n_kv_heads = int(name.split("-")[1].split(",")[0])
    return costs.Attention.gqa(n_kv_heads, n_kv_heads, 128).elements_per_token
