"""A number that a learner works out before anything runs: right within a tolerance, or what a usual slip gives."""

import difflib
from collections.abc import Callable, Mapping

from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..judge import number as finite
from ..tasks import Property

Value = Callable[[dict], float]


def number(
    key: str,
    about: str,
    *,
    right: Value,
    tolerance: float = 0.01,
    unit: str = "",
    traps: Mapping[str, Value] | None = None,
    other_units: Mapping[str, float] | None = None,
) -> Property:
    """The answer is a dictionary, and ``answer[key]`` is ``right(givens)`` within ``tolerance`` of it (0: exactly).

    unit: what the number counts, as the task says. traps: a message that teaches and does not tell the number, with the value
    that the slip gives. other_units: units that stand for so many of ``unit``; a right number in one of them counts, with a
    remark, unless it is also what a slip gives.
    """

    def check(answer: Answer, draw: Draw) -> str | None:
        value = finite(_entry(answer.value(), key), f"{key!r}")
        wanted = right(draw.givens)
        if _near(value, wanted, tolerance):
            return None
        units, slips = other_units or {}, {message: slip(draw.givens) for message, slip in (traps or {}).items()}
        _caught(value, slips, tolerance)
        for other, size in units.items():
            if _near(value * size, wanted, tolerance):
                return f"right, in {other}; the question asks for {unit}"
        for size in units.values():
            _caught(value * size, slips, tolerance)
        raise Wrong(f"{key!r} is too {_which_way(value, wanted)}{f' (it is asked for in {unit})' if unit else ''}")

    return Property(key.replace("_", " "), about, check)


def _entry(predicted, key: str):
    """The entry of that name. One that is still None is wrong beside others that are not, and else not answered."""
    if predicted is None:
        raise NotImplementedError
    if not isinstance(predicted, dict):
        raise Wrong(f"the answer must be a dictionary with an entry {key!r}, got {type(predicted).__name__}")
    if key not in predicted:
        near = difflib.get_close_matches(key, map(str, predicted), 1)
        raise Wrong(f"the answer has no entry {key!r}{f'; is {near[0]!r} meant?' if near else ''}")
    if predicted[key] is None and any(value is not None for value in predicted.values()):
        raise Wrong(f"{key!r} has no number yet")
    return predicted[key]


def _caught(value: float, slips: Mapping[str, float], tolerance: float) -> None:
    for message, slip in slips.items():
        if _near(value, slip, tolerance):
            raise Wrong(message)


def _near(value: float, wanted: float, tolerance: float) -> bool:
    return abs(value - wanted) <= max(tolerance, 1e-9) * abs(wanted)


def _which_way(value: float, wanted: float) -> str:
    if wanted != 0 and value / wanted < 0:
        return "large: the sign is wrong" if value > wanted else "small: the sign is wrong"
    way = "large" if value > wanted else "small"
    ratio = abs(value / wanted) if wanted else 1.0
    return f"{way}, by more than ten times" if not 0.1 <= ratio <= 10 else way
