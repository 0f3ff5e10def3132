"""Warps that meet at barriers: a model in which each order of events that the hardware allows can happen.

A warp is a generator that yields what it does next. What it starts in another unit (a copy, a product) happens at any time
after that. `run` chooses the order by a seed, so that a race shows as answers that differ from seed to seed, and a deadlock as
a list of who waits for what, on any machine and with the same result each time.

The barriers are those of the PTX ISA: an mbarrier counts arrivals and has a phase, of which a wait names the parity; a named
barrier (``bar``) counts those who come by and has no phase. Not modelled: the fence between ordinary writes to shared memory
and the units that read it.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from .checks import whole

Program = Callable[[], Mapping[str, Generator]]


@dataclass
class Buffer:
    """A place in shared memory. What nobody has written reads as 'nothing'."""

    name: str
    value: object = "nothing"


@dataclass
class _Arrivals:
    """What both kinds of barrier do: after ``count`` arrivals a phase ends and the next begins."""

    name: str
    count: int
    phase: int = field(default=0, init=False)
    arrived: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Check the count."""
        whole("count", self.count)

    def come(self) -> None:
        """One arrival."""
        self.arrived += 1
        if self.arrived == self.count:
            self.phase, self.arrived = self.phase + 1, 0


@dataclass
class Barrier(_Arrivals):
    """An mbarrier, whose phases a wait can name."""

    count: int = 1


@dataclass
class NamedBarrier(_Arrivals):
    """One of the hardware's 16 barriers: those who wait go on as soon as ``count`` have come by, they among them.

    Its phase is not for warps to ask for: they only wait for the end of that in which they came by.
    """


@dataclass
class Product:
    """A product under way; ``value`` is what it found in its buffer, once it has read it."""

    buffer: Buffer
    done: bool = False
    value: object = None


@dataclass
class _Step:
    """What a warp yields: ``begin`` when it comes to it, then ``ready`` until it may go on, with ``result``."""

    begin: Callable[["_Machine"], object] = lambda machine: None
    ready: Callable[[object], bool] = lambda begun: True
    result: Callable[[object], object] = lambda begun: None
    words: Callable[[], str] = lambda: ""


def wait(barrier: Barrier, phase: int) -> _Step:
    """Wait until the phase of that parity, 0 or 1, has ended; before the first phase one of parity 1 counts as ended."""
    return _Step(
        ready=lambda _: barrier.phase % 2 != phase,
        words=lambda: f"the end of a phase {phase} of {barrier.name} ({barrier.arrived} of {barrier.count} arrivals)",
    )


def arrive(barrier: Barrier | NamedBarrier) -> _Step:
    """Say that this warp has come by, and go on."""
    return _Step(begin=lambda _: barrier.come())


def wait_named(barrier: NamedBarrier) -> _Step:
    """Come by, and wait for the others."""

    def begin(_) -> int:
        this_phase = barrier.phase
        barrier.come()
        return this_phase

    return _Step(
        begin=begin,
        ready=lambda this_phase: barrier.phase > this_phase,
        words=lambda: f"{barrier.name} ({barrier.arrived} of {barrier.count} there)",
    )


def store(value: object, buffer: Buffer) -> _Step:
    """Write with the warp's own threads: it has happened when the warp goes on."""
    return _Step(begin=lambda _: setattr(buffer, "value", value))


def copy(value: object, buffer: Buffer, full: Barrier) -> _Step:
    """Start a copy, and go on. At some later time it fills the buffer, and arrives at ``full``."""

    def land() -> None:
        buffer.value = value
        full.come()

    return _Step(begin=lambda machine: machine.under_way.append(land))


def multiply(buffer: Buffer) -> _Step:
    """Start a product, and go on with its ``Product``. At some later time it reads the buffer."""

    def begin(machine) -> Product:
        product = Product(buffer)

        def read() -> None:
            product.value, product.done = buffer.value, True

        machine.under_way.append(read)
        return product

    return _Step(begin=begin, result=lambda product: product)


def finish(product: Product) -> _Step:
    """Wait for a product; gives what it read."""
    return _Step(
        ready=lambda _: product.done, result=lambda _: product.value, words=lambda: f"the product of {product.buffer.name}"
    )


@dataclass(frozen=True)
class Outcome:
    """What each warp returned, and in a deadlock who waits for what; ``steps`` counts the events."""

    returned: dict[str, object]
    waiting: dict[str, str]
    steps: int

    @property
    def deadlock(self) -> bool:
        """Whether somebody waits for ever."""
        return bool(self.waiting)


class _Machine:
    def __init__(self) -> None:
        self.under_way: list[Callable[[], None]] = []


def run(program: Program, seed: int, most_steps: int = 10_000) -> Outcome:
    """Run a program's warps, in an order that the seed decides, until all have returned or none can go on.

    program  makes barriers and buffers anew, and returns the warps by name: generators that yield the steps of this file
    Raises TypeError for a warp that yields something else, RuntimeError where ``most_steps`` are not enough.
    """
    choose = random.Random(seed)
    machine = _Machine()
    warps = dict(program())
    begun: dict[str, tuple[_Step, object]] = {}
    returned: dict[str, object] = {}

    def go_on(name: str, result: object) -> None:
        try:
            step = warps[name].send(result)
        except StopIteration as stop:
            returned[name] = stop.value
            begun.pop(name, None)
            return
        if not isinstance(step, _Step):
            raise TypeError(f"warp {name!r} must yield wait, arrive, copy and the like, got {step!r}")
        begun[name] = step, step.begin(machine)

    for name in warps:
        go_on(name, None)
    for steps in range(whole("most_steps", most_steps)):
        able = [name for name, (step, state) in begun.items() if step.ready(state)]
        if not able and not machine.under_way:
            waiting = {name: step.words() for name, (step, _) in begun.items()}
            return Outcome({name: returned.get(name) for name in warps}, waiting, steps)
        pick = choose.randrange(len(able) + len(machine.under_way))
        if pick < len(able):
            step, state = begun[able[pick]]
            go_on(able[pick], step.result(state))
        else:
            machine.under_way.pop(pick - len(able))()
    raise RuntimeError(f"program has not ended after {most_steps} steps")


def verdicts(program: Program, right: Mapping[str, object], seeds: int = 200) -> Counter:
    """How often each of 'right', 'wrong' and 'deadlock' comes out, over the seeds 0, 1, 2, ….

    right  what warps must return, by name; those left out may return anything
    """
    found: Counter = Counter()
    for seed in range(whole("seeds", seeds)):
        outcome = run(program, seed)
        same = all(outcome.returned[name] == value for name, value in right.items())
        found["deadlock" if outcome.deadlock else "right" if same else "wrong"] += 1
    return found
