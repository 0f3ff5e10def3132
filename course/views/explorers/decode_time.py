"""Time of a decode call against context, its floor and what was recorded (chapter 4)."""

import json
from collections.abc import Collection

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
    recorded_marks,
    source_of,
    table,
    vega_bytes,
    vega_count,
    vega_seconds,
    vega_sentence,
)

Q_HEADS = (8, 16, 32, 64, 128)
KV_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
CALL_BATCHES = (1, 4, 16, 32, 64, 128)
HEAD_DIM = 128
LINES = ("floor: each key loaded once", "if every request went to memory", "recorded read rate")
MARKS = {"decode": "grouped kernel", "attention": "one query head a program", "sdpa": "PyTorch SDPA, fastest backend"}
RINGS = {"decode": 150, "attention": 75, "sdpa": 25}  # areas in pixels

DECODE_TIME = (
    "{n_q_heads} over {n_kv_heads}, batch {batch}: at {context} tokens the cache of a layer is {cache}, and the "
    "floor of one "
    "{gpu} is {shared}; {own} if every request went to memory. {recorded}"
)
RECORDED = "Recorded at {context} tokens: {times}."
UNRECORDED = "Nothing is recorded for these heads and this batch."


def fastest_rows(operations: Collection[str]) -> tuple[measure.Recording | None, list[dict]]:
    """The newest decode recording of the H200, and its rows of these operations, of each the fastest backend alone."""
    found = measure.recordings("NVIDIA H200", "decode")
    best: dict[tuple, dict] = {}
    for row in found[0].select(status="ok", dtype="bfloat16", head_dim_qk=HEAD_DIM, head_dim_v=HEAD_DIM) if found else ():
        if row["operation"] not in operations or row["splits"] == "given":
            continue
        key = (row["operation"], row["n_q_heads"], row["n_kv_heads"], row["batch"], row["context_len"])
        if key not in best or row["median_s"] < best[key]["median_s"]:
            best[key] = row
    return (found[0] if found else None), list(best.values())


def _recorded_rows() -> tuple[measure.Recording | None, list[dict]]:
    """The recording, and of its rows what the chart can show."""
    recording, rows = fastest_rows(MARKS)
    fields = ("n_q_heads", "n_kv_heads", "batch", "context_len")
    return recording, [
        {
            "mark": MARKS[row["operation"]],
            "ring": RINGS[row["operation"]],
            **{name: row[name] for name in fields},
            "seconds": row["median_s"],
        }
        for row in rows
    ]


