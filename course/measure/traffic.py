"""Counted traffic: which elements a kernel asks for, seen in Triton's interpreter.

On a machine without a GPU time means nothing, but every load passes through one function of the interpreter, and there
its addresses can be read. A request is an element of a load whose mask is true; an address is distinct once, however
often it is requested. Requests are what a program asks of the memory system, not what reaches HBM: caches lie between.
"""

import contextlib
import difflib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

import kernels

ELSEWHERE = "(elsewhere)"
"""Name of requests outside every tensor argument: pointers passed as numbers, or loads out of bounds."""

_active = False


@contextlib.contextmanager
def interpreter_hooks(
    launch: Callable[[str, dict], None],
    load: Callable[[np.ndarray, np.ndarray], None] = lambda addresses, mask: None,
    done: Callable[[int], None] = lambda programs: None,
) -> Iterator[None]:
    """Call ``launch(kernel, arguments)``, ``load(addresses, mask)``, ``done(programs)`` for every interpreted launch.

    The arguments are the ones whose addresses the kernel sees: the interpreter works on copies in host memory, and a
    tensor that is there already is its own copy. Beside ``course.interpreter`` this is the only place of the project that
    touches Triton's private names; they are put back on the way out, after an error too. Raises ``kernels.Unsupported``
    outside the interpreter and ``RuntimeError`` when a count is already running.
    """
    global _active
    if kernels.MODE != "interpreter":
        raise kernels.Unsupported(
            f"loads can be counted in Triton's interpreter only, and kernels.MODE is {kernels.MODE!r}: "
            "set TRITON_INTERPRET=1 before Python starts"
        )
    if _active:
        raise RuntimeError("a count is already running: counts do not nest")
    import triton
    from triton.runtime import interpreter

    try:
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        masked_load, run, to_host = builder.create_masked_load, executor.__call__, executor._init_args_hst
    except AttributeError as error:
        raise kernels.Unsupported(f"Triton {triton.__version__} names its interpreter differently: {error}") from None

    def counted_load(self, ptrs, mask, *args, **kwargs):
        load(ptrs.data, mask.data)
        return masked_load(self, ptrs, mask, *args, **kwargs)

    def counted_to_host(self, args, kwargs):
        host_args, host_kwargs = to_host(self, args, kwargs)
        launch(self.fn.__name__, dict(zip(self.arg_names, host_args, strict=False)) | host_kwargs)
        return host_args, host_kwargs

    def counted_run(self, *args, **kwargs):
        run(self, *args, **kwargs)
        done(math.prod(interpreter.interpreter_builder.grid_dim))

    _active = True
    builder.create_masked_load, executor._init_args_hst, executor.__call__ = counted_load, counted_to_host, counted_run
    try:
        yield
    finally:
        builder.create_masked_load, executor._init_args_hst, executor.__call__ = masked_load, to_host, run
        _active = False


@dataclass(frozen=True)
class Requests:
    """What one launch loads from one tensor argument: load instructions, elements requested, distinct elements."""

    loads: int
    requested: int
    addresses: np.ndarray = field(repr=False, compare=False)

    @property
    def distinct(self) -> int:
        return self.addresses.size


@dataclass(frozen=True)
class Launch:
    """One launch. ``tensors`` holds the arguments that were loaded from, by name, in the kernel's order."""

    kernel: str
    programs: int
    loads: int
    tensors: dict[str, Requests]


@dataclass(frozen=True)
class Traffic:
    """All launches of one call, in order, and what the call returned. ``print(traffic)`` shows a table."""

    launches: tuple[Launch, ...]
    result: object = field(repr=False)

    @property
    def programs(self) -> int:
        return sum(launch.programs for launch in self.launches)

    @property
    def loads(self) -> int:
        return sum(launch.loads for launch in self.launches)

    def requested(self, *names: str, kernel: str | None = None) -> int:
        """Elements requested from the named arguments (all if none is named), over all launches or those of ``kernel``.

        A field of a named tuple, such as ``cache.k``, answers to its own name and to the tuple's too. Raises ValueError for a
        name that no launch has loaded from.
        """
        return sum(requests.requested for requests in self._select(names, kernel))

    def distinct(self, *names: str, kernel: str | None = None) -> int:
        """Distinct elements among the requests; an element that two launches ask for counts once."""
        addresses = [requests.addresses for requests in self._select(names, kernel)]
        return np.unique(np.concatenate(addresses)).size if addresses else 0

    def _select(self, names: tuple[str, ...], kernel: str | None) -> list[Requests]:
        _known("kernel", () if kernel is None else (kernel,), [launch.kernel for launch in self.launches])
        launches = [launch for launch in self.launches if kernel in (None, launch.kernel)]
        tensors = [(name, r) for launch in launches for name, r in launch.tensors.items()]
        for name in names:
            if not any(_answers(full, name) for full, _ in tensors):
                _known("tensor", (name,), [full for full, _ in tensors])
        return [r for full, r in tensors if not names or any(_answers(full, name) for name in names)]

    def __str__(self) -> str:
        lines = [f"{'kernel':<24}{'argument':<18}{'programs':>9}{'loads':>8}{'requested':>12}{'distinct':>12}"]
        for launch in self.launches:
            for name, r in launch.tensors.items():
                lines.append(
                    f"{launch.kernel:<24}{name:<18}{launch.programs:>9,}{r.loads:>8,}{r.requested:>12,}{r.distinct:>12,}"
                )
        return "\n".join(lines)


