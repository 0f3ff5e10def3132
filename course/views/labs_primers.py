"""Live labs of the primers: what this machine's memory gives, and what a copy kernel asks for."""

import time
from collections.abc import Callable, Iterable

import ipywidgets as widgets
import torch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import kernels

from .. import costs, measure
from ..measure import plans, record, timing
from . import style
from .explorers.read_time import WAYS, measured_reads
from .figures import Figure, figure
from .labs import NO_GPU, Lab, _button, _gpu_here, _place, _screen, _text

COLOURS = dict(zip(WAYS, (style.BLUE, style.VERMILLION, style.GREEN), strict=True))
PYTORCH = "copy by torch"
GPU_SIZES = tuple(2**n for n in range(16, 32, 3))  # 64 KiB to 2 GiB
CPU_SIZES = tuple(2**n for n in range(14, 27, 2))  # 16 KiB to 64 MiB
CPU_ROTATED = 2**28  # bytes that a cold read on a CPU goes round, beyond its caches


def _moved_figure(name: str, ways: Iterable[str], live: dict[str, dict[int, float]], where: str | None = None) -> Figure:
    """Time against bytes: floor, recorded H200, and ``live`` times by way of moving and bytes, if there are any."""
    recording, rows = measured_reads()
    ways = list(ways)
    gpu = costs.gpu("H200 SXM")
    rows = [row for row in rows if row["gpu"] == gpu.name and row["way"] in ways]
    sizes = [row["n_bytes"] for row in rows] + [n for times in live.values() for n in times]
    low, high = (min(sizes), max(sizes)) if sizes else (2**16, 2**32)

    fig, ax = style.subplots(height=3.6)
    ax.plot([low, high], [low / gpu.bandwidth, high / gpu.bandwidth], color=style.INK, label=f"{gpu.name} data sheet",
            **style.STYLES["computed"])  # fmt: skip
    mine = _gpu_here() if live else None
    if mine and mine.name != gpu.name:
        line = {**style.STYLES["computed"], "linestyle": "--"}
        ax.plot(
            [low, high], [low / mine.bandwidth, high / mine.bandwidth], color=style.INK, label=f"{mine.name} data sheet", **line
        )
    for way in ways:
        points = sorted((row["n_bytes"], row["seconds"]) for row in rows if row["way"] == way)
        if points:
            ax.plot(*zip(*points, strict=True), color=COLOURS[way], label=f"{way}, recorded", **style.STYLES["recorded"])
    for way, times in live.items():
        colour = COLOURS.get(way, style.PURPLE)
        ax.plot(list(times), list(times.values()), color=colour, label=f"{way}, live", **style.STYLES["live"])
    ticks = [2**n for n in range(14, 34, 4) if low <= 2**n <= high]
    ax.set(xscale="log", yscale="log", xlabel="bytes moved", ylabel="time")
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_bytes(value)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    fig.legend(loc="outside upper left", ncols=1)
    source = f" Hollow marks: {recording.label}." if recording and rows else " Nothing is recorded."
    filled = f" Filled marks: live on this machine's {where}." if live else ""
    return figure(
        fig,
        name=name,
        caption=f"Time against bytes moved. Line: bytes over the data sheet's bandwidth (computed).{source}{filled}",
        alt="Time against bytes, both logarithmic: a straight line for the data sheet; marks that lie on it for large sizes "
        f"and above it, nearly level, for small ones ({', '.join(ways)}).",
    )


def _timed(calls: list[Callable[[], object]], seconds: float = 0.05) -> float:
    (result,) = timing.measure([timing.prepare(calls)], seconds)
    return result.median_s


