"""Models side by side: how their order changes with batch and context (chapter 9)."""

import altair as alt

from ... import costs
from .. import style
from .base import (
    BLUE,
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
    vega_count,
    vega_seconds,
    vega_sentence,
)
from .bytes_per_step import CONTEXTS
from .calculator import CACHES, peak, record_format
from .roofline import BATCHES

MODELS = (
    "Llama 2 7B",
    "Llama 3.1 8B",
    "gpt-oss-20b",
    "Gemma 3 27B",
    "Mixtral 8x7B",
    "Llama 3.1 70B",
    "gpt-oss-120b",
    "DeepSeek-V3",
    "Llama 3.1 405B",
)
ROW = 30  # pixels of a model: its name, and its bar below

SIDE_BY_SIDE = (
    "{users} of {context} tokens, {gpu}, {cache} cache: the fastest step is that of {fastest} with {least}, the slowest "
    "that of {slowest} with {most}. In {many} of {all} models attention takes longer than the "
    "weights. DeepSeek-V3 is number {rank}."
)


def models_side_by_side() -> Explorer:
    """Chapter 9: the floors of nine models' steps at one batch, context and GPU, shortest first."""
    models, gpus = [costs.model(name) for name in MODELS], costs.gpus()
    settings = {"log2_batch": 5, "log2_context": 13, "gpu": "H200 SXM", "cache": "16-bit"}
    everyone = range(len(MODELS))
    latest = MODELS.index("DeepSeek-V3")
    parameters = [
        power("log2_batch", "sequences", 0, 8, settings["log2_batch"]),
        power("log2_context", "tokens of a sequence", 9, 17, settings["log2_context"]),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        menu("cache", "cache", CACHES, settings["cache"]),
        table("names", list(MODELS)),
        table("read", [[m.weight_bytes_read(b) for b in BATCHES] for m in models]),
        table("active", [m.active_params for m in models]),
        table(
            "kept",
            [{c: [m.cache_bytes(n, 1, record_format(m.attention, c)) for n in CONTEXTS] for c in CACHES} for m in models],
        ),
        table("flops", [[m.decode_flops(n) for n in CONTEXTS] for m in models]),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("peak_by_gpu", {g.name: peak(g) for g in gpus}),
        let("context", "pow(2, log2_context)"),
        let("batch", "pow(2, log2_batch)"),
        let("bandwidth", "bandwidth_by_gpu[gpu]"),
        let("peak", "peak_by_gpu[gpu]"),
        let("weights", f"[{', '.join(_weights(i) for i in everyone)}]"),
        let("attention", f"[{', '.join(_attention(i) for i in everyone)}]"),
        let("steps", f"[{', '.join(f'weights[{i}] + attention[{i}]' for i in everyone)}]"),
        let("least", f"min({', '.join(f'steps[{i}]' for i in everyone)})"),
        let("most", f"max({', '.join(f'steps[{i}]' for i in everyone)})"),
    ]
    words = vega_sentence(
        SIDE_BY_SIDE,
        users=vega_count("batch", "sequence"),
        context="format(context, ',')",
        gpu="gpu",
        cache="cache",
        fastest="names[indexof(steps, least)]",
        least=vega_seconds("least"),
        slowest="names[indexof(steps, most)]",
        most=vega_seconds("most"),
        many=" + ".join(f"(attention[{i}] > weights[{i}] ? 1 : 0)" for i in everyone),
        all=str(len(MODELS)),
        rank="1 + " + " + ".join(f"(steps[{i}] < steps[{latest}] ? 1 : 0)" for i in everyone),
    )

    def floors(one: costs.Model, log2_batch: int, log2_context: int, gpu: str, cache: str) -> dict[str, costs.Floor]:
        chip = costs.gpu(gpu)
        return costs.decode_floors(
            one,
            2**log2_context,
            chip,
            batch=2**log2_batch,
            bytes_per_element=record_format(one.attention, cache),
            dtype=chip.half,
        )

    def expected(**chosen) -> list[dict]:
        rows = []
        for one in models:
            parts = floors(one, **chosen)
            weights, attention = parts["weights"].seconds, parts["attention"].seconds
            rows.append({"model": one.name, "weights": weights, "attention": attention, "step": weights + attention})
        return rows

    def sentence(**chosen) -> str:
        rows = expected(**chosen)
        order = sorted(rows, key=lambda row: row["step"])
        return SIDE_BY_SIDE.format(
            users=count(2 ** chosen["log2_batch"], "sequence"),
            context=f"{2 ** chosen['log2_context']:,}",
            gpu=chosen["gpu"],
            cache=chosen["cache"],
            fastest=order[0]["model"],
            least=costs.format_seconds(order[0]["step"]),
            slowest=order[-1]["model"],
            most=costs.format_seconds(order[-1]["step"]),
            many=sum(row["attention"] > row["weights"] for row in rows),
            all=len(rows),
            rank=1 + sum(row["step"] < rows[latest]["step"] for row in rows),
        )

    bars = (
        alt.Chart(alt.NamedData("bars"))
        .transform_calculate(weights="weights[datum.at]", attention="attention[datum.at]")
        .transform_calculate(step="datum.weights + datum.attention")
    )
    y = alt.Y("model:N", title=None, sort=alt.EncodingSortField("step", op="max", order="ascending"),
              axis=axis(labels=False, ticks=False, domain=False))  # fmt: skip
    x_axis = axis(labelExpr="datum.value == 0 ? '0' : " + vega_seconds("datum.value", 2), tickCount=3)
    colours = {"weights": BLUE, "attention": ORANGE}
    layers = [
        bars.transform_fold(["weights", "attention"], as_=["part", "seconds"])
        .transform_calculate(time=vega_seconds("datum.seconds", 3))
        .mark_bar(height=10, yOffset=6)
        .encode(
            y=y,
            x=alt.X("seconds:Q", title="least time of one step", axis=x_axis),
            color=alt.Color("part:N", **colour_scale(colours)),
            order=alt.Order("part:N", sort="descending"),
            tooltip=[
                alt.Tooltip("model:N", title="model"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("time:N", title="least time"),
            ],
        ),
        bars.mark_text(align="left", baseline="middle", dy=-7, fontSize=11, color=style.INK).encode(
            y=y, x=alt.value(0), text="model:N"
        ),
        bars.transform_calculate(time=vega_seconds("datum.step", 3))
        .mark_text(align="right", baseline="middle", dy=7, fontSize=11, color=style.INK)
        .encode(y=y, x=alt.value(-5), text="time:N"),
    ]
    made = chart(
        "Nine models, shortest step first", layers, parameters, words,
        datasets={"bars": [{"model": name, "at": i} for i, name in enumerate(MODELS)]},
    ).properties(height=ROW * len(MODELS))  # fmt: skip
    return Explorer(
        name="models-side-by-side",
        chart=made,
        sentence=sentence(**settings)
        + " Computed; each model on one GPU of that kind, as if its memory were large enough, all but the cache in 16 bits.",
        alt="Nine horizontal bars, one a model, sorted by the least time of one decode step, each divided into weights and "
        "attention; with 32 sequences of 8,192 tokens attention is the longer part in the models with many KV heads.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )


def _weights(i: int) -> str:
    return f"max(read[{i}][log2_batch] / bandwidth, 2 * active[{i}] * batch / peak)"


def _attention(i: int) -> str:
    return f"max(batch * kept[{i}][cache][log2_context - 9] / bandwidth, batch * flops[{i}][log2_context - 9] / peak)"
