"""Right answers to P1, written in other ways."""

import itertools
import types

from course import costs
from kernels._mode import tl, triton


def in_other_units(givens):
    rate = givens["read_mib"] * 1024**2 / givens["read_us"] * 1e6
    places = givens["residents"] * givens["sm_count"]
    return {
        "bandwidth": rate / 1e9,
        "ridge": givens["matmul_n"] ** 3 / givens["matmul_us"] * 2e6 / rate,
        "in_flight": rate * givens["latency_us"] / 1e6 / givens["sm_count"] / 1024,
        "waves": (givens["programs"] + places - 1) // places,
    }


def benchmark(function):
    return types.SimpleNamespace(SimulatedGpu=costs.SimulatedGpu, timed_read=function)


def a_cycle_after_reading_all(machine, n_bytes, *, copies, rounds=3):
    for buffer in range(copies):
        machine.read(buffer, n_bytes)
    machine.synchronize()
    start = machine.now
    for buffer in itertools.islice(itertools.cycle(range(copies)), copies * rounds):
        machine.read(buffer, n_bytes)
    machine.synchronize()
    return (machine.now - start) / copies / rounds


def a_long_run_less_a_short_one(machine, n_bytes, *, copies, rounds=3):
    def run(times):
        machine.synchronize()
        start = machine.now
        for _ in range(times):
            for buffer in range(copies):
                machine.read(buffer, n_bytes)
        machine.synchronize()
        return machine.now - start

    run(1)
    return (run(2 * rounds) - run(rounds)) / (rounds * copies)


@triton.jit
def strides_of_the_grid(x, out, n, per_program, BLOCK: tl.constexpr):
    first = tl.program_id(0) * per_program
    for start in range(first, first + per_program, BLOCK):
        own = start + tl.arange(0, BLOCK)
        tl.store(out + own, tl.load(x + own, mask=own < n, other=0.0), mask=own < n)


def in_loops(x, out):
    n = x.numel()
    strides_of_the_grid[(-(-n // 2048),)](x, out, n, 2048, BLOCK=1024)


@triton.jit
def small_blocks(x, out, n, BLOCK: tl.constexpr):
    program, step = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, BLOCK) * step + program
    mask = lane < n
    tl.store(out + lane, tl.load(x + lane, mask=mask), mask)


def interleaved(x, out):
    small_blocks[(triton.cdiv(x.shape[0], 2048),)](x, out, x.shape[0], BLOCK=2048)


@triton.jit
def one_row(x, out, columns, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        tl.store(out + row * columns + c, tl.load(x + row * row_stride + c * column_stride, mask=c < columns), mask=c < columns)


def a_row_each(x, out):
    one_row[(x.shape[0],)](x, out, x.shape[1], x.stride(0), x.stride(1), BLOCK=64)


RIGHT = {
    "p1_gpu.machine": [("other units", in_other_units)],
    "p1_gpu.timing": [
        ("a cycle", lambda: benchmark(a_cycle_after_reading_all)),
        ("a difference", lambda: benchmark(a_long_run_less_a_short_one)),
    ],
    "p1_gpu.copy": [("a loop in each program", lambda: in_loops), ("programs interleaved", lambda: interleaved)],
    "p1_gpu.matrix": [("a row for each program", lambda: a_row_each)],
}
