"""The live lab of chapter 5: the same call cut into more and more splits, on the reader's GPU."""

from collections.abc import Callable

import ipywidgets as widgets
import torch

import kernels

from .. import measure
from ..measure import record
from ..measure.recordings import fastest
from ..measure.shapes import Point, Shape
from .explorers.split_sweep import _constants
from .figures import Figure
from .labs import NO_GPU, Lab, _live, _measuring_lab, _text
from .measured_splits import SPLITS, split_times

COUNTED_SPLITS = (1, 2, 4, 8)
COUNTED = {"n_q_heads": 8, "n_kv_heads": 2, "context_len": 512, "head_dim": 16}


def splits_to_try(programs_per_split: int, sm_count: int) -> list[int]:
    """Powers of two to 128, and the last split that fits one wave and two, with one more: where a wave ends."""
    edges = [sm_count * waves // programs_per_split + more for waves in (1, 2) for more in (0, 1)]
    return sorted({*SPLITS, *(n for n in edges if 1 <= n <= SPLITS[-1])})


def split_lab() -> Lab:
    """Time one decode call with 1 to 128 splits on this machine's GPU, over what was recorded and computed.

    Without a GPU the button counts programs, requests and partial results in Triton's interpreter.
    """
    recording, model, _ = _constants()
    n_kv_heads = widgets.Dropdown(options=(1, 8, 32), value=8, description="KV heads")
    batch = widgets.Dropdown(options=(1, 4, 16), value=1, description="batch")
    context = widgets.Dropdown(options=[(f"{n:,}", n) for n in (2048, 8192, 131_072)], value=131_072, description="tokens")

    def draw(rows: list[dict]) -> Figure:
        shape = (batch.value, 32, n_kv_heads.value, context.value)
        return split_times(recording, shapes=[shape], model=model, name="split-lab", **_live(rows))

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        shape = Shape(batch.value, 32, n_kv_heads.value, context.value, dtype=record.usual_dtype())
        tried = splits_to_try(shape.batch * shape.n_kv_heads, machine.provenance["sm_count"])
        fresh = list(record.measure_shape([Point(shape, "decode", num_splits=n) for n in tried], machine))
        rows[:] = [row for row in rows if _at(row) != _at(fresh[0])] + sorted(fresh, key=lambda row: row["num_splits"])
        best = fastest(fresh)
        found = f"fastest with {best['num_splits']} splits" if best else f"nothing could be timed ({fresh[0]['status']})"
        return f"{shape}: {found}."

    return _measuring_lab(
        "split",
        "Live lab: your own saw-tooth.",
        "Choose KV heads, batch and context; one decode call is timed with 1 to 128 splits on your CUDA GPU, the numbers just "
        "before and after a full wave among them, and drawn as filled marks over the recorded ones. Without a GPU it counts "
        "programs, requests and partial results.",
        [n_kv_heads, batch, context],
        redrawn_by=[batch, n_kv_heads, context],
        draw=draw,
        measured=measured,
        counted=_counted,
        without_gpu="counts programs, requests and partial results",
        buttons=("time the splits on this GPU", "count programs and partial results"),
    )


def _at(row: dict) -> tuple:
    return row["batch"], row["n_kv_heads"], row["context_len"]


def _counted() -> str:
    """A table of what a split decode step of a small cache launches and requests, as html."""
    if kernels.MODE != "interpreter":
        return _text(f"{NO_GPU}, and requests are counted in Triton's interpreter only (here: {kernels.MODE}).")
    n_q_heads, n_kv_heads, context_len, head_dim = COUNTED.values()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, n_q_heads, head_dim, generator=generator)
    k, v = torch.randn(2, 1, n_kv_heads, context_len, head_dim, generator=generator)
    lines = ""
    for num_splits in COUNTED_SPLITS:
        traffic = measure.count_traffic(kernels.decode, q, k, v, num_splits=num_splits)
        partial = kernels.plan.decode_workspace(1, 1, n_q_heads, head_dim, num_splits)
        lines += (
            f"<tr><td>{num_splits}</td><td>{traffic.programs:,}</td><td>{traffic.requested('k', 'v'):,}</td>"
            f"<td>{traffic.distinct('k', 'v'):,}</td><td>{partial:,}</td></tr>"
        )
    shape = f"{n_q_heads} query heads over {n_kv_heads} KV heads, {context_len} tokens, {head_dim} wide"
    return (
        "<table><thead><tr><th>splits</th><th>programs, merge included</th><th>elements of K and V requested</th>"
        f"<th>distinct</th><th>partial results, float32</th></tr></thead><tbody>{lines}</tbody></table>"
        f"{_text(f'Counted in the interpreter: {shape}.')}"
    )
