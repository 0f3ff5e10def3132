"""Wrong answers to P1."""

from course import costs
from kernels._mode import tl, triton
from tests.course.grading.right_answers.p1_gpu import benchmark, in_loops, in_other_units, one_row


def but(key, value):
    return lambda givens: in_other_units(givens) | {key: value(givens)}


def best_of_single_reads(machine, n_bytes, *, copies, rounds=3):
    machine.read(0, n_bytes)
    times = []
    for call in range(rounds * copies):
        machine.synchronize()
        start = machine.now
        machine.read(call % copies, n_bytes)
        machine.synchronize()
        times.append(machine.now - start)
    return min(times)


def division(machine, n_bytes, *, copies, rounds=3):
    return n_bytes / machine.gpu.bandwidth


@triton.jit
def unmasked_store(x, out, n, BLOCK: tl.constexpr):
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + own, tl.load(x + own, mask=own < n, other=0.0))


@triton.jit
def unmasked_load(x, out, n, BLOCK: tl.constexpr):
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + own, tl.load(x + own), mask=own < n)


@triton.jit
def arithmetic(x, out, n, BLOCK: tl.constexpr):
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = own < n
    tl.store(out + own, tl.load(x + own, mask=there, other=0.0) + 0.0, mask=there)


@triton.jit
def whole(x, out, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        own = start + tl.arange(0, BLOCK)
        tl.store(out + own, tl.load(x + own, mask=own < n), mask=own < n)


def blocks(kernel):
    return lambda: lambda x, out: kernel[(triton.cdiv(len(x), 1024),)](x, out, len(x), BLOCK=1024)


def rounded_down(x, out):
    unmasked_load[(len(x) // 256,)](x, out, len(x), BLOCK=256)


def by_torch(x, out):
    out[: len(x)] = x


def copied_first(x, out):
    one_row[(x.shape[0],)](x.contiguous(), out, x.shape[1], x.shape[1], 1, BLOCK=64)


def as_if_contiguous(x, out):
    one_row[(x.shape[0],)](x, out, x.shape[1], x.shape[1], 1, BLOCK=64)


def column_stride_forgotten(x, out):
    one_row[(x.shape[0],)](x, out, x.shape[1], x.stride(0), 1, BLOCK=64)


WRONG = {
    "p1_gpu.machine": [
        ("powers of ten", but("bandwidth", lambda g: g["read_mib"] / g["read_us"])),
        ("the data sheet's ridge", but("ridge", lambda g: costs.gpu(g["gpu"]).ridge())),
        ("a multiply-add is one FLOP", but("ridge", lambda g: in_other_units(g)["ridge"] / 2)),
        ("upside down", but("ridge", lambda g: 1 / in_other_units(g)["ridge"])),
        ("the whole GPU", but("in_flight", lambda g: in_other_units(g)["in_flight"] * g["sm_count"])),
        ("one resident", but("waves", lambda g: -(-g["programs"] // g["sm_count"]))),
        ("rounded down", but("waves", lambda g: g["programs"] // (g["residents"] * g["sm_count"]))),
    ],
    "p1_gpu.timing": [
        ("the best of single reads", lambda: benchmark(best_of_single_reads)),
        ("division", lambda: benchmark(division)),
    ],
    "p1_gpu.copy": [
        ("store without a mask", blocks(unmasked_store)),
        ("load without a mask", blocks(unmasked_load)),
        ("zero added", blocks(arithmetic)),
        ("one program", lambda: lambda x, out: whole[(1,)](x, out, len(x), BLOCK=512)),
        ("grid rounded down", lambda: rounded_down),
        ("by torch", lambda: by_torch),
        ("twice", lambda: lambda x, out: (in_loops(x, out), in_loops(x, out))),
    ],
    "p1_gpu.matrix": [
        ("copied by torch first", lambda: copied_first),
        ("strides ignored", lambda: as_if_contiguous),
        ("column stride ignored", lambda: column_stride_forgotten),
    ],
}
