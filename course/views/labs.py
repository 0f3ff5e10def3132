"""Live labs: controls whose buttons run Python on the reader's machine.

On a page, where no Python runs, a lab shows what it does and its computed figure; in a notebook it shows its controls.
"""

import base64
import html
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ipywidgets as widgets
import torch
from matplotlib.ticker import FuncFormatter

import kernels

from .. import costs, measure
from ..measure import plans, record, timing
from ..measure.shapes import Shape
from . import style
from .figures import Figure, figure
from .measured import measured_against_arithmetic

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
NO_GPU = "no CUDA GPU here"
HOW = "To run it, open this page as a notebook (make lab, or Colab) and run the cell."


@dataclass(frozen=True)
class Lab:
    """Controls in a notebook; elsewhere the same in words, with the figure that needs no measurement."""

    name: str
    title: str
    what: str
    picture: Figure
    widget: widgets.Widget

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id},
            "text/html": self.html(),
            "text/plain": repr(self),
        }

    def html(self) -> str:
        """What a page without Python shows."""
        picture = self.picture.html(base64.b64encode(self.picture.png).decode())
        return (
            f'<div class="lab" id="lab-{self.name}"><p><strong>{html.escape(self.title)}</strong> {html.escape(self.what)} '
            f"{html.escape(HOW)}</p>{picture}</div>"
        )

    def __repr__(self) -> str:
        return f"Lab {self.name}: {self.what}"


def _place() -> str:
    """The GPU's name, or 'CPU'."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def _text(words: str) -> str:
    return f"<p style='max-width:600px'>{html.escape(words)}</p>"


def _screen(picture: Figure) -> widgets.Image:
    return widgets.Image(value=picture.png, format="png", layout=widgets.Layout(width="100%", max_width=f"{picture.width}px"))


def _button(label: str, action: Callable[[], None], status: widgets.HTML) -> widgets.Button:
    """A button that is off while its action runs, and says so when the action fails."""
    button = widgets.Button(description=label, button_style="primary", layout=widgets.Layout(width="auto"))

    def press(_) -> None:
        button.disabled = True
        try:
            action()
        except Exception as problem:  # shown to the reader: a callback's traceback would end in a log that nobody sees
            status.value = _text(f"That did not work: {type(problem).__name__}: {problem}")
        finally:
            button.disabled = False

    button.on_click(press)
    return button


def _live(rows: Sequence[dict]) -> dict:
    """What a figure takes of the rows measured here: those that are right, what they are called, and the GPU's data sheet."""
    mine = [row for row in rows if row["status"] == "ok"]
    return {"live": mine, "live_label": f"live on this machine's {_place()}", "live_gpu": _gpu_here() if mine else None}


def _measuring_lab(
    name: str,
    title: str,
    what: str,
    controls: Sequence[widgets.Widget],
    *,
    redrawn_by: Sequence[widgets.Widget],
    draw: Callable[[list[dict]], Figure],
    measured: Callable[[record.Machine, list[dict], Callable[[str], None]], str],
    counted: Callable[[], str],
    without_gpu: str,
    buttons: tuple[str, str] = ("measure on this GPU", "count requests"),
) -> Lab:
    """A lab whose button measures on the reader's GPU, draws that and offers the run as JSON; without a GPU it counts.

    redrawn_by   the controls that show another figure, of the rows measured so far
    draw         rows -> the figure with them
    measured     machine, rows and what tells the reader a sentence -> a sentence about what it has put into the rows
    counted      what the button shows without a GPU, as html
    without_gpu  what the button does there, in words
    buttons      its label with and without a GPU
    """
    gpu = _place() != "CPU"
    rows: list[dict] = []
    first = draw(rows)
    screen, status, saved = _screen(first), widgets.HTML(), widgets.HTML()

    def say(words: str) -> None:
        status.value = _text(words)

    def redraw(_=None) -> None:
        screen.value = draw(rows).png

    def run() -> None:
        if not gpu:
            status.value = counted()
            return
        say("measuring: first the answers against float64, then the time …")
        machine = record.this_machine()
        say(measured(machine, rows, say))
        run_as_json = json.dumps({"provenance": machine.provenance, "rows": rows}, indent=1)
        link = base64.b64encode(run_as_json.encode()).decode()
        saved.value = f"<a download='{name}-lab.json' href='data:application/json;base64,{link}'>this run as JSON</a>"
        redraw()

    for control in redrawn_by:
        control.observe(redraw, "value")
    if not gpu:
        say(f"{NO_GPU}: lines are computed, hollow marks recorded; the button {without_gpu}.")
    button = _button(buttons[0 if gpu else 1], run, status)
    row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
    return Lab(name, title, what, first, widgets.VBox([row, button, status, saved, screen]))


# --- chapter 4