def _cpu_read(n_bytes: int, *, warm: bool) -> float:
    """Seconds in which ``torch.sum`` reads a buffer on the CPU, the same one again or the next of many."""
    copies = 1 if warm else max(1, CPU_ROTATED // n_bytes)
    data = torch.ones(min(copies, 4096), n_bytes // 4)
    return _timed([lambda x=x: x.sum() for x in data])


def reads_lab() -> Lab:
    """Time reads on this machine, from memory and again from a cache; on a GPU also a matrix product, for its ridge."""
    where = _place()
    sizes = GPU_SIZES if where != "CPU" else CPU_SIZES
    largest = widgets.Dropdown(options=[(costs.format_bytes(n), n) for n in sizes[2:]], value=sizes[-2], description="largest")
    first = _moved_figure("reads-lab", WAYS[:2], {})
    screen, status = _screen(first), widgets.HTML()
    live: dict[str, dict[int, float]] = {}

    def run() -> None:
        started = time.perf_counter()
        machine = record.this_machine() if where != "CPU" else None
        live.clear()
        for n_bytes in (n for n in sizes if n <= largest.value):
            status.value = _text(f"reading {costs.format_bytes(n_bytes)} …")
            for way, warm in ((WAYS[0], False), (WAYS[1], True)):
                seconds = (
                    record.read_rate(n_bytes, machine, warm=warm)["median_s"] if machine else _cpu_read(n_bytes, warm=warm)
                )
                live.setdefault(way, {})[n_bytes] = seconds
        screen.value = _moved_figure("reads-lab", WAYS[:2], live, where).png
        status.value = _text(_verdict(live, machine) + f" {time.perf_counter() - started:.0f} s on this machine's {where}.")

    if where == "CPU":
        status.value = _text(f"{NO_GPU}: hollow marks are an H200's; the button times torch.sum on this machine's CPU.")
    return Lab(
        "reads",
        "Live lab: what your memory gives.",
        "Reads buffers of growing size, each time the next of many (from memory) and each time the same one (from a cache, "
        "while it fits), and draws them over the recorded ones. On a CUDA GPU it adds a matrix product and says the ridge; "
        "without one it times torch.sum on the CPU, whose curve has the same shape.",
        first,
        widgets.VBox([widgets.HBox([largest, _button("time reads", run, status)]), status, screen]),
    )


def _verdict(live: dict[str, dict[int, float]], machine: record.Machine | None) -> str:
    """Fixed time and rate of the reads from memory, and the ridge where there is a GPU."""
    fitted = costs.fit(live[WAYS[0]].items())
    fast = max(n / s for n, s in live[WAYS[1]].items())
    said = (
        f"From memory: {costs.format_seconds(fitted.t0_s)} + bytes ÷ {costs.format_bytes(fitted.bandwidth, binary=False)}/s. "
        f"Again, at best: {costs.format_bytes(fast, binary=False)}/s."
    )
    if machine:
        product = record.limit_rate(plans.MATMULS[0], machine)
        flops = product["flops"] / product["median_s"]
        said += f" A matrix product: {flops / 1e12:.0f} TFLOP/s, so the ridge is {flops / fitted.bandwidth:.0f} FLOP per byte."
    return said


def copy_lab() -> Lab:
    """Count what the copy kernel asks for; on a GPU time it beside ``torch.clone``."""
    where = _place()
    n = widgets.Dropdown(options=[(f"{n:,}", n) for n in (1000, 4096, 10_007, 65_536)], value=1000, description="elements")
    block = widgets.Dropdown(options=[2**i for i in range(4, 13)], value=256, description="BLOCK")
    stride = widgets.Dropdown(options=[1, 2, 8], value=1, description="stride")
    first = _moved_figure("copy-lab", WAYS[2:], {})
    screen, status = _screen(first), widgets.HTML()

    def count() -> None:
        if kernels.MODE != "interpreter":
            status.value = _text(f"Requests are counted in Triton's interpreter only (here: {kernels.MODE}).")
            return
        x = torch.arange(float(n.value * stride.value))[:: stride.value]
        traffic = measure.count_traffic(kernels.first.copy, x, block=block.value)
        fetched = 32 * sum(
            costs.sectors(start, min(start + block.value, n.value) - 1, stride.value)
            for start in range(0, n.value, block.value)
        )
        status.value = _text(
            f"Counted: {traffic.programs:,} programs, {traffic.requested():,} elements requested, "
            f"{traffic.programs * block.value - n.value:,} lanes masked. Computed: {costs.format_bytes(fetched)} fetched in "
            f"sectors for {costs.format_bytes(4 * n.value)} used."
        )

    def run() -> None:
        machine = record.this_machine()
        live: dict[str, dict[int, float]] = {WAYS[2]: {}, PYTORCH: {}}
        for n_bytes in GPU_SIZES:
            for way, operation in ((WAYS[2], "copy"), (PYTORCH, "torch copy")):
                status.value = _text(f"{way}: {costs.format_bytes(n_bytes)} …")
                timed = record.limit_rate(plans.Limit(operation, n_bytes), machine)
                live[way][timed["bytes"]] = timed["median_s"]
        screen.value = _moved_figure("copy-lab", WAYS[2:], live, where).png
        best = {way: max(b / s for b, s in times.items()) for way, times in live.items()}
        status.value = _text("; ".join(f"{way}: {costs.format_bytes(b, binary=False)}/s at best" for way, b in best.items()))

    gpu = where != "CPU"
    if not gpu:
        status.value = _text(f"{NO_GPU}: the button counts what the kernel requests.")
    button = _button("time copies on this GPU", run, status) if gpu else _button("count requests", count, status)
    controls = [] if gpu else [n, block, stride]
    return Lab(
        "copy",
        "Live lab: the copy kernel.",
        "On a CUDA GPU it times the copy kernel and torch.clone and draws both over the recorded points. Without one it runs "
        "the kernel in Triton's interpreter and counts programs, requests and masked lanes, for a length, block and stride of "
        "yours.",
        first,
        widgets.VBox([widgets.HBox([*controls, button], layout=widgets.Layout(flex_flow="row wrap")), status, screen]),
    )
