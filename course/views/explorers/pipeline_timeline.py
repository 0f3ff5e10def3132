"""Who works when: copies, products and softmax of a few blocks of keys (page 8b)."""

import altair as alt

from ... import costs, measure
from ...costs import pipeline
from ...costs.pipeline import ALL, COPIES, FIRST, IN_TURN, LOADS_AHEAD, PRODUCER, SECOND, STRUCTURES, TENSOR, WARPS
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
    digits,
    let,
    menu,
    table,
    vega_count,
    vega_digits,
    vega_sentence,
)

N_BLOCKS = 6
BLOCK_BYTES = 2 * 128 * 128 * 2  # 128 keys and 128 values, each 128 wide, in 16 bits
STAGES = (1, 2, 3, 4)
STEP, LONGEST = 64, 4096  # cycles: of a slider
UNITS = (COPIES, TENSOR, WARPS)
COLOURS = {PRODUCER: GREY, ALL: BLUE, FIRST: ORANGE, SECOND: GREEN}

SAID = (
    "{structure}, {buffers}: {blocks} blocks of 128 keys take {cycles} cycles from the first product to the last, and the "
    "tensor cores work in {busy}% of them: {tflops} of {peak} TFLOP/s. The units that take exponentials work in {softmax}%."
)


def block_cycles(reads: measure.Recording | None) -> dict[str, int]:
    """Cycles of a block on an H200, as sliders show them, for 128 rows and a width of 128.

    Keys and values come from the L2, at the recorded rate; without a recording from memory, at the data sheet's.
    """
    gpu = costs.gpu("H200 SXM")
    found = {
        "load": pipeline.copy_cycles(BLOCK_BYTES, gpu, reads.l2_bandwidth if reads else None),
        "product": 2 * pipeline.product_cycles(128, 128, 128),
        "softmax": pipeline.exponential_cycles(128 * 128),
    }
    return {name: round(cycles / STEP) * STEP for name, cycles in found.items()}


