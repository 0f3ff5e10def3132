"""course.measure.timing: what is measured, what is refused. The GPU's part runs where there is one."""

import functools
import gc
import math
import time
import types
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from course import measure
from course.measure import timing

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")


@given(st.lists(st.floats(1e-9, 10), min_size=1, max_size=60))
def test_percentiles_enclose_the_median(seconds):
    result = measure.Timing.of(seconds, "clock")
    assert min(seconds) <= result.p20_s <= result.median_s <= result.p80_s <= max(seconds)
    assert result.rounds == len(seconds)


@given(st.integers(1, 10**12), st.integers(0, 10**9))
def test_copies_reach_beyond_the_cache_and_not_further(n_bytes, l2_bytes):
    copies, wanted = measure.copies_beyond_cache(n_bytes, l2_bytes), max(900_000_000, 4 * l2_bytes)
    assert copies >= 1
    assert copies * n_bytes >= wanted
    assert copies == 1 or (copies - 1) * n_bytes < wanted


@pytest.fixture
def sleep(monkeypatch):
    """Lets time go by on a clock that nothing else moves, however busy the machine is."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return sleep


@on_cpu
def test_the_clock_measures_torch_code_and_says_so(sleep):
    result = measure.time_callable(lambda: sleep(0.004), seconds=0.05)
    assert result.method == "clock"
    assert result.median_s == pytest.approx(0.004)


@on_cpu
def test_the_clock_is_the_machines():
    assert measure.time_callable(lambda: time.sleep(0.004), seconds=0.05).median_s >= 0.004


@on_cpu
def test_calls_are_divided_out_and_go_round(sleep):
    seen = []
    calls = [lambda i=i: (seen.append(i), sleep(0.001)) for i in range(4)]
    result = measure.time_callable(calls, method="clock", seconds=0.02)
    assert result.median_s == pytest.approx(0.001)
    rounds = seen[-4 * result.rounds :]
    assert rounds == [0, 1, 2, 3] * result.rounds


@on_cpu
def test_contenders_take_turns():
    seen = []
    samples = [timing.prepare(lambda i=i: seen.append(i)) for i in "abc"]
    seen.clear()
    results = timing.measure(samples, 0.01)
    rounds = ["".join(seen[i : i + 3]) for i in range(len(seen) - 3 * results[0].rounds, len(seen), 3)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 1  # nobody always follows the same one
    assert {result.rounds for result in results} == {len(rounds)}


def test_the_interpreter_is_never_timed():
    if kernels.MODE != "interpreter":
        pytest.skip("kernels are compiled here")
    q, k = torch.randn(1, 2, 16), torch.randn(1, 1, 20, 16)
    with pytest.raises(kernels.Unsupported, match="decode_kernel runs in Triton's interpreter.*count_traffic"):
        measure.time_callable(lambda: kernels.decode(q, k, k))
    measure.count_traffic(kernels.decode, q, k, k)  # and everything is put back


@on_cpu
@pytest.mark.parametrize("method", ["graph", "events"])
def test_gpu_methods_need_a_gpu(method):
    with pytest.raises(kernels.Unsupported, match="needs a CUDA GPU"):
        measure.time_callable(lambda: None, method=method)


def test_bad_arguments():
    with pytest.raises(ValueError, match="method is .*, not 'fast'"):
        measure.time_callable(lambda: None, method="fast")
    with pytest.raises(ValueError, match="calls is empty"):
        measure.time_callable([])


@on_gpu
def test_graph_hides_launches_and_events_do_not():
    x = torch.randn(1024, device="cuda")
    graph, events = (measure.time_callable(lambda: x + 1, method=method) for method in ("graph", "events"))
    assert (graph.method, events.method) == ("graph", "events")
    assert graph.median_s < 4e-6 < events.median_s * 4


@on_gpu
def test_graph_and_events_agree_on_long_kernels():
    x = torch.randn(2**28, device="cuda")
    graph, events = (measure.time_callable(lambda: x.mul_(1.0), method=method) for method in ("graph", "events"))
    assert graph.median_s == pytest.approx(events.median_s, rel=0.05)
    assert graph.p80_s < 1.2 * graph.p20_s


@on_gpu
def test_every_buffer_is_visited_and_freed_afterwards():
    buffers = [torch.zeros(2**20, device="cuda") for _ in range(5)]
    before = torch.cuda.memory_allocated()
    measure.time_callable([lambda b=b: b.add_(1) for b in buffers])
    assert len({b[0].item() for b in buffers[1:-1]}) == 1
    assert buffers[2][0].item() > 0
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_out_of_memory_is_not_taken_for_a_refusal():
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        measure.time_callable(lambda: torch.empty(2 * free, dtype=torch.uint8, device="cuda"))


@on_gpu
def test_a_refused_capture_falls_back_to_events():
    x, stream = torch.randn(1024, device="cuda"), torch.cuda.current_stream()
    result = measure.time_callable(lambda: x.sum().item())
    assert result.method == "events"
    assert math.isfinite(result.median_s)
    assert torch.cuda.current_stream() == stream
    torch.randn(4, device="cuda")  # the default generator is not left waiting for the capture's end


def test_a_sample_keeps_what_its_calls_hold():
    """A captured graph reads a library's workspace at each replay: it must not be freed while the graph lives."""

    class Workspace:
        pass

    workspace = Workspace()
    alive = weakref.ref(workspace)
    x = torch.ones(8, device="cuda" if torch.cuda.is_available() else "cpu")
    sample = timing.prepare([functools.partial(lambda held: x + 1, workspace)])
    del workspace
    gc.collect()
    assert alive() is not None
    del sample
    gc.collect()
    assert alive() is None
