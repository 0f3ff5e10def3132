"""A learner's answer as a property sees it, and what can be observed of a call besides its result.

A property asks an answer by `Answer` alone, so it does not matter whether the answer lives in this process (`Local`: checks in
a notebook, tests) or in one of its own (`remote.Remote`: grading).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import kernels

from ..measure.traffic import Traffic, count_traffic
from .judge import NotHere

PLAIN = (torch.Tensor, int, float, str, bool, type(None))


def is_plain(value) -> bool:
    """Whether a value is data: tensors, numbers, strings, None, and lists, tuples and dictionaries of them."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return isinstance(value, PLAIN)


@dataclass(frozen=True)
class Observed:
    """One call: its result, its arguments afterwards, and what it did. Tensors of the arguments are numbered as they came.

    requested and distinct: elements that kernels loaded from argument i (in the interpreter only; None elsewhere).
    programs and launches: of kernels. flops: of torch's products, 2 for a multiply-add. largest: elements of the largest
    storage that an operation of torch made, a kernel's own tiles not counted.
    """

    result: object = field(repr=False)
    arguments: tuple = field(repr=False)
    _requested: dict | None
    _distinct: dict | None
    programs: int | None
    launches: int | None
    flops: int
    largest: int

    def requested(self, argument: int | str) -> int:
        """Elements that kernels requested from an argument (its position, or its name if passed by name)."""
        return self._count(self._requested, argument)

    def distinct(self, argument: int | str) -> int:
        """Distinct elements among them."""
        return self._count(self._distinct, argument)

    @staticmethod
    def _count(counts, argument) -> int:
        if counts is None:
            raise NotHere(f"loads are counted in Triton's interpreter, and here kernels.MODE is {kernels.MODE!r}")
        return counts.get(str(argument), 0)


class Answer(ABC):
    """What a property can do with an answer. Results that are data come as they are, objects as another `Answer`."""

    @abstractmethod
    def __call__(self, *args, **kwargs):
        """Call it. Tensors are passed as copies, so that nothing that the answer writes reaches the property."""

    @abstractmethod
    def observe(self, *args, **kwargs) -> Observed:
        """Call it and watch."""

    @abstractmethod
    def get(self, name: str):
        """An attribute: data, or an `Answer` (a method, say)."""

    @abstractmethod
    def value(self):
        """The answer itself, where it is data; TypeError otherwise."""


class Local(Answer):
    """An answer that lives in this process."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, *args, **kwargs):
        _callable(self.inner)
        return _wrapped(self.inner(*_copied(args), **_copied(kwargs)))

    def observe(self, *args, **kwargs) -> Observed:
        _callable(self.inner)
        seen = watch(self.inner, *_copied(args), **_copied(kwargs))
        return Observed(**{**vars(seen), "result": _wrapped(seen.result)})

    def get(self, name: str):
        if self.inner is None:
            raise NotImplementedError
        return _wrapped(getattr(self.inner, name))

    def value(self):
        if not is_plain(self.inner):
            raise TypeError(f"the answer must be data (numbers, text, tensors), got {type(self.inner).__name__}")
        return self.inner


def _callable(inner) -> None:
    if inner is None:
        raise NotImplementedError
    if not callable(inner):
        raise TypeError(f"the answer must be something to call, got {type(inner).__name__}")


def _wrapped(value):
    return value if is_plain(value) else Local(value)


def _copied(value):
    """The same arguments in memory of their own, strides kept, because whether they are honoured may be the question."""
    if isinstance(value, torch.Tensor):
        # A clone of an expanded or sliced tensor is dense: copy the storage, then look at it as before.
        own = value.detach().untyped_storage().clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device).set_(
            own, value.storage_offset(), value.shape, value.stride()
        )
        return copy.requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_copied, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value.inner if isinstance(value, Local) else value


class _Largest(TorchDispatchMode):
    """Elements of the largest storage that an operation makes; what came in with the arguments does not count."""

    # They make none, and the interpreter looks at storages as bytes with them, of which there are more than elements.
    MAKE_NO_STORAGE = ("aten::set_", "aten::copy_", "aten::view")

    def __init__(self, known: set[int]):
        super().__init__()
        self.known, self.elements, self.counted = known, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function._schema.name in self.MAKE_NO_STORAGE:
            return result
        for tensor in torch.utils._pytree.tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.untyped_storage().data_ptr() in self.known:
                continue
            place = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            # It counts in the elements that it was made of: the interpreter looks at tensors as bytes afterwards.
            if place not in self.counted:
                self.counted.add(place)
                self.elements = max(self.elements, place[1] // max(tensor.element_size(), 1))
        return result


def _vector_flops(*shapes, out_shape=None, **_) -> int:
    """FLOPs of a product with a vector, whose matrix (or other vector) stands before it."""
    matrix = [shape for shape in shapes if isinstance(shape, torch.Size)][-2]
    return 2 * matrix.numel()


# Torch counts products of matrices only, and a loop over heads may well be made of these.
_WITH_VECTORS = {getattr(torch.ops.aten, name): _vector_flops for name in ("mv", "addmv", "dot", "vdot")}


def watch(function, *args, **kwargs) -> Observed:
    """Call ``function`` and observe it, in this process."""
    named = {str(i): value for i, value in enumerate(args)} | kwargs
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    leaves = [t for t in torch.utils._pytree.tree_leaves(list(named.values())) if isinstance(t, torch.Tensor)]
    largest = _Largest({t.untyped_storage().data_ptr() for t in leaves})
    flops = FlopCounterMode(display=False, custom_mapping=_WITH_VECTORS)
    with flops, largest:
        if kernels.MODE == "interpreter":
            traffic = count_traffic(function, *args, **kwargs)
            result, requested, distinct = traffic.result, *_by_argument(traffic, tensors)
            programs, launches = traffic.programs, len(traffic.launches)
        else:
            result = function(*args, **kwargs)
            requested = distinct = programs = launches = None
    return Observed(result, args, requested, distinct, programs, launches, flops.get_total_flops(), largest.elements)


def _by_argument(traffic: Traffic, tensors: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """Requested and distinct elements of each argument, by the storage in which the addresses lie."""
    requested, addresses = dict.fromkeys(tensors, 0), {name: [] for name in tensors}
    ranges = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        ranges[name] = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    for launch in traffic.launches:
        for loaded in launch.tensors.values():
            if not loaded.addresses.size:
                continue
            for name, (first, end) in ranges.items():
                if first <= int(loaded.addresses[0]) < end:
                    requested[name] += loaded.requested
                    addresses[name].append(loaded.addresses)
                    break
    return requested, {n: int(np.unique(np.concatenate(a)).size) if a else 0 for n, a in addresses.items()}
