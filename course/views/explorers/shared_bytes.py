"""Bytes that a decode call moves against its KV heads: loads shared, heads copied first, and MHA (chapter 2)."""

import altair as alt

from ... import costs, measure
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
    dashes,
    let,
    menu,
    power,
    source_of,
    table,
    vega_bytes,
    vega_count,
    vega_seconds,
    vega_sentence,
)
from .decode_time import HEAD_DIM, KV_HEADS, Q_HEADS, fastest_rows

LINES = ("one load for the heads of a group", "KV heads copied first", "MHA, nothing shared")
MARKS = {"decode": "grouped kernel", "repeat_sdpa": "heads copied, then SDPA"}

SHARED_BYTES = (
    "{n_q_heads} over {n_kv_heads}, batch {batch}, {context} tokens: a kernel that loads a shared key once moves {shared} in a "
    "layer, which takes one {gpu} at least {shared_time}. Copied heads move {copied}, {copied_time}; MHA would move {mha}, "
    "{mha_time}. {verdict} {recorded}"
)
VERDICT = "Copying moves {times} times what MHA moves."
ALONE = "Nothing is shared here, so the three are one."
RECORDED = "Recorded: {times}."
UNRECORDED = "Nothing is recorded for this setting."


def _recorded_rows() -> tuple[measure.Recording | None, list[dict]]:
    """The recording of decode calls, and of its rows what the chart can show: contexts that are a power of two."""
    recording, rows = fastest_rows(MARKS)
    return recording, [
        {
            "mark": MARKS[row["operation"]],
            **{name: row[name] for name in ("n_q_heads", "n_kv_heads", "batch", "context_len")},
            "seconds": row["median_s"],
        }
        for row in rows
        if not row["context_len"] & (row["context_len"] - 1)
    ]


def _phrases(rows: list[dict]) -> dict[str, str]:
    """For every recorded shape 'H_q/H_kv/B/L' one sentence, with MHA's time beside it where that is recorded."""
    times = {
        (row["n_q_heads"], row["n_kv_heads"], row["batch"], row["context_len"], row["mark"]): row["seconds"] for row in rows
    }
    phrases = {}
    for *shape, _ in times:
        n_q_heads, n_kv_heads, batch, context_len = shape
        told = [(label, times.get((*shape, label))) for label in MARKS.values()]
        if n_kv_heads < n_q_heads:
            told.append(("MHA, grouped kernel", times.get((n_q_heads, n_q_heads, batch, context_len, MARKS["decode"]))))
        said = ", ".join(f"{label} {costs.format_seconds(seconds)}" for label, seconds in told if seconds)
        phrases["/".join(map(str, shape))] = RECORDED.format(times=said)
    return phrases


