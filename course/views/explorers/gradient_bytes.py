"""Bytes of dK and dV: partial ones for each query head, or summed where they are made (chapter 3b)."""

import json

import altair as alt

from ... import costs, measure
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
    table,
    vega_bytes,
    vega_count,
    vega_seconds,
    vega_sentence,
)

HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
BATCHES = (1, 2, 4, 8, 16)
CONTEXTS = tuple(512 * 2**n for n in range(9))
AT = 8192  # tokens of a sequence that the sentence speaks of
HEAD_DIM = 128
PARTIAL_BYTES, RESULT_BYTES = 4, 2  # partials are summed in float32; gradients have the tensors' 16 bits
FORMS = {"partials, then their sum": ORANGE, "summed in the program": BLUE}

BYTES = (
    "{n_q_heads} over {n_kv_heads}, batch {batch}, {width} wide, sequences of {at} tokens: dK and dV are {result}. A "
    "program that sums its whole group writes that and no more. Partials for each query head are {partial} in float32, "
    "written and read again, and the sum is written too: {times} × the traffic, {extra} more at the {bandwidth} of one "
    "{gpu}. {recorded}"
)
# Partials are made in plain Triton only.
RECORDED = "Recorded, both in plain Triton: {partials} with all these partials, {ours} with as few as the kernel makes."
RECORDED_ON_HOPPER = "Recorded: {partials} with partials in plain Triton, {ours} by another kernel, the one for Hopper."
UNRECORDED = "Nothing is recorded for this choice."


def _recorded_phrases() -> tuple[measure.Recording | None, dict[str, str]]:
    """For 'H_q/H_kv/B' at AT tokens: what both forms took."""
    found = measure.recordings("NVIDIA H200", "prefill")
    phrases: dict[str, str] = {}
    if found:
        of_shape: dict[str, dict[str, float]] = {}
        same = {"status": "ok", "direction": "backward", "context_len": AT, "q_len": AT, "causal": True}
        for row in found[0].select(**same, head_dim_qk=HEAD_DIM, head_dim_v=HEAD_DIM, dtype="bfloat16"):
            shape = f"{row['n_q_heads']}/{row['n_kv_heads']}/{row['batch']}"
            of_shape.setdefault(shape, {})[row["operation"]] = row["median_s"]
        for shape, times in of_shape.items():
            ours = times.get("portable_attention") or times.get("attention")
            if ours and "partials_then_sum" in times:
                words = RECORDED if "portable_attention" in times else RECORDED_ON_HOPPER
                seconds = {"partials": times["partials_then_sum"], "ours": ours}
                phrases[shape] = words.format(**{name: costs.format_seconds(s) for name, s in seconds.items()})
    return (found[0] if found else None), phrases


