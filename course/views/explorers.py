"""Explorers: charts whose sliders and menus need no Python, on a page as in a notebook.

Python puts tables of coefficients into the chart (bytes of a cache, FLOPs of a pair, rates of a GPU, recorded times), all
from ``course.costs``, ``kernels.plan`` and recordings. What Vega adds are look-ups, products, sums and the larger of two
numbers; each ``Explorer.expected`` says from ``course.costs`` what must come out, for tests to compare.
"""

import base64
import html
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from string import Formatter

import altair as alt

from kernels import plan

from .. import costs, measure
from . import style
from .figures import shrink

FOR_A_PAGE = "MHA_TO_MLA_PAGE"  # set in the environment of a kernel whose outputs become a page
VEGA_LITE = "application/vnd.vegalite.v5+json"
NOTEBOOK_WIDTH = 560  # JupyterLab gives a chart no width of its own
HEIGHT = 250
LEFT = 52  # room for the y axis; title and sentence start at its left edge

# Marks must be seen on a light and on a dark page, so they are of middle lightness, and recorded marks are hollow, not white.
BLUE, ORANGE, GREEN, GREY = "#1f82c0", "#d55e00", "#009e73", "#7d8590"
FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
LETTER = 6.1  # pixels that a letter of a sentence takes at size 12, with something to spare

# Loads Vega where no page of ours has said that it draws explorers: Colab, VS Code, an exported page. Files that find a
# `define` would hand themselves to it instead of becoming globals, so it is put aside meanwhile.
LOADER = """(function () {
  if (window.mhaToMlaSite || document.querySelector('meta[name="mha-to-mla-site"]')) return;
  var box = document.currentScript ? document.currentScript.parentElement : document.getElementById("explorer-%s");
  var spec = JSON.parse(box.querySelector(".explorer-spec").textContent);
  var files = ["vega@5.30.0", "vega-lite@5.20.1", "vega-embed@6.26.0"], define = window.define;
  (function next() {
    if (window.vegaEmbed) {
      window.define = define;
      box.style.width = "100%%";
      window.vegaEmbed(box, spec, {renderer: "svg", actions: false});
      return;
    }
    window.define = undefined;
    var script = document.createElement("script");
    script.src = "https://cdn.jsdelivr.net/npm/" + files.shift();
    script.onload = next;
    script.onerror = function () { window.define = define; };
    document.head.appendChild(script);
  })();
})();"""


