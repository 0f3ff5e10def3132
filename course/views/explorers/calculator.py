"""Any model on any GPU: least time of a step against context, and what fits (chapter 9)."""

import json

import altair as alt

from ... import costs, measure
from .. import style
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
    let,
    menu,
    power,
    table,
    vega_bytes,
    vega_count,
    vega_seconds,
    vega_sentence,
)

GPUS = (1, 2, 4, 8, 16)
CACHES = ("16-bit", "8-bit")
WEIGHTS = {"16-bit": 2, "8-bit": 1, "4-bit": 0.5}
PARTS = {  # what each line is, and its colour
    "step": ("whole step", GREY),
    "weights": ("weights", BLUE),
    "memory": ("attention, its bytes", ORANGE),
    "compute": ("attention, its products", GREEN),
}
RECORDED = "attention, recorded"

CALCULATOR = (
    "{model} on {gpus}, {users} of {context} tokens. A token leaves {token}{each}, a sequence {sequence}, all of them "
    "{cache}. A step takes at least {step}: weights {weights}, attention {attention} (its bytes {memory}, its products "
    "{compute}: bound by {bound}). {room}{copies}{uneven}{windows}{experts}{beyond}"
)
EACH = " on each GPU"
NO_ROOM = "The weights take {weights} of a memory of {memory}: they do not fit, and the times are bytes over bandwidth only."
ROOM = "The weights take {weights} of a memory of {memory}, which leaves room for {fit} such sequences{few}."
FEW = ": too few"
COPIES = " {copies} GPUs keep the same keys."
UNEVEN = " {asked} GPUs cannot divide the heads of this model: shown for {used}."
WINDOWS = " {layers} of {all} layers keep no more than {window} tokens."
EXPERTS = " Of the routed experts a step reads {share}, if all are equally popular."
BEYOND = " The model was made for {longest} tokens: this is shape arithmetic."


def record_format(attention: costs.Attention, cache: str) -> float | str:
    """Bytes of a cached number: 2, or for '8-bit' 1 and in MLA the layout that is deployed (656 bytes a record)."""
    if cache == "16-bit":
        return 2
    # The FP8 layout has a scale for each 128 of the latent; a latent that is no multiple has another layout, unknown here.
    return costs.FP8_MLA if attention.head_dim_shared else 1


def peak(gpu: costs.Gpu) -> float:
    """FLOP/s of 16-bit products."""
    return gpu.peak_flops(gpu.half)


def known_models() -> list[costs.Model]:
    """The models whose parameter counts have a source, newest families last, as the table has them."""
    return [one for one in costs.models() if one.total_params and one.active_params]


def _divides(attention: costs.Attention, n_gpus: int) -> bool:
    try:
        costs.split_heads(attention, n_gpus)
    except ValueError:
        return False
    return True


def _used(attention: costs.Attention, n_gpus: int) -> int:
    """The most GPUs, up to those asked for, over which the heads can be divided."""
    return max(t for t in GPUS if t <= n_gpus and _divides(attention, t))


def _coefficients(one: costs.Model) -> dict:
    """What Vega needs to know of a model; lists are by log2 of the number of GPUs."""
    used = [_used(one.attention, t) for t in GPUS]
    parts = [costs.split_heads(one.attention, t) for t in used]
    return {
        "used": used,
        "copies": [costs.kv_copies(one.attention, t) for t in used],
        "record": {cache: [part.bytes_per_token(record_format(part, cache)) for part in parts] for cache in CACHES},
        "pair": [part.flops_per_pair for part in parts],
        "shape": [_shape(part) for part in parts],
        "layers": one.n_layers,
        "sliding": one.n_window_layers,
        "window": one.window or 0,
        "total": one.total_params,
        "active": one.active_params,
        "unread": 1 - costs.experts_read(1, one.n_experts, one.n_active_experts) if one.n_experts else 1,
        "longest": one.max_context,
    }


def _shape(attention: costs.Attention) -> str:
    a = attention
    return f"{a.n_q_heads}/{a.n_kv_heads}/{a.head_dim_qk}/{a.head_dim_v}"


