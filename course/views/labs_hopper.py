"""The labs of page 8b, on the reader's machine: both forms of a kernel, and one with a race."""

from collections.abc import Callable

import ipywidgets as widgets
import torch

import kernels

from .. import copies, measure
from ..measure import plans, record
from ..measure.shapes import Shape
from .figures import Figure
from .labs import NO_GPU, Lab, _live, _measuring_lab, _text
from .measured_hopper import forms_figure

TOKENS = 16384  # of all sequences together
CONTEXTS = (1024, 2048, 4096, 8192, 16384)
WHOLE = {
    "forward, MHA 32 × 128": (32, 32, 128, "forward"),
    "forward, GQA 32/8 × 128": (32, 8, 128, "forward"),
    "forward, 16 × 192/128": (16, 16, 192, "forward"),
    "backward, MHA 32 × 128": (32, 32, 128, "backward"),
    "backward, GQA 32/8 × 128": (32, 8, 128, "backward"),
    "backward, 16 × 192/128": (16, 16, 192, "backward"),
}
MLA = {"MLA decode, 128 heads": 128, "MLA decode, 64 heads": 64}


def shape_of(work: str, context_len: int, dtype: str = "bfloat16") -> Shape:
    """The shape of a lab's choice: whole sequences of 16,384 tokens in all, or 64 sequences to decode."""
    if work in MLA:
        return Shape.mla(64, MLA[work], context_len, dtype=dtype)
    n_q_heads, n_kv_heads, width, direction = WHOLE[work]
    return Shape(
        max(1, TOKENS // context_len), n_q_heads, n_kv_heads, context_len, head_dim_qk=width, q_len=context_len,
        direction=direction, dtype=dtype,
    )  # fmt: skip


def hopper_lab() -> Lab:
    """Time both forms on a Hopper GPU; on another GPU the plain one; without a GPU say what it would do."""
    kinds = {kind: found[0] if (found := measure.recordings("NVIDIA H200", kind)) else None for kind in ("prefill", "mla")}
    work = widgets.Dropdown(options=[*WHOLE, *MLA], value="forward, GQA 32/8 × 128", description="work")
    context = widgets.Dropdown(options=[(f"{n:,}", n) for n in CONTEXTS], value=4096, description="tokens")
    chosen = [f"{work.value}, {context.value:,}"]

    def draw(rows: list[dict]) -> Figure:
        last = [row for row in rows if row["status"] == "ok"][-2:]
        return forms_figure(kinds, name="hopper-lab", live_work=f"here: {chosen[0]}", **_live(last))

    def measured(machine: record.Machine, rows: list[dict], say: Callable[[str], None]) -> str:
        shape = shape_of(work.value, context.value, record.usual_dtype())
        fresh = list(record.measure_shape(points(shape), machine))
        rows[:] = fresh
        chosen[0] = f"{work.value}, {context.value:,}"
        return f"{shape}: {record.summary(fresh)}"

    return _measuring_lab(
        "hopper",
        "Live lab: both forms on your GPU.",
        "Choose a work and a length; on a Hopper GPU (H100, H200) the plain form and the one in Gluon are checked against "
        "float64, timed and drawn as filled marks under the recorded ones. Another CUDA GPU has one form, and that is timed.",
        [work, context],
        redrawn_by=[],
        draw=draw,
        measured=measured,
        counted=lambda: without_gpu(work.value, context.value),
        without_gpu="says what it would do",
        buttons=("measure on this GPU", "what would it do?"),
    )  # fmt: skip


def points(shape: Shape) -> list[plans.Point]:
    """What the lab measures: our function, and on a Hopper GPU, where that has a form of its own, the portable form too."""
    return [plans.ours(shape), *([plans.portable(shape)] if kernels.hopper.present() else [])]


def without_gpu(work: str, context_len: int) -> str:
    """One line for a machine without a GPU."""
    shape = shape_of(work, context_len)
    return _text(f"{NO_GPU}: on a Hopper GPU both forms would compute {shape}, {shape.flops / 1e12:.3g} TFLOP a call.")


# A buffer is given back when its product has been ordered, and not when it has read. Every barrier still gets every arrival: a
# copy of the kernel with such a fault may compute wrongly, and cannot hang.
RACING = "kernels/forward_hopper.py"
_GIVE_V, _GIVE_K = "    arrive_named(V_EMPTY + v_slot, ALL)\n", "    arrive_named(K_EMPTY + k_slot, ALL)\n"
_ORDER_V = "    acc, p = issue_values(shared, pairs, v_slot, acc, OUTPUT)\n"
_V_DONE = "    acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n"
_SOFTMAX = "    m_new, shift, weights = weigh("
EARLY = {
    "V given back too early": ((_ORDER_V, _ORDER_V + _GIVE_V), (_V_DONE + _GIVE_V, _V_DONE)),
    "K given back too early": ((_ORDER_V, _ORDER_V + _GIVE_K), (_GIVE_K + _SOFTMAX, _SOFTMAX)),
}


def early_release(runs: int = 20) -> None:
    """Run the shipped kernel, and two that give a buffer back too early, on one input; print how many answers each has.

    Needs a Hopper GPU; elsewhere it prints what it would do.
    """
    if not kernels.hopper.present():
        print(f"no Hopper GPU here: on one, three kernels run {runs} times each on the same input")
        return
    libraries = {"shipped": kernels} | {
        name: copies.with_text(RACING, copies.edited(RACING, edits, name), f"kernels_{name.lower().replace(' ', '_')}")
        for name, edits in EARLY.items()
    }
    q, k, v = torch.randn(3, 2, 32, 4096, 128, device="cuda", dtype=torch.bfloat16).unbind()
    right, _ = kernels.reference.attention(q[:1, :1], k[:1, :1], v[:1, :1], causal=True)
    for name, library in libraries.items():
        answers: list[torch.Tensor] = []
        for _ in range(runs):
            out, _ = library.attention(q, k, v, causal=True)
            if not any(torch.equal(out, answer) for answer in answers):
                answers.append(out)
        error = max((out[:1, :1] - right).abs().max().item() for out in answers)
        print(f"{name + ':':24}{runs} runs, {len(answers)} different answers; largest error of one head {error:.2g}")
