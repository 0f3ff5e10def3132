"""Time of a whole-sequence call against context, its floor and what was recorded: forward (chapter 3), backward (3b)."""

import json

import altair as alt

from ... import costs, measure
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
    recorded_marks,
    source_of,
    table,
    vega_count,
    vega_seconds,
    vega_sentence,
)

TOKENS = 16384  # of all sequences together, whatever their length: so were they recorded
CONTEXTS = tuple(512 * 2**n for n in range(6))
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
WIDTHS = {"128, values 128": (128, 128), "192, values 128 (MLA expanded)": (192, 128), "64, values 64": (64, 64)}
MASKED = {"causal": True, "none": False}
LINES = ("floor: FLOPs ÷ data sheet", "FLOPs ÷ recorded matrix product")

# (operation, backend) -> what its marks are called.
MARKS = {
    ("portable_attention", None): "plain Triton, the kernel shown",
    ("attention", None): "kernels.attention, on Hopper",
    ("sdpa", "CUDNN"): "PyTorch SDPA, cuDNN",
    ("flash_attn", "fa4"): "FlashAttention-4",
    ("sdpa", "FLASH"): "PyTorch SDPA, FLASH",
}
PARTIALS = {("partials_then_sum", None): "partials, then their sum"}
RINGS = (260, 175, 105, 52, 18)  # areas in pixels; equal times show as rings in one another

TIME = (
    "{direction} of {n_q_heads} over {n_kv_heads}, keys {widths}, mask {mask}; {tokens} tokens in all. In "
    "sequences of {longest} it is {tflop} TFLOP, and the floor of one {gpu} is {floor}: {bound} decides. {recorded}"
)
DIRECTIONS = {"forward": "Forward pass", "backward": "Gradients"}
RECORDED = "Recorded at {longest} tokens: {times}."
UNRECORDED = "Nothing is recorded for this choice."


def forward_time() -> Explorer:
    """Chapter 3: a forward pass over whole sequences."""
    return _time("forward", MARKS)


def backward_time() -> Explorer:
    """Chapter 3b: the gradients of q, k and v, a forward pass not counted."""
    marks = {key: name for key, name in MARKS.items() if key != ("sdpa", "FLASH")}
    return _time("backward", marks | PARTIALS)


def _recorded_rows(direction: str, marks: dict) -> tuple[measure.Recording | None, list[dict]]:
    """The newest recording of whole sequences, and of its rows those the chart can show."""
    found = measure.recordings("NVIDIA H200", "prefill")
    rows = found[0].select(status="ok", dtype="bfloat16", direction=direction) if found else ()
    widths = {pair: name for name, pair in WIDTHS.items()}
    masks = {causal: name for name, causal in MASKED.items()}
    kept: dict[tuple, dict] = {}
    for row in rows:
        which, pair = (row["operation"], row["backend"]), (row["head_dim_qk"], row["head_dim_v"])
        whole = row["q_len"] == row["context_len"] and row["batch"] * row["context_len"] == TOKENS
        if which not in marks or not whole or pair not in widths or row["context_len"] not in CONTEXTS:
            continue
        one = {
            "mark": marks[which],
            "ring": RINGS[list(marks).index(which)],
            "n_q_heads": row["n_q_heads"],
            "n_kv_heads": row["n_kv_heads"],
            "widths": widths[pair],
            "mask": masks[row["causal"]],
            "context_len": row["context_len"],
            "seconds": row["median_s"],
            "tflops": row["flops"] / row["median_s"] / 1e12,
        }
        kept.setdefault(tuple(one[key] for key in list(one)[:-2]), one)
    return (found[0] if found else None), list(kept.values())