def decode_time() -> Explorer:
    """Chapter 4: time of one decode call against context: two floors, and what was recorded on an H200."""
    recording, rows = _recorded_rows()
    gpu = costs.gpu("H200 SXM")
    settings = {"n_q_heads": 32, "n_kv_heads": 8, "batch": 1}
    one_head = costs.Attention.mha(1, HEAD_DIM)
    phrases = _recorded_phrases(rows, gpu)
    contexts = sorted({round(512 * 2 ** (i / 4)) for i in range(33)})
    parameters = [
        menu("n_q_heads", "query heads", Q_HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        menu("batch", "batch", CALL_BATCHES, settings["batch"]),
        table("bytes_of_a_key", costs.cache_bytes(one_head, 1)),
        table("flops_of_a_pair", costs.decode_flops(one_head, 1)),
        table("bandwidth", gpu.bandwidth),
        table("peak", gpu.peak_flops()),
        table("read_rate", recording.read_bandwidth if recording else None),
        table("phrases", phrases),
        # More KV heads than query heads cannot be: the chart then shows MHA.
        let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        let("longest", f"{contexts[-1]}"),
        let("shape", "n_q_heads + '/' + kv_heads + '/' + batch"),
        let("bytes_a_token", "batch * kv_heads * bytes_of_a_key"),
        let("flops_a_token", "batch * n_q_heads * flops_of_a_pair"),
    ]
    floor = "max({} * bytes_a_token * longest / bandwidth, flops_a_token * longest / peak)"
    words = vega_sentence(
        DECODE_TIME,
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count("kv_heads", "KV head"),
        batch="batch",
        context="format(longest, ',')",
        cache=vega_bytes("bytes_a_token * longest"),
        gpu=json.dumps(gpu.name),
        shared=vega_seconds(floor.format(1)),
        own=vega_seconds(floor.format("n_q_heads / kv_heads")),
        recorded=f"isDefined(phrases[shape]) ? phrases[shape] : {json.dumps(UNRECORDED)}",
    )

    def at(n_q_heads: int, n_kv_heads: int, batch: int, context_len: int) -> tuple[int, float, float]:
        """Bytes of the cache, and the two floors in seconds."""
        attention = costs.Attention.gqa(n_q_heads, min(n_kv_heads, n_q_heads), HEAD_DIM)
        n_bytes = costs.cache_bytes(attention, context_len, batch=batch)
        flops = costs.decode_flops(attention, context_len, batch=batch)
        return (
            n_bytes,
            costs.floor(n_bytes, flops, gpu).seconds,
            costs.floor(n_bytes * attention.group_size, flops, gpu).seconds,
        )

    def expected(n_q_heads: int, n_kv_heads: int, batch: int) -> list[dict]:
        rows = []
        for context_len in contexts:
            n_bytes, *floors = at(n_q_heads, n_kv_heads, batch, context_len)
            times = [*floors, *([n_bytes / recording.read_bandwidth] if recording else [])]
            rows += [
                {"line": line, "context_len": context_len, "seconds": seconds}
                for line, seconds in zip(LINES, times, strict=False)
            ]
        return rows

    def sentence(n_q_heads: int, n_kv_heads: int, batch: int) -> str:
        n_kv_heads = min(n_kv_heads, n_q_heads)
        n_bytes, shared, own = at(n_q_heads, n_kv_heads, batch, contexts[-1])
        return DECODE_TIME.format(
            n_q_heads=count(n_q_heads, "query head"),
            n_kv_heads=count(n_kv_heads, "KV head"),
            batch=batch,
            context=f"{contexts[-1]:,}",
            cache=costs.format_bytes(n_bytes, binary=False),
            gpu=gpu.name,
            shared=costs.format_seconds(shared),
            own=costs.format_seconds(own),
            recorded=phrases.get(f"{n_q_heads}/{n_kv_heads}/{batch}", UNRECORDED),
        )

    x = alt.X(
        "context_len:Q", title="cached tokens of a sequence",
        scale=alt.Scale(type="log", base=2, domain=[contexts[0], contexts[-1]]),
        axis=axis(values=[512, 2048, 8192, 32768, 131072], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="time of one call", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[10.0**n for n in range(-7, 1)], labelExpr=vega_seconds("datum.value")),
    )  # fmt: skip
    dash = dashes("line:N", dict(zip(LINES, ([1, 0], [7, 3], [1, 3]), strict=True)), None if recording else 2)
    lines = (
        alt.Chart(alt.NamedData("lines"))
        .transform_calculate(
            seconds=f"datum.line == '{LINES[2]}' ? bytes_a_token * datum.context_len / read_rate : "
            f"max((datum.line == '{LINES[1]}' ? n_q_heads / kv_heads : 1) * bytes_a_token * datum.context_len / "
            "bandwidth, "
            "flops_a_token * datum.context_len / peak)"
        )
        .mark_line(strokeWidth=2, color=GREY)
        .encode(x=x, y=y, strokeDash=dash)
    )
    colours = colour_scale(dict(zip(MARKS.values(), (BLUE, ORANGE, GREEN), strict=True)))
    mine = alt.Chart(alt.NamedData("recorded")).transform_filter(
        "datum.n_q_heads == n_q_heads && datum.n_kv_heads == kv_heads && datum.batch == batch"
    )
    marks = {"x": x, "y": y, "color": alt.Color("mark:N", **colours)}
    layers = [lines, *recorded_marks(mine, marks)]
    source = source_of(recording)
    drawn = sum(row["n_q_heads"] == 32 and row["n_kv_heads"] == 8 and row["batch"] == 1 for row in rows)
    return Explorer(
        name="decode-time",
        chart=chart(
            "Time of one decode call", layers, parameters, words,
            datasets={
                "lines": [{"line": line, "context_len": n} for line in LINES[: 3 if recording else 2] for n in contexts],
                "recorded": rows,
            },
        ),
        sentence=sentence(**settings) + f" Lines are computed, {HEAD_DIM}-wide heads in bfloat16; hollow marks: {source}.",
        alt="Time against cached tokens, both logarithmic: two parallel lines, the floor with each key loaded once and, four "
        f"times above it, the floor with a load for each query head; {drawn} recorded points.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _recorded_phrases(rows: list[dict], gpu: costs.Gpu) -> dict[str, str]:
    """For every recorded shape 'H_q/H_kv/B' one sentence: times at its longest context, and their ratio to the floor."""
    shapes: dict[str, list[dict]] = {}
    for row in rows:
        shapes.setdefault(f"{row['n_q_heads']}/{row['n_kv_heads']}/{row['batch']}", []).append(row)
    phrases = {}
    for shape, its in shapes.items():
        context_len = max(row["context_len"] for row in its if row["mark"] == MARKS["decode"])
        attention = costs.Attention.gqa(its[0]["n_q_heads"], its[0]["n_kv_heads"], HEAD_DIM)
        batch = its[0]["batch"]
        floor = costs.floor(
            costs.cache_bytes(attention, context_len, batch=batch),
            costs.decode_flops(attention, context_len, batch=batch),
            gpu,
        ).seconds
        times = [
            f"{row['mark']} {costs.format_seconds(row['seconds'])}, {row['seconds'] / floor:.2f} × the floor"
            for label in MARKS.values()
            for row in its
            if row["context_len"] == context_len and row["mark"] == label
        ]
        phrases[shape] = RECORDED.format(context=f"{context_len:,}", times="; ".join(times))
    return phrases
