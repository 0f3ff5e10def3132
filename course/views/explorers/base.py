"""What every explorer is made of: the chart with its html, expressions that write numbers, controls, layers, legends."""

import base64
import functools
import html
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from string import Formatter

import altair as alt

from ... import measure
from .. import style
from ..figures import shrink

FOR_A_PAGE = "MHA_TO_MLA_PAGE"  # set in the environment of a kernel whose outputs become a page
VEGA_LITE = "application/vnd.vegalite.v5+json"
NOTEBOOK_WIDTH = 560  # JupyterLab gives a chart no width of its own
HEIGHT = 250
LEFT = 52  # room for the y axis; title and sentence start at its left edge

# Marks must be seen on a light and on a dark page, so they are of middle lightness, and recorded marks are hollow, not white.
BLUE, ORANGE, GREEN, PURPLE, GREY, GOLD = "#1f82c0", "#d55e00", "#009e73", "#9a4c86", "#7d8590", "#b59a00"
FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
LETTER = 6.1  # pixels that a letter of a sentence takes at size 12, with something to spare

# Given to a chart when it is made: each method that configures one copies and checks all of it.
LOOK = alt.Config(
    background=style.CARD,
    padding=6,
    font=FONT,
    view=alt.ViewConfig(stroke=None),
    axis=alt.AxisConfig(labelColor=style.INK, titleColor=style.INK, gridColor=style.GRID, domainColor=GREY, tickColor=GREY),
    axisY=alt.AxisConfig(minExtent=LEFT - 8, maxExtent=LEFT - 8),
    legend=alt.LegendConfig(labelColor=style.INK),
)

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

    @functools.cached_property
    def _written(self) -> str:
        """The chart as Altair writes it, which takes long: all of it is checked against the schema."""
        return json.dumps(self.chart.to_dict())

    def spec(self, width: int | str = "container") -> dict:
        """The Vega-Lite specification at a width in pixels, or following its container."""
        spec = json.loads(self._written) | {"width": width, "description": self.alt}
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


def vega_bytes(x: str, digits: int = 4, *, binary: bool = False) -> str:
    """Vega expression that writes bytes as costs.format_bytes(x, binary) does, from 1 kB (1 KiB) to 999 TB (TiB)."""
    if binary:
        return _scaled(x, digits, [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")], 1024)
    return _scaled(x, digits, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")])


def vega_seconds(x: str, digits: int = 4) -> str:
    """Vega expression that writes seconds as costs.format_seconds does."""
    return _scaled(x, digits, [(1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])


def _scaled(x: str, digits: int, steps: list[tuple[float, str]], step: int = 1000) -> str:
    *larger, (last, unit) = steps
    text = f"format(({x}) / {last!r}, '.{digits}~r') + ' {unit}'"
    for scale, unit in reversed(larger):
        # As in Python: what would be printed as the next unit's 1 belongs to the next unit.
        least = (1 - 0.5 * 10**-digits) * scale if step == 1000 else (step - 0.5) / step * scale
        text = f"({x}) >= {least!r} ? format(({x}) / {scale!r}, '.{digits}~r') + ' {unit}' : {text}"
    return f"({text})"


def vega_count(x: str, noun: str) -> str:
    """Vega expression that writes a number and a noun as count(x, noun) does."""
    return f"(format({x}, ',') + ({x} == 1 ? ' {noun}' : ' {noun}s'))"


def count(number: int, noun: str) -> str:
    """'1 user', '1,024 users'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def vega_digits(x: str, significant: int = 3) -> str:
    """Vega expression that writes a number as digits(x, significant) does."""
    return f"format({x}, '.{significant}~r')"


def digits(x: float, significant: int = 3) -> str:
    """A number with so many significant digits and no exponent: '121', '0.35'."""
    return f"{float(f'{x:.{significant}g}'):.12g}"


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


def menu(name: str, label: str, options: Iterable, value) -> alt.Parameter:
    return alt.param(name=name, value=value, bind=alt.binding_select(options=list(options), name=f"{label} "))


def power(name: str, label: str, low: int, high: int, value: int) -> alt.Parameter:
    """A slider over powers of two: it shows the exponent, the sentence says the number."""
    return alt.param(name=name, value=value, bind=alt.binding_range(min=low, max=high, step=1, name=f"{label}: 2ⁿ, n = "))


def table(name: str, value) -> alt.Parameter:
    return alt.param(name=name, value=value)


def let(name: str, expr: str) -> alt.Parameter:
    return alt.param(name=name, expr=expr)


def axis(**more) -> alt.Axis:
    return alt.Axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", **more)


def colour_scale(meaning: Mapping[str, str]) -> dict:
    """Scale and legend of a colour channel: what each colour means, below the plot."""
    return {
        "scale": alt.Scale(domain=list(meaning), range=list(meaning.values())),
        "legend": alt.Legend(title=None, orient="bottom", direction="vertical", labelFontSize=12, labelLimit=0, offset=6),
    }


def dashes(field: str, meaning: Mapping[str, list[int]], shown: int | None = None) -> alt.StrokeDash:
    """A channel of dash patterns: what each means, below the plot; only the first ``shown`` if given."""
    look = {"symbolStrokeColor": GREY, "symbolStrokeWidth": 2, "symbolSize": 300, "labelFontSize": 12, "labelLimit": 0}
    return alt.StrokeDash(
        field,
        scale=alt.Scale(domain=list(meaning), range=list(meaning.values())),
        legend=alt.Legend(title=None, orient="bottom", direction="vertical", offset=6, values=list(meaning)[:shown], **look),
    )


def recorded_marks(mine: alt.Chart, channels: Mapping, *more: alt.Tooltip) -> list[alt.Chart]:
    """Recorded times as hollow rings on a thin line, told by their tooltip, with ``more`` in it.

    The rows have a ``ring``, its area in pixels: equal times show as rings in one another.
    """
    rings = mine.transform_calculate(time=vega_seconds("datum.seconds"))
    return [
        mine.mark_line(strokeWidth=1, opacity=0.5).encode(**channels),
        rings.mark_point(filled=False, strokeWidth=2, opacity=1).encode(
            **channels,
            size=alt.Size("ring:Q", scale=None, legend=None),
            tooltip=[
                alt.Tooltip("mark:N", title="recorded"),
                alt.Tooltip("context_len:Q", title="tokens", format=","),
                alt.Tooltip("time:N", title="time"),
                *more,
            ],
        ),
    ]


def source_of(recording: measure.Recording | None) -> str:
    """Where recorded marks come from, in words."""
    if recording is None:
        return "no recording is there yet"
    return recording.label + ("" if recording.current else ", with an earlier version of the kernels")


def chart(
    title: str, layers: list, parameters: list, words: str, *, datasets: Mapping[str, list], above: int = 0
) -> alt.LayerChart:
    """Layers under a title and a sentence, whose Vega expression is ``words``; ``above`` pixels over the plot stay free."""
    parameters = [
        *parameters,
        let("sentence", words),
        let("room", str(NOTEBOOK_WIDTH)),
        let("letters_a_line", f"max(1, floor((room - 18) / {LETTER}))"),
        let(
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
    first, *others = layers
    return alt.layer(
        first.add_params(*parameters),
        *others,
        said,
        datasets=dict(datasets),
        title=alt.TitleParams(title, anchor="start", frame="group", dx=-LEFT, offset=8, fontSize=14, color=style.INK),
        width=NOTEBOOK_WIDTH,
        height=HEIGHT,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding", resize=True),
        config=LOOK,
    )