def gradient_bytes() -> Explorer:
    """Chapter 3b: what a sum inside the program saves, over group size and context."""
    recording, phrases = _recorded_phrases()
    gpu = costs.gpu("H200 SXM")
    settings = {"n_q_heads": 32, "n_kv_heads": 8, "batch": 2}
    one_head = costs.Attention.mha(1, HEAD_DIM)
    parameters = [
        menu("n_q_heads", "query heads", HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", HEADS, settings["n_kv_heads"]),
        menu("batch", "batch", BATCHES, settings["batch"]),
        table("elements_a_token", costs.gradient_bytes(one_head, 1, bytes_per_element=1)),
        table("bandwidth", gpu.bandwidth),
        table("phrases", phrases),
        let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        let("result_a_token", f"batch * kv_heads * elements_a_token * {RESULT_BYTES}"),
        let("partial_a_token", f"batch * n_q_heads * elements_a_token * {PARTIAL_BYTES}"),
        let("shape", "n_q_heads + '/' + kv_heads + '/' + batch"),
    ]
    words = vega_sentence(
        BYTES,
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count("kv_heads", "KV head"),
        batch="batch",
        width=str(HEAD_DIM),
        at=json.dumps(f"{AT:,}"),
        result=vega_bytes(f"{AT} * result_a_token"),
        partial=vega_bytes(f"{AT} * partial_a_token"),
        times="(2 * partial_a_token + result_a_token) / result_a_token",
        extra=vega_seconds(f"2 * {AT} * partial_a_token / bandwidth"),
        bandwidth=json.dumps(f"{costs.format_bytes(gpu.bandwidth, binary=False)}/s"),
        gpu=json.dumps(gpu.name),
        recorded=f"isDefined(phrases[shape]) ? phrases[shape] : {json.dumps(UNRECORDED)}",
    )

    def at(n_q_heads: int, n_kv_heads: int, batch: int, context_len: int) -> tuple[int, int]:
        """Bytes of the gradients and of the partials."""
        attention = costs.Attention.gqa(n_q_heads, min(n_kv_heads, n_q_heads), HEAD_DIM)
        return (
            costs.gradient_bytes(attention, context_len, batch=batch, bytes_per_element=RESULT_BYTES),
            costs.gradient_bytes(attention, context_len, batch=batch, bytes_per_element=PARTIAL_BYTES, per_query_head=True),
        )

    def expected(**shape) -> list[dict]:
        rows = []
        for context_len in CONTEXTS:
            result, partial = at(**shape, context_len=context_len)
            rows += [
                {"form": form, "context_len": context_len, "bytes": n_bytes}
                for form, n_bytes in zip(FORMS, (2 * partial + result, result), strict=True)
            ]
        return rows

    def sentence(n_q_heads: int, n_kv_heads: int, batch: int) -> str:
        result, partial = at(n_q_heads, n_kv_heads, batch, AT)
        n_kv_heads = min(n_kv_heads, n_q_heads)
        return BYTES.format(
            n_q_heads=count(n_q_heads, "query head"),
            n_kv_heads=count(n_kv_heads, "KV head"),
            batch=batch,
            width=HEAD_DIM,
            at=f"{AT:,}",
            result=costs.format_bytes(result, binary=False),
            partial=costs.format_bytes(partial, binary=False),
            times=(2 * partial + result) // result,
            extra=costs.format_seconds(2 * partial / gpu.bandwidth),
            bandwidth=f"{costs.format_bytes(gpu.bandwidth, binary=False)}/s",
            gpu=gpu.name,
            recorded=phrases.get(f"{n_q_heads}/{n_kv_heads}/{batch}", UNRECORDED),
        )

    x = alt.X(
        "context_len:Q", title="tokens of a sequence",
        scale=alt.Scale(type="log", base=2, domain=[CONTEXTS[0], CONTEXTS[-1]]),
        axis=axis(values=[512, 8192, 131072], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "bytes:Q", title="bytes moved for dK and dV", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[10.0**n for n in range(4, 14)], labelExpr=vega_bytes("datum.value")),
    )  # fmt: skip
    lines = (
        alt.Chart(alt.NamedData("lines"))
        .transform_calculate(
            bytes=f"datum.context_len * (datum.form == {json.dumps(next(iter(FORMS)))} ? "
            "2 * partial_a_token + result_a_token : result_a_token)"
        )
        .encode(x=x, y=y, color=alt.Color("form:N", **colour_scale(FORMS)))
    )
    layers = [
        lines.mark_line(strokeWidth=2.5),
        lines.transform_filter(f"datum.context_len == {AT}")
        .transform_calculate(size=vega_bytes("datum.bytes"))
        .mark_point(filled=True, size=90, opacity=1)
        .encode(tooltip=[alt.Tooltip("form:N", title="form"), alt.Tooltip("size:N", title="moves")]),
    ]
    source = f" Recorded times: {recording.label}." if recording and phrases else ""
    return Explorer(
        name="gradient-bytes",
        chart=chart(
            "Where a group's gradients are summed", layers, parameters, words,
            datasets={"lines": [{"form": form, "context_len": n} for form in FORMS for n in CONTEXTS]},
        ),
        sentence=sentence(**settings) + f" Lines are computed.{source}",
        alt="Bytes moved for dK and dV against tokens of a sequence, both logarithmic: two parallel lines, partials and their "
        "sum seventeen times above the sum in the program.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
