"""Measuring: time a callable, count what a kernel loads, record a sweep, read recordings back.

Time comes from a GPU (or, for plain torch code, from this machine's clock); counted traffic comes from Triton's
interpreter, where time means nothing. Every function here keeps the two apart.
"""

import kernels  # noqa: F401  before anything that imports Triton

from .recordings import Recording, check, latest, load, recordings
from .splits import one_program, split_launch, split_rows, wave_model
from .tensors import Made, tensors_made
from .timing import Timing, copies_beyond_cache, time_callable
from .traffic import Launch, Requests, Traffic, count_traffic

__all__ = [
    "Launch",
    "Made",
    "Recording",
    "Requests",
    "Timing",
    "Traffic",
    "check",
    "copies_beyond_cache",
    "count_traffic",
    "latest",
    "load",
    "one_program",
    "recordings",
    "split_launch",
    "split_rows",
    "tensors_made",
    "time_callable",
    "wave_model",
]