def _recorded_rows(gpu: costs.Gpu) -> tuple[measure.Recording | None, list[dict]]:
    """One row for each decode call of our kernels that was recorded over a contiguous cache, its splits left to it."""
    rows, newest = {}, None
    for kind in ("fp8", "mla", "decode"):
        for recording in measure.recordings("NVIDIA H200", kind)[:1]:
            newest = recording
            for row in recording.rows:
                ours = row["operation"] in ("decode", "mla_decode") and row["splits"] == "automatic"
                if not ours or row["status"] != "ok" or row.get("q_len", 1) != 1 or row.get("lengths", "equal") != "equal":
                    continue
                if row["dtype"] != "bfloat16":
                    continue
                shape = "/".join(str(row[key]) for key in ("n_q_heads", "n_kv_heads", "head_dim_qk", "head_dim_v"))
                cache = "8-bit" if row.get("cache_dtype") else "16-bit"
                key = shape, cache, row["batch"], row["context_len"]
                rows[key] = {"shape": shape, "cache": cache, "batch": row["batch"], "context_len": row["context_len"],
                             "layer": row["median_s"]}  # fmt: skip
    return newest, list(rows.values())


def calculator() -> Explorer:
    """Chapter 9: cache, both terms of the floor, the largest batch and the regime, for any model on any GPU."""
    models, gpus = known_models(), costs.gpus()
    where = costs.gpu("H200 SXM")
    recording, recorded = _recorded_rows(where)
    settings = {
        "model": "DeepSeek-V3",
        "gpu": "H200 SXM",
        "n_gpus": 8,
        "log2_context": 15,
        "log2_batch": 4,
        "cache": "16-bit",
        "weights_in": "8-bit",
    }
    parameters = [
        menu("model", "model", [m.name for m in models], settings["model"]),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        menu("n_gpus", "GPUs that share each layer", GPUS, settings["n_gpus"]),
        power("log2_context", "tokens of a sequence", 9, 18, settings["log2_context"]),
        power("log2_batch", "sequences", 0, 10, settings["log2_batch"]),
        menu("cache", "cache", CACHES, settings["cache"]),
        menu("weights_in", "weights", WEIGHTS, settings["weights_in"]),
        table("models", {m.name: _coefficients(m) for m in models}),
        table("bytes_of_a_weight", WEIGHTS),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("peak_by_gpu", {g.name: peak(g) for g in gpus}),
        table("memory_by_gpu", {g.name: g.memory_bytes for g in gpus}),
        let("context", "pow(2, log2_context)"),
        let("batch", "pow(2, log2_batch)"),
        let("m", "models[model]"),
        let("at", "round(log(n_gpus) / LN2)"),
        let("used", "m.used[at]"),
        let("bandwidth", "bandwidth_by_gpu[gpu]"),
        let("peak", "peak_by_gpu[gpu]"),
        let("memory_size", "memory_by_gpu[gpu]"),
        let("record", "m.record[cache][at]"),
        let("held", "m.total * bytes_of_a_weight[weights_in] / used"),
        let(
            "weights_s",
            "max((m.total - (m.total - m.active) * pow(m.unread, batch - 1)) * bytes_of_a_weight[weights_in] / used "
            "/ bandwidth, 2 * m.active * batch / used / peak)",
        ),
        let("tokens", _tokens("context")),
        let("memory_s", "batch * tokens * record / bandwidth"),
        let("compute_s", "batch * tokens * m.pair[at] / peak"),
        let("attention_s", "max(memory_s, compute_s)"),
        let("fit", "floor(max(0, memory_size - held) / (tokens * record))"),
    ]
    words = vega_sentence(
        CALCULATOR,
        model="model",
        gpus="used + ' × ' + gpu",
        users=vega_count("batch", "sequence"),
        context="format(context, ',')",
        token=vega_bytes("m.layers * record", binary=True),
        each=f"used > 1 ? {json.dumps(EACH)} : ''",
        sequence=vega_bytes("tokens * record", binary=True),
        cache=vega_bytes("batch * tokens * record", binary=True),
        step=vega_seconds("weights_s + attention_s"),
        weights=vega_seconds("weights_s"),
        attention=vega_seconds("attention_s"),
        memory=vega_seconds("memory_s"),
        compute=vega_seconds("compute_s"),
        bound="compute_s > memory_s ? 'arithmetic' : 'memory'",
        room="held > memory_size ? "
        + vega_sentence(NO_ROOM, weights=vega_bytes("held", binary=True), memory=vega_bytes("memory_size", binary=True))
        + " : "
        + vega_sentence(
            ROOM,
            weights=vega_bytes("held", binary=True),
            memory=vega_bytes("memory_size", binary=True),
            fit="format(fit, ',')",
            few=f"fit < batch ? {json.dumps(FEW)} : ''",
        ),
        copies="m.copies[at] > 1 ? " + vega_sentence(COPIES, copies="m.copies[at]") + " : ''",
        uneven="used < n_gpus ? " + vega_sentence(UNEVEN, asked="n_gpus", used="used") + " : ''",
        windows="m.sliding > 0 ? "
        + vega_sentence(WINDOWS, layers="m.sliding", all="m.layers", window="format(m.window, ',')")
        + " : ''",
        experts="m.total > m.active ? " + vega_sentence(EXPERTS, share="format(1 - pow(m.unread, batch), '.1%')") + " : ''",
        beyond="context > m.longest ? " + vega_sentence(BEYOND, longest="format(m.longest, ',')") + " : ''",
    )
    contexts = sorted({round(512 * 2 ** (i / 4)) for i in range(37)})

    def served(model, gpu, n_gpus, log2_batch, cache, weights_in, context_len) -> costs.Serving:
        one = costs.model(model)
        return costs.serve(
            one,
            gpu,
            context_len,
            batch=2**log2_batch,
            n_gpus=_used(one.attention, n_gpus),
            bytes_per_element=record_format(one.attention, cache),
            weight_bytes_per_element=WEIGHTS[weights_in],
        )

    def expected(log2_context: int, **others) -> list[dict]:
        rows = []
        for context_len in contexts:
            s = served(context_len=context_len, **others)
            rows.append(
                {
                    "context_len": context_len,
                    "weights": s.floors["weights"].seconds,
                    "memory": s.floors["attention"].memory_s,
                    "compute": s.floors["attention"].compute_s,
                    "step": s.seconds,
                    "fits": int(s.fits),
                }
            )
        return rows

    def sentence(log2_context: int, **others) -> str:
        s = served(context_len=2**log2_context, **others)
        one, part, asked = s.model, s.floors["attention"], others["n_gpus"]
        held, size = _size(s.weight_bytes), _size(s.gpu.memory_bytes)
        if s.weights_fit:
            room = ROOM.format(weights=held, memory=size, fit=f"{s.max_batch:,}", few="" if s.fits else FEW)
        else:
            room = NO_ROOM.format(weights=held, memory=size)
        split = costs.split_heads(one.attention, s.n_gpus)
        token = one.n_layers * split.bytes_per_token(record_format(split, others["cache"]))
        share = costs.experts_read(s.batch, one.n_experts, one.n_active_experts) if one.n_experts else 1
        return CALCULATOR.format(
            model=one.name,
            gpus=f"{s.n_gpus} × {s.gpu.name}",
            users=count(s.batch, "sequence"),
            context=f"{s.context_len:,}",
            token=_size(token),
            each=EACH if s.n_gpus > 1 else "",
            sequence=_size(s.sequence_bytes),
            cache=_size(s.cache_bytes),
            step=costs.format_seconds(s.seconds),
            weights=costs.format_seconds(s.floors["weights"].seconds),
            attention=costs.format_seconds(part.seconds),
            memory=costs.format_seconds(part.memory_s),
            compute=costs.format_seconds(part.compute_s),
            bound="arithmetic" if part.bound == "compute" else "memory",
            room=room,
            copies=COPIES.format(copies=s.kv_copies) if s.kv_copies > 1 else "",
            uneven=UNEVEN.format(asked=asked, used=s.n_gpus) if s.n_gpus < asked else "",
            windows=WINDOWS.format(layers=one.n_window_layers, all=one.n_layers, window=f"{one.window:,}")
            if one.window
            else "",
            experts=EXPERTS.format(share=f"{share:.1%}") if one.total_params > one.active_params else "",
            beyond=BEYOND.format(longest=f"{one.max_context:,}") if s.beyond_context else "",
        )

    x = alt.X(
        "context_len:Q", title="cached tokens of each sequence (faint: more than fits)",
        scale=alt.Scale(type="log", base=2, domain=[contexts[0], contexts[-1]], clamp=True),
        axis=axis(values=[512, 2048, 8192, 32768, 131072], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="least time of one step", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[10.0**n for n in range(-7, 4)], labelExpr=vega_seconds("datum.value")),
    )  # fmt: skip
    meaning = dict(PARTS.values()) | ({RECORDED: ORANGE} if recorded else {})
    channel = colour_scale(meaning)
    channel["legend"].symbolOpacity = 1  # the faint lines have the same legend
    colour = alt.Color("what:N", **channel)
    grid = (
        alt.Chart(alt.NamedData("grid"))
        .transform_calculate(tokens=_tokens("datum.context_len"), weights="weights_s")
        .transform_calculate(
            memory="batch * datum.tokens * record / bandwidth", compute="batch * datum.tokens * m.pair[at] / peak"
        )
        .transform_calculate(
            step="datum.weights + max(datum.memory, datum.compute)",
            fits="batch <= floor(max(0, memory_size - held) / (datum.tokens * record)) && held <= memory_size ? 1 : 0",
        )
        .transform_fold(list(PARTS), as_=["part", "seconds"])
        .transform_calculate(what=f"{json.dumps({key: words for key, (words, _) in PARTS.items()})}[datum.part]")
    )
    width = alt.StrokeWidth("part:N", legend=None, scale=alt.Scale(domain=list(PARTS), range=[4, 2, 2, 2]))
    lines = {"x": x, "y": y, "color": colour, "strokeWidth": width}
    own = alt.Chart(alt.InlineData([{}])).transform_calculate(context_len=f"clamp(m.longest, 512, {contexts[-1]})")
    here = alt.Chart(alt.InlineData([{}])).transform_calculate(context_len="context", seconds="weights_s + attention_s")
    mine = (
        alt.Chart(alt.NamedData("recorded"))
        .transform_filter(
            f"gpu == {json.dumps(where.name)} && datum.cache == cache && datum.batch == batch && "
            "datum.shape == m.shape[at] && m.sliding == 0"
        )
        .transform_calculate(seconds="datum.layer * m.layers", what=json.dumps(RECORDED))
        .transform_calculate(time=vega_seconds("datum.seconds"))
    )
    layers = [
        own.mark_rule(color=GREY, strokeDash=[2, 3], strokeWidth=1.5).encode(x=x),
        own.mark_text(align="right", baseline="top", dx=-4, fontSize=11, color=style.INK).encode(
            x=x, y=alt.value(2), text=alt.value("made for")
        ),
        grid.mark_line(opacity=0.3).encode(**lines),
        grid.transform_filter("datum.fits == 1").mark_line(opacity=1).encode(**lines),
        here.mark_point(filled=True, size=110, color=GREY, opacity=1).encode(x=x, y=y),
        mine.mark_point(filled=False, strokeWidth=2, size=80, opacity=1).encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("context_len:Q", title="tokens", format=","),
                alt.Tooltip("time:N", title="all layers"),
            ],
        ),
    ]
    if recording is None:
        source = " Nothing is recorded yet."
    else:
        source = (
            f" Lines are computed, products in 16 bits; hollow marks: one layer's recorded time, times the layers, where a "
            f"layer of that shape and batch was {recording.label}."
        )
    return Explorer(
        name="calculator",
        chart=chart(
            "Any model on any GPU", layers, parameters, words,
            datasets={"grid": [{"context_len": n} for n in contexts], "recorded": recorded},
        ),
        sentence=sentence(**settings) + source,
        alt="Least time of one decode step against cached tokens, both logarithmic: the weights are a level line, the two "
        "times of attention rise with the context, and the whole step bends from the one to the other.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _tokens(context: str) -> str:
    """Vega expression: tokens in the caches of one sequence, summed over the layers."""
    return f"((m.layers - m.sliding) * {context} + m.sliding * min({context}, m.window))"


def _size(n_bytes: float) -> str:
    """As costs.format_bytes, with ties rounded up as Vega does: sizes that are powers of two do end in a 5."""
    return costs.format_bytes(n_bytes * (1 + 1e-12))
