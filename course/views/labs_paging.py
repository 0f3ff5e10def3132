"""Live lab of chapter 6: page sizes on the reader's GPU, or look-ups counted without one."""

from collections.abc import Callable
from dataclasses import replace

import ipywidgets as widgets
import torch

import kernels

from .. import measure
from ..measure import plans, record
from ..measure.shapes import Shape
from .figures import Figure
from .labs import NO_GPU, Lab, _live, _measuring_lab, _text
from .measured_pages import page_size_figure

MEASURED_SIZES = (None, 16, 64, 256)  # None is the contiguous twin
COUNTED_SIZES = (8, 16, 32, 64)
COUNTED_TOKENS, COUNTED_WIDTH = 128, 16


def paging_lab() -> Lab:
    """Measure page sizes and the contiguous twin on your own GPU, over what was recorded and what is computed.

    Without a GPU the button counts instead what the kernel requests of the cache and of the block table.
    """
    found = [one for one in measure.recordings("NVIDIA H200", "paged") if one.kind == "paged"]
    recording = found[0] if found else None
    shapes = ((32, 32), (32, 8), (32, 1), (64, 8))
    heads = widgets.Dropdown(options=[(f"{q} query, {kv} KV", (q, kv)) for q, kv in shapes], value=(32, 8), description="heads")
    batch = widgets.Dropdown(options=(1, 16, 64), value=16, description="batch")
    context = widgets.Dropdown(options=[(f"{n:,}", n) for n in (2048, 8192, 32768)], value=8192, description="tokens")

    def chosen() -> dict:
        return {
            "batch": batch.value, "n_q_heads": heads.value[0], "n_kv_heads": heads.value[1], "context_len": context.value,
        }  # fmt: skip

    def draw(rows: list[dict]) -> Figure:
        return page_size_figure(recording, **_live(rows), **chosen())

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        fresh = []
        for size in MEASURED_SIZES:
            say(f"measuring {f'pages of {size} tokens' if size else 'the contiguous cache'} …")
            shape = replace(Shape(**chosen(), dtype=record.usual_dtype()), page_size=size)
            fresh += record.measure_shape([plans.ours(shape)], machine)
        rows.extend(fresh)
        return f"contiguous, then pages of {', '.join(map(str, MEASURED_SIZES[1:]))}: {record.summary(fresh)}"

    return _measuring_lab(
        "paging",
        "Live lab: page sizes on your GPU.",
        "Choose heads, batch and context; the paged kernel at three page sizes and its contiguous twin are checked, then timed "
        "on your CUDA GPU and drawn as filled marks over the recorded ones. Without a GPU it counts what the kernel requests "
        "of the cache and of the block table.",
        [heads, batch, context],
        redrawn_by=[heads, batch, context],
        draw=draw,
        measured=measured,
        counted=lambda: _counted(*heads.value),
        without_gpu="counts what the kernel requests",
    )


def _counted(n_q_heads: int, n_kv_heads: int) -> str:
    """A table of what the paged kernel requests for a small cache, as html."""
    if kernels.MODE != "interpreter":
        return _text(f"{NO_GPU}, and requests are counted in Triton's interpreter only (here: {kernels.MODE}).")
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, n_q_heads, COUNTED_WIDTH, generator=generator)
    lines = ""
    for size in COUNTED_SIZES:
        n_pages = COUNTED_TOKENS // size
        pages = torch.randn(2, n_pages, size, n_kv_heads, COUNTED_WIDTH, generator=generator)
        table = torch.randperm(n_pages, generator=generator).int().view(1, n_pages)
        lengths = torch.tensor([COUNTED_TOKENS], dtype=torch.int32)
        traffic = measure.count_traffic(kernels.paged_decode, q, *pages, table, lengths, num_splits=1)
        lines += (
            f"<tr><td>{size}</td><td>{traffic.requested('k', 'v'):,}</td><td>{traffic.requested('block_table'):,}</td>"
            f"<td>{traffic.distinct('block_table'):,}</td></tr>"
        )
    shape = f"{n_q_heads} query heads over {n_kv_heads} KV heads, {COUNTED_TOKENS} tokens, {COUNTED_WIDTH} wide, float32"
    return (
        "<table><thead><tr><th>tokens of a page</th><th>elements of K and V requested</th><th>table entries requested</th>"
        f"<th>distinct</th></tr></thead><tbody>{lines}</tbody></table>{_text(f'Counted in the interpreter: {shape}.')}"
    )
