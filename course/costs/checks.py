"""Argument checks shared by this folder. Each says which argument, what came and what was wanted."""

import difflib
import math
import numbers
import operator
from collections.abc import Iterable
from fractions import Fraction


def whole(name: str, value: object, at_least: int = 1) -> int:
    """`value` as an int. TypeError if it is no whole number (a bool is none), ValueError if it is too small."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    number = operator.index(value)
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    return number


def finite(name: str, value: object, *, zero: bool = False) -> int | float | Fraction:
    """A positive finite number, or also 0 if `zero`. TypeError for no number, ValueError for NaN, inf or a sign."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be a finite number {'of at least' if zero else 'above'} 0, got {value}")
    return value


def unknown(kind: str, name: object, known: Iterable[str], see_all: str) -> ValueError:
    """The error for a name that is not in a table: the nearest names, and how to list all of them."""
    if not isinstance(name, str):
        return TypeError(f"{kind} must be given by name, got {name!r} ({type(name).__name__}); {see_all} lists them")
    lowered = {one.lower(): one for one in known}
    near = [lowered[one] for one in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.4)]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return ValueError(f"unknown {kind} {name!r}{hint}; {see_all} lists all")


def squeezed(name: str) -> str:
    """A name without case, blanks and punctuation, so that 'llama-3-8b' finds 'Llama 3 8B'. Full stops stay."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter == ".")
