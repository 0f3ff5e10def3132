"""Time a callable honestly.

Three things make a short kernel look faster or slower than it is, and each has its cure here. Launching from Python
costs more than a small kernel runs, so the calls are captured in a CUDA graph and replayed. A buffer that is read again
at once comes from the L2 cache, which no model sees (between two reads of one layer's cache it reads all other layers),
so the calls go round over copies larger than the L2. And one number hides the spread, so a measurement is the median of
many rounds with the 20th and 80th percentile beside it; contenders are measured round by round, each round in an order
drawn anew, so that a warming card, and what ran just before, touch all of them alike.
"""

import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import kernels

from .traffic import interpreter_hooks

ROTATED_BYTES = 900_000_000  # far beyond any L2
MIN_RUN_S = 1e-3  # a replay at least this long hides the microsecond between two graph launches
WARM_UP_S = 0.01
MIN_ROUNDS, MAX_ROUNDS = 7, 50


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and 20th and 80th percentile over ``rounds``.

    ``method``: 'graph' and 'events' are a GPU's own time, 'clock' is the host's around torch code on the CPU.
    """

    median_s: float
    p20_s: float
    p80_s: float
    rounds: int
    method: str

    @classmethod
    def of(cls, seconds: Sequence[float], method: str) -> "Timing":
        p20, median, p80 = np.percentile(seconds, [20, 50, 80])
        return cls(float(median), float(p20), float(p80), len(seconds), method)


@dataclass(frozen=True)
class Sample:
    """A prepared contender: ``run()`` makes ``calls`` calls (on a GPU: enqueues them).

    It keeps alive what its calls hold: a captured graph reads a library's workspace, or a work list, at each replay.
    """

    run: Callable[[], None]
    calls: int
    method: str
    keeps: Sequence[Callable[[], object]] = ()


def copies_beyond_cache(n_bytes: int, l2_bytes: int) -> int:
    """How many copies of a buffer of ``n_bytes`` a rotation needs: at least 0.9 GB, or four times the L2, in all."""
    return max(1, math.ceil(max(ROTATED_BYTES, 4 * l2_bytes) / n_bytes))


def time_callable(
    calls: Callable[[], object] | Sequence[Callable[[], object]], *, method: str = "auto", seconds: float = 0.2
) -> Timing:
    """Seconds of one call.

    ``calls``: one callable without arguments, or several that do the same over rotated buffers (``copies_beyond_cache``
    says how many). ``method``: 'graph' (CUDA graph replay), 'events' (CUDA events around eager calls: launch gaps
    count), 'clock' (the host's clock, torch code on the CPU), or 'auto': graph on a GPU and events where capture is
    refused, clock without a GPU. ``seconds`` bounds the measuring, warm-up apart, as long as the least number of rounds
    fits into it. Raises ValueError for an unknown method; ``kernels.Unsupported`` for a GPU method without a GPU, and
    for a kernel in Triton's interpreter, whose time means nothing.
    """
    return measure([prepare(calls, method)], seconds)[0]


def prepare(calls: Callable[[], object] | Sequence[Callable[[], object]], method: str = "auto") -> Sample:
    """Warm the calls up and make them repeatable; see ``time_callable``."""
    calls = [calls] if callable(calls) else list(calls)
    if method not in ("auto", "graph", "events", "clock"):
        raise ValueError(f"method is 'auto', 'graph', 'events' or 'clock', not {method!r}")
    if not calls:
        raise ValueError("calls is empty: there is nothing to time")
    if method in ("graph", "events") and not torch.cuda.is_available():
        raise kernels.Unsupported(f"method {method!r} needs a CUDA GPU, and there is none here")
    if kernels.MODE == "interpreter":
        with interpreter_hooks(_refuse):
            calls[0]()
    if method == "clock" or not torch.cuda.is_available():
        return Sample(lambda: _run(calls), len(calls), "clock")
    _warm_up(calls)
    if method == "events":
        return Sample(lambda: _run(calls), len(calls), "events")
    try:
        return _captured(calls)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        if method == "graph":
            raise
    torch.cuda.synchronize()
    return Sample(lambda: _run(calls), len(calls), "events")


def measure(samples: Sequence[Sample], seconds: float = 0.2, heat: float = 0.0) -> list[Timing]:
    """Time the samples round by round; ``seconds`` is the time for each of them on average.

    Each round has an order of its own: at the limit of its power a card is slower after a contender that draws much, and one
    order for all would give each contender the same one before it. ``heat``: seconds of unmeasured rounds before, where a cool
    card would run at higher clocks than a busy one.
    """
    if all(sample.method == "clock" for sample in samples):
        return _measure_clock(samples, seconds)
    paces = [_pace(sample) for sample in samples]
    rounds = _rounds(paces, seconds)
    for sample, pace in zip(samples, paces, strict=True):
        for _ in range(min(20, math.ceil(WARM_UP_S / pace))):
            sample.run()
    for _ in range(math.ceil(heat / sum(paces))):
        for sample in samples:
            sample.run()
        torch.cuda.synchronize()
    # Nothing waits from here to the end: the GPU's queue stays full, and each interval holds one run and no idle time.
    order = _order(len(samples), rounds)
    marks = [_mark()]
    for i in order:
        samples[i].run()
        marks.append(_mark())
    torch.cuda.synchronize()
    taken: list[list[float]] = [[] for _ in samples]
    for i, (before, after) in zip(order, itertools.pairwise(marks), strict=True):
        taken[i].append(before.elapsed_time(after) / 1e3 / samples[i].calls)
    return [Timing.of(times, sample.method) for times, sample in zip(taken, samples, strict=True)]


def _refuse(kernel: str, arguments: dict) -> None:
    raise kernels.Unsupported(
        f"{kernel} runs in Triton's interpreter here, where time means nothing: count its loads instead "
        "(course.measure.count_traffic), or time it on a CUDA GPU"
    )


def _run(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _rounds(paces: Sequence[float], seconds: float) -> int:
    return min(MAX_ROUNDS, max(MIN_ROUNDS, int(seconds * len(paces) / max(sum(paces), 1e-9))))


def _order(samples: int, rounds: int) -> list[int]:
    """Each sample once a round, in a random order, the same in every run."""
    draw = random.Random(0)
    return [i for _ in range(rounds) for i in draw.sample(range(samples), samples)]


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _pace(sample: Sample) -> float:
    """Seconds of one run, roughly: the second of two."""
    sample.run()
    begin = _mark()
    sample.run()
    end = _mark()
    torch.cuda.synchronize()
    return max(begin.elapsed_time(end) / 1e3, 1e-6)


@functools.lru_cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _warm_up(calls: Sequence[Callable[[], object]]) -> None:
    """Compile, load, create handles; on the stream of the capture, for a library's workspace belongs to a stream."""
    stream, current = _side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        _run([calls[0], calls[-1], calls[0]])
    current.wait_stream(stream)
    torch.cuda.synchronize()


def _captured(calls: Sequence[Callable[[], object]]) -> Sample:
    """A graph of one pass over the calls, or of as many as a replay of MIN_RUN_S takes."""
    graph = _capture(calls)
    passes = math.ceil(MIN_RUN_S / _pace(Sample(graph.replay, len(calls), "graph")))
    if passes > 1:
        del graph  # and its memory, before the longer one takes as much
        graph = _capture(list(calls) * passes)
    return Sample(graph.replay, len(calls) * passes, "graph", keeps=calls)


def _capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    device, current = torch.cuda.current_device(), torch.cuda.current_stream()
    generator = torch.cuda.default_generators[device]
    state = generator.clone_state()
    graph = torch.cuda.CUDAGraph()
    try:
        # Outputs are dropped at once, so that all calls share the memory of one inside the graph's own pool.
        with torch.cuda.graph(graph, stream=_side_stream(device)):
            _run(calls)
    except RuntimeError:
        # A capture that fails leaves its own stream current and the generator of random numbers waiting for its end.
        torch.cuda.set_stream(current)
        generator.graphsafe_set_state(state)
        raise
    return graph


def _measure_clock(samples: Sequence[Sample], seconds: float) -> list[Timing]:
    def once(sample: Sample) -> float:
        begin = time.perf_counter()
        sample.run()
        return time.perf_counter() - begin

    for sample in samples:
        sample.run()
    rounds = _rounds([once(sample) for sample in samples], seconds)
    taken: list[list[float]] = [[] for _ in samples]
    for i in _order(len(samples), rounds):
        taken[i].append(once(samples[i]) / samples[i].calls)
    return [Timing.of(times, "clock") for times in taken]
