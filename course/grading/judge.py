"""What a property says when an answer is wrong: where, how far, and never the answer itself."""

import math
import numbers
from collections.abc import Sequence

import torch


class Wrong(Exception):
    """A property does not hold. The message is for the learner: it says what is wrong and where to look."""


class NotHere(Exception):
    """A property cannot be looked at on this machine: loads, for instance, are counted in the interpreter only."""


def number(value, name: str = "your answer") -> float:
    """A finite number, or `Wrong` with what came instead. None means that the question is not answered."""
    if value is None:
        raise NotImplementedError
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise Wrong(f"{name} must be a finite number, got {value!r:.80}")
    return float(value)


def _returned(value) -> None:
    if value is None:
        raise NotImplementedError("not answered yet: it returned None (is a `return` missing?)")


def _kind(value) -> str:
    """Name of a value's type, as the learner knows it."""
    return "an object that is no tensor, number, list or dictionary" if hasattr(value, "observe") else type(value).__name__


def tensor(value, shape: Sequence[int], name: str = "the result", dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of this shape (and dtype) on the CPU, or `Wrong` with what came instead."""
    _returned(value)
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{name} must be a tensor of shape {list(shape)}, got {_kind(value)}")
    if list(value.shape) != list(shape):
        raise Wrong(f"{name} must have shape {list(shape)}, got {list(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise Wrong(f"{name} must be {dtype}, got {value.dtype}")
    return value.detach().cpu()


def parts(value, n: int, names: str) -> tuple:
    """A tuple or list of n results, or `Wrong`."""
    _returned(value)
    if not isinstance(value, tuple | list) or len(value) != n:
        came = f"{len(value)} values" if isinstance(value, tuple | list) else _kind(value)
        raise Wrong(f"the function must return {n} values ({names}), got {came}")
    return tuple(value)


def close(
    got,
    expected: torch.Tensor,
    axes: Sequence[str],
    name: str = "the result",
    tolerance: float = 1e-4,
    hint: str = "",
    dtype: torch.dtype | None = None,
) -> None:
    """`Wrong` unless ``got`` is ``expected`` within ``tolerance`` of its largest element; NaN never passes.

    ``axes`` name the axes of ``expected`` in the message ('sequence', 'query head', 'column'): which of their indices hold the
    error is what usually tells the fault. Infinities have to be in the same places.
    """
    value = tensor(got, expected.shape, name, dtype).double()
    wanted = expected.detach().cpu().double()
    finite = torch.isfinite(wanted)
    scale = max(float(wanted[finite].abs().max()) if finite.any() else 0.0, 1.0)
    error = torch.where(value == wanted, 0.0, (value - wanted).abs())
    bad = ~(error <= tolerance * scale)
    if not bad.any():
        return
    place = torch.nonzero(bad)[0].tolist()
    where = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=True))
    at = tuple(place)
    text = f"{name} differs at {where}: expected {_short(wanted[at])}, got {_short(value[at])}"
    text += f"; {_extent(bad, axes)}"
    raise Wrong(f"{text}. {hint}".rstrip())


def _short(value) -> str:
    return f"{float(value):.5g}"


def _extent(bad: torch.Tensor, axes: Sequence[str]) -> str:
    """How far the wrong elements reach: 'all 8 of query head, …' says more than a count."""
    said = [f"{int(bad.sum())} of {bad.numel()} elements are wrong"]
    for i, (axis, size) in enumerate(zip(axes, bad.shape, strict=True)):
        if size == 1:
            continue
        hit = bad.movedim(i, 0).reshape(size, -1).any(1)
        indices = torch.nonzero(hit).flatten().tolist()
        if len(indices) < size:
            said.append(f"{axis} {_listed(indices)} of 0 to {size - 1}")
    return ", in ".join(said)


def _listed(indices: list[int]) -> str:
    if len(indices) > 3 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices[:6])) + (" and more" if len(indices) > 6 else "")