def _answers(full: str, name: str) -> bool:
    """Whether an argument answers to a name: 'cache.k' to itself, to 'cache' and to 'k'."""
    return name == full or name in full.split(".")


def _known(what: str, names: tuple[str, ...], present: list[str]) -> None:
    for name in names:
        if name not in present:
            nearest = difflib.get_close_matches(name, present, 1)
            raise ValueError(
                f"no {what} {name!r} was loaded from{f'; did you mean {nearest[0]!r}?' if nearest else ''} "
                f"(there are: {', '.join(dict.fromkeys(present)) or 'none'})"
            )


class _Counter:
    """Collects the loads of the launch that is running, and closes it when it ends."""

    def __init__(self):
        self.launches: list[Launch] = []
        self.kept: list[dict] = []  # arguments stay alive until the end, so that no address is used twice

    def launch(self, kernel: str, arguments: dict) -> None:
        self.kernel, self.pending = kernel, []
        self.kept.append(arguments)

    def load(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        self.pending.append(addresses[np.broadcast_to(mask, addresses.shape)])

    def done(self, programs: int) -> None:
        requests = np.concatenate([np.empty(0, np.uint64), *self.pending])
        load_of = np.repeat(np.arange(len(self.pending)), [addresses.size for addresses in self.pending])
        unique, where = np.unique(requests, return_inverse=True)
        tensors, owned = {}, np.zeros(unique.size, bool)
        for name, tensor in _tensors(self.kept[-1]):
            if owned.all():
                break
            mine = np.isin(unique, _element_addresses(tensor)) & ~owned
            owned |= mine
            if mine.any():
                tensors[name] = _requests(unique, mine, where, load_of)
        if not owned.all():
            tensors[ELSEWHERE] = _requests(unique, ~owned, where, load_of)
        self.launches.append(Launch(self.kernel, programs, len(self.pending), tensors))


def _requests(unique: np.ndarray, mine: np.ndarray, where: np.ndarray, load_of: np.ndarray) -> Requests:
    chosen = mine[where]
    return Requests(np.unique(load_of[chosen]).size, int(chosen.sum()), unique[mine])


def _tensors(arguments: dict) -> Iterator[tuple[str, object]]:
    """(name, tensor) of every tensor among the arguments; a tuple's are named ``name[0]``, ``name[1]``, … or ``name.field``."""
    for name, value in arguments.items():
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", None)
            inner = [f"{name}.{key}" for key in fields] if fields else [f"{name}[{i}]" for i in range(len(value))]
            yield from _tensors(dict(zip(inner, value, strict=True)))
        elif hasattr(value, "base") and not hasattr(value, "element_size"):
            yield name, value.base  # a tensor descriptor
        elif hasattr(value, "data_ptr"):
            yield name, value


def _element_addresses(tensor) -> np.ndarray:
    """Addresses of all elements, real strides honoured: two views of one packed record do not claim each other's."""
    offsets = np.zeros(1, np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return np.uint64(tensor.data_ptr()) + (offsets * tensor.element_size()).astype(np.uint64)


def count_traffic(function: Callable, *args, **kwargs) -> Traffic:
    """Run ``function(*args, **kwargs)`` in Triton's interpreter and count the loads of every kernel that it launches.

    An element that two arguments share (one tensor passed twice) counts for the first of them. Raises
    ``kernels.Unsupported`` outside the interpreter, ``RuntimeError`` when called inside another count.
    """
    counter = _Counter()
    with interpreter_hooks(counter.launch, counter.load, counter.done):
        result = function(*args, **kwargs)
    return Traffic(tuple(counter.launches), result)
