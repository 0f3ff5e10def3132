"""Chapter 9: times predicted from two constants, a time model to repair, one GPU's share, and how to divide."""

from functools import cache

from ... import costs, measure
from ..draw import Draw
from ..properties import accounting
from ..properties.predictions import number
from ..tasks import Assignment, Task

SHAPE = ("batch", "n_q_heads", "n_kv_heads", "context_len")
WITHIN = 0.2
PRINTED = ((64, 32, 8, 8192), (128, 32, 8, 1024))  # the chapter tells these times


@cache
def _recording() -> measure.Recording:
    return measure.latest("NVIDIA H200")


@cache
def _rows() -> dict[tuple, dict]:
    """The recorded calls of the decode kernel in bf16, 128 wide, by batch, heads and tokens."""
    fields = {"operation": "decode", "splits": "automatic", "dtype": "bfloat16", "status": "ok", "head_dim_qk": 128}
    return {tuple(row[key] for key in SHAPE): row for row in _recording().select(**fields)}


def givens(draw: Draw) -> dict:
    """Two recorded calls to fit the constants on, and four others whose times the reader does not get."""
    rows = _rows()
    shared = [
        row for call, row in rows.items()
        if row["batch"] > 1 and 1 < row["n_kv_heads"] < row["n_q_heads"] and call not in PRINTED
    ]  # fmt: skip
    known = [
        draw.choice([row for row in shared if low <= row["cache_bytes"] <= high]) for low, high in ((5e7, 8e7), (4e9, 1e10))
    ]
    prediction = costs.fit([(row["cache_bytes"], row["median_s"]) for row in known])
    held_out = [
        row for row in shared
        if 2e8 <= row["cache_bytes"] <= 2e10 and row not in known
        and abs(prediction.seconds(row["cache_bytes"]) / row["median_s"] - 1) < WITHIN / 2
    ]  # fmt: skip
    return {
        "known": [
            {**_shape(row), "megabytes": round(row["cache_bytes"] / 1e6, 1), "us": round(row["median_s"] * 1e6, 1)}
            for row in known
        ],
        "calls": {name: _shape(row) for name, row in zip("abcd", draw.some(held_out, 4), strict=True)},
        "label": _recording().label,
    }


def _shape(row: dict) -> dict:
    return {key: row[key] for key in SHAPE}


def _constants(given: dict) -> costs.Prediction:
    return costs.fit((1e6 * call["megabytes"], 1e-6 * call["us"]) for call in given["known"])


def _call(name: str):
    def slip(factor):
        """What the two constants say if the bytes are ``factor`` of the right ones."""
        return lambda g: 1e6 * _constants(g).seconds(_recorded(g)["cache_bytes"] * factor(g["calls"][name]))

    def _recorded(given: dict) -> dict:
        return _rows()[tuple(given["calls"][name][key] for key in SHAPE)]

    return number(
        name,
        f"the recorded time of call {name}, in microseconds, within 20%",
        right=lambda g: 1e6 * _recorded(g)["median_s"],
        tolerance=WITHIN,
        unit="µs",
        traps={
            "a token leaves a key and a value": slip(lambda call: 0.5),
            "which heads are kept in the cache?": slip(lambda call: call["n_q_heads"] / call["n_kv_heads"]),
            "every sequence has a cache of its own": slip(lambda call: 1 / call["batch"]),
            "how many bytes has a number in bf16?": slip(lambda call: 2),
        },
        other_units={"ms": 1e3, "s": 1e6},
    )


PREDICT = Task(
    name="calls",
    kind="predict",
    title="Four calls that the fit has not seen",
    answer="predicted",
    points=(
        (
            number(
                "t0_us", "the fixed time of the two constants, in microseconds",
                right=lambda g: 1e6 * _constants(g).t0_s, tolerance=0.05, unit="µs",
                traps={"the time of the small call holds its bytes as well": lambda g: min(c["us"] for c in g["known"])},
            ), 1,
        ),
        *((_call(name), 1) for name in "abcd"),
    ),
)  # fmt: skip

TIME = Task(
    name="time",
    kind="fix",
    title="A time model that is wrong near the ridge, or elsewhere",
    answer="mended.costs",
    points=(
        (accounting.time_inside, 1),
        (accounting.time_sum, 1),
        (accounting.time_batch, 1),
        (accounting.time_record, 1),
        (accounting.time_windows, 1),
    ),
    hidden=("record", "windows"),
    shipped=lambda course: course.costs,
    package="course",
)

SHARE = Task(
    name="share",
    kind="build",
    title="What one GPU keeps and multiplies",
    answer="gpu_share",
    points=(
        (accounting.share_whole, 2),
        (accounting.share_divided, 1),
        (accounting.share_copies, 2),
        (accounting.share_latent, 1),
        (accounting.share_windows, 2),
    ),
    hidden=("copies",),
    shipped=accounting.share_of,
    package="course",
)

DIVIDE = Task(
    name="divide",
    kind="stretch",
    title="Heads or sequences?",
    answer="divide",
    points=((accounting.divide_seconds, 2), (accounting.divide_fastest, 2)),
)

ASSIGNMENT = Assignment(
    name="09_costs",
    title="Costs side by side",
    minutes=80,
    objectives=(
        "predict the time of a decode call within 20% from two measured ones",
        "say where the larger of two times counts and where their sum does, and find who mixed them up",
        "count what one of several GPUs keeps and multiplies, with copies, latents and windows",
        "choose between dividing heads and dividing sequences, by numbers",
    ),
    tasks=(PREDICT, TIME, SHARE, DIVIDE),
    givens=givens,
    rubric=(
        (1, "compares records by numbers a token and layer, and knows one without a latent that is smaller"),
        (1, "asks how many GPUs hold a replica, and counts what each keeps"),
        (1, "asks whether bytes decide at all: the other term of the floor, the weights, or the room for users"),
    ),
)
