"""Where tokens lie: what reserving wastes and what pages waste, how many sequences fit, and what a shared prefix saves.

Everything is counted in token slots: room for what one token leaves in all layers. Bytes are slots times the bytes of a token.
(Reservation, internal and external fragmentation, sharing: Kwon et al. 2023, arXiv:2309.06180, sections 3.1, 4.1 and 4.4.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .checks import finite, unknown, whole

LENGTH_KINDS = ("equal", "uniform", "exponential", "log-uniform")
LOG_UNIFORM_RATIO = 64  # the longest over the shortest


@dataclass(frozen=True)
class Occupancy:
    """Token slots that are taken, and the distinct tokens that lie in them. ``wasted`` is the share of slots without one."""

    tokens: int
    slots: int

    @property
    def used(self) -> float:
        """Share of the slots that holds a token; 1 where nothing is taken."""
        return self.tokens / self.slots if self.slots else 1.0

    @property
    def wasted(self) -> float:
        """Share of the slots that holds none."""
        return 1.0 - self.used


def lengths_like(kind: str, mean: float, count: int = 256) -> list[int]:
    """``count`` sequence lengths with about that mean, the same on every call: quantiles of a distribution, in order.

    'equal'; 'uniform' from 0 to twice the mean; 'exponential', many short and few long; 'log-uniform', each doubling of the
    length equally likely, the longest 64 times the shortest. Every length is at least 1.
    """
    mean, count = finite("mean", mean), whole("count", count)
    places = [(i + 0.5) / count for i in range(count)]
    if kind == "equal":
        shape = [1.0 for _ in places]
    elif kind == "uniform":
        shape = [2 * p for p in places]
    elif kind == "exponential":
        shape = [-math.log(1 - p) for p in places]
    elif kind == "log-uniform":
        shape = [LOG_UNIFORM_RATIO**p for p in places]
    else:
        raise unknown("kind", kind, LENGTH_KINDS, "course.costs.paging.LENGTH_KINDS")
    factor = mean * count / sum(shape)
    return [max(1, round(factor * one)) for one in shape]


def pages_of(n_tokens: int, page_size: int) -> int:
    """Pages that hold ``n_tokens``: ceil(n / P)."""
    return -(-whole("n_tokens", n_tokens, 0) // whole("page_size", page_size))


def reserved(lengths: Sequence[int], capacity: int) -> Occupancy:
    """Every sequence has a block of ``capacity`` slots. ValueError if one is longer."""
    lengths, capacity = _lengths(lengths), whole("capacity", capacity)
    if lengths and max(lengths) > capacity:
        raise ValueError(f"lengths must not exceed capacity, got {max(lengths)} > {capacity}")
    return Occupancy(sum(lengths), len(lengths) * capacity)


def paged(lengths: Sequence[int], page_size: int, *, shared_prefix: int = 0) -> Occupancy:
    """Every sequence has as many pages as it needs; whole pages of a common prefix are stored once.

    ``lengths`` include the ``shared_prefix`` tokens with which all sequences begin. What of it does not fill a page lies in
    each sequence's own pages: the sequence writes on from there.
    """
    lengths, shared = _lengths(lengths, shared_prefix), _shared_pages(shared_prefix, page_size)
    if not lengths:
        return Occupancy(0, 0)
    own = sum(pages_of(n, page_size) - shared for n in lengths)
    return Occupancy(shared * page_size + sum(n - shared * page_size for n in lengths), (shared + own) * page_size)


def mean_page_waste(page_size: int) -> float:
    """Slots that a sequence leaves empty on average, (P - 1) / 2, if its last page is filled to any extent equally often."""
    return (whole("page_size", page_size) - 1) / 2


def sequences_that_fit(
    budget_tokens: int,
    lengths: Sequence[int],
    *,
    capacity: int | None = None,
    page_size: int | None = None,
    shared_prefix: int = 0,
) -> int:
    """Sequences with such lengths, on average, in a cache of ``budget_tokens`` slots.

    Give ``capacity`` for a reserved block each (a prefix is then stored once a sequence), or ``page_size`` for pages, as in
    ``paged``.
    """
    budget = whole("budget_tokens", budget_tokens, 0)
    if (capacity is None) == (page_size is None):
        raise ValueError(f"give either capacity or page_size, got {capacity} and {page_size}")
    lengths = _lengths(lengths, shared_prefix)
    if not lengths:
        raise ValueError("lengths must hold at least one sequence")
    if capacity is not None:
        reserved(lengths, capacity)
        return budget // capacity
    shared = _shared_pages(shared_prefix, page_size)
    own = sum(pages_of(n, page_size) - shared for n in lengths)
    left = budget // page_size - shared
    if own == 0:  # nothing but the prefix: one of them is as good as many
        raise ValueError("lengths must go beyond the whole pages of shared_prefix")
    return max(0, left * len(lengths) // own)


def tokens_read(own_lengths: Sequence[int], shared_prefix: int = 0, *, prefix_once: bool = False) -> int:
    """Cached tokens that one decode step reads: each sequence its own, and the prefix once a sequence or once in all.

    ``own_lengths`` do not include the prefix here. Once in all is what a kernel reads that makes the query heads of all
    sequences rows of one tile over the prefix (cascade inference, Ye et al. 2024).
    """
    own, shared = _lengths(own_lengths), whole("shared_prefix", shared_prefix, 0)
    return sum(own) + shared * (min(len(own), 1) if prefix_once else len(own))


def _lengths(lengths: Sequence[int], at_least: int = 0) -> list[int]:
    return [whole("each of lengths", n, whole("shared_prefix", at_least, 0)) for n in lengths]


def _shared_pages(shared_prefix: int, page_size: int) -> int:
    """Whole pages of a prefix."""
    return whole("shared_prefix", shared_prefix, 0) // whole("page_size", page_size)
