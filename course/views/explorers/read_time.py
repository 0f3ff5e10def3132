"""Time to read n bytes: the data sheet, a fixed time added, and what was recorded (primer P1)."""

import json

import altair as alt

from ... import costs, measure
from .base import (
    BLUE,
    GREY,
    ORANGE,
    Explorer,
    axis,
    chart,
    dashes,
    let,
    menu,
    power,
    table,
    vega_bytes,
    vega_seconds,
    vega_sentence,
)

WAYS = ("read from memory", "read again", "copy")
RECORDED_AS = {"warm read": WAYS[1], "copy": WAYS[2]}
LOW, HIGH = 16, 32  # powers of two: 64 KiB to 4 GiB
LINES = ("bytes ÷ data sheet's rate", "fixed time + bytes ÷ the recorded rate")
T0_UNIT = 1e-7  # the slider counts tenths of a microsecond
USUAL_T0 = 20

READ_TIME = (
    "{work} on one {gpu}: at least {floor} at the data sheet's {bandwidth}/s. A fixed time of {t0} and {rate}/s, {source}, "
    "make it {model}. {recorded}"
)
WORK = {WAYS[0]: "{size} read from memory", WAYS[1]: "{size} read again and again", WAYS[2]: "A copy that moves {size}"}
SOURCES = ("the data sheet's rate", "the best rate that was recorded")
TIMED = "Recorded: {time}, {ratio} × the first.{warm}"
WARM = " Below 1 the bytes did not come from memory but from the L2 of {l2}."
UNTIMED = "No time is recorded for this."


def size_of(log2_bytes: int) -> str:
    """'64 KiB', '4 GiB'."""
    return costs.format_bytes(2**log2_bytes)


def measured_reads() -> tuple[measure.Recording | None, list[dict]]:
    """The newest recording of reads, and the reads and copies of every GPU that has one and that ``costs`` knows."""
    newest: dict[str, measure.Recording] = {}
    for one in reversed(measure.recordings(None, "reads") or measure.recordings(None, "decode")):
        try:
            newest[costs.gpu(one.provenance["gpu"]).name] = one
        except ValueError:
            continue
    rows = []
    for name, one in newest.items():
        timed = [(WAYS[0], read) for read in one.reads]
        timed += [(RECORDED_AS[r["operation"]], r) for r in one.limits if r["operation"] in RECORDED_AS]
        rows += [{"way": way, "gpu": name, "n_bytes": r["bytes"], "seconds": r["median_s"]} for way, r in timed]
    return newest.get("H200 SXM") or next(iter(newest.values()), None), rows


def _usual_t0(rows: list[dict]) -> int:
    """The fixed time that fits the recorded reads from memory of the H200, in steps of the slider."""
    points = [(r["n_bytes"], r["seconds"]) for r in rows if r["way"] == WAYS[0] and r["gpu"] == "H200 SXM"]
    return min(100, round(costs.fit(points).t0_s / T0_UNIT)) if len(points) > 1 else USUAL_T0


