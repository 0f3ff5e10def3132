"""Labs of whole sequences: the full-sequence kernel (chapter 3) and its gradients (3b) on the reader's machine."""

import html
from collections.abc import Callable

import ipywidgets as widgets
import torch

import kernels

from .. import costs, measure
from ..measure import plans, record
from ..measure.contenders import BACKENDS
from ..measure.shapes import Point, Shape
from .figures import Figure
from .labs import NO_GPU, Lab, _live, _measuring_lab, _text
from .measured_full_sequence import TOKENS, whole_sequence_speed

HEADS = ((32, 32, 128), (32, 8, 128), (32, 1, 128), (16, 16, 192))
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)
COUNTED = {"q_len": 24, "kv_len": 40, "head_dim": 16}  # what the interpreter can do while a reader waits
KEYS_OF_ALL_HEADS = 256  # gradients are counted with so many at least: with fewer programs, several would share a group


def forward_lab() -> Lab:
    """Time a forward pass on your GPU over the recorded one; without a GPU count which keys are loaded."""
    return _lab(
        "forward",
        "Live lab: prefill on your GPU.",
        "Choose heads, context and mask; the kernel of this chapter (on a Hopper GPU both forms) and PyTorch's backends are "
        "checked, then timed on your CUDA GPU and drawn as filled marks over the recorded ones. Without a GPU it counts the "
        "keys that programs load.",
    )


def backward_lab() -> Lab:
    """Time the gradients on your GPU, partials beside the sum in the program; without a GPU count loads and tensors."""
    return _lab(
        "backward",
        "Live lab: gradients on your GPU.",
        "Choose heads and context; the gradients of this page (on a Hopper GPU in both forms), those by partials and PyTorch's "
        "backends are checked, then timed on your CUDA GPU and drawn as filled marks over the recorded ones. Without a GPU it "
        "counts the bytes of gradients, summed in the program and by partials.",
    )


def _lab(direction: str, title: str, what: str) -> Lab:
    found = measure.recordings("NVIDIA H200", "prefill")
    recording = found[0] if found else None
    heads = widgets.Dropdown(
        options=[(f"{q} query, {kv} KV, keys {width} wide", (q, kv, width)) for q, kv, width in HEADS],
        value=HEADS[1],
        description="heads",
    )
    context = widgets.Dropdown(options=[(f"{n:,}", n) for n in CONTEXTS], value=2048, description="tokens")
    causal = widgets.Checkbox(value=True, description="causal", indent=False)

    def draw(rows: list[dict]) -> Figure:
        n_q_heads, n_kv_heads, width = heads.value
        return whole_sequence_speed(
            recording, direction=direction, name=f"{direction}-lab", n_q_heads=n_q_heads, n_kv_heads=n_kv_heads,
            widths=(width, 128), causal=causal.value, **_live(rows),
        )  # fmt: skip

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        n_q_heads, n_kv_heads, width = heads.value
        shape = Shape(
            max(1, TOKENS // context.value), n_q_heads, n_kv_heads, context.value, head_dim_qk=width, causal=causal.value,
            q_len=context.value, direction=direction, dtype=record.usual_dtype(),
        )  # fmt: skip
        fresh = list(record.measure_shape(points(shape), machine))
        rows.extend(fresh)
        return f"{shape}: {record.summary(fresh)}"

    return _measuring_lab(
        direction, title, what,
        [heads, context, causal],
        redrawn_by=[heads, causal],
        draw=draw,
        measured=measured,
        counted=lambda: counted(direction, *heads.value[:2], causal=causal.value),
        without_gpu="counts",
        buttons=("measure on this GPU", "count"),
    )  # fmt: skip


def points(shape: Shape) -> list[Point]:
    """What a lab measures: our kernel, PyTorch's backends but MATH, and for shared heads the gradients by partials.

    On a Hopper GPU, whose kernels are others, the portable form as well.
    """
    contenders = [plans.ours(shape)]
    if kernels.hopper.present():
        contenders.append(plans.portable(shape))
    contenders += [Point(shape, "sdpa", backend) for backend in BACKENDS if backend != "MATH"]
    if shape.direction == "backward" and shape.group_size > 1:
        contenders.append(plans.partial_sums(shape))
    return contenders


def counted(direction: str, n_q_heads: int, n_kv_heads: int, *, causal: bool = True) -> str:
    """What a small call loads or allocates, counted in the interpreter, as an html table."""
    if kernels.MODE != "interpreter":
        return _text(f"{NO_GPU}, and counting needs Triton's interpreter (here: {kernels.MODE}).")
    q_len, kv_len, head_dim = COUNTED.values()
    if direction == "backward":
        kv_len = max(kv_len, KEYS_OF_ALL_HEADS // n_kv_heads)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, n_q_heads, q_len, head_dim, generator=generator)
    k, v = torch.randn(2, 1, n_kv_heads, kv_len, head_dim, generator=generator)
    shape = f"{n_q_heads} query heads over {n_kv_heads} KV heads, {q_len} queries over {kv_len} keys, {head_dim} wide, float32"
    if direction == "forward":
        traffic = measure.count_traffic(kernels.attention, q, k, v, causal=causal)
        tile = kernels.tiles.forward_tile(q_len, head_dim, head_dim, 4, *_interpreted())
        mask = "bottom-right" if causal else "none"
        tiles = costs.tile_map(q_len, kv_len, tile.rows, tile.block_n, mask=mask)
        asked = 2 * head_dim * n_q_heads * tiles.keys
        lines = [
            ("programs", f"{traffic.programs:,}", f"{n_q_heads * -(-q_len // tile.rows):,}"),
            ("elements of K and V requested", f"{traffic.requested('k', 'v'):,}", f"{asked:,}"),
            ("elements of K and V, distinct", f"{traffic.distinct('k', 'v'):,}", f"{2 * head_dim * n_kv_heads * kv_len:,}"),
        ]
        return _table(("", "counted", "computed"), lines, f"Counted in the interpreter: {shape}.")
    out, lse = kernels.attention(q, k, v, causal=causal)
    ways = {
        "summed in the program": lambda: kernels.backward.attention_backward(
            q, k, v, out, lse, torch.ones_like(out), None, causal, head_dim**-0.5, False
        ),
        "partials, then their sum": lambda: kernels.backward.partials_then_sum(
            q, k, v, out, lse, torch.ones_like(out), causal=causal
        ),
    }
    lines = []
    for name, way in ways.items():
        traffic = measure.count_traffic(way)
        programs = sum(launch.programs for launch in traffic.launches if launch.kernel == "dkdv_kernel")
        heads = n_kv_heads if name == "summed in the program" else n_q_heads
        attention = costs.Attention.gqa(n_q_heads, n_kv_heads, head_dim)
        n_bytes = costs.gradient_bytes(attention, kv_len, per_query_head=heads == n_q_heads)
        lines.append((name, f"{programs:,}", f"{n_bytes:,}"))
    return _table(
        ("form", "programs for dK and dV, counted", "bytes of dK and dV they write, computed"), lines,
        f"Counted in the interpreter: {shape}.",
    )  # fmt: skip


def _interpreted() -> tuple[tuple[int, int], int]:
    device = kernels.device_of(torch.empty(0))
    return device.capability, device.shared_memory


def _table(head: tuple[str, ...], lines: list[tuple[str, ...]], words: str) -> str:
    cells = "".join(f"<th>{html.escape(one)}</th>" for one in head)
    body = "".join(
        f"<tr><td style='text-align:left'>{html.escape(first)}</td>{''.join(f'<td>{x}</td>' for x in others)}</tr>"
        for first, *others in lines
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{_text(words)}"
