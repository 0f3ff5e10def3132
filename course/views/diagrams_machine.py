"""Drawings of a GPU: what it is made of, and the turns its programs take."""

from .. import costs, measure
from ..costs.residency import LIMITS, REGISTERS
from . import style
from .diagrams import _arrow, _box, _card, _sheet
from .figures import Figure, figure

ROWS = 6  # of small squares, one an SM
SOFT = "#cfe4f2"


def gpu_figure(name: str = "H200 SXM") -> Figure:
    """One GPU from its memory up to one SM, with what each level holds. ValueError for a GPU that ``costs`` does not know."""
    gpu = costs.gpu(name)
    registers, shared = costs.format_bytes(4 * REGISTERS), costs.format_bytes(gpu.shared_memory_per_block)
    warps, _, _ = LIMITS[gpu.capability]
    memory, l2 = f"{gpu.memory_bytes / 1e9:.0f} GB", costs.format_bytes(gpu.l2_bytes)
    rate = f"{costs.format_bytes(gpu.bandwidth, binary=False)}/s"

    fig, ax = _sheet(66)
    ink, muted = style.INK, style.MUTED

    def words(x: float, y: float, text: str, **more) -> None:
        ax.text(x, y, text, **{"va": "center", "fontsize": 10, "color": ink} | more)

    # One SM, enlarged
    words(1, 64.4, "one SM: here programs live", weight="bold", fontsize=11)
    _card(ax, 1, 43.2, 48, 19.6, edge=style.VERMILLION, line=1.6)
    for part in range(4):
        x = 2.4 + part * 11.5
        _card(ax, x, 54.6, 10.7, 6.8, edge=style.BLUE, fill=SOFT)
        words(x + 5.35, 59.3, "warps of\n32 threads", ha="center", fontsize=9.5, linespacing=1.1)
        _box(ax, x + 0.9, 55.2, 8.9, 2.3, fill=style.BLUE)
        words(x + 5.35, 56.35, "tensor core", ha="center", fontsize=9, color="white")
    _card(ax, 2.4, 49.6, 45.2, 3.6, edge=style.GREEN, fill="#d6eee6")
    words(25, 51.4, f"registers: {registers}, for {warps} warps at most", ha="center")
    _card(ax, 2.4, 44.6, 45.2, 3.6, edge=style.PURPLE, fill="#efdceb")
    words(25, 46.4, f"shared memory and L1: {shared} for one program", ha="center")

    # All SMs
    columns = -(-gpu.sm_count // ROWS)
    pitch = min(2.1, 48 / columns)
    top = 39.2
    for sm in range(gpu.sm_count):
        first = sm == 0
        _box(ax, 1 + sm // ROWS * pitch, top - (sm % ROWS + 1) * 2.0, 0.82 * pitch, 1.65,
             fill=style.VERMILLION if first else SOFT, edge=style.VERMILLION if first else style.BLUE, line=0.5)  # fmt: skip
    ax.plot([1, 1], [top, 43.2], color=style.VERMILLION, linewidth=0.9, linestyle=(0, (2, 2)))
    ax.plot([1 + 0.82 * pitch, 49], [top, 43.2], color=style.VERMILLION, linewidth=0.9, linestyle=(0, (2, 2)))
    words(1, 25.4, f"{gpu.sm_count} SMs work at the same time", fontsize=10.5, weight="bold")

    # L2 and memory
    _card(ax, 1, 16.4, 48, 5.2, edge=style.GOLD, fill="#fbecc8", line=1.4)
    words(25, 19.0, f"L2 cache: {l2}, seen by every SM", ha="center")
    _card(ax, 1, 2.0, 48, 7.0, edge=muted, fill=style.FAINT, line=1.4)
    words(25, 5.5, f"memory: {memory}", ha="center", fontsize=11)
    for x in (6, 44):
        _arrow(ax, (x, 9.2), (x, 16.0), colour=style.VERMILLION, line=2.2)
        _arrow(ax, (x, 21.8), (x, 24.6), colour=style.VERMILLION, line=2.2)
    words(25, 12.6, f"{rate} by the data sheet", ha="center", color=style.VERMILLION, weight="bold")

    return figure(
        fig,
        name="gpu-" + "".join(c if c.isalnum() else "-" for c in name.lower()),
        caption=f"An {name}, from its memory up to one SM (figures of the data sheet and of NVIDIA's programming guide). What "
        "a program touches again should lie as far up as it fits: every level below is larger, shared by more, and slower.",
        alt=f"Three levels. At the bottom the memory, {memory}, with arrows up, {rate}. Above it the L2 cache, {l2}. Above it "
        f"{gpu.sm_count} small squares, the SMs; one of them enlarged holds four groups of warps, each with a tensor core, "
        f"{registers} of registers, and shared memory, {shared} for one program.",
    )


def turns_figure(programs: int = 9, sm_count: int = 8) -> Figure:
    """Programs of equal length on a GPU of few SMs, one at a time on each: the last wave costs as much as a full one.

    ValueError unless both are positive and there are at most four waves of twelve SMs.
    """
    if programs < 1 or not 1 <= sm_count <= 12 or programs > 4 * sm_count:
        raise ValueError(f"at most 12 SMs and 4 waves can be drawn, got {programs} programs on {sm_count} SMs")
    turns = costs.n_waves(programs, sm_count)
    last = programs - (turns - 1) * sm_count
    busy = programs / (turns * sm_count)
    height = 2.3 * sm_count
    fig, ax = _sheet(height + 8.5)
    left, width = 8.0, 41 / turns
    for program in range(programs):
        turn, sm = divmod(program, sm_count)
        y = height + 4.4 - (sm + 1) * 2.3
        fill = style.VERMILLION if turn == turns - 1 and last < sm_count else style.BLUE
        _box(ax, left + turn * width, y, width - 0.5, 1.9, fill=fill, line=0)
        ax.text(
            left + turn * width + width / 2, y + 0.9, f"program {program}", ha="center", va="center", fontsize=9, color="white"
        )
    for sm in range(sm_count):
        y = height + 4.4 - (sm + 1) * 2.3
        ax.text(1, y + 0.9, f"SM {sm}", va="center", fontsize=9.5, color=style.MUTED)
        for turn in range(turns):
            if turn * sm_count + sm >= programs:
                _box(ax, left + turn * width, y, width - 0.5, 1.9, fill=style.FAINT, line=0)
    for turn in range(turns):
        ax.text(left + turn * width + width / 2, height + 5.9, f"wave {turn + 1}", ha="center", va="center", fontsize=10)
    _arrow(ax, (left, 2.6), (49, 2.6), colour=style.MUTED)
    ax.text(49, 1.1, "time", ha="right", va="center", fontsize=10, color=style.MUTED)
    return figure(
        fig,
        name=f"turns-{programs}-{sm_count}",
        caption=f"Computed: {programs} equal programs on {sm_count} SMs that hold one each take {turns} "
        f"wave{'s' * (turns > 1)}; of the places, {busy:.0%} are used.",
        alt=f"A row for each of {sm_count} SMs, time to the right: {turns - (last < sm_count)} full waves of programs"
        + (f", and a last wave in which {last} of {sm_count} SMs have one." if last < sm_count else "."),
    )


def programs_rate(recording: measure.Recording | None) -> Figure:
    """Recorded: how fast memory is read by few programs and by many, from decode calls with a given number of splits.

    Of the workhorse's heads at 131,072 tokens, or 8,192 where those are not recorded. Without a recording only the line of the
    data sheet is drawn.
    """
    gpu = costs.gpu(recording.provenance["gpu"] if recording else "H200 SXM")
    rows = measure.split_rows(recording, n_q_heads=32, n_kv_heads=8, context_len=131_072) if recording else []
    points = sorted({(measure.split_launch(row, gpu).programs, row["cache_bytes"] / row["median_s"]) for row in rows})
    points = [(n, rate) for n, rate in points if n <= 8 * gpu.sm_count]

    fig, ax = style.subplots(height=3.3)
    ax.axhline(gpu.bandwidth / 1e12, color=style.INK, **style.STYLES["computed"])
    ax.text(9, gpu.bandwidth / 1e12 * 1.06, "data sheet", fontsize=10)
    alone = None
    if points:
        alone = points[0][1] / points[0][0]
        most = recording.read_bandwidth / alone
        ax.plot([points[0][0], most], [points[0][1] / 1e12, recording.read_bandwidth / 1e12], color=style.BLUE, linewidth=1.2)
        ax.plot(*zip(*((n, rate / 1e12) for n, rate in points), strict=True), color=style.BLUE, **style.STYLES["recorded"])
    ax.axvline(gpu.sm_count, color=style.MUTED, linewidth=1, linestyle=(0, (2, 2)))
    ax.text(gpu.sm_count * 1.07, 0.3, f"{gpu.sm_count} SMs", fontsize=10, color=style.MUTED)
    ax.set(xscale="log", yscale="log", xlabel="programs", ylabel="TB/s read", xlim=(7, 8.5 * gpu.sm_count), ylim=(0.25, 8))
    ax.set_xticks([8, 16, 32, 64, 128, 256, 512, 1024], ["8", "16", "32", "64", "128", "256", "512", "1,024"])
    ax.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
    ax.minorticks_off()
    told = f"Hollow marks: {recording.label}, decode of 32 query heads over 8 KV heads at 131,072 tokens." if points else ""
    return figure(
        fig,
        name="programs-rate",
        caption="Bytes a second against the programs that read. Horizontal: the data sheet's bandwidth; sloping: the rate of "
        f"the smallest launch times the programs (computed). {told}".strip(),
        alt="A straight line that rises with the number of programs until it meets the bandwidth"
        + (
            f"; recorded points follow it from {points[0][0]} programs, {points[0][1] / 1e12:.2f} TB/s, and level off near "
            f"{max(rate for _, rate in points) / 1e12:.1f} TB/s."
            if points
            else "; nothing is recorded."
        ),
    )