def _time(direction: str, marks: dict) -> Explorer:
    recording, rows = _recorded_rows(direction, marks)
    gpu = costs.gpu("H200 SXM")
    sustained = recording.product_rate if recording else None
    settings = {"n_q_heads": 32, "n_kv_heads": 8, "widths": next(iter(WIDTHS)), "mask": "causal"}
    phrases = _recorded_phrases(rows)
    longest = CONTEXTS[-1]
    lines = LINES[: 2 if sustained else 1]
    one_head = {name: costs.Attention.gqa(1, 1, *pair) for name, pair in WIDTHS.items()}

    def flops(attention: costs.Attention, context_len: int, causal: bool) -> int:
        count = costs.attention_flops if direction == "forward" else costs.backward_flops
        return count(attention, context_len, context_len, batch=TOKENS // context_len, causal=causal)

    def moved(attention: costs.Attention) -> int:
        """Bytes each tensor takes once in bfloat16: q, k, v and out, and in the backward pass their gradients too."""
        heads_q, heads_kv = attention.n_q_heads, attention.n_kv_heads
        elements = (heads_q + heads_kv) * (attention.head_dim_qk + attention.head_dim_v)
        return 2 * TOKENS * elements * (1 if direction == "forward" else 2)

    parameters = [
        menu("n_q_heads", "query heads", HEADS, settings["n_q_heads"]),
        menu("n_kv_heads", "KV heads", HEADS, settings["n_kv_heads"]),
        menu("widths", "width of keys", WIDTHS, settings["widths"]),
        menu("mask", "mask", MASKED, settings["mask"]),
        table(
            "flops_of_a_head",
            {
                name: {mask: {str(n): flops(a, n, causal) for n in CONTEXTS} for mask, causal in MASKED.items()}
                for name, a in one_head.items()
            },
        ),
        table("bytes_of_a_head", {name: moved(a) / 2 for name, a in one_head.items()}),
        table("bandwidth", gpu.bandwidth),
        table("peak", gpu.peak_flops()),
        table("sustained", sustained),
        table("phrases", phrases),
        let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        let("shape", "n_q_heads + '/' + kv_heads + '/' + widths + '/' + mask"),
        let("memory_s", "(n_q_heads + kv_heads) * bytes_of_a_head[widths] / bandwidth"),
        let("flops_at_the_end", f"n_q_heads * flops_of_a_head[widths][mask]['{longest}']"),
    ]
    words = vega_sentence(
        TIME,
        direction=json.dumps(DIRECTIONS[direction]),
        n_q_heads=vega_count("n_q_heads", "query head"),
        n_kv_heads=vega_count("kv_heads", "KV head"),
        widths="widths",
        mask="mask",
        tokens=json.dumps(f"{TOKENS:,}"),
        longest=json.dumps(f"{longest:,}"),
        tflop="format(flops_at_the_end / 1e12, '.3~r')",
        gpu=json.dumps(gpu.name),
        floor=vega_seconds("max(memory_s, flops_at_the_end / peak)"),
        bound="flops_at_the_end / peak > memory_s ? 'arithmetic' : 'memory'",
        recorded=f"isDefined(phrases[shape]) ? phrases[shape] : {json.dumps(UNRECORDED)}",
    )

    def floor_of(n_q_heads: int, n_kv_heads: int, widths: str, mask: str, context_len: int) -> tuple[int, costs.Floor]:
        attention = costs.Attention.gqa(n_q_heads, min(n_kv_heads, n_q_heads), *WIDTHS[widths])
        work = flops(attention, context_len, MASKED[mask])
        return work, costs.floor(moved(attention), work, gpu)

    def expected(**shape) -> list[dict]:
        found = []
        for context_len in CONTEXTS:
            work, floor = floor_of(**shape, context_len=context_len)
            times = [floor.seconds, work / sustained if sustained else None]
            found += [
                {"line": line, "context_len": context_len, "seconds": seconds}
                for line, seconds in zip(lines, times, strict=False)
            ]
        return found

    def sentence(**shape) -> str:
        work, floor = floor_of(**shape, context_len=longest)
        n_kv_heads = min(shape["n_kv_heads"], shape["n_q_heads"])
        key = f"{shape['n_q_heads']}/{n_kv_heads}/{shape['widths']}/{shape['mask']}"
        return TIME.format(
            direction=DIRECTIONS[direction],
            n_q_heads=count(shape["n_q_heads"], "query head"),
            n_kv_heads=count(n_kv_heads, "KV head"),
            widths=shape["widths"],
            mask=shape["mask"],
            tokens=f"{TOKENS:,}",
            longest=f"{longest:,}",
            tflop=digits(work / 1e12),
            gpu=gpu.name,
            floor=costs.format_seconds(floor.seconds),
            bound="arithmetic" if floor.bound == "compute" else "memory",
            recorded=phrases.get(key, UNRECORDED),
        )

    x = alt.X(
        "context_len:Q", title=f"tokens of a sequence ({TOKENS:,} in all)",
        scale=alt.Scale(type="log", base=2, domain=[CONTEXTS[0], longest]),
        axis=axis(values=[512, 1024, 2048, 4096, 8192, 16384], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="time of one call", scale=alt.Scale(type="log", nice=False),
        axis=axis(values=[a * 10.0**n for n in range(-6, 1) for a in (1, 3)], labelExpr=vega_seconds("datum.value")),
    )  # fmt: skip
    dash = dashes("line:N", dict(zip(LINES, ([1, 0], [4, 3]), strict=True)), len(lines))
    drawn = (
        alt.Chart(alt.NamedData("lines"))
        .transform_calculate(work="n_q_heads * flops_of_a_head[widths][mask]['' + datum.context_len]")
        .transform_calculate(seconds=f"datum.line == '{LINES[1]}' ? datum.work / sustained : max(memory_s, datum.work / peak)")
        .mark_line(strokeWidth=2, color=GREY)
        .encode(x=x, y=y, strokeDash=dash)
    )
    colours = colour_scale(dict(zip(marks.values(), (BLUE, PURPLE, ORANGE, GOLD, GREEN), strict=True)))
    mine = alt.Chart(alt.NamedData("recorded")).transform_filter(
        "datum.n_q_heads == n_q_heads && datum.n_kv_heads == kv_heads && datum.widths == widths && datum.mask == mask"
    )
    encoding = {"x": x, "y": y, "color": alt.Color("mark:N", **colours)}
    layers = [drawn, *recorded_marks(mine, encoding, alt.Tooltip("tflops:Q", title="TFLOP/s", format=".3~r"))]
    start = settings | {"mask": "causal"}
    shown = sum(all(row[key] == value for key, value in start.items()) for row in rows)
    return Explorer(
        name=f"{direction}-time",
        chart=chart(
            f"{DIRECTIONS[direction]}: time against context", layers, parameters, words,
            datasets={"lines": [{"line": line, "context_len": n} for line in lines for n in CONTEXTS], "recorded": rows},
        ),
        sentence=sentence(**settings) + f" Lines are computed, in bfloat16; hollow marks: {source_of(recording)}.",
        alt=f"Time of one call against tokens of a sequence, both logarithmic, at {TOKENS:,} tokens in all: the floor rises in "
        f"proportion to the length of a sequence; {shown} recorded points.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _recorded_phrases(rows: list[dict]) -> dict[str, str]:
    """For every recorded choice one sentence: times and TFLOP/s at its longest context."""
    shapes: dict[str, list[dict]] = {}
    for row in rows:
        shapes.setdefault(f"{row['n_q_heads']}/{row['n_kv_heads']}/{row['widths']}/{row['mask']}", []).append(row)
    phrases = {}
    for shape, its in shapes.items():
        longest = max(row["context_len"] for row in its)
        times = [
            f"{row['mark']} {costs.format_seconds(row['seconds'])}, {row['tflops']:.0f} TFLOP/s"
            for row in its
            if row["context_len"] == longest
        ]
        phrases[shape] = RECORDED.format(longest=f"{longest:,}", times="; ".join(times))
    return phrases
