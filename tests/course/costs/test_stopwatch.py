"""The model of a queue and an L2: true times where a benchmark is right, and the known faults where it is not."""

import pytest

from course import costs

H200 = costs.gpu("H200 SXM")
SIZE = 32 * costs.MiB
TRUE = 2e-6 + SIZE / H200.bandwidth


def test_a_careful_benchmark_reads_the_true_time():
    assert costs.timed_read(costs.SimulatedGpu(H200), SIZE, copies=4, rounds=20) == pytest.approx(TRUE, rel=0.02)


def test_one_buffer_comes_from_the_l2():
    seconds = costs.timed_read(costs.SimulatedGpu(H200, l2_speedup=2), SIZE, copies=1, rounds=80)
    assert seconds == pytest.approx(2e-6 + SIZE / H200.bandwidth / 2, rel=0.02)
    assert costs.timed_read(costs.SimulatedGpu(H200), 2 * SIZE, copies=1, rounds=80) > TRUE, "larger than the L2"


def test_a_launch_returns_at_once_and_looking_waits_for_nothing():
    machine = costs.SimulatedGpu("H200 SXM", launch_s=1e-6, compile_s=0.25)
    machine.read(0, SIZE)
    assert machine.now == pytest.approx(0.25 + 1e-6)
    machine.read(1, SIZE)
    assert machine.now == pytest.approx(0.25 + 2e-6)
    machine.synchronize()
    assert machine.now == pytest.approx(0.25 + 1e-6 + 2 * TRUE)
    machine.synchronize()
    assert machine.now == pytest.approx(0.25 + 1e-6 + 2 * TRUE)


def test_short_kernels_take_as_long_as_their_launches():
    seconds = costs.timed_read(costs.SimulatedGpu(H200, launch_s=5e-6, t0_s=1e-6), 4096, copies=2, rounds=100)
    assert seconds == pytest.approx(5e-6, rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: costs.timed_read(m, 0, copies=1), "n_bytes"),
        (lambda m: costs.timed_read(m, 1, copies=0), "copies"),
        (lambda m: costs.timed_read(m, 1, copies=1, rounds=0), "rounds"),
        (lambda m: m.read(-1, 1), "buffer"),
        (lambda m: costs.SimulatedGpu("H200 SXM", l2_speedup=0), "l2_speedup"),
    ],
)
def test_impossible_ones_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(costs.SimulatedGpu("H200 SXM"))
