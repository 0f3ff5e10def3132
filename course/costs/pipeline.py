"""Who works when in a program with several units: a model of the loops of the attention kernels, in cycles.

An SM has a copy engine that fetches tiles, tensor cores that multiply them, and lanes that take exponentials. A task occupies
one of them. Each unit works through its tasks in the order of the program; a task begins when its unit is free and what it
needs has ended. No more is needed to see who waits for whom. What the model leaves out: launches, barriers' own cost, the
latency of a copy beside its bytes, and a clock that falls when the card is hot.

Cycles follow from rates of an SM of compute capability 9.0: 4096 FLOPs a cycle in 16-bit products (NVIDIA H100 white paper:
four tensor cores with 512 multiply-adds each), 16 exponentials and 128 float32 operations a cycle (CUDA C++ Programming
Guide, 'Throughput of Native Arithmetic Instructions').
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .checks import finite, unknown, whole
from .gpu_data import Gpu

TENSOR_FLOPS, EXPONENTIALS, LANES = 4096, 16, 128  # of one SM in a cycle
COPIES, TENSOR, WARPS = "copies", "tensor cores", "softmax"
ALL, PRODUCER, FIRST, SECOND = "all warps", "producer", "consumer 0", "consumer 1"
IN_TURN, LOADS_AHEAD, IN_FLIGHT = "one after the other", "loads ahead", "two products in flight"
CONSUMERS, CONSUMERS_IN_FLIGHT = "two consumers", "two consumers, two products in flight"
STRUCTURES = (IN_TURN, LOADS_AHEAD, IN_FLIGHT, CONSUMERS, CONSUMERS_IN_FLIGHT)


@dataclass(frozen=True)
class Task:
    """What occupies one unit for some cycles: begun by the warps ``who``, not before the tasks named ``after`` have ended."""

    name: str
    unit: str
    who: str
    cycles: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """Tasks with the cycle in which each starts and ends; cycle 0 is the start of the program."""

    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @cached_property
    def products(self) -> float:
        """Cycles from the start of the first product to the end of the last."""
        places = [i for i, task in enumerate(self.tasks) if task.unit == TENSOR]
        return max(self.ends[i] for i in places) - min(self.starts[i] for i in places)

    def busy(self, unit: str = TENSOR) -> float:
        """Share of ``products`` in which a unit works: its cycles over those; 1.0 for a walk of no length."""
        work = sum(task.cycles for task in self.tasks if task.unit == unit)
        return work / self.products if self.products else 1.0


def timeline(tasks: Iterable[Task]) -> Timeline:
    """When each task runs, if each starts as early as its unit and what it needs allow.

    A unit takes its own tasks in the order of the list. ValueError where nobody can begin, with who waits for what, and for a
    name that comes twice or that no task has.
    """
    tasks = tuple(tasks)
    names = {task.name for task in tasks}
    if len(names) < len(tasks):
        raise ValueError(f"tasks: {len(tasks)} tasks have {len(names)} names")
    queues: dict[str, list[Task]] = {}
    for task in reversed(tasks):
        queues.setdefault(task.unit, []).append(task)
        if unknown_names := set(task.after) - names:
            raise ValueError(f"tasks: {task.name} waits for {', '.join(sorted(unknown_names))}, which is no task")
    ended: dict[str, float] = {}
    free = dict.fromkeys(queues, 0.0)
    while any(queues.values()):
        begun = len(ended)
        for unit, queue in queues.items():
            while queue and all(name in ended for name in queue[-1].after):
                task = queue.pop()
                start = max([free[unit], *(ended[name] for name in task.after)])
                ended[task.name] = free[unit] = start + task.cycles
        if len(ended) == begun:
            heads = (queue[-1] for queue in queues.values() if queue)
            stuck = (f"{task.name} waits for {', '.join(n for n in task.after if n not in ended)}" for task in heads)
            raise ValueError(f"tasks: nobody can begin: {'; '.join(stuck)}")
    ends = tuple(ended[task.name] for task in tasks)
    return Timeline(tasks, tuple(end - task.cycles for task, end in zip(tasks, ends, strict=True)), ends)


def sm_clock(gpu: Gpu) -> float:
    """Cycles a second at which the data sheet's peak is reached. ValueError for a GPU whose SMs have other rates."""
    if gpu.capability != (9, 0):
        raise ValueError(f"gpu must have compute capability 9.0, whose rates are known here, got {gpu.name}")
    return gpu.peak_flops() / (gpu.sm_count * TENSOR_FLOPS)


