"""Live lab of the chapter on costs: two constants of your own GPU, and what they predict."""

import ipywidgets as widgets

from .. import costs, measure
from ..measure import plans, record
from ..measure.shapes import Shape
from .figures import Figure
from .forecasts import SMALLEST, predicted_against_measured
from .labs import NO_GPU, Lab, _button, _gpu_here, _place, _screen, _text

FIT = ((1, 8192), (16, 8192))  # batch and context of the workhorse: 34 MB and 0.5 GB
TEST = ((4, 8192), (16, 2048), (1, 131072), (64, 8192))


def workhorse_rows(recording: measure.Recording) -> list[dict]:
    """Recorded calls of the grouped decode kernel with 32 query heads, splits left to it, of 10 MB and more."""
    rows = recording.select(operation="decode", splits="automatic", n_q_heads=32, dtype="bfloat16", status="ok")
    return sorted((row for row in rows if row["cache_bytes"] >= SMALLEST), key=lambda row: row["cache_bytes"])


def prediction_lab() -> Lab:
    """Fit two constants on calls of your choice and see what they predict; on a GPU, measure them there first."""
    found = measure.recordings("NVIDIA H200", "decode")
    rows = workhorse_rows(found[0]) if found else []
    here = _place() != "CPU"

    def named(row: dict) -> str:
        return (
            f"batch {row['batch']}, {row['n_kv_heads']} KV heads, {row['context_len']:,} tokens: "
            f"{costs.format_bytes(row['cache_bytes'], binary=False)}"
        )

    choices = [(named(row), i) for i, row in enumerate(rows)]
    wide = widgets.Layout(width="100%", max_width="440px")
    small = widgets.Dropdown(options=choices, value=0 if choices else None, description="small", layout=wide)
    large = widgets.Dropdown(options=choices, value=len(choices) - 1 if choices else None, description="large", layout=wide)

    def draw() -> Figure | None:
        one, other = rows[small.value], rows[large.value]
        prediction = costs.fit((row["cache_bytes"], row["median_s"]) for row in (one, other))
        label = found[0].label[0].upper() + found[0].label[1:]
        return predicted_against_measured(
            rows, prediction, costs.gpu(found[0].provenance["gpu"]), label=label, seen=(small.value, large.value),
            name="prediction-lab",
        )  # fmt: skip

    first = draw() if rows else _nothing()
    screen, status = _screen(first), widgets.HTML()

    def redraw(_=None) -> None:
        try:
            screen.value = draw().png
            status.value = ""
        except ValueError:
            status.value = _text("These two calls give no constants: choose two of different size, the larger one slower.")

    for control in (small, large):
        control.observe(redraw, "value")

    def run() -> None:
        if not here:
            status.value = _text(f"{NO_GPU}: choose the two calls that the constants are fitted on; all times are recorded.")
            return
        machine, fresh = record.this_machine(), []
        for batch, context_len in (*FIT, *TEST):
            status.value = _text(f"measuring batch {batch}, {context_len:,} tokens: first the answer, then the time …")
            shape = Shape(batch, 32, 8, context_len, dtype=record.usual_dtype())
            fresh += [row for row in record.measure_shape([plans.ours(shape)], machine) if row["status"] == "ok"]
        gpu = _gpu_here()
        if len(fresh) < 3 or gpu is None:
            status.value = _text("Too few of the calls ran here, or this GPU's data sheet is not in the table.")
            return
        prediction = costs.fit((row["cache_bytes"], row["median_s"]) for row in fresh[: len(FIT)])
        screen.value = predicted_against_measured(
            fresh, prediction, gpu, label=f"Live on this machine's {_place()}", seen=range(len(FIT)), name="prediction-lab-live"
        ).png
        status.value = _text(
            f"Your constants: {costs.format_seconds(prediction.t0_s)} and "
            f"{costs.format_bytes(prediction.bandwidth, binary=False)}/s, fitted on {len(FIT)} calls, tried on {len(TEST)}."
        )

    button = _button("measure on this GPU" if here else "what happens here?", run, status)
    return Lab(
        "prediction",
        "Live lab: two constants of your own.",
        "Choose the two recorded calls on which the constants are fitted and see how well they predict all the others. On a "
        "CUDA GPU the button measures six calls there, fits the constants on two and tries them on four.",
        first,
        widgets.VBox([small, large, button, status, screen]),
    )


def _nothing() -> Figure:
    """Without a recording: the floor of the same calls, which needs none."""
    from . import style
    from .figures import figure

    gpu = costs.gpu("H200 SXM")
    shapes = [Shape(batch, 32, 8, context_len) for batch, context_len in sorted((*FIT, *TEST))]
    points = sorted((s.cache_bytes, costs.floor(s.cache_bytes, s.flops, gpu).seconds) for s in shapes)
    fig, ax = style.subplots(height=2.6)
    ax.plot([n / 1e6 for n, _ in points], [t * 1e6 for _, t in points], color=style.BLUE, **style.STYLES["computed"])
    ax.set(xscale="log", yscale="log", xlabel="MB of cache", ylabel="floor, µs")
    return figure(
        fig,
        name="prediction-lab",
        caption=f"Computed: the floor of the lab's calls on an {gpu.name}. Nothing is recorded yet.",
        alt="The floor rises in proportion to the bytes of the cache, on logarithmic axes.",
    )