def shared_bytes() -> Explorer:
    """Chapter 2: bytes a layer moves in one decode call, over KV heads, for three ways to serve the query heads."""
    recording, rows = _recorded_rows()
    phrases, gpu = _phrases(rows), costs.gpu("H200 SXM")
    settings = {"n_q_heads": 32, "n_kv_heads": 8, "log2_context": 13, "log2_batch": 4}
    one_head = costs.cache_bytes(costs.Attention.mha(1, HEAD_DIM), 1)
    parameters = [
        menu("n_q_heads", "query heads", Q_HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        power("log2_context", "tokens", 9, 17, settings["log2_context"]),
        power("log2_batch", "batch", 0, 8, settings["log2_batch"]),
        table("bytes_of_a_key", one_head),
        table("bandwidth", gpu.bandwidth),
        table("passes", {str(g): costs.copy_passes(g) for g in KV_HEADS}),
        table("excess", {str(g): _excess(g) for g in KV_HEADS}),
        table("phrases", phrases),
        # More KV heads than query heads cannot be: the chart then shows MHA.
        let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        let("context", "pow(2, log2_context)"),
        let("batch", "pow(2, log2_batch)"),
        let("bytes_of_a_head", "bytes_of_a_key * context * batch"),
        let("shape", "n_q_heads + '/' + kv_heads + '/' + batch + '/' + context"),
    ]
    moved = {"shared": "kv_heads", "copied": "kv_heads * passes[n_q_heads / kv_heads]", "mha": "n_q_heads"}
    words = vega_sentence(
        SHARED_BYTES,
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count("kv_heads", "KV head"),
        batch="batch",
        context="format(context, ',')",
        gpu=f"'{gpu.name}'",
        **{name: vega_bytes(f"{heads} * bytes_of_a_head") for name, heads in moved.items()},
        **{f"{name}_time": vega_seconds(f"{heads} * bytes_of_a_head / bandwidth") for name, heads in moved.items()},
        verdict="kv_heads == n_q_heads ? "
        + vega_sentence(ALONE)
        + " : "
        + vega_sentence(VERDICT, times="excess[n_q_heads / kv_heads]"),
        recorded=f"isDefined(phrases[shape]) ? phrases[shape] : '{UNRECORDED}'",
    )

    def at(n_q_heads: int, n_kv_heads: int, log2_context: int, log2_batch: int) -> tuple[int, int, int]:
        """Bytes: loads shared, heads copied, MHA."""
        shape = {"context_len": 2**log2_context, "batch": 2**log2_batch}
        attention = costs.Attention.gqa(n_q_heads, min(n_kv_heads, n_q_heads), HEAD_DIM)
        shared = costs.cache_bytes(attention, **shape)
        mha = costs.cache_bytes(costs.Attention.mha(n_q_heads, HEAD_DIM), **shape)
        return shared, shared * costs.copy_passes(attention.group_size), mha

    def expected(n_q_heads: int, n_kv_heads: int, **shape: int) -> list[dict]:
        return [
            {"line": line, "place": f"{heads} KV heads", "kv": min(heads, n_q_heads), "bytes": n_bytes}
            for heads in KV_HEADS
            for line, n_bytes in zip(LINES, at(n_q_heads, heads, **shape), strict=True)
        ]

    def sentence(n_q_heads: int, n_kv_heads: int, log2_context: int, log2_batch: int) -> str:
        n_kv_heads = min(n_kv_heads, n_q_heads)
        moves = dict(zip(moved, at(n_q_heads, n_kv_heads, log2_context, log2_batch), strict=True))
        return SHARED_BYTES.format(
            n_q_heads=count(n_q_heads, "query head"),
            n_kv_heads=count(n_kv_heads, "KV head"),
            batch=2**log2_batch,
            context=f"{2**log2_context:,}",
            gpu=gpu.name,
            **{name: costs.format_bytes(n_bytes, binary=False) for name, n_bytes in moves.items()},
            **{f"{name}_time": costs.format_seconds(n_bytes / gpu.bandwidth) for name, n_bytes in moves.items()},
            verdict=ALONE if n_kv_heads == n_q_heads else VERDICT.format(times=_excess(n_q_heads // n_kv_heads)),
            recorded=phrases.get(f"{n_q_heads}/{n_kv_heads}/{2**log2_batch}/{2**log2_context}", UNRECORDED),
        )

    x = alt.X(
        "kv:Q", title="KV heads", scale=alt.Scale(type="log", base=2, nice=False),
        axis=axis(values=list(KV_HEADS), format="d"),
    )  # fmt: skip
    # A tick says the bytes, and below them the time that they take at the data sheet's bandwidth, in smaller letters.
    ticks = axis(
        values=[10.0**n for n in range(5, 15)],
        labelExpr=f"[{vega_bytes('datum.value', 3)}, {vega_seconds('datum.value / bandwidth', 3)}]",
        labelLineHeight=12,
    )
    ticks.labelFontSize = 10
    y = alt.Y(
        "bytes:Q", title="bytes, and their time at 4.8 TB/s", scale=alt.Scale(type="log", nice=False), axis=ticks,
    )  # fmt: skip
    lines = (
        alt.Chart(alt.NamedData("ways"))
        .transform_calculate(kv="min(datum.heads, n_q_heads)")
        .transform_calculate(
            bytes=f"bytes_of_a_head * (datum.line == '{LINES[2]}' ? n_q_heads : "
            f"datum.kv * (datum.line == '{LINES[1]}' ? passes[n_q_heads / datum.kv] : 1))"
        )
    )
    inks = dict(zip(LINES, (BLUE, ORANGE, GREY), strict=True))
    here = {
        "x": x,
        "y": y,
        "color": alt.Color("line:N", scale=alt.Scale(domain=list(inks), range=list(inks.values())), legend=None),
    }
    dash = dashes("line:N", dict(zip(LINES, ([1, 0], [7, 3], [2, 3]), strict=True)))
    marks = {"x": x, "y": y, "shape": alt.Shape("mark:N", **_shapes()), "color": alt.Color("mark:N", **_ringed())}
    recorded = (
        alt.Chart(alt.NamedData("recorded"))
        .transform_filter("datum.n_q_heads == n_q_heads && datum.batch == batch && datum.context_len == context")
        .transform_calculate(kv="datum.n_kv_heads", bytes="datum.seconds * bandwidth", time=vega_seconds("datum.seconds"))
    )
    layers = [
        lines.mark_line(strokeWidth=2.5).encode(**here, strokeDash=dash),
        lines.transform_filter("datum.kv == kv_heads")
        .mark_point(filled=True, size=70, opacity=1)
        .encode(**here, tooltip=[alt.Tooltip("line:N", title="way"), alt.Tooltip("bytes:Q", title="bytes", format=",")]),
        recorded.mark_point(filled=False, size=90, strokeWidth=2, opacity=1).encode(
            **marks,
            tooltip=[
                alt.Tooltip("mark:N", title="recorded"),
                alt.Tooltip("kv:Q", title="KV heads"),
                alt.Tooltip("time:N", title="time"),
            ],
        ),
    ]
    source = source_of(recording)
    drawn = sum(row["n_q_heads"] == 32 and row["batch"] == 16 and row["context_len"] == 8192 for row in rows)
    return Explorer(
        name="shared-bytes",
        chart=chart(
            "Fewer KV heads, three ways to serve them", layers, parameters, words,
            datasets={
                "ways": [{"line": line, "place": f"{n} KV heads", "heads": n} for n in KV_HEADS for line in LINES],
                "recorded": rows,
            },
        ).resolve_scale(color="independent", shape="independent"),
        sentence=sentence(**settings)
        + f" Lines are computed, {HEAD_DIM}-wide heads in bfloat16; hollow marks: {source}, drawn at the time they took.",
        alt="Bytes against KV heads from 1 to 32, both logarithmic: with one load for a group they rise to MHA's, which are a "
        f"level line; with copied heads they lie above that line everywhere but at 32; {drawn} recorded points.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _excess(group_size: int) -> str:
    """What copying moves over what MHA moves: 2 + 1/G."""
    return f"{costs.copy_passes(group_size) / group_size:.4g}"


def _ringed() -> dict:
    return colour_scale(dict(zip(MARKS.values(), (BLUE, GREEN), strict=True)))


def _shapes() -> dict:
    return {
        "scale": alt.Scale(domain=list(MARKS.values()), range=["circle", "square"]),
        "legend": _ringed()["legend"],
    }