def product_cycles(rows: int, columns: int, depth: int) -> float:
    """Cycles of a product [rows, depth] x [depth, columns] on the tensor cores of one SM."""
    return 2 * whole("rows", rows) * whole("columns", columns) * whole("depth", depth) / TENSOR_FLOPS


def exponential_cycles(n: int) -> float:
    """Cycles of n exponentials on one SM; what else a softmax does is not counted."""
    return whole("n", n) / EXPONENTIALS


def copy_cycles(n_bytes: int, gpu: Gpu, bandwidth: float | None = None) -> float:
    """Cycles in which one SM's share of the bandwidth brings so many bytes; by default that of the data sheet's memory."""
    rate = gpu.bandwidth if bandwidth is None else finite("bandwidth", bandwidth)
    return whole("n_bytes", n_bytes) * gpu.sm_count * sm_clock(gpu) / rate


def attention_walk(
    structure: str, n_blocks: int = 6, *, load: float, product: float, softmax: float, stages: int = 2
) -> list[Task]:
    """Tasks of a forward pass over so many blocks of keys, in the order in which each unit takes them.

    load, product, softmax  cycles of a whole block: K and V, both products, all exponentials; each 0 or more
    stages                  buffers of K, and as many of V; without meaning for 'one after the other'

    'one after the other' fetches a block when the last one is done with. 'loads ahead' fetches as soon as a buffer is free.
    'two products in flight' starts the scores of the next block before the values of this one, so that a softmax runs under a
    product. 'two consumers' have half of the rows each, and a producer of their own; with two products in flight it is the
    structure of `forward_hopper.py`.
    """
    if structure not in STRUCTURES:
        raise unknown("structure", structure, STRUCTURES, "costs.pipeline.STRUCTURES")
    whole("n_blocks", n_blocks)
    whole("stages", stages)
    for name, cycles in (("load", load), ("product", product), ("softmax", softmax)):
        finite(name, cycles, zero=True)
    parts = {"a": FIRST, "b": SECOND} if structure in (CONSUMERS, CONSUMERS_IN_FLIGHT) else {"": ALL}
    in_flight = structure in (IN_FLIGHT, CONSUMERS_IN_FLIGHT)
    share = 1 / len(parts)
    loader = PRODUCER if len(parts) > 1 else ALL

    def fetch(what: str, reader: str, block: int) -> Task:
        back = 1 if structure == IN_TURN else stages
        # One after the other: nothing of a block is fetched before the last product of the block before.
        freed_by = "O" if structure == IN_TURN else reader
        after = tuple(f"{freed_by}{block - back}{part}" for part in parts) if block >= back else ()
        return Task(f"{what}{block}", COPIES, loader, load / 2, after)

    def scores(block: int, part: str) -> Task:
        # In the order of the program after the last task of the block before, which with two in flight is its softmax.
        last = "P" if in_flight else "O"
        loaded = (f"K{block}", f"V{block}") if structure == IN_TURN else (f"K{block}",)
        after = (*loaded, *([f"{last}{block - 1}{part}"] if block else []))
        return Task(f"S{block}{part}", TENSOR, parts[part], product / 2 * share, after)

    def weights(block: int, part: str) -> Task:
        return Task(f"P{block}{part}", WARPS, parts[part], softmax * share, (f"S{block}{part}",))

    def values(block: int, part: str) -> Task:
        return Task(f"O{block}{part}", TENSOR, parts[part], product / 2 * share, (f"V{block}", f"P{block}{part}"))

    tasks = []
    for i in range(n_blocks + 1):  # a turn ends one block and begins the next
        ends, begins = i > 0, i < n_blocks
        # Copies in the order of use, which is that of the products.
        tasks += [fetch("K", "S", i)] if begins else []
        if in_flight:
            tasks += [fetch("V", "O", i - 1)] if ends else []
        elif begins:
            tasks.append(fetch("V", "O", i))
        for part in parts:
            started = [scores(i, part)] if begins else []
            ended = [values(i - 1, part)] if ends else []
            tasks += [*started, *ended] if in_flight else [*ended, *started]
        tasks += [weights(i, part) for part in parts if begins]
    return tasks


