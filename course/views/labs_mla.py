"""Live labs of latent attention: the step that expands its cache, the crossover of both forms, heads across the ridge."""

from collections.abc import Callable, Sequence

import ipywidgets as widgets
import torch
from matplotlib.ticker import FuncFormatter

import kernels

from .. import costs, measure
from ..measure import record, timing
from ..measure.shapes import Shape
from . import labs_hopper, style
from .figures import Figure, figure
from .labs import NO_GPU, Lab, _button, _live, _measuring_lab, _place, _screen, _text
from .measured_mla import HEADS, mla_heads

# DeepSeek-V3's widths with few heads: heads cancel in every ratio that these labs show.
LAYER = costs.LatentAttention(d_model=7168, n_heads=4, nope_dim=128, rope_dim=64, head_dim_v=128, latent_dim=512)
CONTEXTS = (256, 512, 1024, 2048, 4096)
KEYS = 2048
Q_LENS = (1, 8, 32, 128, 256, 512, 1024)
COUNTED_TOKENS = 48
WORK = {"64 × 8,192": (64, 8192), "16 × 8,192": (16, 8192), "1 × 131,072": (1, 131072)}


class TwoForms:
    """Attention of q_len tokens over kv_len latents, both forms in plain torch, float32, without a mask. Random numbers."""

    def __init__(self, q_len: int, kv_len: int, device: torch.device, layer: costs.LatentAttention = LAYER):
        generator = torch.Generator().manual_seed(0)
        make = lambda *shape: torch.randn(shape, generator=generator).to(device)  # noqa: E731
        heads, latent = layer.n_heads, layer.latent_dim
        self.scale = layer.softmax_scale()
        self.q_nope, self.q_rope = make(heads, q_len, layer.nope_dim), make(heads, q_len, layer.rope_dim)
        self.c, self.k_rope = make(kv_len, latent), make(kv_len, layer.rope_dim)
        self.w_uk = make(heads, latent, layer.nope_dim) / latent**0.5
        self.w_uv = make(heads, latent, layer.head_dim_v) / latent**0.5
        self.k, self.v = self.c @ self.w_uk, self.c @ self.w_uv  # what an MHA cache would hold

    def kept(self) -> torch.Tensor:
        """Keys and values lie in the cache, expanded: what MHA does. [H, M, d_v]"""
        return self._attend(self.q_nope, self.k) @ self.v

    def expanded(self) -> torch.Tensor:
        """The latents lie in the cache; the keys and values of all of them are made anew."""
        return self._attend(self.q_nope, self.c @ self.w_uk) @ (self.c @ self.w_uv)

    def absorbed(self) -> torch.Tensor:
        """The latents are keys and values themselves; the query and the result are projected instead."""
        return (self._attend(self.q_nope @ self.w_uk.mT, self.c) @ self.c) @ self.w_uv

    def _attend(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT + self.q_rope @ self.k_rope.T) * self.scale).softmax(-1)


def _timed(
    points: Sequence[int], make: Callable[[int], TwoForms], forms: Sequence[str], status: widgets.HTML, what: str
) -> dict[int, list[measure.Timing]] | None:
    """Times of the forms at each point, or None if their answers differ."""
    times = {}
    for n in points:
        status.value = _text(f"timing {n:,} {what} …")
        two = make(n)
        outs = [getattr(two, form)() for form in forms]
        if max((out - outs[0]).abs().max().item() for out in outs) > 1e-2:
            status.value = _text("The forms disagree: nothing was timed.")
            return None
        times[n] = timing.measure([timing.prepare(getattr(two, form)) for form in forms], seconds=0.15)
    return times


