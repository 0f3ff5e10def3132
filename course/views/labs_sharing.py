"""Live lab of chapter 2: what sharing heads does to the time of PyTorch code on the reader's machine."""

import ipywidgets as widgets
import torch
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import kernels

from .. import costs
from ..measure import record, timing
from ..measure.contenders import calls_of
from ..measure.shapes import Point, Shape
from . import style
from .figures import Figure, figure
from .labs import Lab, _button, _place, _screen, _text

N_Q_HEADS, HEAD_DIM = 32, 64
KV_HEADS = (32, 16, 8, 4, 2, 1)
CONTEXTS = {"CPU": (256, 512, 1024, 2048), "GPU": (2048, 8192, 32768)}
# label -> operation, backend, colour
FORMS = {
    "matmul, KV heads repeated": ("matmul", "repeat_interleave", style.VERMILLION),
    "matmul, KV heads broadcast": ("matmul", "broadcast", style.PURPLE),
    "matmul, heads as rows": ("matmul", "rows", style.GREEN),
    "SDPA FLASH, enable_gqa": ("sdpa", "FLASH", style.GOLD),
    "grouped decode kernel": ("decode", None, style.BLUE),
}
SECONDS = 0.05  # for each form at each number of KV heads


def sharing_lab() -> Lab:
    """Time a decode step's attention in PyTorch for 32 to 1 KV heads, on this machine: copied, broadcast, and as rows."""
    where = _place()
    contexts = CONTEXTS["CPU" if where == "CPU" else "GPU"]
    context = widgets.Dropdown(options=[(f"{n:,}", n) for n in contexts], value=contexts[-2], description="tokens")
    first = ratio_figure({}, where)
    screen, status = _screen(first), widgets.HTML(_text(f"Ready to run on this machine's {where}."))

    def run() -> None:
        times: dict[str, dict[int, float]] = {}
        for n_kv_heads in KV_HEADS:
            status.value = _text(f"{n_kv_heads} KV heads: first the answers against float64, then the time …")
            for label, seconds in form_times(n_kv_heads, context.value).items():
                times.setdefault(label, {})[n_kv_heads] = seconds
        screen.value = ratio_figure(times, where).png
        told = "; ".join(
            f"{label} {costs.format_seconds(at[KV_HEADS[0]])} with {KV_HEADS[0]} KV heads, {costs.format_seconds(at[8])} with 8"
            for label, at in times.items()
            if {KV_HEADS[0], 8} <= set(at)
        )
        status.value = _text(f"Live on this machine's {where}, {context.value:,} tokens: {told}.")

    return Lab(
        "sharing",
        "Live lab: do fewer KV heads make it faster here?",
        f"One decode step of attention ({N_Q_HEADS} query heads, {HEAD_DIM} wide) in PyTorch, with {KV_HEADS[0]} to "
        f"{KV_HEADS[-1]} KV heads: repeated, broadcast, folded into rows and left to PyTorch's fused attention; on a CUDA GPU "
        "the course's kernel too. Every form is checked, then timed on your GPU or CPU.",
        first,
        widgets.VBox([widgets.HBox([context, _button("time every form", run, status)]), status, screen]),
    )


def forms_here(n_kv_heads: int, context_len: int) -> dict[str, Point]:
    """By label the points that this machine can time."""
    dtype = record.usual_dtype() if torch.cuda.is_available() else "float32"
    shape = Shape(1, N_Q_HEADS, n_kv_heads, context_len, HEAD_DIM, HEAD_DIM, dtype=dtype)
    ours = kernels.MODE == "compiled"  # in the interpreter time means nothing
    return {label: Point(shape, op, backend) for label, (op, backend, _) in FORMS.items() if op != "decode" or ours}


