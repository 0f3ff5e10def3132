"""Programs of a decode call and what they request (chapter 4)."""

import json

import altair as alt

from kernels import plan

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
    dashes,
    let,
    menu,
    power,
    table,
    vega_count,
    vega_sentence,
)
from .decode_time import KV_HEADS, Q_HEADS
from .roofline import BATCHES, Q_LENS

BLOCK_HS = (8, 16, 32, 64, 128)
KERNELS = ("one query head a program", "the group as rows")
QUANTITIES = {"per_sm": "programs ÷ SMs", "asked": "bytes requested ÷ distinct"}

PROGRAMS = (
    "Batch {batch}, {n_q_heads} over {n_kv_heads}, {q_len}, on the {sms} SMs of one {gpu}. One query head a program: "
    "{one_programs}, each key requested {one_times}. The group as rows of a tile of {block_h}: {programs}, each "
    "key requested "
    "{times}; {idle}."
)
IDLE = "{idle} SMs have no program"
BUSY = "every SM has one"


def programs_and_traffic() -> Explorer:
    """Chapter 4: the same choice that divides the traffic by G divides the programs by G."""
    gpus = costs.gpus()
    settings = {"n_q_heads": 32, "n_kv_heads": 8, "q_len": 1, "block_h": 16, "log2_batch": 0, "gpu": "H200 SXM"}
    parameters = [
        menu("n_q_heads", "query heads", Q_HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        menu("q_len", "query tokens", Q_LENS, settings["q_len"]),
        menu("block_h", "rows of a tile", BLOCK_HS, settings["block_h"]),
        power("log2_batch", "batch", 0, 8, settings["log2_batch"]),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        table("sms_by_gpu", {g.name: g.sm_count for g in gpus}),
        table(
            "tiles_by_shape",
            {
                f"{group}/{block_h}/{q_len}": plan.head_tiles(group, 1, block_h=block_h, q_len=q_len)
                for group in KV_HEADS
                for block_h in BLOCK_HS
                for q_len in Q_LENS
            },
        ),
        let("batch", "pow(2, log2_batch)"),
        let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        let("group_size", "n_q_heads / kv_heads"),
        let("tiles", "tiles_by_shape[group_size + '/' + block_h + '/' + q_len]"),
        let("sms", "sms_by_gpu[gpu]"),
    ]

    def times(x: str) -> str:
        return f"({x} == 1 ? 'once' : {x} + ' times')"

    words = vega_sentence(
        PROGRAMS,
        batch="batch",
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count("kv_heads", "KV head"),
        q_len=vega_count("q_len", "query token"),
        sms="sms",
        gpu="gpu",
        block_h="block_h",
        one_programs=vega_count("batch * n_q_heads", "program"),
        one_times=times("group_size"),
        programs=vega_count("batch * kv_heads * tiles", "program"),
        times=times("tiles"),
        idle=(
            f"batch * kv_heads * tiles < sms ? {vega_sentence(IDLE, idle='sms - batch * kv_heads * tiles')} : "
            f"{json.dumps(BUSY)}"
        ),
    )

    def at(n_q_heads: int, n_kv_heads: int, q_len: int, block_h: int, batch: int) -> tuple[int, int, int, int]:
        """Programs and requests of a key: one query head a program, then the group as rows."""
        n_kv_heads = min(n_kv_heads, n_q_heads)
        programs = plan.decode_programs(batch, n_q_heads, n_kv_heads, block_h=block_h, q_len=q_len)
        return batch * n_q_heads, n_q_heads // n_kv_heads, programs, programs // (batch * n_kv_heads)

    def expected(gpu: str, log2_batch: int, **shape) -> list[dict]:
        rows, sms = [], costs.gpu(gpu).sm_count
        for batch in BATCHES:
            one_programs, one_asked, programs, asked = at(**shape, batch=batch)
            rows += [
                {"kernel": KERNELS[0], "batch_of_row": batch, "per_sm": one_programs / sms, "asked": one_asked},
                {"kernel": KERNELS[1], "batch_of_row": batch, "per_sm": programs / sms, "asked": asked},
            ]
        return rows

    def sentence(log2_batch: int, gpu: str, **shape) -> str:
        batch, sms = 2**log2_batch, costs.gpu(gpu).sm_count
        one_programs, one_asked, programs, asked = at(**shape, batch=batch)
        said = {1: "once"}
        return PROGRAMS.format(
            batch=batch,
            n_q_heads=count(shape["n_q_heads"], "query head"),
            n_kv_heads=count(min(shape["n_kv_heads"], shape["n_q_heads"]), "KV head"),
            q_len=count(shape["q_len"], "query token"),
            sms=sms,
            gpu=gpu,
            block_h=shape["block_h"],
            one_programs=count(one_programs, "program"),
            one_times=said.get(one_asked, f"{one_asked} times"),
            programs=count(programs, "program"),
            times=said.get(asked, f"{asked} times"),
            idle=IDLE.format(idle=sms - programs) if programs < sms else BUSY,
        )

    x = alt.X(
        "batch_of_row:Q", title="batch", scale=alt.Scale(type="log", base=2, domain=[1, 256]),
        axis=axis(values=[1, 4, 16, 64, 256], format="d"),
    )  # fmt: skip
    y = alt.Y(
        "value:Q", title="ratio", scale=alt.Scale(type="log", base=2, domain=[1 / 256, 1024]),
        axis=axis(
            values=[1 / 64, 1 / 8, 1, 8, 64, 512],
            labelExpr="datum.value < 1 ? '1/' + format(1 / datum.value, 'd') : format(datum.value, 'd')",
        ),
    )  # fmt: skip
    rows = (
        alt.Chart(alt.NamedData("launches"))
        .transform_calculate(
            per_sm=f"datum.batch_of_row * (datum.kernel == '{KERNELS[0]}' ? n_q_heads : kv_heads * tiles) / sms",
            asked=f"datum.kernel == '{KERNELS[0]}' ? group_size : tiles",
        )
        .transform_fold(list(QUANTITIES), as_=["quantity", "value"])
        .transform_calculate(quantity=f"{json.dumps(QUANTITIES, ensure_ascii=False)}[datum.quantity]")
    )
    dash = dashes("quantity:N", dict(zip(QUANTITIES.values(), ([1, 0], [6, 3]), strict=True)))
    colours = colour_scale(dict(zip(KERNELS, (ORANGE, BLUE), strict=True)))
    encoding = {"x": x, "y": y, "color": alt.Color("kernel:N", **colours)}
    one = alt.Chart(alt.InlineData([{"value": 1}]))
    layers = [
        one.mark_rule(color=GREY, strokeWidth=1.5).encode(y=y),
        rows.mark_line(strokeWidth=2.5).encode(**encoding, strokeDash=dash),
        rows.transform_filter("datum.batch_of_row == batch")
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            **encoding,
            tooltip=[
                alt.Tooltip("kernel:N", title="kernel"),
                alt.Tooltip("quantity:N", title="ratio"),
                alt.Tooltip("value:Q", title="is", format=".4~r"),
            ],
        ),
    ]
    return Explorer(
        name="programs-and-traffic",
        chart=chart(
            "Fewer requests, fewer programs", layers, parameters, words,
            datasets={"launches": [{"kernel": kernel, "batch_of_row": batch} for kernel in KERNELS for batch in BATCHES]},
        ),
        sentence=sentence(**settings),
        alt="Ratios against batch, both logarithmic: programs per SM rise with the batch, four times lower for the group as "
        "rows; requests per byte are flat, four with one query head a program and one with the group as rows.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