def decode_lab() -> Lab:
    """Measure the decode step of a shape of your choice on your own GPU, over what was recorded and what is computed.

    Without a GPU the button counts instead what the two kernels request, in Triton's interpreter.
    """
    found = measure.recordings("NVIDIA H200", "decode")
    recording = found[0] if found else None
    heads = widgets.Dropdown(
        options=[
            (f"{q} query, {kv} KV", (q, kv)) for q, kv in ((32, 32), (32, 16), (32, 8), (32, 4), (32, 2), (32, 1), (64, 8))
        ],
        value=(32, 8),
        description="heads",
    )
    batch = widgets.Dropdown(options=(1, 16, 64), value=1, description="batch")
    context = widgets.Dropdown(
        options=[(f"{n:,}", n) for n in (512, 2048, 8192, 32768, 131072)], value=8192, description="tokens"
    )

    def draw(rows: list[dict]) -> Figure:
        n_q_heads, n_kv_heads = heads.value
        return measured_against_arithmetic(
            recording,
            name="decode-lab",
            select={"n_q_heads": n_q_heads, "n_kv_heads": n_kv_heads, "batch": batch.value},
            **_live(rows),
        )

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        shape = Shape(batch.value, *heads.value, context.value, dtype=record.usual_dtype())
        fresh = list(record.measure_shape([plans.ours(shape), *plans.peers(shape)], machine))
        rows.extend(fresh)
        return f"{shape}: {record.summary(fresh)}"

    return _measuring_lab(
        "decode",
        "Live lab: your GPU under the same floor.",
        "Choose heads, batch and context; the grouped kernel, the full-sequence kernel at one query and PyTorch "
        "are checked, then timed "
        "on your CUDA GPU and drawn as filled marks over the recorded ones. Without a GPU it counts what the "
        "kernels request.",
        [heads, batch, context],
        redrawn_by=[heads, batch],
        draw=draw,
        measured=measured,
        counted=lambda: _counted(*heads.value),
        without_gpu="counts what the kernels request",
    )


def _gpu_here() -> costs.Gpu | None:
    """The data sheet of this machine's GPU, if the table has it."""
    try:
        return costs.gpu(_place())
    except ValueError:
        return None


COUNTED_SHAPE = {"context_len": 32, "head_dim": 16}


def _counted(n_q_heads: int, n_kv_heads: int) -> str:
    """A table of what both kernels request for a small cache, as html."""
    if kernels.MODE != "interpreter":
        return _text(f"{NO_GPU}, and requests are counted in Triton's interpreter only (here: {kernels.MODE}).")
    context_len, head_dim = COUNTED_SHAPE.values()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, n_q_heads, head_dim, generator=generator)
    k, v = torch.randn(2, 1, n_kv_heads, context_len, head_dim, generator=generator)
    counts = {
        "one query head a program": measure.count_traffic(kernels.attention, q[:, :, None], k, v),
        "the group as rows": measure.count_traffic(kernels.decode, q, k, v, num_splits=1),
    }
    lines = "".join(
        "<tr><td "
        f"style='text-align:left'>{name}</td><td>{traffic.programs:,}</td><td>{traffic.requested('k', 'v'):,}</td>"
        f"<td>{traffic.distinct('k', 'v'):,}</td></tr>"
        for name, traffic in counts.items()
    )
    shape = f"{n_q_heads} query heads over {n_kv_heads} KV heads, {context_len} tokens, {head_dim} wide"
    return (
        "<table><thead><tr><th>kernel</th><th>programs</th><th>elements of K and V "
        f"requested</th><th>distinct</th></tr></thead><tbody>{lines}"
        f"</tbody></table>{_text(f'Counted in the interpreter: {shape}.')}"
    )


# --- chapter 1

LENGTHS = (64, 128, 256, 512, 1024, 2048)
D_MODEL, N_HEADS = 512, 8


