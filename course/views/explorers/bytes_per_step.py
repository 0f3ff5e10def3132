"""Bytes that one step reads, weights and cache (chapter 0)."""

import altair as alt

from ... import costs
from .. import style
from .base import (
    BLUE,
    LEFT,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    let,
    menu,
    power,
    table,
    vega_bytes,
    vega_count,
    vega_seconds,
    vega_sentence,
)

MODELS = ("Llama 2 7B", "Llama 3.1 8B", "Llama 2 70B", "Llama 3.1 405B", "Gemma 3 27B", "DeepSeek-V3")
CONTEXTS = tuple(2**n for n in range(9, 18))
USERS = tuple(2**n for n in range(9))


def _equal_at(model: costs.Model, context_len: int) -> int:
    """Number of users at which a step comes closest to reading as much cache as weights."""
    cache = model.cache_bytes(context_len)

    def excess(users: int) -> float:
        return model.weight_bytes_read(users) - users * cache

    below, above = 1, 2
    while excess(above) > 0:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if excess(middle) > 0 else (below, middle)
    return min((below, above), key=lambda users: abs(excess(users)))


BYTES_PER_STEP = (
    "{model} with {users} of {context} tokens: one step reads {weights} of weights and {cache} of cache, so "
    "{share} is cache. "
    "At the {rate}/s of one {gpu} that takes {time}. Weights and cache are equal at about {equal}.{beyond}"
)
BEYOND = " The model was made for {longest} tokens: this is shape arithmetic."


def bytes_per_step() -> Explorer:
    """Chapter 0: which share of a decode step's bytes is weights and which is cache, for 1 to 256 users."""
    models, gpus = [costs.model(name) for name in MODELS], costs.gpus()
    settings = {"model": "Llama 2 70B", "log2_context": 15, "log2_users": 5, "gpu": "H100 SXM"}
    parameters = [
        menu("model", "model", MODELS, settings["model"]),
        power("log2_context", "tokens a user", 9, 17, settings["log2_context"]),
        power("log2_users", "users", 0, 8, settings["log2_users"]),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        table("weights_by_model", {m.name: [m.weight_bytes_read(u) for u in USERS] for m in models}),
        table("cache_by_model", {m.name: [m.cache_bytes(n) for n in CONTEXTS] for m in models}),
        table("equal_by_model", {m.name: [_equal_at(m, n) for n in CONTEXTS] for m in models}),
        table("longest_by_model", {m.name: m.max_context for m in models}),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        let("context", "pow(2, log2_context)"),
        let("users", "pow(2, log2_users)"),
        let("weights", "weights_by_model[model][log2_users]"),
        let("cache", "users * cache_by_model[model][log2_context - 9]"),
    ]
    words = vega_sentence(
        BYTES_PER_STEP,
        model="model",
        users=vega_count("users", "user"),
        context="format(context, ',')",
        weights=vega_bytes("weights"),
        cache=vega_bytes("cache"),
        share="format(cache / (weights + cache), '.0%')",
        rate=vega_bytes("bandwidth_by_gpu[gpu]"),
        gpu="gpu",
        time=vega_seconds("(weights + cache) / bandwidth_by_gpu[gpu]"),
        equal=vega_count("equal_by_model[model][log2_context - 9]", "user"),
        beyond="context > longest_by_model[model] ? "
        + vega_sentence(BEYOND, longest="format(longest_by_model[model], ',')")
        + " : ''",
    )

    def expected(model: str, log2_context: int, gpu: str, **_) -> list[dict]:
        one, bandwidth = costs.model(model), costs.gpu(gpu).bandwidth
        rows = []
        for users in USERS:
            weights, cache = one.weight_bytes_read(users), one.cache_bytes(2**log2_context, users)
            rows.append({"users": users, "weights": weights, "cache": cache, "seconds": (weights + cache) / bandwidth})
        return rows

    def sentence(model: str, log2_context: int, log2_users: int, gpu: str) -> str:
        one, context_len, users, bandwidth = (
            costs.model(model),
            2**log2_context,
            2**log2_users,
            costs.gpu(gpu).bandwidth,
        )
        weights, cache = one.weight_bytes_read(users), one.cache_bytes(context_len, users)
        return BYTES_PER_STEP.format(
            model=model,
            users=count(users, "user"),
            context=f"{context_len:,}",
            weights=costs.format_bytes(weights, binary=False),
            cache=costs.format_bytes(cache, binary=False),
            share=f"{cache / (weights + cache):.0%}",
            rate=costs.format_bytes(bandwidth, binary=False),
            gpu=gpu,
            time=costs.format_seconds((weights + cache) / bandwidth),
            equal=count(_equal_at(one, context_len), "user"),
            beyond=BEYOND.format(longest=f"{one.max_context:,}") if one.beyond_context(context_len) else "",
        )

    steps = (
        alt.Chart(alt.NamedData("steps"))
        .transform_calculate(
            weights="weights_by_model[model][datum.at]",
            cache="datum.users * cache_by_model[model][log2_context - 9]",
        )
        .transform_calculate(seconds="(datum.weights + datum.cache) / bandwidth_by_gpu[gpu]")
    )
    x = alt.X("users:O", title="users whose next token is computed together", axis=axis(labelAngle=0))
    colours = {"cache": ORANGE, "weights": BLUE}
    bars = (
        steps.transform_fold(["weights", "cache"], as_=["part", "bytes"])
        .transform_calculate(text=vega_bytes("datum.bytes"), of_all="datum.bytes / (datum.weights + datum.cache)")
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("bytes:Q", stack="normalize", title="share of the bytes", axis=axis(format="%", tickCount=5)),
            color=alt.Color("part:N", **colour_scale(colours)),
            order=alt.Order("part:N", sort="descending"),
            opacity=alt.condition("datum.users == users", alt.value(1.0), alt.value(0.6)),
            tooltip=[
                alt.Tooltip("part:N", title="what"),
                alt.Tooltip("text:N", title="bytes a step"),
                alt.Tooltip("of_all:Q", title="share", format=".1%"),
            ],
        )
    )
    # Over every second bar what the whole step reads, and how long that takes.
    over = steps.transform_filter("datum.at % 2 == 0").transform_calculate(
        all_bytes=vega_bytes("datum.weights + datum.cache", 3), all_time=vega_seconds("datum.seconds", 3)
    )
    row = {"fontSize": 11, "baseline": "bottom", "color": style.INK}
    heads = alt.Chart(alt.InlineData([{}]))
    layers = [
        bars,
        over.mark_text(**row).encode(x=x, y=alt.value(-20), text="all_bytes:N"),
        over.mark_text(**row).encode(x=x, y=alt.value(-5), text="all_time:N"),
        heads.mark_text(align="left", **row).encode(x=alt.value(-LEFT), y=alt.value(-20), text=alt.value("reads")),
        heads.mark_text(align="left", **row).encode(x=alt.value(-LEFT), y=alt.value(-5), text=alt.value("in")),
    ]
    return Explorer(
        name="bytes-per-step",
        chart=chart(
            "What one decode step reads", layers, parameters, words,
            datasets={"steps": [{"users": u, "at": i} for i, u in enumerate(USERS)]}, above=36,
        ),
        sentence=sentence(**settings),
        alt=(
            "Stacked bars for 1 to 256 users: the share of weights falls from nearly all to almost nothing as "
            "the share of cache grows."
        ),
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