def backward_walk(n_blocks: int = 3, *, load: float) -> list[Task]:
    """Tasks of `backward_hopper.py` over so many blocks of 64 rows; two consumers own 64 keys each, 128 wide.

    load: cycles of one block's queries and gradients. 'D' is dS, 'sQ' the staging of dQ for the copy engine, which adds it.
    """
    whole("n_blocks", n_blocks)
    finite("load", load, zero=True)
    product, parts = product_cycles(64, 64, 128), {"a": FIRST, "b": SECOND}
    tile = 64 * 64
    tasks = []
    for i in range(n_blocks):
        freed = tuple(f"dK-{i - 2}{part}" for part in parts) if i >= 2 else ()
        tasks.append(Task(f"L-{i}", COPIES, PRODUCER, load, freed))
        for part, who in parts.items():
            before = (f"dK-{i - 1}{part}", *([f"sQ-{i - 2}{part}"] if i > 1 else [])) if i else ()
            tasks += [Task(f"S-{i}{part}", TENSOR, who, product, (f"L-{i}", *before)),
                      Task(f"dP-{i}{part}", TENSOR, who, product, (f"S-{i}{part}",))]  # fmt: skip
        tasks += [Task(f"P-{i}{part}", WARPS, who, exponential_cycles(tile), (f"S-{i}{part}",)) for part, who in parts.items()]
        tasks += [Task(f"dV-{i}{part}", TENSOR, who, product, (f"P-{i}{part}",)) for part, who in parts.items()]
        tasks += [
            Task(f"D-{i}{part}", WARPS, who, 2 * tile / LANES, (f"dP-{i}{part}", f"P-{i}{part}")) for part, who in parts.items()
        ]
        for part, who in parts.items():
            if i:  # dQ of the block before, from the dS of both
                tasks.append(
                    Task(f"dQ-{i - 1}{part}", TENSOR, who, product, (f"D-{i}{part}", *(f"D-{i - 1}{one}" for one in parts)))
                )
            tasks.append(Task(f"dK-{i}{part}", TENSOR, who, product, (f"D-{i}{part}",)))
        if i:
            tasks += [
                Task(f"sQ-{i - 1}{part}", WARPS, who, tile / LANES, (f"dQ-{i - 1}{part}",)) for part, who in parts.items()
            ]
    last = n_blocks - 1
    tasks += [
        Task(f"dQ-{last}{part}", TENSOR, who, product, tuple(f"D-{last}{one}" for one in parts)) for part, who in parts.items()
    ]
    return tasks


def mla_walk(n_pairs: int = 3, *, load: float) -> list[Task]:
    """Tasks of `mla_hopper.py` over so many pairs of blocks of 64 tokens, for 64 rows of 512 + 64 columns.

    load: cycles of a whole pair. A pair comes in four parts, and each is freed when the product that reads it last is done.
    'R' is a rescaling of half of the output. The ends 'l' and 'r' say whose columns; S0 and P0 are of the left consumer.
    """
    whole("n_pairs", n_pairs)
    finite("load", load, zero=True)
    left, right = FIRST, SECOND
    scores, values = product_cycles(64, 64, 576), product_cycles(64, 256, 64)
    weights, rescale = exponential_cycles(64 * 64), 64 * 256 / LANES
    tasks = []
    for i in range(n_pairs):
        for part in ("0l", "0r", "1l", "1r"):
            columns = 256 + 64 * (part in ("0r", "1l"))  # which bring the rotary columns along
            freed = (f"O{part[0]}-{i - 1}{part[1]}",) if i else ()
            tasks.append(Task(f"K{part[0]}-{i}{part[1]}", COPIES, PRODUCER, load * columns / 1152, freed))
        before = {half: (f"O1-{i - 1}{half}",) if i else () for half in "lr"}
        tasks += [
            Task(f"S0-{i}", TENSOR, left, scores, (f"K0-{i}l", f"K0-{i}r", *before["l"])),
            Task(f"P0-{i}", WARPS, left, weights, (f"S0-{i}",)),
            Task(f"R0-{i}l", WARPS, left, rescale, (f"P0-{i}",)),
            Task(f"O0-{i}l", TENSOR, left, values, (f"R0-{i}l",)),
            Task(f"S1-{i}", TENSOR, right, scores, (f"K1-{i}l", f"K1-{i}r", *before["r"])),
            Task(f"R0-{i}r", WARPS, right, rescale, (f"P0-{i}", f"S1-{i}")),
            Task(f"O0-{i}r", TENSOR, right, values, (f"R0-{i}r",)),
            Task(f"P1-{i}", WARPS, right, weights, (f"R0-{i}r",)),
            Task(f"R1-{i}l", WARPS, left, rescale, (f"O0-{i}l",)),
            Task(f"O1-{i}l", TENSOR, left, values, (f"R1-{i}l", f"P1-{i}")),
            Task(f"R1-{i}r", WARPS, right, rescale, (f"O0-{i}r", f"P1-{i}")),
            Task(f"O1-{i}r", TENSOR, right, values, (f"R1-{i}r",)),
        ]
    return tasks