class OneLayer:
    """One attention layer with random weights: a decode step without and with a cache. float32."""

    def __init__(self, longest: int, device: torch.device):
        generator = torch.Generator().manual_seed(0)
        self.w_q, self.w_k, self.w_v = torch.randn(3, D_MODEL, D_MODEL, generator=generator).div_(D_MODEL**0.5).to(device)
        self.hidden = torch.randn(longest, D_MODEL, generator=generator).to(device)
        self.k, self.v = (self.hidden @ self.w_k, self.hidden @ self.w_v)

    def recomputed(self, context_len: int) -> torch.Tensor:
        """The newest of ``context_len`` tokens; keys and values of all of them are projected again. [d_model]"""
        prefix = self.hidden[:context_len]
        return self._attend(prefix[-1] @ self.w_q, prefix @ self.w_k, prefix @ self.w_v)

    def cached(self, context_len: int) -> torch.Tensor:
        """The same; only the newest token is projected, and written in its place of the cache. [d_model]"""
        newest = self.hidden[context_len - 1]
        self.k[context_len - 1] = newest @ self.w_k
        self.v[context_len - 1] = newest @ self.w_v
        return self._attend(newest @ self.w_q, self.k[:context_len], self.v[:context_len])

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        split = lambda x: x.view(-1, N_HEADS, D_MODEL // N_HEADS).transpose(0, 1)  # noqa: E731  [H, tokens, d]
        return torch.nn.functional.scaled_dot_product_attention(split(q), split(k), split(v)).reshape(D_MODEL)


def cache_lab() -> Lab:
    """Time one decode step with and without a cache on this machine, for growing prefixes."""
    where = _place()
    device = torch.device("cpu" if where == "CPU" else "cuda")
    longest = widgets.Dropdown(options=[(f"{n:,}", n) for n in LENGTHS[2:]], value=LENGTHS[-2], description="tokens")
    first = _rows_figure()
    screen, status = _screen(first), widgets.HTML(_text(f"Ready to run on this machine's {where}."))

    def run() -> None:
        lengths = [n for n in LENGTHS if n <= longest.value]
        layer = OneLayer(lengths[-1], device)
        difference = max((layer.recomputed(n) - layer.cached(n)).abs().max().item() for n in lengths)
        if difference > 1e-3:
            status.value = _text(f"The two steps differ by {difference:.2g}: nothing was timed.")
            return
        started = time.perf_counter()
        times = {}
        for n in lengths:
            status.value = _text(f"timing a prefix of {n:,} tokens …")
            # Round by round: what else the machine does then disturbs both alike.
            steps = [timing.prepare(lambda step=step, n=n: step(n)) for step in (layer.recomputed, layer.cached)]
            times[n] = timing.measure(steps, seconds=0.2)
        screen.value = _times_figure(times, where).png
        status.value = _text(
            f"Same output (difference at most {difference:.1g}); {time.perf_counter() - started:.0f} s on this "
            f"machine's {where}."
        )

    return Lab(
        "cache",
        "Live lab: recompute or remember.",
        f"One attention layer ({N_HEADS} heads, d_model {D_MODEL}) takes one decode step with keys and values "
        "projected anew for the whole prefix, then "
        "with a cache; torch code, timed on your GPU or CPU.",
        first,
        widgets.VBox([widgets.HBox([longest, _button("time both steps", run, status)]), status, screen]),
    )


def _rows_figure() -> Figure:
    """Computed: how many rows go through W_K in one step."""
    fig, ax = style.subplots(height=3.2)
    ax.plot(LENGTHS, LENGTHS, color=style.VERMILLION, **style.STYLES["computed"])
    ax.plot(LENGTHS, [1] * len(LENGTHS), color=style.BLUE, **style.STYLES["computed"])
    ax.text(LENGTHS[2], LENGTHS[2] * 1.35, "recomputed", color=style.VERMILLION, ha="right")
    ax.text(LENGTHS[2], 1.25, "cached", color=style.BLUE)
    _tokens_axis(ax, LENGTHS)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_ylabel("rows through $W_K$ in one step")
    return figure(
        fig,
        name="cache-lab",
        caption="Computed: rows that one decode step multiplies with W_K (and W_V), against the tokens so far.",
        alt=(
            f"Two lines on logarithmic axes: without a cache the rows grow with the prefix, from {LENGTHS[0]} to "
            f"{LENGTHS[-1]:,}; with a cache it is always one."
        ),
    )


def _times_figure(times: dict[int, list[measure.Timing]], where: str) -> Figure:
    lengths = list(times)
    fig, (top, low) = style.subplots(2, 1, height=4.8, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    for i, (label, colour) in enumerate((("recomputed", style.VERMILLION), ("cached", style.BLUE))):
        mine = [times[n][i] for n in lengths]
        top.errorbar(
            lengths, [t.median_s for t in mine],
            yerr=[[t.median_s - t.p20_s for t in mine], [t.p80_s - t.median_s for t in mine]],
            color=colour, label=f"{label}, live on {where}", capsize=2.5, **style.STYLES["live"],
        )  # fmt: skip
    ratios = [times[n][0].median_s / times[n][1].median_s for n in lengths]
    low.plot(lengths, ratios, color=style.INK, **style.STYLES["live"])
    for ax in (top, low):
        _tokens_axis(ax, lengths)
    top.set_xlabel("")
    top.set_ylabel("time of one step")
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    low.set_ylabel("recomputed\n÷ cached")
    fig.legend(loc="outside upper left", ncols=1)
    return figure(
        fig,
        name="cache-lab-live",
        caption=(
            f"Live on this machine's {where}: time of one decode step of one layer, float32, with bars from the "
            "20th to the 80th percentile."
        ),
        alt=(
            f"Time of a step against tokens; recomputing takes {ratios[0]:.1f} to {ratios[-1]:.1f} times as long "
            "as reading the cache."
        ),
    )


def _tokens_axis(ax, lengths) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ax.minorticks_off()
    ax.set_xlabel("tokens so far")
