"""P1: a ridge from two measurements, a benchmark that fools itself, a copy."""

from ... import costs
from ..draw import Draw
from ..properties import copying, stopwatch
from ..properties.predictions import number
from ..tasks import Assignment, Task

GPUS = ("RTX 4090", "A100 80GB SXM", "H100 SXM", "H200 SXM")


def givens(draw: Draw) -> dict:
    gpu = costs.gpu(draw.choice(GPUS))
    read_mib, n = draw.choice((512, 768, 1024)), draw.choice((4096, 8192, 12288))
    reached_bandwidth, reached_peak = draw.integer(86, 96) / 100, draw.integer(62, 82) / 100
    residents = draw.integer(2, 4)
    places = residents * gpu.sm_count
    return {
        "gpu": gpu.name,
        "read_mib": read_mib,
        "read_us": round(read_mib * costs.MiB / (gpu.bandwidth * reached_bandwidth) * 1e6, 1),
        "matmul_n": n,
        "matmul_us": round(2 * n**3 / (gpu.peak_flops() * reached_peak) * 1e6, 1),
        "latency_us": draw.choice((0.6, 0.7, 0.8, 0.9)),
        "sm_count": gpu.sm_count,
        "residents": residents,
        "programs": draw.integer(2, 5) * places + draw.integer(places // 20, places // 3),
    }


def _bandwidth(givens: dict) -> float:
    return givens["read_mib"] * costs.MiB / (givens["read_us"] * 1e-6)


def _flops_rate(givens: dict) -> float:
    return 2 * givens["matmul_n"] ** 3 / (givens["matmul_us"] * 1e-6)


def _in_flight(givens: dict) -> float:
    return costs.bytes_in_flight(_bandwidth(givens), givens["latency_us"] * 1e-6) / givens["sm_count"]


MACHINE = Task(
    name="machine",
    kind="predict",
    title="What two measurements say of a GPU",
    answer="predicted",
    points=(
        (
            number(
                "bandwidth",
                "bytes read over the time that it took",
                right=lambda givens: _bandwidth(givens) / 1e12,
                unit="TB/s",
                traps={"a MiB is a power of two, a TB a power of ten": lambda g: g["read_mib"] / g["read_us"]},
                other_units={"GB/s": 1e-3, "B/s": 1e-12},
            ),
            1,
        ),
        (
            number(
                "ridge",
                "FLOPs for each byte at which both limits are met",
                right=lambda givens: _flops_rate(givens) / _bandwidth(givens),
                unit="FLOP/B",
                traps={
                    "how many FLOPs is one multiply-add?": lambda g: _flops_rate(g) / _bandwidth(g) / 2,
                    "that is the ridge of the data sheet; what do the two measurements say?": lambda g: costs.gpu(
                        g["gpu"]
                    ).ridge(),
                    "that is bytes for each FLOP": lambda g: _bandwidth(g) / _flops_rate(g),
                },
            ),
            2,
        ),
        (
            number(
                "in_flight",
                "bytes that each SM has to have on order",
                right=_in_flight,
                tolerance=0.02,
                unit="bytes for each SM",
                traps={
                    "that is what the whole GPU has on order": lambda g: _in_flight(g) * g["sm_count"],
                    "the bandwidth that counts is the one that was measured": lambda g: (
                        costs.gpu(g["gpu"]).bandwidth * g["latency_us"] * 1e-6 / g["sm_count"]
                    ),
                },
                other_units={"KB": 1e3, "KiB": 1024},
            ),
            1,
        ),
        (
            number(
                "waves",
                "turns in which the programs run",
                right=lambda g: costs.n_waves(g["programs"], g["residents"] * g["sm_count"]),
                tolerance=0,
                traps={
                    "how many programs does one SM hold?": lambda g: costs.n_waves(g["programs"], g["sm_count"]),
                    "the last programs need a wave too": lambda g: g["programs"] // (g["residents"] * g["sm_count"]),
                    "a wave that is not full is a wave": lambda g: g["programs"] / (g["residents"] * g["sm_count"]),
                },
            ),
            1,
        ),
    ),
)

TIMING = Task(
    name="timing",
    kind="fix",
    title="A benchmark that is too good, or too bad, to be true",
    answer="mended.costs.stopwatch",
    points=((stopwatch.waits, 1), (stopwatch.from_memory, 2), (stopwatch.true_time, 1), (stopwatch.other_sizes, 1)),
    hidden=(stopwatch.other_sizes.name,),
    shipped=lambda course: course.costs.stopwatch,
    package="course",
)

COPY = Task(
    name="copy",
    kind="build",
    title="A copy",
    answer="copy",
    points=(
        (copying.arrives, 1),
        (copying.odd_lengths, 1),
        (copying.special_values, 1),
        (copying.loads, 1),
        (copying.programs, 1),
    ),
    hidden=(copying.odd_lengths.name, copying.special_values.name),
)

MATRIX = Task(
    name="matrix",
    kind="stretch",
    title="A copy of a matrix with any strides",
    answer="copy_matrix",
    points=((copying.any_strides, 2), (copying.matrix_loads, 1)),
)

ASSIGNMENT = Assignment(
    name="p1_gpu",
    title="A GPU in one page",
    minutes=60,
    objectives=(
        "work out a ridge, bytes in flight and waves from measurements of a GPU",
        "tell a time that a model would see from one that a benchmark made up, and repair the benchmark",
        "write a copy kernel that requests each element once",
    ),
    tasks=(MACHINE, TIMING, COPY, MATRIX),
    givens=givens,
    rubric=(
        (1, "names two ways in which a rate above the data sheet comes about: a clock that did not wait, a buffer in the L2"),
        (
            1,
            "for each an experiment that tells it from the other: a buffer larger than the L2, one more synchronisation",
        ),
        (1, "says which time a model would see, and why: between two reads of one layer's cache all other layers are read"),
    ),
)
