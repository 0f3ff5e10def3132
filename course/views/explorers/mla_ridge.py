"""An MLA decode step under a GPU's roofs: heads carry it over the ridge (chapter 8)."""

import json

import altair as alt

from ... import costs, measure
from .. import style
from ..measured_mla import SERIES, forms
from .base import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    dashes,
    digits,
    let,
    menu,
    source_of,
    table,
    vega_bytes,
    vega_count,
    vega_digits,
    vega_seconds,
    vega_sentence,
)

HEADS = (16, 20, 32, 64, 128)
DEGREES = (1, 2, 4, 8, 16)
Q_LENS = tuple(range(1, 9))
RECORDS = {"16-bit, 1,152 bytes": 2, "FP8 layout, 656 bytes": costs.FP8_MLA}
GPUS = ("H200 SXM", "H100 SXM", "A100 80GB SXM", "B200 SXM")
WORK = {
    "1 × 8,192": (1, 8192),
    "1 × 131,072": (1, 131072),
    "16 × 8,192": (16, 8192),
    "64 × 8,192": (64, 8192),
    "64 × 32,768": (64, 32768),
}
POINT, ROOFS = "this step", ("roofs: data sheet", "roofs: recorded rates")
MARKS = {label: f"recorded: {label}" for label in SERIES}
COLOURS = dict(zip(MARKS.values(), (BLUE, PURPLE, GREEN, GOLD), strict=True))

RIDGE = (
    "{n_heads} over {gpus} leave {heads} on each; with {q_len} a step reads {record} a token once for all of them: {intensity} "
    "FLOP per byte. The ridge of one {gpu} is {ridge} by its data sheet, {ridge_heads} with one query token: {bound}-bound. "
    "Batch × context {work}: {memory} to read {cache}, {compute} to multiply.{measured}"
)
MEASURED = " At the rates that were recorded the ridge is {ridge} FLOP per byte, {ridge_heads}: {bound}-bound there."


def _recorded() -> tuple[measure.Recording | None, dict | None]:
    """The newest recording with MLA in it, and its rates: bytes read and 16-bit FLOPs a second, sustained."""
    for recording in measure.recordings("NVIDIA H200", "mla"):
        if recording.kind == "mla":
            return recording, {"read": recording.read_bandwidth, "peak": recording.limit("matmul sustained", "flops")}
    return None, None


def _rows(recording: measure.Recording | None) -> list[dict]:
    """Recorded calls of one query token over a contiguous 16-bit cache, the fastest of each mark."""
    return [
        {
            "mark": MARKS[label],
            "heads_of_row": n_heads,
            "work_of_row": work,
            "intensity": row["flops"] / row["cache_bytes"],
            "tflops": row["flops"] / row["median_s"] / 1e12,
            "seconds": row["median_s"],
        }
        for work, (batch, context_len) in WORK.items()
        for label, found in forms(recording.rows if recording else (), batch, context_len).items()
        for n_heads, row in found.items()
    ]


