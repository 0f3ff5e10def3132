"""FLOPs of one MLA layer, expanded and absorbed, against the query tokens of a call (chapter 8)."""

import altair as alt

from ... import costs
from .base import (
    BLUE,
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
    vega_count,
    vega_digits,
    vega_sentence,
)
from .bytes_per_step import CONTEXTS

MODELS = ("DeepSeek-V3", "DeepSeek-V2-Lite", "Kimi K2", "GLM-5", "GLM-4.7-Flash", "MiniCPM3-4B", "Mistral Small 4 119B")
Q_LENS = tuple(sorted({round(2 ** (i / 2)) for i in range(35)} | {171}))
LINES = {"expanded: W^UK and W^UV on every key": ORANGE, "absorbed: on every query": BLUE}

COST = (
    "{model}, {context} keys: with {q_len} a layer costs {expanded} GFLOP expanded and {absorbed} absorbed, so {winner} needs "
    "{times} times fewer. From {crossover} on expanding wins ({limit} for a very long context). Heads and batch cancel."
)


def expand_or_absorb() -> Explorer:
    """Chapter 8: FLOPs of expanding against absorbing, with the model, the context and the query tokens to choose."""
    models = {str(costs.model(name)): costs.model(name).latent for name in MODELS}
    settings = {"model": "DeepSeek-V3", "log2_context": 15, "log2_q_len": 0}
    parameters = [
        menu("model", "model", models, settings["model"]),
        power("log2_context", "keys (cached and new)", 9, 17, settings["log2_context"]),
        power("log2_q_len", "query tokens", 0, 17, settings["log2_q_len"]),
        table("up_by_model", {name: one.up_flops for name, one in models.items()}),
        table(
            "pair_by_model", {name: [one.expanded.flops_per_pair, one.absorbed.flops_per_pair] for name, one in models.items()}
        ),
        table("crossing_by_model", {name: [one.crossover(n) for n in CONTEXTS] for name, one in models.items()}),
        table("limit_by_model", {name: one.crossover_limit for name, one in models.items()}),
        let("context", "pow(2, log2_context)"),
        let("q_len", "min(pow(2, log2_q_len), context)"),
        let("up", "up_by_model[model]"),
        let("pair", "pair_by_model[model]"),
        let("crossing", "crossing_by_model[model][log2_context - 9]"),
        let("pairs", "q_len * context - q_len * (q_len - 1) / 2"),
        let("expanded", "context * up + pairs * pair[0]"),
        let("absorbed", "q_len * up + pairs * pair[1]"),
    ]
    words = vega_sentence(
        COST,
        model="model",
        context="format(context, ',')",
        q_len=vega_count("q_len", "query token"),
        expanded=vega_digits("expanded / 1e9"),
        absorbed=vega_digits("absorbed / 1e9"),
        winner="absorbed < expanded ? 'absorbing' : 'expanding'",
        times=vega_digits("max(absorbed, expanded) / min(absorbed, expanded)"),
        crossover=vega_count("crossing", "query token"),
        limit=vega_digits("limit_by_model[model]"),
    )

    def flops(model: str, context_len: int, q_len: int) -> tuple[int, int]:
        return tuple(models[model].flops(form, q_len, context_len) for form in ("expanded", "absorbed"))

    def expected(model: str, log2_context: int, log2_q_len: int) -> list[dict]:
        return [
            {"line": line, "q_len_of_row": m, "gflop": value / 1e9}
            for m in Q_LENS
            for line, value in zip(LINES, flops(model, 2**log2_context, min(m, 2**log2_context)), strict=True)
        ]

    def sentence(model: str, log2_context: int, log2_q_len: int) -> str:
        context_len = 2**log2_context
        q_len = min(2**log2_q_len, context_len)
        expanded, absorbed = flops(model, context_len, q_len)
        return COST.format(
            model=model,
            context=f"{context_len:,}",
            q_len=count(q_len, "query token"),
            expanded=digits(expanded / 1e9),
            absorbed=digits(absorbed / 1e9),
            winner="absorbing" if absorbed < expanded else "expanding",
            times=digits(max(expanded, absorbed) / min(expanded, absorbed)),
            crossover=count(models[model].crossover(context_len), "query token"),
            limit=digits(models[model].crossover_limit),
        )

    names = list(LINES)
    x = alt.X(
        "m:Q", title="query tokens of the call", scale=alt.Scale(type="log", base=2, domain=[1, Q_LENS[-1]]),
        axis=axis(values=[1, 8, 64, 512, 4096, 32768], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "gflop:Q", title="GFLOP of one layer", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[10.0**n for n in range(-1, 8)], format=",~r"),
    )  # fmt: skip
    rows = (
        alt.Chart(alt.NamedData("calls"))
        .transform_calculate(m="min(datum.q_len_of_row, context)")
        .transform_calculate(
            gflop=f"((datum.line == '{names[0]}' ? context : datum.m) * up + "
            f"(datum.m * context - datum.m * (datum.m - 1) / 2) * pair[datum.line == '{names[0]}' ? 0 : 1]) / 1e9"
        )
    )
    colour = alt.Color("line:N", **colour_scale(LINES))
    one = alt.Chart(alt.InlineData([{}]))
    tip = [alt.Tooltip("line:N", title="form"), alt.Tooltip("gflop:Q", title="GFLOP", format=".3~r")]
    dots = [
        one.transform_calculate(m="q_len", line=f"'{name}'", gflop=f"{value} / 1e9")
        .mark_point(filled=True, size=100, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tip)
        for name, value in zip(names, ("expanded", "absorbed"), strict=True)
    ]
    layers = [
        one.transform_calculate(m="crossing").mark_rule(color=GREY, strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x),
        one.transform_calculate(m="crossing", text="'equal at ' + format(crossing, ',')")
        .mark_text(align="left", baseline="top", dx=5, fontSize=12)
        .encode(x=x, y=alt.value(2), text="text:N"),
        rows.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour),
        *dots,
    ]
    return Explorer(
        name="expand-or-absorb",
        chart=chart(
            "Expand the keys or absorb the queries", layers, parameters, words,
            datasets={"calls": [{"line": line, "q_len_of_row": m} for line in LINES for m in Q_LENS]},
        ),
        sentence=sentence(**settings) + " All of it is computed.",
        alt="FLOPs against query tokens, both logarithmic: the expanded form starts a hundred times higher and is flat at "
        "first; the absorbed form rises in proportion and crosses it near 171 query tokens.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