def pipeline_timeline() -> Explorer:
    """Page 8b: five ways to put copies, products and softmax into one program, and what the tensor cores do meanwhile."""
    gpu = costs.gpu("H200 SXM")
    found = measure.recordings("NVIDIA H200", "reads")
    reads = found[0] if found else None
    settings = {"structure": LOADS_AHEAD, "stages": 2, **block_cycles(reads)}
    labels = {"load": "load of a block, cycles ", "product": "its two products ", "softmax": "its softmax "}
    walks, parameters = {}, []
    for structure in STRUCTURES:
        walks[structure] = pipeline.attention_walk(structure, N_BLOCKS, load=0, product=0, softmax=0)
        parameters += _ends(structure)
    parameters = [
        menu("structure", "structure", STRUCTURES, settings["structure"]),
        alt.param(
            name="stages", value=settings["stages"],
            bind=alt.binding_range(min=STAGES[0], max=STAGES[-1], step=1, name="buffers of K, and of V "),
        ),
        *(
            alt.param(name=name, value=settings[name], bind=alt.binding_range(min=STEP, max=LONGEST, step=STEP, name=label))
            for name, label in labels.items()
        ),
        table("names_of", {s: [task.name for task in walk] for s, walk in walks.items()}),
        table("units_of", {s: [task.unit for task in walk] for s, walk in walks.items()}),
        table("who_of", {s: [task.who for task in walk] for s, walk in walks.items()}),
        table("place_of", {s: STRUCTURES.index(s) for s in STRUCTURES}),
        *parameters,
        let("walk", "place_of[structure]"),
        let("ends", "[" + ", ".join(f"ends{i}" for i in range(len(STRUCTURES))) + "][walk]"),
        let("takes", "[" + ", ".join(f"takes{i}" for i in range(len(STRUCTURES))) + "][walk]"),
        let("slowest", f"{N_BLOCKS} * (load + product + softmax)"),
        # The first product starts when the first keys (one after the other: and values) are there; the last task is the last.
        let("products", "ends[length(ends) - 1] - (walk == 0 ? load : load / 2)"),
    ]  # fmt: skip
    peak = gpu.peak_flops() / 1e12
    words = vega_sentence(
        SAID,
        structure="upper(slice(structure, 0, 1)) + slice(structure, 1)",
        buffers=f"walk == 0 ? 'no buffer to spare' : {vega_count('stages', 'buffer')}",
        blocks=str(N_BLOCKS),
        cycles="format(products, ',d')",
        busy=f"format({100 * N_BLOCKS} * product / products, '.0f')",
        tflops=vega_digits(f"{N_BLOCKS * peak!r} * product / products"),
        peak=f"'{peak:.0f}'",
        softmax=f"format({100 * N_BLOCKS} * softmax / products, '.0f')",
    )

    def run(structure: str, **walk) -> pipeline.Timeline:
        return pipeline.timeline(pipeline.attention_walk(structure, N_BLOCKS, **walk))

    slots = max(map(len, walks.values()))

    def expected(**choice) -> list[dict]:
        made = run(**choice)
        rows = [
            {"slot": f"{i}", "task": task.name, "unit": task.unit, "who": task.who, "start": start, "end": end}
            for i, (task, start, end) in enumerate(zip(made.tasks, made.starts, made.ends, strict=True))
        ]
        none = {"task": "none", "unit": COPIES, "who": PRODUCER, "start": 0, "end": 0}
        return rows + [{"slot": f"{i}"} | none for i in range(len(rows), slots)]

    def sentence(structure: str, stages: int, **durations) -> str:
        made = run(structure, stages=stages, **durations)
        return SAID.format(
            structure=structure[0].upper() + structure[1:],
            buffers="no buffer to spare" if structure == IN_TURN else count(stages, "buffer"),
            blocks=N_BLOCKS,
            cycles=f"{made.products:,.0f}",
            busy=f"{100 * made.busy():.0f}",
            tflops=digits(peak * made.busy()),
            peak=f"{peak:.0f}",
            softmax=f"{100 * made.busy(WARPS):.0f}",
        )

    x = alt.X(
        "start:Q", title="cycles", axis=axis(tickCount=5, format=",d", grid=False),
        scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef("slowest"), nice=False),
    )  # fmt: skip
    y = alt.Y(
        "unit:N", title=None, sort=list(UNITS), scale=alt.Scale(paddingInner=0.3),
        axis=axis(ticks=False, labelExpr="split(datum.value, ' ')"),
    )  # fmt: skip
    # Slots that the chosen structure has no task for are drawn without a length.
    tasks = (
        alt.Chart(alt.NamedData("slots"))
        .transform_calculate(there="datum.i < length(ends)")
        .transform_calculate(
            slot="'' + datum.i",
            task="datum.there ? names_of[structure][datum.i] : 'none'",
            unit=f"datum.there ? units_of[structure][datum.i] : '{COPIES}'",
            who=f"datum.there ? who_of[structure][datum.i] : '{PRODUCER}'",
            start="datum.there ? ends[datum.i] - takes[datum.i] : 0",
            end="datum.there ? ends[datum.i] : 0",
        )
    )
    # Words that find no room are empty: a label that came and went would not keep its place among the others.
    room = f"(datum.end - datum.start) * width > slowest * 17 && datum.unit != '{COPIES}'"
    named = tasks.transform_calculate(middle="(datum.start + datum.end) / 2", short=f"{room} ? slice(datum.task, 0, 2) : ''")
    colours = alt.Color("who:N", **colour_scale(COLOURS))
    pale = alt.condition("indexof('VO', slice(datum.task, 0, 1)) >= 0", alt.value(0.55), alt.value(1))
    layers = [
        tasks.mark_bar(stroke=style.CARD, strokeWidth=0.7).encode(
            x=x, x2="end:Q", y=y, color=colours, opacity=pale,
            tooltip=[
                alt.Tooltip("task:N", title="task"),
                alt.Tooltip("who:N", title="begun by"),
                alt.Tooltip("start:Q", title="from cycle", format=",d"),
                alt.Tooltip("end:Q", title="to cycle", format=",d"),
            ],
        ),
        named.mark_text(fontSize=10, color=style.INK).encode(x=alt.X("middle:Q"), y=y, text="short:N"),
    ]  # fmt: skip
    first = run(**settings)
    return Explorer(
        name="pipeline-timeline",
        chart=chart(
            "Who works when", layers, parameters, words, datasets={"slots": [{"i": i} for i in range(slots)]},
        ),
        sentence=sentence(**settings)
        + " Computed by a model of one SM. Full colour: keys, scores S, softmax P; pale: values, and products O with them.",
        alt=f"Three rows of bars over cycles: copies, tensor cores and softmax of {N_BLOCKS} blocks. With loads "
        "ahead the copies run on while the tensor cores stand still during each softmax: they work "
        f"{first.busy():.0%} of the time.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _ends(structure: str) -> list[alt.Parameter]:
    """Vega's own arithmetic: the end of every task is the largest end that it waits for, and its cycles more.

    From ``costs.pipeline`` come which tasks there are, what each waits for with so many buffers, and which share of a load,
    product or softmax it is.
    """
    place = STRUCTURES.index(structure)
    one = {"load": 0, "product": 0, "softmax": 0}
    by_stages = [pipeline.attention_walk(structure, N_BLOCKS, stages=stages, **one) for stages in STAGES]
    shares = {name: pipeline.attention_walk(structure, N_BLOCKS, **one | {name: 1}) for name in one}
    ends, takes, last = {}, [], {}

    def end_of(name: str) -> str:
        return f"e{place}{name}"

    for i, tasks in enumerate(zip(*by_stages, strict=True)):
        task = tasks[0]
        takes.append(next(f"{name} * {walk[i].cycles!r}" for name, walk in shares.items() if walk[i].cycles))
        waits = [set(other.after) for other in tasks]
        always = set.intersection(*waits)
        terms = [end_of(name) for name in sorted(always)]
        if task.unit in last:
            terms.append(last[task.unit])
        if len(set(map(frozenset, waits))) > 1:
            choices = [sorted(end_of(name) for name in one_wait - always) for one_wait in waits]
            terms.append("[" + ", ".join(f"max({', '.join(c)})" if c else "0" for c in choices) + "][stages - 1]")
        begin = f"max({', '.join(terms)})" if len(terms) > 1 else terms[0] if terms else "0"
        ends[task.name] = f"{begin} + {takes[-1]}"
        last[task.unit] = end_of(task.name)
    # Each after those that it waits for: with one buffer, and tasks that take time, those have ended before.
    slow = pipeline.timeline(pipeline.attention_walk(structure, N_BLOCKS, stages=1, load=1, product=1, softmax=1))
    order = sorted(zip(slow.ends, ends, strict=True), key=lambda pair: pair[0])
    return [
        *(let(end_of(name), ends[name]) for _, name in order),
        let(f"ends{place}", f"[{', '.join(map(end_of, ends))}]"),
        let(f"takes{place}", f"[{', '.join(takes)}]"),
    ]