def form_times(n_kv_heads: int, context_len: int) -> dict[str, float]:
    """Seconds of each form, those left out whose answer is wrong or that refuse."""
    points = forms_here(n_kv_heads, context_len)
    if torch.cuda.is_available():
        rows = list(record.measure_shape(list(points.values()), record.this_machine()))
        by_point = {(row["operation"], row["backend"]): row["median_s"] for row in rows if row["status"] == "ok"}
        return {label: by_point[p.operation, p.backend] for label, p in points.items() if (p.operation, p.backend) in by_point}
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, N_Q_HEADS, HEAD_DIM, generator=generator)
    k, v = torch.randn(2, 1, n_kv_heads, context_len, HEAD_DIM, generator=generator)
    wanted, _ = kernels.reference.decode(q, k, v)
    samples = {}
    for label, point in points.items():
        (call,) = calls_of(point, [{"q": q, "k": k, "v": v}])
        (out,), _ = call()
        if (out.squeeze(2).double() - wanted).abs().max() < 1e-4:
            samples[label] = timing.prepare(call)
    # Round by round: what else the machine does then disturbs all alike.
    found = timing.measure(list(samples.values()), SECONDS)
    return {label: t.median_s for label, t in zip(samples, found, strict=True)}


def ratio_figure(times: dict[str, dict[int, float]], where: str) -> Figure:
    """Times over the same form's time for MHA, beside the same ratio of bytes. ``times``: label -> KV heads -> seconds."""
    fig, ax = style.subplots(height=4.4)
    shared = [n / N_Q_HEADS for n in KV_HEADS]
    copied = {n: costs.copy_passes(N_Q_HEADS // n) * n / N_Q_HEADS for n in KV_HEADS if n < N_Q_HEADS}
    dashed = style.STYLES["computed"] | {"linestyle": (0, (5, 2))}
    ax.plot(KV_HEADS, shared, color=style.INK, **style.STYLES["computed"])
    ax.plot(list(copied), list(copied.values()), color=style.VERMILLION, **dashed)
    legend = [
        Line2D([], [], color=style.INK, label="bytes, a shared key loaded once", **style.STYLES["computed"]),
        Line2D([], [], color=style.VERMILLION, label="bytes, KV heads copied first", **dashed),
    ]
    told = []
    for label, at in times.items():
        if KV_HEADS[0] not in at:
            continue
        colour, ratios = FORMS[label][2], {n: seconds / at[KV_HEADS[0]] for n, seconds in at.items()}
        ax.plot(
            list(ratios), list(ratios.values()), color=colour, **(style.STYLES["live"] | {"linestyle": "-", "linewidth": 1})
        )
        legend.append(Line2D([], [], color=colour, label=f"{label}: live", **style.STYLES["live"]))
        told.append(f"{label} {min(ratios.values()):.2g} to {max(ratios.values()):.2g}")
    ax.set(xscale="log", yscale="log", xlabel="KV heads", ylabel="over the same with 32 KV heads")
    ax.xaxis.set_major_locator(FixedLocator(KV_HEADS))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
    ax.yaxis.set_major_locator(FixedLocator([1 / 32, 1 / 8, 1 / 2, 1, 2, 4, 8, 16]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}×" if y >= 1 else f"1/{1 / y:g}"))
    for side in (ax.xaxis, ax.yaxis):
        side.set_minor_locator(NullLocator())
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.8, labelspacing=0.35)
    live = f" Filled marks: times, live on this machine's {where}." if told else ""
    return figure(
        fig,
        name="sharing-lab-live" if told else "sharing-lab",
        caption=f"Lines, computed: bytes moved with fewer KV heads, over the bytes of {N_Q_HEADS} KV heads.{live}",
        alt=f"Two lines over KV heads on logarithmic axes: with shared loads the bytes fall to 1/{N_Q_HEADS} of MHA's; with "
        f"copied heads they lie between {min(copied.values()):.2f} and {max(copied.values()):.2f} times MHA's."
        + (f" Live: {'; '.join(told)} times the time with {N_Q_HEADS} KV heads." if told else ""),
    )
