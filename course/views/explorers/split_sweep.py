"""Time of a decode call against the number of splits: the model of waves and what was recorded (chapter 5)."""

import dataclasses
import json

import altair as alt

from kernels import plan, tiles

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
    digits,
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

N_Q_HEADS, HEAD_DIM = 32, 128
KV_HEADS = (1, 2, 4, 8, 16, 32)
MOST_SPLITS = 256
LONG = 2048  # tokens of a split from which the kernel takes its larger tile
SPEEDS = (10, 100)  # GB/s of one program
LINES = ("model: waves, merge and partial results", "simple rule: programs × speed", "floor, data sheet")
# Where nothing is recorded: round numbers of the right size, so that the shape of the curve can be seen.
ASSUMED = {"program_rate": 50e9, "t0_s": 4e-6, "wave_s": 1e-6, "merge_s": 4e-6}

SPLIT_SWEEP = (
    "Batch {batch}, {n_q_heads} query heads over {n_kv_heads}, {context} on one {gpu} ({sms} SMs). Cut into {splits} a "
    "sequence, that is {programs} of {tokens} tokens: {waves}, {places} of their places taken. By the model {time}, {ratio} × "
    "the floor of {floor}; partial results are {partial}. The kernel would choose {own}. {recorded}"
)
RECORDED = "Recorded with {splits}: {time}."
UNRECORDED = "Not recorded for this setting."


def _constants() -> tuple[measure.Recording | None, costs.WaveModel, bool]:
    """The newest decode recording of the H200, if any, the model read off it, and whether its constants are only assumed."""
    found = [*measure.recordings("NVIDIA H200", "decode"), None][0]
    try:
        if found:
            return found, measure.wave_model(found), False
    except LookupError:
        pass
    return found, costs.WaveModel(costs.gpu("H200 SXM").bandwidth, **ASSUMED), True


def _recorded_rows(recording: measure.Recording | None) -> list[dict]:
    """Every recorded decode call of these heads whose number of splits is known; a given number before a chosen one."""
    rows = recording.select(operation="decode", status="ok", dtype="bfloat16", n_q_heads=N_Q_HEADS) if recording else []
    best: dict[tuple, dict] = {}
    for row in sorted(rows, key=lambda row: row["splits"] != "given"):
        if (row["head_dim_qk"], row["head_dim_v"]) != (HEAD_DIM, HEAD_DIM) or not row["num_splits"]:
            continue
        key = (row["batch"], row["n_kv_heads"], row["context_len"], row["num_splits"])
        best.setdefault(key, row)
    return [
        {"batch": b, "n_kv_heads": h, "context_len": n, "splits_of_row": s, "seconds": row["median_s"]}
        for (b, h, n, s), row in best.items()
    ]


def _tiling(gpu: costs.Gpu, n_kv_heads: int) -> list[int]:
    """Row tiles of a sequence, and the keys of a tile for short and for long splits."""
    rows = N_Q_HEADS // n_kv_heads
    block_h = tiles.decode_rows(rows, HEAD_DIM, 2, gpu.capability)
    keys = [
        tiles.decode_tile(rows, HEAD_DIM, HEAD_DIM, 2, gpu.capability, gpu.shared_memory_per_block, tokens).block_n
        for tokens in (LONG - 1, LONG)
    ]
    return [plan.head_tiles(N_Q_HEADS, n_kv_heads, block_h=block_h), *keys]


def _steps(splits: str) -> dict[str, str]:
    """Vega expressions, one after another, for the launch with ``splits``; each may use the names before it."""
    return {
        "block": f"tiling[floor(context_len / {splits}) >= {LONG} ? 2 : 1]",
        "blocks_a_split": f"ceil(ceil(context_len / {{block}}) / {splits})",
        "with_tokens": "ceil(ceil(context_len / {block}) / {blocks_a_split})",
        "tokens": "min({blocks_a_split} * {block}, context_len)",
        "programs": "programs_a_split * {with_tokens}",
        "full": "floor({programs} / sms)",
        "rest": "({programs} - sms * {full})",
        "waves": "({full} + ({rest} > 0 ? 1 : 0))",
        "read": "({tokens} * bytes_a_token)",
        "partial": f"({splits} > 1 ? {splits} * partial_a_split : 0)",
        "seconds": (
            "t0_s + {full} * max({read} / speed, sms * {read} / rate) + ({rest} > 0 ? max({read} / speed, {rest} * {read} / "
            f"rate) : 0) + 2 * {{partial}} / rate + ({{waves}} - 1) * wave_s + ({splits} > 1 ? merge_s : 0)"
        ),
    }


