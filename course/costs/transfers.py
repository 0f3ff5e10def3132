"""What a memory hands out and how much has to be asked for at once."""

from .checks import finite, whole

SECTOR = 32  # bytes: the least that a GPU's memory and L2 hand out (CUDA C++ Best Practices Guide, coalesced access)


def sectors(first: int, last: int, stride: int, *, bytes_per_element: int = 4) -> int:
    """Sectors of 32 bytes that hold elements first, first + 1, … last of a tensor with this stride, in elements.

    The tensor begins at a sector's edge, as torch allocates it.
    """
    step = whole("stride", stride) * whole("bytes_per_element", bytes_per_element)
    first, last = whole("first", first, at_least=0), whole("last", last, at_least=first)
    if step >= SECTOR:
        return last - first + 1  # each in a sector of its own
    return last * step // SECTOR - first * step // SECTOR + 1


def bytes_in_flight(bandwidth: float, latency_s: float) -> float:
    """Bytes that must be under way at any moment to keep a memory of ``bandwidth`` busy that answers after ``latency_s``.

    Little's law: what waits in a queue is the rate times the time that each waits (Little 1961).
    """
    return float(finite("bandwidth", bandwidth)) * float(finite("latency_s", latency_s, zero=True))
