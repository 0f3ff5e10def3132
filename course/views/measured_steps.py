"""The steps of the full-sequence kernel for Hopper, measured: their ladder, what each costs when undone, and its lines."""

import html
import itertools
import textwrap
from dataclasses import asdict, dataclass

from matplotlib.lines import Line2D

from .. import costs
from ..measure import plans, steps
from ..measure.shapes import Shape
from . import style
from .figures import Figure, figure
from .source import Difference

PLAIN, ALL, CUDNN = "plain Triton", "all steps", "cuDNN"
SHAPES = tuple(plans.step_workloads("bfloat16"))
MISSING = "not recorded"
HOW = "`python -m course.measure --only steps` records them on a Hopper GPU"
_ROWS = {PLAIN: ("portable_attention", None), ALL: ("attention", None), CUDNN: ("sdpa", "CUDNN")}
_ROWS |= {variant: ("attention_steps", variant) for variant in steps.VARIANTS}


@dataclass(frozen=True)
class Effect:
    """One step on one shape: FLOP/s with it as the newest of the ladder, and with all steps but it; None where not recorded.

    ``gain``: what the ladder's rate grows by at this step, ``loss``: what the full kernel's falls by without it, as shares.
    """

    step: steps.Step
    rung: float | None
    without: float | None
    gain: float | None
    loss: float | None


def rates(recording, shape: Shape) -> dict[str, float]:
    """FLOP/s of 'plain Triton', of each variant in `steps.VARIANTS`, of 'all steps' and of 'cuDNN'; what failed is left out."""
    found = {}
    for row in recording.select(**asdict(shape), status="ok") if recording else ():
        found[row["operation"], row["backend"]] = row["flops"] / row["median_s"]
    return {name: found[key] for name, key in _ROWS.items() if key in found}


def effects(recording, shape: Shape) -> list[Effect]:
    """What each step brings, in the order of the ladder."""
    found = rates(recording, shape)
    rungs = [found.get(ALL if not undone else steps.variant(undone)) for undone in steps.LADDER]
    made = []
    for step, (before, after) in zip(steps.STEPS, itertools.pairwise(rungs), strict=True):
        without = found.get(steps.variant(steps.LOSSES[step.name]))
        gain = after / before - 1 if after and before else None
        loss = 1 - without / found[ALL] if without and ALL in found else None
        made.append(Effect(step, after, without, gain, loss))
    return made


def name_of(shape: Shape) -> str:
    """'32/8 heads of 128, 1,024 tokens, batch 16'."""
    heads = f"{shape.n_q_heads}/{shape.n_kv_heads} heads"
    width = f"{shape.head_dim_qk}" if shape.head_dim_qk == shape.head_dim_v else f"{shape.head_dim_qk}/{shape.head_dim_v}"
    return f"{heads} of {width}, {shape.context_len:,} tokens, batch {shape.batch}"