def _rule() -> list[alt.Parameter]:
    """``kernels.plan.num_splits``: of no cut and those that fill the first waves, the fewest splits that are done first."""
    blocks = f"ceil(context_len / {plan.BLOCK_TOKENS})"
    steps, cuts = [let("cut_0", "1")], range(plan.MAX_WAVES + 1)
    for n in cuts[1:]:
        fitting = f"max(1, min(floor({n} * sms / programs_a_split), floor(context_len / {plan.MIN_TOKENS_PER_SPLIT})))"
        steps.append(let(f"cut_{n}", f"ceil({blocks} / ceil({blocks} / {fitting}))"))
    for n in cuts:
        waves = f"programs_a_split * cut_{n} / sms"
        last = f"({waves} > floor({waves}) ? max({plan.FULL}, {waves} - floor({waves})) : 0)"
        cut = f"(cut_{n} > 1 ? {plan.MERGE_TOKENS} + {plan.PARTIAL_TOKENS} * {waves} : 0)"
        walk = f"ceil({blocks} / cut_{n}) * {plan.BLOCK_TOKENS}"
        steps.append(
            let(f"cut_tokens_{n}", f"(floor({waves}) + {last}) * {walk} + ceil({waves}) * {plan.FIRST_TOKENS} + {cut}")
        )
    soonest = f"min({', '.join(f'cut_tokens_{n}' for n in cuts)})"
    return [
        *steps,
        let("own_splits", f"min({', '.join(f'cut_tokens_{n} == {soonest} ? cut_{n} : {MOST_SPLITS}' for n in cuts)})"),
    ]