def expanded_step_lab() -> Lab:
    """Time one decode step that expands its cache, beside one whose keys and values are kept, on this machine."""
    where, device = _here()
    forms = {"expanded in every step": ("expanded", style.VERMILLION), "keys and values kept": ("kept", style.BLUE)}
    longest = widgets.Dropdown(options=[(f"{n:,}", n) for n in CONTEXTS[1:]], value=2048, description="tokens")

    def flops(n: int) -> list[int]:
        return [LAYER.flops("expanded", 1, n), costs.decode_flops(LAYER.expanded, n)]

    first = _lines(
        CONTEXTS, {label: [flops(n)[i] for n in CONTEXTS] for i, label in enumerate(forms)}, forms, "expanded-step-lab",
        "cached tokens", "FLOPs of one step",
        f"Computed: FLOPs of one decode step of {LAYER.n_heads} heads with DeepSeek-V3's widths, expanding "
        f"the cache or keeping "
        "keys and values.",
    )  # fmt: skip
    screen, status = _screen(first), widgets.HTML(_text(f"Ready to run on this machine's {where}."))

    def run() -> None:
        points = [n for n in CONTEXTS if n <= longest.value]
        named = [form for form, _ in forms.values()]
        times = _timed(points, lambda n: TwoForms(1, n, device), named, status, "cached tokens")
        if times:
            screen.value = _times(times, forms, where, "expanded-step-lab", "cached tokens").png
            ratio = times[points[-1]][0].median_s / times[points[-1]][1].median_s
            status.value = _text(
                f"At {points[-1]:,} tokens the expanding step takes {ratio:.0f} times as long, live on {where}."
            )

    return Lab(
        "expanded-step",
        "Live lab: the price of expanding.",
        f"One decode step of {LAYER.n_heads} heads with DeepSeek-V3's widths, in plain torch: the latents "
        f"expanded in every step, "
        "or keys and values kept. Timed on your GPU or CPU.",
        first,
        widgets.VBox([widgets.HBox([longest, _button("time both", run, status)]), status, screen]),
    )


def crossover_lab() -> Lab:
    """Time expanding against absorbing for growing numbers of query tokens, on this machine."""
    where, device = _here()
    forms = {"expanded": ("expanded", style.VERMILLION), "absorbed": ("absorbed", style.BLUE)}
    most = widgets.Dropdown(options=[(f"{n:,}", n) for n in Q_LENS[3:]], value=512, description="queries")
    first = _lines(
        Q_LENS, {form: [LAYER.flops(form, m, KEYS, causal=False) for m in Q_LENS] for form in forms}, forms, "crossover-lab",
        "query tokens", f"FLOPs over {KEYS:,} keys",
        f"Computed: FLOPs of both forms over {KEYS:,} keys, {LAYER.n_heads} heads with DeepSeek-V3's widths, "
        f"without a mask; equal "
        f"at {LAYER.crossover(KEYS, causal=False)} query tokens.",
    )  # fmt: skip
    screen, status = _screen(first), widgets.HTML(_text(f"Ready to run on this machine's {where}."))

    def run() -> None:
        points = [m for m in Q_LENS if m <= most.value]
        named = [form for form, _ in forms.values()]
        times = _timed(points, lambda m: TwoForms(m, KEYS, device), named, status, "query tokens")
        if times:
            screen.value = _times(times, forms, where, "crossover-lab", "query tokens").png
            wins = [m for m in points if times[m][0].median_s < times[m][1].median_s]
            said = f"expanding is faster from {wins[0]:,} query tokens on" if wins else "absorbing was faster at every point"
            status.value = _text(
                f"Of the points timed, {said}; by FLOPs it is {LAYER.crossover(KEYS, causal=False)}. Live on this "
                f"machine's {where}."
            )

    return Lab(
        "crossover",
        "Live lab: where the two forms cross.",
        f"Both forms in plain torch over {KEYS:,} latents, {LAYER.n_heads} heads with DeepSeek-V3's widths, "
        f"for growing numbers of "
        "query tokens; checked against each other, then timed on your GPU or CPU.",
        first,
        widgets.VBox([widgets.HBox([most, _button("time both forms", run, status)]), status, screen]),
    )


def mla_lab() -> Lab:
    """Measure the absorbed decode kernel for 16 to 128 heads on your GPU; without one count what it requests."""
    found = measure.recordings("NVIDIA H200", "mla")
    recording = next((one for one in found if one.kind == "mla"), None)
    heads = widgets.Dropdown(options=HEADS, value=16, description="heads")
    work = widgets.Dropdown(options=list(WORK.items()), value=WORK["64 × 8,192"], description="batch × tokens")

    def draw(rows: list[dict]) -> Figure:
        batch, context_len = work.value
        live = _live(rows)
        gpu = live.pop("live_gpu")
        return mla_heads(recording, batch=batch, context_len=context_len, gpu=gpu, name="mla-lab", **live)

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        shape = Shape.mla(work.value[0], heads.value, work.value[1], dtype=record.usual_dtype())
        fresh = list(record.measure_shape(labs_hopper.points(shape), machine))
        rows.extend(fresh)
        return f"{shape}: {record.summary(fresh)}"

    return _measuring_lab(
        "mla",
        "Live lab: heads across your GPU's ridge.",
        "Choose heads, batch and context; the absorbed kernel (on a Hopper GPU both of its forms) is checked against "
        "float64 and timed on your CUDA GPU, drawn over both floors. Without a GPU it counts what the kernel requests.",
        [heads, work],
        redrawn_by=[work],
        draw=draw,
        measured=measured,
        counted=lambda: _counted(heads.value),
        without_gpu="counts what the kernel requests",
    )