def mla_ridge() -> Explorer:
    """Chapter 8: roofline of an absorbed MLA step: heads of the model, GPUs that share them, query tokens, record and GPU."""
    recording, rates = _recorded()
    rows, gpus = _rows(recording), [costs.gpu(name) for name in GPUS]
    home = costs.gpu(recording.provenance["gpu"]).name if recording else None
    settings = {
        "n_heads": 128,
        "n_gpus": 1,
        "q_len": 1,
        "record_word": "16-bit, 1,152 bytes",
        "gpu": "H200 SXM",
        "work": "64 × 8,192",
    }
    one = costs.Attention.mla(1)
    parameters = [
        menu("n_heads", "query heads of the model", HEADS, settings["n_heads"]),
        menu("n_gpus", "GPUs that share them", DEGREES, settings["n_gpus"]),
        menu("q_len", "query tokens", Q_LENS, settings["q_len"]),
        menu("record_word", "record", RECORDS, settings["record_word"]),
        menu("gpu", "GPU", GPUS, settings["gpu"]),
        menu("work", "batch × context", WORK, settings["work"]),
        table("bytes_by_record", {word: one.bytes_per_token(record) for word, record in RECORDS.items()}),
        table("tokens_by_work", {word: batch * context for word, (batch, context) in WORK.items()}),
        table("hidden_by_q_len", {str(m): m * (m - 1) // 2 for m in Q_LENS}),  # pairs the mask hides, a sequence
        table("batch_by_work", {word: batch for word, (batch, _) in WORK.items()}),
        table("flops_of_a_pair", one.flops_per_pair),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("peak_by_gpu", {g.name: g.peak_flops() for g in gpus}),
        table("rates_by_gpu", {home: rates} if rates else {}),
        # No GPU can hold less than one head.
        let("shared_by", "min(n_gpus, n_heads)"),
        let("heads", "ceil(n_heads / shared_by)"),
        let("record", "bytes_by_record[record_word]"),
        let("intensity", "heads * q_len * flops_of_a_pair / record"),
        let("bandwidth", "bandwidth_by_gpu[gpu]"),
        let("peak", "peak_by_gpu[gpu]"),
        let("ridge", "peak / bandwidth"),
        let("cache", "tokens_by_work[work] * record"),
        let(
            "flops",
            "heads * flops_of_a_pair * (q_len * tokens_by_work[work] - batch_by_work[work] * hidden_by_q_len[q_len])",
        ),
        let("has_rates", "isDefined(rates_by_gpu[gpu])"),
        let("read_rate", "has_rates ? rates_by_gpu[gpu].read : bandwidth"),
        let("sustained", "has_rates ? rates_by_gpu[gpu].peak : peak"),
    ]
    in_heads = "format({} * record / flops_of_a_pair, '.3~r') + ' heads'".format
    words = vega_sentence(
        RIDGE,
        n_heads=vega_count("n_heads", "head"),
        gpus=vega_count("shared_by", "GPU"),
        heads="heads",
        q_len=vega_count("q_len", "query token"),
        record="format(record, ',') + ' bytes'",
        intensity=vega_digits("intensity"),
        gpu="gpu",
        ridge=vega_digits("ridge"),
        ridge_heads=in_heads("ridge"),
        bound="flops / peak > cache / bandwidth ? 'compute' : 'memory'",
        work="work",
        memory=vega_seconds("cache / bandwidth", 3),
        cache=vega_bytes("cache"),
        compute=vega_seconds("flops / peak", 3),
        measured="has_rates ? "
        + vega_sentence(
            MEASURED,
            ridge=vega_digits("sustained / read_rate"),
            ridge_heads=in_heads("sustained / read_rate"),
            bound="flops / sustained > cache / read_rate ? 'compute' : 'memory'",
        )
        + " : ''",
    )

    def step(n_heads: int, n_gpus: int, q_len: int, record_word: str, work: str, **_) -> tuple:
        """Heads on a GPU, intensity, bytes and FLOPs."""
        heads = -(-n_heads // min(n_gpus, n_heads))
        attention, record = costs.Attention.mla(heads), RECORDS[record_word]
        batch, context_len = WORK[work]
        return (
            heads,
            costs.intensity(attention, q_len=q_len, bytes_per_element=record),
            costs.cache_bytes(attention, context_len, batch=batch, bytes_per_element=record),
            costs.decode_flops(attention, context_len, batch=batch, q_len=q_len),
        )

    def expected(gpu: str, **others) -> list[dict]:
        _, intensity, _, _ = step(**others)
        one_gpu = costs.gpu(gpu)
        tflops = min(one_gpu.peak_flops(), one_gpu.bandwidth * intensity) / 1e12
        return [{"point": POINT, "intensity": intensity, "tflops": tflops}]

    def sentence(gpu: str, **others) -> str:
        heads, intensity, n_bytes, flops = step(**others)
        one_gpu = costs.gpu(gpu)
        record = one.bytes_per_token(RECORDS[others["record_word"]])
        floor = costs.floor(n_bytes, flops, one_gpu)

        def as_heads(ridge: float) -> str:
            return f"{digits(ridge * record / one.flops_per_pair)} heads"

        measured = ""
        if gpu == home:
            bound = "compute" if flops / rates["peak"] > n_bytes / rates["read"] else "memory"
            ridge = rates["peak"] / rates["read"]
            measured = MEASURED.format(ridge=digits(ridge), ridge_heads=as_heads(ridge), bound=bound)
        return RIDGE.format(
            n_heads=count(others["n_heads"], "head"),
            gpus=count(min(others["n_gpus"], others["n_heads"]), "GPU"),
            heads=heads,
            q_len=count(others["q_len"], "query token"),
            record=f"{record:,} bytes",
            intensity=digits(intensity),
            gpu=gpu,
            ridge=digits(one_gpu.ridge()),
            ridge_heads=as_heads(one_gpu.ridge()),
            bound=floor.bound,
            work=others["work"],
            memory=_seconds(floor.memory_s),
            cache=costs.format_bytes(n_bytes, binary=False),
            compute=_seconds(floor.compute_s),
            measured=measured,
        )

    low, high = 1, 4096
    x = alt.X(
        "intensity:Q", title="FLOP per byte of cache", scale=alt.Scale(type="log", base=2, domain=[low, high]),
        axis=axis(values=[1, 4, 16, 64, 256, 1024, 4096], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "tflops:Q", title="TFLOP/s", scale=alt.Scale(type="log", domain=[1, 4000]),
        axis=axis(values=[1, 10, 100, 1000], format=","),
    )  # fmt: skip
    roofs = (
        alt.Chart(alt.NamedData("roofs"))
        .transform_filter(f"datum.roof == '{ROOFS[0]}' || has_rates")
        .transform_calculate(
            rate=f"datum.roof == '{ROOFS[0]}' ? bandwidth : read_rate",
            top=f"datum.roof == '{ROOFS[0]}' ? peak : sustained",
        )
        .transform_calculate(intensity=f"[{low}, datum.top / datum.rate, {high}][datum.corner]")
        .transform_calculate(tflops="min(datum.top, datum.rate * datum.intensity) / 1e12")
    )
    dash = dashes("roof:N", dict(zip(ROOFS, ([1, 0], [4, 3]), strict=True)), None if rates else 1)
    point = (
        alt.Chart(alt.NamedData("point"))
        .transform_calculate(intensity="heads * q_len * flops_of_a_pair / record")
        .transform_calculate(tflops="min(peak, bandwidth * datum.intensity) / 1e12")
    )
    shown = {row["mark"] for row in rows}
    marks = {mark: colour for mark, colour in COLOURS.items() if mark in shown}
    colours = colour_scale({f"{POINT}, at most": ORANGE, **marks})
    layers = [
        roofs.transform_filter("datum.corner == 1").mark_rule(color=GREY, strokeWidth=1).encode(x=x, strokeDash=dash),
        roofs.transform_filter(f"datum.corner == 1 && datum.roof == '{ROOFS[0]}'")
        .mark_text(align="left", baseline="top", dx=4, fontSize=12, color=style.INK)
        .encode(x=x, y=alt.value(2), text=alt.value("ridge")),
        roofs.mark_line(color=GREY, strokeWidth=2.5).encode(x=x, y=y, strokeDash=dash),
        point.transform_calculate(mark=json.dumps(f"{POINT}, at most"))
        .mark_point(filled=True, size=170, opacity=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("mark:N", **colours),
            tooltip=[
                alt.Tooltip("intensity:Q", title="FLOP per byte", format=".4~r"),
                alt.Tooltip("tflops:Q", title="TFLOP/s at most", format=".4~r"),
            ],
        ),
    ]
    if rows:
        mine = alt.Chart(alt.NamedData("recorded")).transform_filter(
            f"datum.work_of_row == work && gpu == {json.dumps(home)} && q_len == 1 && record_word == '{next(iter(RECORDS))}'"
        )
        layers.append(
            mine.transform_calculate(time=vega_seconds("datum.seconds"))
            .mark_point(filled=False, strokeWidth=2, size=70, opacity=1)
            .encode(
                x=x,
                y=y,
                color=alt.Color("mark:N", **colours),
                tooltip=[
                    alt.Tooltip("mark:N", title="of"),
                    alt.Tooltip("heads_of_row:Q", title="query heads"),
                    alt.Tooltip("tflops:Q", title="TFLOP/s", format=".4~r"),
                    alt.Tooltip("time:N", title="time of the call"),
                ],
            )
        )
    source = (
        f" Hollow marks, 16 to 128 heads: {source_of(recording)}" if rows else " Nothing is recorded yet: all of it is computed"
    )
    return Explorer(
        name="mla-ridge",
        chart=chart(
            "Heads carry MLA over the ridge", layers, parameters, words,
            datasets={
                "roofs": [{"roof": roof, "corner": c} for roof in ROOFS[: 2 if rates else 1] for c in range(3)],
                "point": [{"point": POINT}],
                **({"recorded": rows} if rows else {}),
            },
        ),
        sentence=sentence(**settings) + source + ".",
        alt="Roofline on logarithmic axes; the step with 128 heads stands just right of the ridge of the data sheet, further "
        "right of the recorded one; fewer heads on a GPU move it left onto the slope.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    """Three significant digits, as vega_seconds(…, 3) writes them."""
    return costs.format_seconds(float(f"{seconds:.3g}"))
