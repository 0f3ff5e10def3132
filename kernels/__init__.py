"""The Triton kernels of the course, their wrappers and their float64 definitions. Nothing here knows of the rest.

Files stand in the order in which the chapters build them: `first` (reading memory), `online_softmax` and `attend` (the loop),
`forward` (full sequence), `decode` (grouped heads), `merge` (partial states); then `tiles`, `plan`, `checks` and `reference`.
"""

import hashlib
import pathlib

from . import checks, first, plan, reference, tiles
from ._mode import MODE, Device, Unsupported, device_of
from .decode import decode, plan_decode
from .forward import attention
from .merge import merge


def digest() -> str:
    """SHA-256 over the package's source files: a recording names the kernels it measured by it."""
    hasher = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        hasher.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()


__all__ = [
    "MODE",
    "Device",
    "Unsupported",
    "attention",
    "checks",
    "decode",
    "device_of",
    "digest",
    "first",
    "merge",
    "plan",
    "plan_decode",
    "reference",
    "tiles",
]