def _counted(n_heads: int) -> str:
    """A table of what the kernel requests of a small cache, as html."""
    if kernels.MODE != "interpreter":
        return _text(f"{NO_GPU}, and requests are counted in Triton's interpreter only (here: {kernels.MODE}).")
    generator = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    latent_dim, rope_dim = LAYER.latent_dim, LAYER.rope_dim
    latent, k_rope = make(1, COUNTED_TOKENS, latent_dim), make(1, COUNTED_TOKENS, rope_dim)
    queries = make(1, n_heads, latent_dim), make(1, n_heads, rope_dim)
    traffic = measure.count_traffic(kernels.mla_decode, *queries, latent, k_rope, scale=LAYER.softmax_scale(), num_splits=1)
    lines = "".join(
        f"<tr><td "
        f"style='text-align:left'>{what}</td><td>{traffic.requested(name):,}</td><td>{traffic.distinct(name):,}</td></tr>"
        for what, name in (("latent, key and value at once", "cache.k"), ("rotary key", "cache.k_tail"))
    )
    return (
        "<table><thead><tr><th>part of the record</th><th>elements requested</th><th>distinct</th></tr></thead>"
        f"<tbody>{lines}</tbody></table>"
        + _text(
            f"Counted in the interpreter: {n_heads} heads, {COUNTED_TOKENS} tokens, {traffic.programs} programs "
            f"(tiles of rows)."
        )
    )


def _here() -> tuple[str, torch.device]:
    where = _place()
    return where, torch.device("cpu" if where == "CPU" else "cuda")


def _lines(points, values: dict, forms: dict, name: str, x_title: str, y_title: str, caption: str) -> Figure:
    """Computed lines, one a form."""
    fig, ax = style.subplots(height=3.4)
    for label, ys in values.items():
        ax.plot(points, ys, color=forms[label][1], label=label, **style.STYLES["computed"])
    _log_axis(ax, points, x_title)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e9:,.3g} G"))
    ax.set_ylabel(y_title)
    fig.legend(loc="outside upper left", ncols=1)
    ends = "; ".join(f"{label}: {ys[0] / 1e9:.3g} to {ys[-1] / 1e9:.3g} GFLOP" for label, ys in values.items())
    return figure(fig, name=name, caption=caption, alt=f"Two lines against {x_title}, both axes logarithmic. {ends}.")


def _times(times: dict[int, list[measure.Timing]], forms: dict, where: str, name: str, x_title: str) -> Figure:
    """Live times of two forms, above their ratio."""
    points = list(times)
    fig, (top, low) = style.subplots(2, 1, height=4.8, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    for i, (label, (_, colour)) in enumerate(forms.items()):
        mine = [times[n][i] for n in points]
        bars = [[t.median_s - t.p20_s for t in mine], [t.p80_s - t.median_s for t in mine]]
        label = f"{label}, live on {where}"
        top.errorbar(
            points, [t.median_s for t in mine], yerr=bars, color=colour, label=label, capsize=2.5, **style.STYLES["live"]
        )
    ratios = [times[n][0].median_s / times[n][1].median_s for n in points]
    low.plot(points, ratios, color=style.INK, **style.STYLES["live"])
    low.axhline(1, color=style.MUTED, linewidth=1)
    for ax in (top, low):
        _log_axis(ax, points, x_title)
    top.set_xlabel("")
    top.set_ylabel("time of one call")
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    low.set_ylabel("first ÷ second")
    fig.legend(loc="outside upper left", ncols=1)
    return figure(
        fig,
        name=f"{name}-live",
        caption=f"Live on this machine's {where}, plain torch, float32; bars from the 20th to the 80th percentile.",
        alt=f"Times against {x_title}; the first form takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as the second.",
    )


def _log_axis(ax, points, title: str) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(points, [f"{n:,}" for n in points])
    ax.minorticks_off()
    ax.set_xlabel(title)