def read_time() -> Explorer:
    """Primer P1: how long a read or a copy of n bytes takes, by the data sheet, by two constants, and recorded."""
    recording, rows = measured_reads()
    gpus = costs.gpus()
    settings = {"way": WAYS[0], "log2_bytes": 25, "t0_tenths": _usual_t0(rows), "gpu": "H200 SXM"}
    best: dict[str, float] = {}
    for row in rows:
        key = f"{row['way']}/{row['gpu']}"
        best[key] = max(best.get(key, 0), row["n_bytes"] / row["seconds"])
    by_size = {f"{row['way']}/{row['gpu']}/{row['n_bytes']}": row["seconds"] for row in rows}
    l2 = {g.name: costs.format_bytes(g.l2_bytes) for g in gpus}

    def rate_of(way: str, gpu: str) -> tuple[float, str]:
        """Bytes a second of the second line, and where they come from."""
        recorded = best.get(f"{way}/{gpu}")
        return (recorded, SOURCES[1]) if recorded else (costs.gpu(gpu).bandwidth, SOURCES[0])

    def said(way: str, gpu: str, n_bytes: int) -> str:
        seconds = by_size.get(f"{way}/{gpu}/{n_bytes}")
        if seconds is None:
            return UNTIMED
        ratio = seconds / costs.floor(n_bytes, 0, gpu).seconds
        warm = WARM.format(l2=l2[gpu]) if ratio < 1 else ""
        return TIMED.format(time=costs.format_seconds(seconds), ratio=f"{ratio:.2f}", warm=warm)

    phrases = {f"{r['way']}/{r['gpu']}/{r['n_bytes']}": said(r["way"], r["gpu"], r["n_bytes"]) for r in rows}
    parameters = [
        menu("way", "work", WAYS, settings["way"]),
        power("log2_bytes", "bytes moved", LOW, HIGH, settings["log2_bytes"]),
        alt.param(
            name="t0_tenths",
            value=settings["t0_tenths"],
            bind=alt.binding_range(min=0, max=100, step=1, name="fixed time, in tenths of a µs: "),
        ),
        menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        table("work_by_way", {way: [WORK[way].format(size=size_of(n)) for n in range(LOW, HIGH + 1)] for way in WAYS}),
        table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        table("l2_by_gpu", {g.name: g.l2_bytes for g in gpus}),
        table("best", best),
        table("phrases", phrases),
        let("key", "way + '/' + gpu"),
        let("n", "pow(2, log2_bytes)"),
        let("bandwidth", "bandwidth_by_gpu[gpu]"),
        let("rate", "isDefined(best[key]) ? best[key] : bandwidth"),
        let("t0", f"t0_tenths * {T0_UNIT}"),
    ]
    words = vega_sentence(
        READ_TIME,
        work=f"work_by_way[way][log2_bytes - {LOW}]",
        gpu="gpu",
        floor=vega_seconds("n / bandwidth"),
        bandwidth=vega_bytes("bandwidth"),
        t0=f"(t0_tenths == 0 ? '0 ns' : {vega_seconds('t0')})",
        rate=vega_bytes("rate"),
        source=f"isDefined(best[key]) ? {json.dumps(SOURCES[1])} : {json.dumps(SOURCES[0])}",
        model=vega_seconds("t0 + n / rate"),
        recorded=f"isDefined(phrases[key + '/' + n]) ? phrases[key + '/' + n] : {json.dumps(UNTIMED)}",
    )

    def expected(way: str, log2_bytes: int, t0_tenths: int, gpu: str) -> list[dict]:
        rate, _ = rate_of(way, gpu)
        model = costs.Prediction(t0_tenths * T0_UNIT, rate)
        rows = []
        for n in range(LOW, HIGH + 1):
            times = costs.floor(2**n, 0, gpu).seconds, model.seconds(2**n)
            rows += [{"line": line, "size": size_of(n), "seconds": s} for line, s in zip(LINES, times, strict=True)]
        return rows

    def sentence(way: str, log2_bytes: int, t0_tenths: int, gpu: str) -> str:
        n_bytes, (rate, source), t0 = 2**log2_bytes, rate_of(way, gpu), t0_tenths * T0_UNIT
        return READ_TIME.format(
            work=WORK[way].format(size=size_of(log2_bytes)),
            gpu=gpu,
            floor=costs.format_seconds(costs.floor(n_bytes, 0, gpu).seconds),
            bandwidth=costs.format_bytes(costs.gpu(gpu).bandwidth, binary=False),
            t0=costs.format_seconds(t0),
            rate=costs.format_bytes(rate, binary=False),
            source=source,
            model=costs.format_seconds(costs.Prediction(t0, rate).seconds(n_bytes)),
            recorded=said(way, gpu, n_bytes),
        )

    ticks = {2**n: size_of(n) for n in (16, 20, 24, 28, 32)}
    x = alt.X(
        "n_bytes:Q", title="bytes moved", scale=alt.Scale(type="log", base=2, domain=[2**LOW, 2 ** (HIGH + 1)], nice=False),
        axis=axis(values=list(ticks), labelExpr=f"({json.dumps(ticks)})[datum.value]"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="time", scale=alt.Scale(type="log", domain=[1e-8, 3e-2], nice=False),
        axis=axis(values=[10.0**n for n in range(-8, -1)], labelExpr=vega_seconds("datum.value")),
    )  # fmt: skip
    lines = (
        alt.Chart(alt.NamedData("read_lines"))
        .transform_calculate(
            seconds=f"datum.line == {json.dumps(LINES[0])} ? datum.n_bytes / bandwidth : t0 + datum.n_bytes / rate"
        )
        .mark_line(strokeWidth=2, color=GREY, clip=True)
        .encode(x=x, y=y, strokeDash=dashes("line:N", dict(zip(LINES, ([1, 0], [7, 3]), strict=True))))
    )
    one = alt.Chart(alt.InlineData([{}]))
    layers = [
        lines,
        one.transform_calculate(n_bytes="l2_by_gpu[gpu]").mark_rule(color=GREY, strokeDash=[2, 3]).encode(x=x),
        one.transform_calculate(n_bytes="l2_by_gpu[gpu]")
        .mark_text(color=GREY, fontSize=11, align="right", dx=-4)
        .encode(x=x, y=alt.value(8), text=alt.value("L2 ends")),
        alt.Chart(alt.NamedData("recorded_reads"))
        .transform_filter("datum.way == way && datum.gpu == gpu")
        .transform_calculate(time=vega_seconds("datum.seconds"), size=vega_bytes("datum.n_bytes"))
        .mark_point(filled=False, strokeWidth=2, size=70, opacity=1, color=BLUE)
        .encode(
            x=x,
            y=y,
            tooltip=[alt.Tooltip("way:N", title="recorded"), alt.Tooltip("size:N", title="moved"), alt.Tooltip("time:N")],
        ),
        one.transform_calculate(n_bytes="n", seconds="t0 + n / rate")
        .mark_point(filled=True, size=80, opacity=1, color=ORANGE)
        .encode(x=x, y=y),
    ]
    source = f"hollow marks: {recording.label}" if recording and rows else "no recording is there yet"
    return Explorer(
        name="read-time",
        chart=chart(
            "Time to move n bytes", layers, parameters, words,
            datasets={
                "read_lines": [
                    {"line": line, "size": size_of(n), "n_bytes": 2**n} for line in LINES for n in range(LOW, HIGH + 1)
                ],
                "recorded_reads": rows,
            },
        ),
        sentence=sentence(**settings) + f" Lines are computed; {source}.",
        alt="Time against bytes, both logarithmic: a straight line, bytes over the data sheet's rate, and a curve that lies on "
        "it for large sizes and turns flat for small ones, where a fixed time is all that counts"
        + (f"; {sum(r['way'] == WAYS[0] for r in rows)} recorded points." if rows else "."),
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