def split_sweep() -> Explorer:
    """Chapter 5: a decode call cut into 1 to 256 splits: the model of waves, a simpler rule, the floor, and recorded points."""
    recording, model, assumed = _constants()
    rows = _recorded_rows(recording)
    gpus = [g for g in costs.gpus() if "bfloat16" in g.peaks]
    rates = {g.name: model.bandwidth if g.name == "H200 SXM" else g.bandwidth for g in gpus}
    speed = round(model.program_rate / 1e9)
    settings = {"log2_batch": 0, "n_kv_heads": 8, "log2_context": 17, "num_splits": 16, "speed_gb": speed, "gpu": "H200 SXM"}
    one_head = costs.Attention.mha(1, HEAD_DIM)
    heads = costs.Attention.gqa(N_Q_HEADS, 8, HEAD_DIM)
    phrases = {
        "/".join(str(row[name]) for name in ("batch", "n_kv_heads", "context_len", "splits_of_row")): RECORDED.format(
            splits=count(row["splits_of_row"], "split"), time=costs.format_seconds(row["seconds"])
        )
        for row in rows
    }

    def slider(name: str, label: str, low: int, high: int) -> alt.Parameter:
        bind = alt.binding_range(min=low, max=high, step=1, name=f"{label} ")
        return alt.param(name=name, value=settings[name], bind=bind)

    chosen = {name: f"chosen_{name}" for name in _steps("num_splits")}
    parameters = [
        power("log2_batch", "batch", 0, 6, settings["log2_batch"]),
        menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        power("log2_context", "tokens", 9, 17, settings["log2_context"]),
        slider("num_splits", "splits", 1, MOST_SPLITS),
        slider("speed_gb", "GB/s of one program", *SPEEDS),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        table("sms_by_gpu", {g.name: g.sm_count for g in gpus}),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("rate_by_gpu", rates),
        table("tiling_by_gpu", {g.name: {str(h): _tiling(g, h) for h in KV_HEADS} for g in gpus}),
        table("bytes_a_token", costs.cache_bytes(one_head, 1)),
        table("partial_a_split_and_sequence", costs.partial_bytes(heads, 2) // 2),
        table("t0_s", model.t0_s),
        table("wave_s", model.wave_s),
        table("merge_s", model.merge_s),
        table("phrases", phrases),
        let("batch", "pow(2, log2_batch)"),
        let("context_len", "pow(2, log2_context)"),
        let("speed", "speed_gb * 1e9"),
        let("sms", "sms_by_gpu[gpu]"),
        let("rate", "rate_by_gpu[gpu]"),
        let("tiling", "tiling_by_gpu[gpu][n_kv_heads]"),
        let("programs_a_split", "batch * tiling[0]"),
        let("partial_a_split", "batch * partial_a_split_and_sequence"),
        let("cache", "batch * n_kv_heads * context_len * bytes_a_token"),
        # The cache is read once for each row tile; the floor reads it once.
        let("read_by_all", "programs_a_split * context_len * bytes_a_token"),
        let("floor_s", "cache / bandwidth_by_gpu[gpu]"),
        *_rule(),
        *(let(chosen[name], step.format(**chosen)) for name, step in _steps("num_splits").items()),
    ]
    key = "batch + '/' + n_kv_heads + '/' + context_len + '/' + num_splits"
    words = vega_sentence(
        SPLIT_SWEEP,
        batch="batch",
        n_q_heads=json.dumps(str(N_Q_HEADS)),
        n_kv_heads=vega_count("n_kv_heads", "KV head"),
        context=vega_count("context_len", "token"),
        gpu="gpu",
        sms="sms",
        splits=vega_count("num_splits", "split"),
        programs=vega_count("chosen_programs", "program"),
        tokens="format(chosen_tokens, ',')",
        waves=vega_count("chosen_waves", "wave"),
        places="format(chosen_programs / (sms * chosen_waves), '.3~p')",
        time=vega_seconds("chosen_seconds"),
        ratio="format(chosen_seconds / floor_s, '.3~r')",
        floor=vega_seconds("floor_s"),
        partial=f"chosen_partial == 0 ? 'none' : {vega_bytes('chosen_partial')}",
        own="own_splits",
        recorded=f"gpu == 'H200 SXM' && isDefined(phrases[{key}]) ? phrases[{key}] : {json.dumps(UNRECORDED)}",
    )

    def launch(num_splits: int, log2_batch: int, n_kv_heads: int, log2_context: int, gpu: str) -> costs.SplitLaunch:
        one, batch, context_len = costs.gpu(gpu), 2**log2_batch, 2**log2_context
        row_tiles, short, long = _tiling(one, n_kv_heads)
        attention = costs.Attention.gqa(N_Q_HEADS, n_kv_heads, HEAD_DIM)
        return costs.SplitLaunch(
            context_len, num_splits, batch * row_tiles, costs.cache_bytes(one_head, 1),
            costs.partial_bytes(attention, num_splits, batch=batch), long if context_len // num_splits >= LONG else short,
        )  # fmt: skip

    def of(gpu: str, speed_gb: int) -> costs.WaveModel:
        return dataclasses.replace(model, bandwidth=rates[gpu], program_rate=speed_gb * 1e9)

    def floor(log2_batch: int, n_kv_heads: int, log2_context: int, gpu: str) -> float:
        attention = costs.Attention.gqa(N_Q_HEADS, n_kv_heads, HEAD_DIM)
        return costs.cache_bytes(attention, 2**log2_context, batch=2**log2_batch) / costs.gpu(gpu).bandwidth

    def expected(num_splits: int, speed_gb: int, gpu: str, **shape) -> list[dict]:
        found, sms, least = [], costs.gpu(gpu).sm_count, floor(gpu=gpu, **shape)
        for splits in range(1, MOST_SPLITS + 1):
            one = launch(splits, gpu=gpu, **shape)
            times = of(gpu, speed_gb).seconds(one, sms), of(gpu, speed_gb).without_waves(one), least
            found += [{"line": line, "splits_of_row": splits, "seconds": t} for line, t in zip(LINES, times, strict=True)]
        return found

    def sentence(num_splits: int, speed_gb: int, gpu: str, **shape) -> str:
        one, sms, least = launch(num_splits, gpu=gpu, **shape), costs.gpu(gpu).sm_count, floor(gpu=gpu, **shape)
        seconds = of(gpu, speed_gb).seconds(one, sms)
        full, rest = one.waves(sms)
        batch, n_kv_heads, context_len = 2 ** shape["log2_batch"], shape["n_kv_heads"], 2 ** shape["log2_context"]
        tokens, _ = costs.split_tokens(context_len, num_splits, one.block_n)
        return SPLIT_SWEEP.format(
            batch=batch,
            n_q_heads=N_Q_HEADS,
            n_kv_heads=count(n_kv_heads, "KV head"),
            context=count(context_len, "token"),
            gpu=gpu,
            sms=sms,
            splits=count(num_splits, "split"),
            programs=count(one.programs, "program"),
            tokens=f"{tokens:,}",
            waves=count(full + (rest > 0), "wave"),
            places=f"{digits(100 * one.efficiency(sms))}%",
            time=costs.format_seconds(seconds),
            ratio=digits(seconds / least),
            floor=costs.format_seconds(least),
            partial=costs.format_bytes(one.partial_bytes, binary=False) if one.partial_bytes else "none",
            own=plan.num_splits(1, one.programs_per_split, context_len, sms),
            recorded=phrases.get(f"{batch}/{n_kv_heads}/{context_len}/{num_splits}", UNRECORDED)
            if gpu == "H200 SXM"
            else UNRECORDED,
        )

    x = alt.X(
        "splits_of_row:Q", title="splits of each sequence", scale=alt.Scale(type="log", base=2, domain=[1, MOST_SPLITS]),
        axis=axis(values=[2**n for n in range(9)], format="d"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="time of one call", scale=alt.Scale(type="log", nice=False, padding=8),
        axis=axis(
            values=[m * 10.0**n for n in range(-7, 0) for m in (1, 1.5, 2, 3, 5, 7)], labelExpr=vega_seconds("datum.value")
        ),
    )  # fmt: skip
    colours = colour_scale(dict(zip((*LINES, "recorded on an H200"), (BLUE, ORANGE, GREY, GREEN), strict=True)))
    colour = alt.Color("line:N", **colours)
    sweep = alt.Chart(alt.NamedData("sweep"))
    row = {name: f"datum.w_{name}" for name in _steps("")}
    for name, step in _steps("datum.splits_of_row").items():
        sweep = sweep.transform_calculate(**{f"w_{name}": step.format(**row)})
    sweep = sweep.transform_calculate(
        seconds=f"datum.line == '{LINES[0]}' ? datum.w_seconds : datum.line == '{LINES[2]}' ? floor_s : t0_s + read_by_all / "
        "min(programs_a_split * datum.splits_of_row * speed, rate)"
    )
    mine = alt.Chart(alt.NamedData("recorded")).transform_filter(
        "gpu == 'H200 SXM' && datum.n_kv_heads == n_kv_heads && datum.batch == batch && datum.context_len == context_len"
    )
    layers = [
        sweep.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        sweep.transform_filter(f"datum.line == '{LINES[0]}' && datum.splits_of_row == num_splits")
        .mark_point(filled=True, size=110, opacity=1)
        .encode(x=x, y=y, color=colour),
        mine.transform_calculate(line="'recorded on an H200'", time=vega_seconds("datum.seconds"))
        .mark_point(filled=False, strokeWidth=2, size=70, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("splits_of_row:Q", title="splits"),
                alt.Tooltip("time:N", title="recorded"),
            ],
        ),
    ]
    constants = "assumed" if assumed else "read off the recorded points of 8 KV heads"
    return Explorer(
        name="split-sweep",
        chart=chart(
            "How many splits?", layers, parameters, words,
            datasets={
                "sweep": [{"line": line, "splits_of_row": n} for line in LINES for n in range(1, MOST_SPLITS + 1)],
                "recorded": rows,
            },
        ),
        sentence=sentence(**settings) + f" Lines are computed, {HEAD_DIM}-wide heads in bfloat16; the model's constants are "
        f"{constants}. Hollow marks: {source_of(recording)}.",
        alt="Time of a call against splits, both logarithmic. With few splits the time halves with each doubling; from the "
        "number that fills the SMs on it is flat, and the model's line rises in teeth where a wave of few programs is left.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
