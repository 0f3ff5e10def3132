"""What is true of a benchmark that reads buffers, looked at on a simulated GPU: no real clock is asked.

The answer is a module with `SimulatedGpu` and `timed_read`, as course/costs/stopwatch.py has them.
"""

from ... import costs
from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

GPUS = ("A100 80GB SXM", "H100 SXM", "H200 SXM")


def _time(answer: Answer, gpu: str, n_bytes: int, *, copies: int, rounds: int, **machine) -> float:
    simulated = answer.get("SimulatedGpu")(gpu, **machine)
    value = answer.get("timed_read")(simulated, n_bytes, copies=copies, rounds=rounds)
    return judge.number(value, "the time of one read")


def _drawn(draw: Draw) -> tuple[str, int, int]:
    """A GPU, a size that its L2 could hold, and so many copies that it holds none of them until its turn comes again."""
    gpu, n_bytes = draw.choice(GPUS), draw.choice((16, 24, 32)) * costs.MiB
    return gpu, n_bytes, 4 * costs.gpu(gpu).l2_bytes // n_bytes + draw.integer(1, 3)


def _told(gpu: str, n_bytes: int) -> str:
    return f"{costs.format_bytes(n_bytes)} on a simulated {gpu}"


@named("waits for the GPU", "the clock is read when the work is done, and not when it is in the queue")
def waits(answer: Answer, draw: Draw) -> None:
    gpu, n_bytes, copies = _drawn(draw)
    seconds = _time(answer, gpu, n_bytes, copies=copies, rounds=3, l2_speedup=1.0)
    rate, limit = n_bytes / seconds if seconds > 0 else float("inf"), costs.gpu(gpu).bandwidth
    if rate > limit:
        raise Wrong(
            f"{_told(gpu, n_bytes)}: {rate / 1e12:.2f} TB/s, and its memory has {limit / 1e12:.2f}. "
            "Its L2 is no faster here, so the clock was stopped while kernels were still waiting. What does a launch wait for?"
        )


@named("reads from memory", "between two reads of a buffer so much else is read that the L2 has forgotten it")
def from_memory(answer: Answer, draw: Draw) -> None:
    gpu, n_bytes, copies = _drawn(draw)
    slow, fast = (_time(answer, gpu, n_bytes, copies=copies, rounds=12, l2_speedup=speed) for speed in (1.0, 4.0))
    if fast < 0.97 * slow:  # the first read of all may find what the warm-up left in the L2
        raise Wrong(
            f"{_told(gpu, n_bytes)}, {copies} copies: with an L2 four times faster than memory a read seems to take "
            f"{costs.format_seconds(fast)}, with one as slow as memory {costs.format_seconds(slow)}. Cold reads do not depend "
            "on the L2. What is read between two reads of the same buffer?"
        )


def _true_time(answer: Answer, gpu: str, n_bytes: int, *, copies: int, rounds: int, launch_s: float, t0_s: float) -> None:
    got = _time(answer, gpu, n_bytes, copies=copies, rounds=rounds, launch_s=launch_s, t0_s=t0_s)
    expected = max(launch_s, t0_s + n_bytes / costs.gpu(gpu).bandwidth)
    if abs(got - expected) > 0.03 * expected:
        way = "Nothing but the reads may stand between the two looks at the clock, and a wait at every turn lets the GPU idle"
        if got < expected:
            way = "Something was not waited for, or not read from memory"
        raise Wrong(
            f"{_told(gpu, n_bytes)}, {copies} copies, {rounds} rounds: expected {costs.format_seconds(expected)} a read, got "
            f"{costs.format_seconds(max(got, 0.0))}. {way}."
        )


@named("the true time", "one read takes the fixed time and bytes over bandwidth, or as long as its launch")
def true_time(answer: Answer, draw: Draw) -> None:
    gpu, n_bytes, copies = _drawn(draw)
    _true_time(answer, gpu, n_bytes, copies=copies, rounds=12, launch_s=4e-6, t0_s=2e-6)


@named("the true time of other sizes", "buffers that no L2 holds, few rounds, and reads shorter than a launch")
def other_sizes(answer: Answer, draw: Draw) -> None:
    gpu, large = draw.choice(GPUS), draw.choice((256, 384, 512)) * costs.MiB
    _true_time(answer, gpu, large, copies=draw.integer(2, 3), rounds=4, launch_s=2e-6, t0_s=3e-6)
    small = draw.choice((64, 128)) * costs.KiB
    copies = 2 * costs.gpu(gpu).l2_bytes // small
    _true_time(answer, gpu, small, copies=copies, rounds=1, launch_s=6e-6, t0_s=1e-6)
