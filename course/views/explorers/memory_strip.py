"""A strip of memory and the programs that own it (primer P2)."""

import altair as alt

from ... import costs
from ...costs.transfers import SECTOR
from .base import (
    BLUE,
    GREY,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    let,
    menu,
    table,
    vega_count,
    vega_sentence,
)

BLOCKS = (4, 8, 16, 32)
STRIDES = (1, 2, 3, 4, 8)
MOST = 64  # elements, and lanes
ELEMENT_BYTES, LINE = 4, 128  # bytes of a float32 and of a row of the drawing
KINDS = ("the chosen program", "even programs", "odd programs", "masked lanes, dashed")

STRIP = (
    "{n} in blocks of {block}: {programs}, {idle} masked. Program {program} owns elements {first} to {last}. With "
    "stride {stride} they lie in {sectors} of {sector} bytes: of {fetched} bytes fetched {used} are used."
)


def memory_strip() -> Explorer:
    """Primer P2: which addresses each program of a copy asks for, and which lanes its mask turns off."""
    settings = {"n": 45, "block": 16, "stride": 1, "program": 2}
    lane_range = range(MOST)
    parameters = [
        alt.param(name="n", value=settings["n"], bind=alt.binding_range(min=1, max=MOST, step=1, name="elements N ")),
        menu("block", "BLOCK", BLOCKS, settings["block"]),
        menu("stride", "stride", STRIDES, settings["stride"]),
        alt.param(name="program", value=settings["program"], bind=alt.binding_range(min=0, max=15, step=1, name="program ")),
        table("kinds", list(KINDS)),
        let("programs", "ceil(n / block)"),
        let("chosen", "min(program, programs - 1)"),
        let("first", "chosen * block"),
        let("last", "min(n, first + block) - 1"),
        let("idle", "programs * block - n"),
        let("step", f"{SECTOR // ELEMENT_BYTES}"),
        let("sectors", "floor(last * stride / step) - floor(first * stride / step) + 1"),
        let("used", f"(last - first + 1) * {ELEMENT_BYTES}"),
    ]
    words = vega_sentence(
        STRIP,
        n=vega_count("n", "element"),
        block="block",
        programs=vega_count("programs", "program"),
        idle=vega_count("idle", "lane"),
        program="chosen",
        first="first",
        last="last",
        stride="stride",
        used="used",
        sectors=vega_count("sectors", "sector"),
        sector=str(SECTOR),
        fetched=f"sectors * {SECTOR}",
    )

    def at(n: int, block: int, program: int) -> tuple[int, int, int, int]:
        """Programs, the chosen one, its first and its last element."""
        programs = -(-n // block)
        chosen = min(program, programs - 1)
        return programs, chosen, chosen * block, min(n, (chosen + 1) * block) - 1

    def expected(n: int, block: int, stride: int, program: int) -> list[dict]:
        programs, chosen, _, _ = at(n, block, program)
        rows = []
        for lane in lane_range:
            owner = lane // block
            kind = (
                "no program" if owner >= programs else KINDS[3] if lane >= n else KINDS[0 if owner == chosen else 1 + owner % 2]
            )
            rows.append({"name": f"lane {lane}", "kind": kind, "owner": owner, "address": lane * stride})
        return rows

    def sentence(n: int, block: int, stride: int, program: int) -> str:
        programs, chosen, first, last = at(n, block, program)
        used, sectors = (last - first + 1) * ELEMENT_BYTES, costs.sectors(first, last, stride, bytes_per_element=ELEMENT_BYTES)
        return STRIP.format(
            n=count(n, "element"),
            block=block,
            programs=count(programs, "program"),
            idle=count(programs * block - n, "lane"),
            program=chosen,
            first=first,
            last=last,
            stride=stride,
            used=used,
            sectors=count(sectors, "sector"),
            sector=SECTOR,
            fetched=sectors * SECTOR,
        )

    per_line, lines = LINE // ELEMENT_BYTES, MOST * max(STRIDES) * ELEMENT_BYTES // LINE
    x = alt.X(
        "left:Q", title="element of the line; a bar every 32 bytes",
        scale=alt.Scale(domain=[0, per_line], nice=False), axis=axis(values=[0, 8, 16, 24, 32], gridColor=GREY),
    )  # fmt: skip
    y = alt.Y(
        "top:Q", title="address of the line", scale=alt.Scale(domain=[lines, 0], nice=False),
        axis=axis(values=[0, 4, 8, 12], labelExpr=f"datum.value * {per_line}", grid=False),
    )  # fmt: skip

    def cells(chart: alt.Chart) -> alt.Chart:
        """Where an address is drawn: in its line, with some room to the next."""
        placed = chart.transform_calculate(left=f"datum.address % {per_line} + 0.08", top=f"floor(datum.address / {per_line})")
        return placed.transform_calculate(right="datum.left + 0.84", bottom="datum.top + 0.8")

    box = {"x": x, "x2": "right:Q", "y": y, "y2": "bottom:Q"}
    colours = colour_scale(dict(zip(KINDS, (ORANGE, BLUE, "#86b8dc", GREY), strict=True)))
    lanes = (
        alt.Chart(alt.NamedData("lanes"))
        .transform_calculate(owner="floor(datum.lane / block)", address="datum.lane * stride")
        .transform_calculate(
            kind="datum.owner >= programs ? 'no program' : datum.lane >= n ? kinds[3] : "
            "datum.owner == chosen ? kinds[0] : kinds[1 + datum.owner % 2]"
        )
    )
    everything = alt.Chart(alt.sequence(0, per_line * lines, as_="address"))
    owned, masked = "indexof(kinds, datum.kind) >= 0 && datum.kind != kinds[3]", "datum.kind == kinds[3]"
    layers = [
        cells(everything).mark_rect(fillOpacity=0, stroke=GREY, strokeOpacity=0.25, strokeWidth=1).encode(**box),
        cells(lanes)
        .mark_rect(stroke=GREY, strokeWidth=2, strokeDash=[2, 2])
        .encode(
            **box,
            color=alt.condition("indexof(kinds, datum.kind) >= 0", alt.Color("kind:N", **colours), alt.value(GREY)),
            fillOpacity=alt.condition(owned, alt.value(1), alt.value(0)),
            strokeOpacity=alt.condition(masked, alt.value(1), alt.value(0)),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N", title="of"), alt.Tooltip("address:Q")],
        ),
    ]
    return Explorer(
        name="memory-strip",
        chart=chart(
            "What one program sees", layers, parameters, words,
            datasets={"lanes": [{"name": f"lane {lane}", "lane": lane} for lane in lane_range]},
        ),
        sentence=sentence(**settings),
        alt="A strip of memory, wrapped into lines of 32 elements. Coloured cells belong to programs, the chosen one in "
        "orange; dashed cells at the end belong to lanes that the mask turns off.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
