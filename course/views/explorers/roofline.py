"""Decode attention and a linear layer under a GPU's roof (chapter 1)."""

import json

import altair as alt

from ... import costs, measure
from .. import style
from .base import (
    BLUE,
    GREY,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    dashes,
    digits,
    let,
    menu,
    power,
    table,
    vega_count,
    vega_sentence,
)

BATCHES = tuple(2**n for n in range(9))
GROUPS = tuple(2**n for n in range(8))
Q_LENS = (1, 2, 4, 8)
WIDTHS = {"16-bit": 2, "8-bit": 1}
LINEAR_WIDTH = 4096  # d_model of the linear layer that stands beside attention

ROOFLINE = (
    "Decode attention with {group} for each KV head and {q_len}: {attention} FLOP per byte, at most "
    "{attention_share} of "
    "the peak. A linear layer on {tokens}: {linear} FLOP per byte, at most {linear_share}. The ridge of one "
    "{gpu} is {ridge} FLOP "
    "per byte by its data sheet{measured}.{fallback}"
)
MEASURED_RIDGE = ", {ridge} with the read rate that was recorded"
FALLBACK = " It has no rate for 8-bit products here: they run at the 16-bit rate."


def roofline() -> Explorer:
    """Chapter 1: decode attention and a linear layer under a GPU's roof: batch moves the second, never the first."""
    gpus = costs.gpus()
    read_rates = {costs.gpu(r.provenance["gpu"]).name: r.read_bandwidth for r in reversed(measure.recordings())}
    settings = {"log2_batch": 5, "group_size": 4, "q_len": 1, "numbers": "16-bit", "gpu": "H200 SXM"}
    pair = costs.Attention.gqa(1, 1, 128)
    parameters = [
        power("log2_batch", "batch", 0, 8, settings["log2_batch"]),
        menu("group_size", "query heads a KV head", GROUPS, settings["group_size"]),
        menu("q_len", "query tokens", Q_LENS, settings["q_len"]),
        menu("numbers", "numbers", WIDTHS, settings["numbers"]),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        table("element_bytes", WIDTHS),
        table("attention_unit", costs.intensity(pair, bytes_per_element=1)),
        table(
            "linear_by_log2_tokens",
            [costs.linear_intensity(2**n, LINEAR_WIDTH, LINEAR_WIDTH, bytes_per_element=1) for n in range(12)],
        ),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("read_rate_by_gpu", read_rates),
        table("peak_by_gpu", {g.name: {numbers: _peak(g, numbers) for numbers in WIDTHS} for g in gpus}),
        table("narrow_by_gpu", {g.name: "float8" in g.peaks for g in gpus}),
        let("batch", "pow(2, log2_batch)"),
        let("tokens", "batch * q_len"),
        let("peak", "peak_by_gpu[gpu][numbers]"),
        let("bandwidth", "bandwidth_by_gpu[gpu]"),
        let("ridge", "peak / bandwidth"),
        let("attention_intensity", "attention_unit * group_size * q_len / element_bytes[numbers]"),
        let("linear_intensity", "linear_by_log2_tokens[log2_batch + log(q_len) / LN2] / element_bytes[numbers]"),
    ]
    number, percent = "format({}, '.3~r')".format, "format(min(1, {} / ridge), '.3~p')".format
    words = vega_sentence(
        ROOFLINE,
        group=vega_count("group_size", "query head"),
        q_len=vega_count("q_len", "query token"),
        attention=number("attention_intensity"),
        attention_share=percent("attention_intensity"),
        tokens=vega_count("tokens", "token"),
        linear=number("linear_intensity"),
        linear_share=percent("linear_intensity"),
        gpu="gpu",
        ridge=number("ridge"),
        measured="isDefined(read_rate_by_gpu[gpu]) ? "
        + vega_sentence(MEASURED_RIDGE, ridge=number("peak / read_rate_by_gpu[gpu]"))
        + " : ''",
        fallback=f"numbers == '8-bit' && !narrow_by_gpu[gpu] ? {json.dumps(FALLBACK)} : ''",
    )

    def points(log2_batch: int, group_size: int, q_len: int, numbers: str, gpu: str) -> tuple[float, float, float]:
        """Intensity of attention and of the linear layer, and the ridge."""
        one, width = costs.gpu(gpu), WIDTHS[numbers]
        attention = costs.Attention.gqa(group_size, 1, 128)
        return (
            costs.intensity(attention, q_len=q_len, bytes_per_element=width),
            costs.linear_intensity(2**log2_batch * q_len, LINEAR_WIDTH, LINEAR_WIDTH, bytes_per_element=width),
            _peak(one, numbers) / one.bandwidth,
        )

    def expected(gpu: str, numbers: str, **others) -> list[dict]:
        attention, linear, _ = points(gpu=gpu, numbers=numbers, **others)
        peak, bandwidth = _peak(costs.gpu(gpu), numbers), costs.gpu(gpu).bandwidth
        return [
            {"work": work, "intensity": x, "tflops": min(peak, bandwidth * x) / 1e12}
            for work, x in (("decode attention", attention), ("linear layer", linear))
        ]

    def sentence(log2_batch: int, group_size: int, q_len: int, numbers: str, gpu: str) -> str:
        attention, linear, ridge = points(log2_batch, group_size, q_len, numbers, gpu)
        rate = read_rates.get(gpu)
        return ROOFLINE.format(
            group=count(group_size, "query head"),
            q_len=count(q_len, "query token"),
            attention=digits(attention),
            attention_share=_percent(attention / ridge),
            tokens=count(2**log2_batch * q_len, "token"),
            linear=digits(linear),
            linear_share=_percent(linear / ridge),
            gpu=gpu,
            ridge=digits(ridge),
            measured=MEASURED_RIDGE.format(ridge=digits(_peak(costs.gpu(gpu), numbers) / rate)) if rate else "",
            fallback=FALLBACK if numbers == "8-bit" and "float8" not in costs.gpu(gpu).peaks else "",
        )

    low, high = 0.5, 4096
    x = alt.X(
        "intensity:Q", title="FLOP per byte read", scale=alt.Scale(type="log", base=2, domain=[low, high]),
        axis=axis(values=[1, 4, 16, 64, 256, 1024, 4096], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "tflops:Q", title="TFLOP/s at most", scale=alt.Scale(type="log", domain=[0.1, 4000]),
        axis=axis(values=[0.1, 1, 10, 100, 1000], format=","),
    )  # fmt: skip
    roofs = (
        alt.Chart(alt.NamedData("roofs"))
        .transform_calculate(rate="datum.roof == 'roof: data sheet' ? bandwidth : read_rate_by_gpu[gpu]")
        .transform_filter("isValid(datum.rate)")
        .transform_calculate(intensity=f"[{low}, peak / datum.rate, {high}][datum.corner]")
        .transform_calculate(tflops="min(peak, datum.rate * datum.intensity) / 1e12")
    )
    dash = dashes("roof:N", {"roof: data sheet": [1, 0], "roof: recorded read rate": [4, 3]}, None if read_rates else 1)
    work = (
        alt.Chart(alt.NamedData("work"))
        .transform_calculate(intensity="datum.work == 'linear layer' ? linear_intensity : attention_intensity")
        .transform_calculate(tflops="min(peak, bandwidth * datum.intensity) / 1e12")
    )
    colours = colour_scale({"decode attention": ORANGE, "linear layer": BLUE})
    shapes = alt.Scale(domain=["decode attention", "linear layer"], range=["circle", "square"])
    layers = [
        roofs.transform_filter("datum.corner == 1").mark_rule(color=GREY, strokeWidth=1).encode(x=x, strokeDash=dash),
        roofs.transform_filter("datum.corner == 1 && datum.roof == 'roof: data sheet'")
        .mark_text(align="left", baseline="top", dx=4, fontSize=12, color=style.INK)
        .encode(x=x, y=alt.value(2), text=alt.value("ridge")),
        roofs.mark_line(color=GREY, strokeWidth=2.5).encode(x=x, y=y, strokeDash=dash),
        work.mark_rule(strokeWidth=1.5, strokeDash=[2, 3]).encode(
            x=x, y=y, y2=alt.Y2Datum(0.1), color=alt.Color("work:N", **colours)
        ),
        work.mark_point(filled=True, size=170, opacity=1).encode(
            x=x,
            y=y,
            color=alt.Color("work:N", **colours),
            shape=alt.Shape("work:N", scale=shapes, legend=colours["legend"]),
            tooltip=[
                alt.Tooltip("work:N", title="work"),
                alt.Tooltip("intensity:Q", title="FLOP per byte", format=".4~r"),
                alt.Tooltip("tflops:Q", title="TFLOP/s at most", format=".4~r"),
            ],
        ),
    ]
    return Explorer(
        name="roofline",
        chart=chart(
            "Under the roof: what batch moves", layers, parameters, words,
            datasets={
                "roofs": [{"roof": r, "corner": c} for r in ("roof: data sheet", "roof: recorded read rate") for c in range(3)],
                "work": [{"work": "decode attention"}, {"work": "linear layer"}],
            },
        ),
        sentence=sentence(**settings),
        alt="Roofline on logarithmic axes: the roof rises with FLOP per byte up to the ridge and is flat after it; "
        "decode attention stands far left of the ridge, a linear layer on 32 tokens further right.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _peak(gpu: costs.Gpu, numbers: str) -> float:
    """FLOP/s of products of 16- or 8-bit numbers; a GPU without 8-bit units multiplies them as 16-bit ones."""
    wide = gpu.peak_flops(gpu.half)
    return gpu.peaks.get("float8", wide) if numbers == "8-bit" else wide


def _percent(share: float) -> str:
    return f"{digits(min(1.0, share) * 100)}%"