def steps_figure(recording, *, shape: Shape | None = None, name: str = "steps") -> Figure:
    """Speed from plain Triton through the bare kernel in Gluon to all its steps, and of all steps but one.

    recording  of kind 'steps' (``course.measure``), or None: then only the limit of the data sheet is drawn
    shape      one of ``SHAPES``, the long MHA by default

    ValueError for another shape.
    """
    shape = shape or SHAPES[0]
    if shape not in SHAPES:
        raise ValueError(f"shape must be one of {', '.join(map(str, SHAPES))}, got {shape}")
    gpu = costs.gpu(recording.provenance["gpu"] if recording else "H200 SXM")
    found, made = rates(recording, shape), effects(recording, shape)
    ladder = [found.get(PLAIN), found.get(steps.BARE), *(each.rung for each in made)]
    labels = [PLAIN, "roles in Gluon, one thing after the other", *(f"+ {each.step.title}" for each in made)]

    fig, ax = style.subplots(height=7.2)
    peak = gpu.peak_flops() / 1e12
    legend = [Line2D([], [], color=style.INK, label=f"peak of the data sheet, {gpu.name}", **style.STYLES["computed"])]
    ax.axvline(peak, color=style.INK, **style.STYLES["computed"])
    dotted = {"linewidth": 1.2, "linestyle": (0, (1, 1.5))}
    limits = {}
    if product := recording and recording.product_rate:
        limits["large matrix product, hot card"] = (product, style.INK)
    if CUDNN in found:
        limits["PyTorch SDPA, cuDNN"] = (found[CUDNN], style.GREEN)
    for label, (rate, colour) in limits.items():
        ax.axvline(rate / 1e12, color=colour, **dotted)
        legend.append(Line2D([], [], color=colour, label=f"{label}, recorded", **dotted))
    places = [i for i, rate in enumerate(ladder) if rate]
    if places:
        at = [ladder[i] / 1e12 for i in places]
        ax.plot(at, places, color=style.BLUE, linewidth=0.8, alpha=0.45)
        ax.plot(at, places, color=style.BLUE, **style.STYLES["recorded"])
        for x, y in zip(at, places, strict=True):
            ax.annotate(f"{x:.0f}", (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9.5)
        label = "this step and those above it, recorded"
        legend.append(Line2D([], [], color=style.BLUE, label=label, **style.STYLES["recorded"]))
    undone = [(each.without / 1e12, i) for i, each in enumerate(made, 2) if each.without]
    if undone:
        # Rings in one another where the two are equal.
        look = style.STYLES["recorded"] | {"markersize": 9, "markerfacecolor": "none"}
        ax.plot(*zip(*undone, strict=True), color=style.VERMILLION, **look)
        legend.append(Line2D([], [], color=style.VERMILLION, label="all steps but this one, recorded", **look))
    ax.set_yticks(range(len(labels)), [textwrap.fill(label, 22) for label in labels])
    ax.set_ylim(len(labels) - 0.5, -0.7)
    ax.set_xlim(0, 1.06 * peak)
    ax.set_xlabel("TFLOP/s")
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)

    lines = [f"Speed of a causal forward pass ({name_of(shape)}, bfloat16), step by step."]
    alt = [f"A ladder of {len(labels)} rungs; the peak is {peak:.0f} TFLOP/s."]
    if found:
        lines.append(
            f"Hollow marks and dotted lines: {recording.label}; the kernels round by round, each round in an order of its own."
        )
        if not recording.current:
            lines.append("Recorded with an earlier version of the kernels.")
        if missing := [label for i, label in enumerate(labels) if i not in places]:
            lines.append(f"Not recorded: {'; '.join(missing)}.")
        alt += [f"{labels[i].removeprefix('+ ')}: {ladder[i] / 1e12:.0f} TFLOP/s." for i in places]
        alt += [f"All but {each.step.title}: {each.without / 1e12:.0f}." for each in made if each.without]
        alt += [f"{label}: {rate / 1e12:.0f}." for label, (rate, _) in limits.items()]
    else:
        lines.append(f"No step is recorded yet: only what is computed is drawn; {HOW}.")
    lines.append(f"Line: computed, peak of the data sheet, {gpu.name}.")
    return figure(fig, name=name, caption=" ".join(lines), alt=" ".join(alt))


@dataclass(frozen=True)
class Table:
    """Header, rows of text, and the words that say where the numbers come from."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    source: str

    def __repr__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in lines) for i in range(len(self.columns))]
        told = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
        return "\n".join([*told, self.source])

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        return (
            "<table class='steps' style='font-size:0.85em;line-height:1.35'>"
            f"<thead>{line(self.columns, 'th')}</thead><tbody>{body}</tbody></table><p>{html.escape(self.source)}</p>"
        )


def steps_table(recording) -> Table:
    """A row a step, a column a shape: its gain in the ladder and its loss when undone; above and below, speeds.

    recording  of kind 'steps' (``course.measure``), or None: then the table says that nothing is recorded
    """
    found = [rates(recording, shape) for shape in SHAPES]
    made = [effects(recording, shape) for shape in SHAPES]

    product = recording.product_rate if recording else None

    def speeds(title: str, key: str) -> tuple[str, ...]:
        cells = []
        for rate in found:
            share = f" ({rate[key] / product:.0%})" if product and key in rate else ""
            cells.append(f"{rate[key] / 1e12:.0f} TFLOP/s{share}" if key in rate else MISSING)
        return (title, *cells)

    rows = [speeds(PLAIN, PLAIN), speeds("roles in Gluon, one thing after the other", steps.BARE)]
    for i, step in enumerate(steps.STEPS):
        rows.append((step.title, *(_both(each[i]) for each in made)))
    rows += [speeds(ALL, ALL), speeds("PyTorch SDPA, cuDNN", CUDNN)]
    if any(found):
        told = [
            "Of a step: what the speed grows by when it is added to those above it, and what it falls by when it alone is "
            f"undone. Causal, bfloat16; the kernels round by round, each round in an order of its own, {recording.label}."
        ]
        told.append("In brackets: the share of a large matrix product's speed on a hot card." if product else "")
        told.append("" if recording.current else "Recorded with an earlier version of the kernels.")
    else:
        told = [f"No step is recorded yet; {HOW}."]
    return Table(("step", *map(name_of, SHAPES)), tuple(rows), " ".join(filter(None, told)))


def _both(effect: Effect) -> str:
    """'+12% / −3%'."""
    if effect.gain is None and effect.loss is None:
        return MISSING
    return " / ".join(MISSING if share is None else _signed(share) for share in (effect.gain, effect.loss and -effect.loss))


def _signed(share: float) -> str:
    percent = round(100 * share)
    return f"{'+' if percent > 0 else '−' if percent < 0 else ''}{abs(percent)}%"


def step_diff(name: str) -> Difference:
    """What a step changes in the kernel's file. ValueError if no step has that name."""
    step = steps.step(name)
    return Difference(f"{step.file} · {step.title}", steps.diff(step))