@dataclass(frozen=True)
class Explorer:
    """A chart with controls. Shown as Vega-Lite where a notebook draws it, and as html everywhere else.

    sentence   what the chart says at first; the chart itself says it anew for every setting
    alt        what the still picture shows, for those who cannot see it
    settings   the first value of every control
    expected     settings -> the rows the chart must have computed, by course.costs; keys are the chart's field names
    sentence_of  settings -> what the chart must say
    """

    name: str
    chart: alt.LayerChart
    sentence: str
    alt: str
    settings: dict
    expected: Callable[..., list[dict]] = field(repr=False)
    sentence_of: Callable[..., str] = field(repr=False)

    def spec(self, width: int | str = "container") -> dict:
        """The Vega-Lite specification at a width in pixels, or following its container."""
        spec = self.chart.to_dict() | {"width": width, "description": self.alt}
        # What the sentence is wrapped to. Not the signal `width`: that shrinks to the plot only after a first layout, which
        # would then have made room for too few lines. It is named so that a resized window is noticed.
        room = "isFinite(containerSize()[0]) ? containerSize()[0] + 0 * width : 320" if width == "container" else str(width)
        next(p for p in spec["params"] if p["name"] == "room")["expr"] = room
        # Legends one below the other, for a phone: Vega obeys this, Altair's schema does not know it.
        spec["config"]["legend"]["layout"] = {"bottom": {"anchor": "start", "direction": "vertical", "margin": 2}}
        return spec

    def still(self) -> bytes | None:
        """The chart as it is at first, as a PNG, where vl-convert is installed (it is for building the book)."""
        if find_spec("vl_convert") is None:
            return None
        import vl_convert

        return shrink(vl_convert.vegalite_to_png(self.spec(NOTEBOOK_WIDTH), vl_version="5.20", scale=1.6))

    def html(self) -> str:
        """A div with specification, still picture and sentence; what draws the chart replaces the last two."""
        spec = json.dumps(self.spec(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        png = self.still()
        picture = (
            f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{base64.b64encode(png).decode()}" '
            'style="max-width:100%;height:auto">'
            if png
            else ""
        )
        return (
            f'<div class="explorer" id="explorer-{self.name}">'
            f'<script type="application/json" class="explorer-spec">{spec}</script>'
            f'{picture}<p class="explorer-sentence">{html.escape(self.sentence)}</p>'
            f"<script>{LOADER % self.name}</script></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """Vega-Lite, and html where a page is made of it (`make notebooks` says so) or where nothing else is drawn (Colab).

        JupyterLab and VS Code draw Vega-Lite themselves, without a network, but would prefer the html if they had it.
        """
        bundle = {VEGA_LITE: self.spec(NOTEBOOK_WIDTH), "text/plain": repr(self)}
        if os.environ.get(FOR_A_PAGE) or "google.colab" in sys.modules:
            bundle["text/html"] = self.html()
        return bundle

    def __repr__(self) -> str:
        return f"Explorer {self.name}: {self.sentence}"


# --- expressions: one Vega function for each helper of course.costs.units, compared with it in the tests


def vega_bytes(x: str, digits: int = 4) -> str:
    """Vega expression that writes bytes as costs.format_bytes(x, binary=False) does, from 1 kB to 999 TB."""
    return _scaled(x, digits, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")])


def vega_seconds(x: str, digits: int = 4) -> str:
    """Vega expression that writes seconds as costs.format_seconds does."""
    return _scaled(x, digits, [(1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])


def _scaled(x: str, digits: int, steps: list[tuple[float, str]]) -> str:
    *larger, (last, unit) = steps
    text = f"format(({x}) / {last!r}, '.{digits}~r') + ' {unit}'"
    for scale, unit in reversed(larger):
        # As in Python: what would be printed as the next unit's 1 belongs to the next unit.
        least = (1 - 0.5 * 10**-digits) * scale
        text = f"({x}) >= {least!r} ? format(({x}) / {scale!r}, '.{digits}~r') + ' {unit}' : {text}"
    return f"({text})"


def vega_count(x: str, noun: str) -> str:
    """Vega expression that writes a number and a noun as count(x, noun) does."""
    return f"(format({x}, ',') + ({x} == 1 ? ' {noun}' : ' {noun}s'))"


def count(number: int, noun: str) -> str:
    """'1 user', '1,024 users'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def vega_sentence(template: str, **expressions: str) -> str:
    """Vega expression of a sentence: the words of ``template`` with each {name} replaced by what its expression gives.

    The same template, filled by str.format, is the sentence in Python.
    """
    parts = []
    for words, name, _, _ in Formatter().parse(template):
        parts += [json.dumps(words, ensure_ascii=False)] if words else []
        parts += [f"({expressions[name]})"] if name else []
    return " + ".join(parts)


# --- pieces that every explorer has


def _menu(name: str, label: str, options: Iterable, value) -> alt.Parameter:
    return alt.param(name=name, value=value, bind=alt.binding_select(options=list(options), name=f"{label} "))


def _power(name: str, label: str, low: int, high: int, value: int) -> alt.Parameter:
    """A slider over powers of two: it shows the exponent, the sentence says the number."""
    return alt.param(name=name, value=value, bind=alt.binding_range(min=low, max=high, step=1, name=f"{label}: 2ⁿ, n = "))


def _table(name: str, value) -> alt.Parameter:
    return alt.param(name=name, value=value)


def _let(name: str, expr: str) -> alt.Parameter:
    return alt.param(name=name, expr=expr)


def _axis(**more) -> alt.Axis:
    return alt.Axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", **more)


def _colours(meaning: Mapping[str, str]) -> dict:
    """Scale and legend of a colour channel: what each colour means, below the plot."""
    return {
        "scale": alt.Scale(domain=list(meaning), range=list(meaning.values())),
        "legend": alt.Legend(title=None, orient="bottom", direction="vertical", labelFontSize=12, labelLimit=0, offset=6),
    }


def _dashes(field: str, meaning: Mapping[str, list[int]], shown: int | None = None) -> alt.StrokeDash:
    """A channel of dash patterns: what each means, below the plot; only the first ``shown`` if given."""
    look = {"symbolStrokeColor": GREY, "symbolStrokeWidth": 2, "symbolSize": 300, "labelFontSize": 12, "labelLimit": 0}
    return alt.StrokeDash(
        field,
        scale=alt.Scale(domain=list(meaning), range=list(meaning.values())),
        legend=alt.Legend(title=None, orient="bottom", direction="vertical", offset=6, values=list(meaning)[:shown], **look),
    )


def _chart(
    title: str, layers: list, parameters: list, words: str, *, datasets: Mapping[str, list], above: int = 0
) -> alt.LayerChart:
    """Layers under a title and a sentence, whose Vega expression is ``words``; ``above`` pixels over the plot stay free."""
    parameters = [
        *parameters,
        _let("sentence", words),
        _let("room", str(NOTEBOOK_WIDTH)),
        _let("letters_a_line", f"max(1, floor((room - 18) / {LETTER}))"),
        _let(
            "sentence_lines",
            "split(trim(replace(sentence, regexp('(.{1,' + letters_a_line + '})( +|$)', 'g'), '$1\\n')), '\\n')",
        ),
    ]
    said = (
        alt.Chart(alt.InlineData([{}]))
        .mark_text(align="left", baseline="top", fontSize=12, lineHeight=16, color=style.INK)
        .encode(
            text=alt.value(alt.expr("sentence_lines")),
            x=alt.value(-LEFT),
            y=alt.value(alt.expr(f"-{above + 10} - 16 * length(sentence_lines)")),
        )
    )
    look = alt.TitleParams(title, anchor="start", frame="group", dx=-LEFT, offset=8, fontSize=14, color=style.INK)
    return (
        alt.layer(*layers, said, datasets=dict(datasets))
        .add_params(*parameters)
        .properties(
            title=look,
            width=NOTEBOOK_WIDTH,
            height=HEIGHT,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding", resize=True),
        )
        .configure(background=style.CARD, padding=6, font=FONT)
        .configure_view(stroke=None)
        .configure_axis(labelColor=style.INK, titleColor=style.INK, gridColor=style.GRID, domainColor=GREY, tickColor=GREY)
        .configure_axisY(minExtent=LEFT - 8, maxExtent=LEFT - 8)
        .configure_legend(labelColor=style.INK)
    )


# --- chapter 0

MODELS = ("Llama 2 7B", "Llama 3.1 8B", "Llama 2 70B", "Llama 3.1 405B", "Gemma 3 27B", "DeepSeek-V3")
CONTEXTS = tuple(2**n for n in range(9, 18))
USERS = tuple(2**n for n in range(9))


def _equal_at(model: costs.Model, context_len: int) -> int:
    """Number of users at which a step comes closest to reading as much cache as weights."""
    cache = model.cache_bytes(context_len)

    def excess(users: int) -> float:
        return model.weight_bytes_read(users) - users * cache

    below, above = 1, 2
    while excess(above) > 0:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if excess(middle) > 0 else (below, middle)
    return min((below, above), key=lambda users: abs(excess(users)))


BYTES_PER_STEP = (
    "{model} with {users} of {context} tokens: one step reads {weights} of weights and {cache} of cache, so "
    "{share} is cache. "
    "At the {rate}/s of one {gpu} that takes {time}. Weights and cache are equal at about {equal}.{beyond}"
)
BEYOND = " The model was made for {longest} tokens: this is shape arithmetic."


def bytes_per_step() -> Explorer:
    """Chapter 0: which share of a decode step's bytes is weights and which is cache, for 1 to 256 users."""
    models, gpus = [costs.model(name) for name in MODELS], costs.gpus()
    settings = {"model": "Llama 2 70B", "log2_context": 15, "log2_users": 5, "gpu": "H100 SXM"}
    parameters = [
        _menu("model", "model", MODELS, settings["model"]),
        _power("log2_context", "tokens a user", 9, 17, settings["log2_context"]),
        _power("log2_users", "users", 0, 8, settings["log2_users"]),
        _menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        _table("weights_by_model", {m.name: [m.weight_bytes_read(u) for u in USERS] for m in models}),
        _table("cache_by_model", {m.name: [m.cache_bytes(n) for n in CONTEXTS] for m in models}),
        _table("equal_by_model", {m.name: [_equal_at(m, n) for n in CONTEXTS] for m in models}),
        _table("longest_by_model", {m.name: m.max_context for m in models}),
        _table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        _let("context", "pow(2, log2_context)"),
        _let("users", "pow(2, log2_users)"),
        _let("weights", "weights_by_model[model][log2_users]"),
        _let("cache", "users * cache_by_model[model][log2_context - 9]"),
    ]
    words = vega_sentence(
        BYTES_PER_STEP,
        model="model",
        users=vega_count("users", "user"),
        context="format(context, ',')",
        weights=vega_bytes("weights"),
        cache=vega_bytes("cache"),
        share="format(cache / (weights + cache), '.0%')",
        rate=vega_bytes("bandwidth_by_gpu[gpu]"),
        gpu="gpu",
        time=vega_seconds("(weights + cache) / bandwidth_by_gpu[gpu]"),
        equal=vega_count("equal_by_model[model][log2_context - 9]", "user"),
        beyond="context > longest_by_model[model] ? "
        + vega_sentence(BEYOND, longest="format(longest_by_model[model], ',')")
        + " : ''",
    )

    def expected(model: str, log2_context: int, gpu: str, **_) -> list[dict]:
        one, bandwidth = costs.model(model), costs.gpu(gpu).bandwidth
        rows = []
        for users in USERS:
            weights, cache = one.weight_bytes_read(users), one.cache_bytes(2**log2_context, users)
            rows.append({"users": users, "weights": weights, "cache": cache, "seconds": (weights + cache) / bandwidth})
        return rows

    def sentence(model: str, log2_context: int, log2_users: int, gpu: str) -> str:
        one, context_len, users, bandwidth = (
            costs.model(model),
            2**log2_context,
            2**log2_users,
            costs.gpu(gpu).bandwidth,
        )
        weights, cache = one.weight_bytes_read(users), one.cache_bytes(context_len, users)
        return BYTES_PER_STEP.format(
            model=model,
            users=count(users, "user"),
            context=f"{context_len:,}",
            weights=costs.format_bytes(weights, binary=False),
            cache=costs.format_bytes(cache, binary=False),
            share=f"{cache / (weights + cache):.0%}",
            rate=costs.format_bytes(bandwidth, binary=False),
            gpu=gpu,
            time=costs.format_seconds((weights + cache) / bandwidth),
            equal=count(_equal_at(one, context_len), "user"),
            beyond=BEYOND.format(longest=f"{one.max_context:,}") if one.beyond_context(context_len) else "",
        )

    steps = (
        alt.Chart(alt.NamedData("steps"))
        .transform_calculate(
            weights="weights_by_model[model][datum.at]",
            cache="datum.users * cache_by_model[model][log2_context - 9]",
        )
        .transform_calculate(seconds="(datum.weights + datum.cache) / bandwidth_by_gpu[gpu]")
    )
    x = alt.X("users:O", title="users whose next token is computed together", axis=_axis(labelAngle=0))
    colours = {"cache": ORANGE, "weights": BLUE}
    bars = (
        steps.transform_fold(["weights", "cache"], as_=["part", "bytes"])
        .transform_calculate(text=vega_bytes("datum.bytes"), of_all="datum.bytes / (datum.weights + datum.cache)")
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("bytes:Q", stack="normalize", title="share of the bytes", axis=_axis(format="%", tickCount=5)),
            color=alt.Color("part:N", **_colours(colours)),
            order=alt.Order("part:N", sort="descending"),
            opacity=alt.condition("datum.users == users", alt.value(1.0), alt.value(0.6)),
            tooltip=[
                alt.Tooltip("part:N", title="what"),
                alt.Tooltip("text:N", title="bytes a step"),
                alt.Tooltip("of_all:Q", title="share", format=".1%"),
            ],
        )
    )
    # Over every second bar what the whole step reads, and how long that takes.
    over = steps.transform_filter("datum.at % 2 == 0").transform_calculate(
        all_bytes=vega_bytes("datum.weights + datum.cache", 3), all_time=vega_seconds("datum.seconds", 3)
    )
    row = {"fontSize": 11, "baseline": "bottom", "color": style.INK}
    heads = alt.Chart(alt.InlineData([{}]))
    layers = [
        bars,
        over.mark_text(**row).encode(x=x, y=alt.value(-20), text="all_bytes:N"),
        over.mark_text(**row).encode(x=x, y=alt.value(-5), text="all_time:N"),
        heads.mark_text(align="left", **row).encode(x=alt.value(-LEFT), y=alt.value(-20), text=alt.value("reads")),
        heads.mark_text(align="left", **row).encode(x=alt.value(-LEFT), y=alt.value(-5), text=alt.value("in")),
    ]
    return Explorer(
        name="bytes-per-step",
        chart=_chart(
            "What one decode step reads", layers, parameters, words,
            datasets={"steps": [{"users": u, "at": i} for i, u in enumerate(USERS)]}, above=36,
        ),
        sentence=sentence(**settings),
        alt=(
            "Stacked bars for 1 to 256 users: the share of weights falls from nearly all to almost nothing as "
            "the share of cache grows."
        ),
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


# --- chapter 1

BATCHES = tuple(2**n for n in range(9))
GROUPS = tuple(2**n for n in range(8))
Q_LENS = (1, 2, 4, 8)
WIDTHS = {"16-bit": 2, "8-bit": 1}
LINEAR_WIDTH = 4096  # d_model of the linear layer that stands beside attention

ROOFLINE = (
    "Decode attention with {group} for each KV head and {q_len}: {attention} FLOP per byte, at most "
    "{attention_share} of "
    "the peak. A linear layer on {tokens}: {linear} FLOP per byte, at most {linear_share}. The ridge of one "
    "{gpu} is {ridge} FLOP "
    "per byte by its data sheet{measured}.{fallback}"
)
MEASURED_RIDGE = ", {ridge} with the read rate that was recorded"
FALLBACK = " It has no rate for 8-bit products here: they run at the 16-bit rate."


def roofline() -> Explorer:
    """Chapter 1: decode attention and a linear layer under a GPU's roof: batch moves the second, never the first."""
    gpus = costs.gpus()
    read_rates = {costs.gpu(r.provenance["gpu"]).name: r.read_bandwidth for r in reversed(measure.recordings())}
    settings = {"log2_batch": 5, "group_size": 4, "q_len": 1, "numbers": "16-bit", "gpu": "H200 SXM"}
    pair = costs.Attention.gqa(1, 1, 128)
    parameters = [
        _power("log2_batch", "batch", 0, 8, settings["log2_batch"]),
        _menu("group_size", "query heads a KV head", GROUPS, settings["group_size"]),
        _menu("q_len", "query tokens", Q_LENS, settings["q_len"]),
        _menu("numbers", "numbers", WIDTHS, settings["numbers"]),
        _menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        _table("element_bytes", WIDTHS),
        _table("attention_unit", costs.intensity(pair, bytes_per_element=1)),
        _table(
            "linear_by_log2_tokens",
            [costs.linear_intensity(2**n, LINEAR_WIDTH, LINEAR_WIDTH, bytes_per_element=1) for n in range(12)],
        ),
        _table("bandwidth_by_gpu", {g.name: g.bandwidth for g in gpus}),
        _table("read_rate_by_gpu", read_rates),
        _table("peak_by_gpu", {g.name: {numbers: _peak(g, numbers) for numbers in WIDTHS} for g in gpus}),
        _table("narrow_by_gpu", {g.name: "float8" in g.peaks for g in gpus}),
        _let("batch", "pow(2, log2_batch)"),
        _let("tokens", "batch * q_len"),
        _let("peak", "peak_by_gpu[gpu][numbers]"),
        _let("bandwidth", "bandwidth_by_gpu[gpu]"),
        _let("ridge", "peak / bandwidth"),
        _let("attention_intensity", "attention_unit * group_size * q_len / element_bytes[numbers]"),
        _let("linear_intensity", "linear_by_log2_tokens[log2_batch + log(q_len) / LN2] / element_bytes[numbers]"),
    ]
    number, percent = "format({}, '.3~r')".format, "format(min(1, {} / ridge), '.3~p')".format
    words = vega_sentence(
        ROOFLINE,
        group=vega_count("group_size", "query head"),
        q_len=vega_count("q_len", "query token"),
        attention=number("attention_intensity"),
        attention_share=percent("attention_intensity"),
        tokens=vega_count("tokens", "token"),
        linear=number("linear_intensity"),
        linear_share=percent("linear_intensity"),
        gpu="gpu",
        ridge=number("ridge"),
        measured="isDefined(read_rate_by_gpu[gpu]) ? "
        + vega_sentence(MEASURED_RIDGE, ridge=number("peak / read_rate_by_gpu[gpu]"))
        + " : ''",
        fallback=f"numbers == '8-bit' && !narrow_by_gpu[gpu] ? {json.dumps(FALLBACK)} : ''",
    )

    def points(log2_batch: int, group_size: int, q_len: int, numbers: str, gpu: str) -> tuple[float, float, float]:
        """Intensity of attention and of the linear layer, and the ridge."""
        one, width = costs.gpu(gpu), WIDTHS[numbers]
        attention = costs.Attention.gqa(group_size, 1, 128)
        return (
            costs.intensity(attention, q_len=q_len, bytes_per_element=width),
            costs.linear_intensity(2**log2_batch * q_len, LINEAR_WIDTH, LINEAR_WIDTH, bytes_per_element=width),
            _peak(one, numbers) / one.bandwidth,
        )

    def expected(gpu: str, numbers: str, **others) -> list[dict]:
        attention, linear, _ = points(gpu=gpu, numbers=numbers, **others)
        peak, bandwidth = _peak(costs.gpu(gpu), numbers), costs.gpu(gpu).bandwidth
        return [
            {"work": work, "intensity": x, "tflops": min(peak, bandwidth * x) / 1e12}
            for work, x in (("decode attention", attention), ("linear layer", linear))
        ]

    def sentence(log2_batch: int, group_size: int, q_len: int, numbers: str, gpu: str) -> str:
        attention, linear, ridge = points(log2_batch, group_size, q_len, numbers, gpu)
        rate = read_rates.get(gpu)
        return ROOFLINE.format(
            group=count(group_size, "query head"),
            q_len=count(q_len, "query token"),
            attention=_three(attention),
            attention_share=_percent(attention / ridge),
            tokens=count(2**log2_batch * q_len, "token"),
            linear=_three(linear),
            linear_share=_percent(linear / ridge),
            gpu=gpu,
            ridge=_three(ridge),
            measured=MEASURED_RIDGE.format(ridge=_three(_peak(costs.gpu(gpu), numbers) / rate)) if rate else "",
            fallback=FALLBACK if numbers == "8-bit" and "float8" not in costs.gpu(gpu).peaks else "",
        )

    low, high = 0.5, 4096
    x = alt.X(
        "intensity:Q", title="FLOP per byte read", scale=alt.Scale(type="log", base=2, domain=[low, high]),
        axis=_axis(values=[1, 4, 16, 64, 256, 1024, 4096], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "tflops:Q", title="TFLOP/s at most", scale=alt.Scale(type="log", domain=[0.1, 4000]),
        axis=_axis(values=[0.1, 1, 10, 100, 1000], format=","),
    )  # fmt: skip
    roofs = (
        alt.Chart(alt.NamedData("roofs"))
        .transform_calculate(rate="datum.roof == 'roof: data sheet' ? bandwidth : read_rate_by_gpu[gpu]")
        .transform_filter("isValid(datum.rate)")
        .transform_calculate(intensity=f"[{low}, peak / datum.rate, {high}][datum.corner]")
        .transform_calculate(tflops="min(peak, datum.rate * datum.intensity) / 1e12")
    )
    dash = _dashes("roof:N", {"roof: data sheet": [1, 0], "roof: recorded read rate": [4, 3]}, None if read_rates else 1)
    work = (
        alt.Chart(alt.NamedData("work"))
        .transform_calculate(intensity="datum.work == 'linear layer' ? linear_intensity : attention_intensity")
        .transform_calculate(tflops="min(peak, bandwidth * datum.intensity) / 1e12")
    )
    colours = _colours({"decode attention": ORANGE, "linear layer": BLUE})
    shapes = alt.Scale(domain=["decode attention", "linear layer"], range=["circle", "square"])
    layers = [
        roofs.transform_filter("datum.corner == 1").mark_rule(color=GREY, strokeWidth=1).encode(x=x, strokeDash=dash),
        roofs.transform_filter("datum.corner == 1 && datum.roof == 'roof: data sheet'")
        .mark_text(align="left", baseline="top", dx=4, fontSize=12, color=style.INK)
        .encode(x=x, y=alt.value(2), text=alt.value("ridge")),
        roofs.mark_line(color=GREY, strokeWidth=2.5).encode(x=x, y=y, strokeDash=dash),
        work.mark_rule(strokeWidth=1.5, strokeDash=[2, 3]).encode(
            x=x, y=y, y2=alt.Y2Datum(0.1), color=alt.Color("work:N", **colours)
        ),
        work.mark_point(filled=True, size=170, opacity=1).encode(
            x=x,
            y=y,
            color=alt.Color("work:N", **colours),
            shape=alt.Shape("work:N", scale=shapes, legend=colours["legend"]),
            tooltip=[
                alt.Tooltip("work:N", title="work"),
                alt.Tooltip("intensity:Q", title="FLOP per byte", format=".4~r"),
                alt.Tooltip("tflops:Q", title="TFLOP/s at most", format=".4~r"),
            ],
        ),
    ]
    return Explorer(
        name="roofline",
        chart=_chart(
            "Under the roof: what batch moves", layers, parameters, words,
            datasets={
                "roofs": [{"roof": r, "corner": c} for r in ("roof: data sheet", "roof: recorded read rate") for c in range(3)],
                "work": [{"work": "decode attention"}, {"work": "linear layer"}],
            },
        ),
        sentence=sentence(**settings),
        alt="Roofline on logarithmic axes: the roof rises with FLOP per byte up to the ridge and is flat after it; "
        "decode attention stands far left of the ridge, a linear layer on 32 tokens further right.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip


def _peak(gpu: costs.Gpu, numbers: str) -> float:
    """FLOP/s of products of 16- or 8-bit numbers; a GPU without 8-bit units multiplies them as 16-bit ones."""
    wide = gpu.peak_flops("bfloat16" if "bfloat16" in gpu.peaks else "float16")
    return gpu.peaks.get("float8", wide) if numbers == "8-bit" else wide


def _three(x: float) -> str:
    """Three significant digits, as d3's '.3~r' writes them."""
    return f"{float(f'{x:.3g}'):.10g}"


def _percent(share: float) -> str:
    return f"{_three(min(1.0, share) * 100)}%"


# --- chapter 4

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


def _recorded_rows() -> tuple[measure.Recording | None, list[dict]]:
    """The newest decode recording of the H200, and of its rows those the chart can show, the fastest backend alone."""
    found = measure.recordings("NVIDIA H200", "decode")
    best: dict[tuple, dict] = {}
    for row in found[0].select(status="ok", dtype="bfloat16", head_dim_qk=HEAD_DIM, head_dim_v=HEAD_DIM) if found else ():
        if row["operation"] not in MARKS or row["splits"] == "given":
            continue
        key = (row["operation"], row["n_q_heads"], row["n_kv_heads"], row["batch"], row["context_len"])
        if key not in best or row["median_s"] < best[key]["median_s"]:
            best[key] = row
    fields = ("n_q_heads", "n_kv_heads", "batch", "context_len")
    return (found[0] if found else None), [
        {
            "mark": MARKS[row["operation"]],
            "ring": RINGS[row["operation"]],
            **{name: row[name] for name in fields},
            "seconds": row["median_s"],
        }
        for row in best.values()
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
        _menu("n_q_heads", "query heads", Q_HEADS, settings["n_q_heads"]),
        _menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        _menu("batch", "batch", CALL_BATCHES, settings["batch"]),
        _table("bytes_of_a_key", costs.cache_bytes(one_head, 1)),
        _table("flops_of_a_pair", costs.decode_flops(one_head, 1)),
        _table("bandwidth", gpu.bandwidth),
        _table("peak", gpu.peak_flops()),
        _table("read_rate", recording.read_bandwidth if recording else None),
        _table("phrases", phrases),
        # More KV heads than query heads cannot be: the chart then shows MHA.
        _let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        _let("longest", f"{contexts[-1]}"),
        _let("shape", "n_q_heads + '/' + kv_heads + '/' + batch"),
        _let("bytes_a_token", "batch * kv_heads * bytes_of_a_key"),
        _let("flops_a_token", "batch * n_q_heads * flops_of_a_pair"),
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
        axis=_axis(values=[512, 2048, 8192, 32768, 131072], format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "seconds:Q", title="time of one call", scale=alt.Scale(type="log", nice=False),
        axis=_axis(values=[10.0**n for n in range(-7, 1)], labelExpr=vega_seconds("datum.value")),
    )  # fmt: skip
    dash = _dashes("line:N", dict(zip(LINES, ([1, 0], [7, 3], [1, 3]), strict=True)), None if recording else 2)
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
    colours = _colours(dict(zip(MARKS.values(), (BLUE, ORANGE, GREEN), strict=True)))
    mine = alt.Chart(alt.NamedData("recorded")).transform_filter(
        "datum.n_q_heads == n_q_heads && datum.n_kv_heads == kv_heads && datum.batch == batch"
    )
    marks = {"x": x, "y": y, "color": alt.Color("mark:N", **colours)}
    layers = [
        lines,
        mine.mark_line(strokeWidth=1, opacity=0.5).encode(**marks),
        mine.transform_calculate(time=vega_seconds("datum.seconds"))
        .mark_point(filled=False, strokeWidth=2, opacity=1)
        .encode(
            **marks,
            # Equal times show as rings in one another.
            size=alt.Size("ring:Q", scale=None, legend=None),
            tooltip=[
                alt.Tooltip("mark:N", title="recorded"),
                alt.Tooltip("context_len:Q", title="tokens", format=","),
                alt.Tooltip("time:N", title="time"),
            ],
        ),
    ]
    source = recording.label if recording else "no recording is there yet"
    if recording and not recording.current:
        source += ", with an earlier version of the kernels"
    drawn = sum(row["n_q_heads"] == 32 and row["n_kv_heads"] == 8 and row["batch"] == 1 for row in rows)
    return Explorer(
        name="decode-time",
        chart=_chart(
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
        _menu("n_q_heads", "query heads", Q_HEADS, settings["n_q_heads"]),
        _menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        _menu("q_len", "query tokens", Q_LENS, settings["q_len"]),
        _menu("block_h", "rows of a tile", BLOCK_HS, settings["block_h"]),
        _power("log2_batch", "batch", 0, 8, settings["log2_batch"]),
        _menu("gpu", "GPU", [g.name for g in gpus], settings["gpu"]),
        _table("sms_by_gpu", {g.name: g.sm_count for g in gpus}),
        _table(
            "tiles_by_shape",
            {
                f"{group}/{block_h}/{q_len}": plan.head_tiles(group, 1, block_h=block_h, q_len=q_len)
                for group in KV_HEADS
                for block_h in BLOCK_HS
                for q_len in Q_LENS
            },
        ),
        _let("batch", "pow(2, log2_batch)"),
        _let("kv_heads", "min(n_kv_heads, n_q_heads)"),
        _let("group_size", "n_q_heads / kv_heads"),
        _let("tiles", "tiles_by_shape[group_size + '/' + block_h + '/' + q_len]"),
        _let("sms", "sms_by_gpu[gpu]"),
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
        axis=_axis(values=[1, 4, 16, 64, 256], format="d"),
    )  # fmt: skip
    y = alt.Y(
        "value:Q", title="ratio", scale=alt.Scale(type="log", base=2, domain=[1 / 256, 1024]),
        axis=_axis(
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
    dash = _dashes("quantity:N", dict(zip(QUANTITIES.values(), ([1, 0], [6, 3]), strict=True)))
    colours = _colours(dict(zip(KERNELS, (ORANGE, BLUE), strict=True)))
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
        chart=_chart(
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
