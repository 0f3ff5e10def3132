"""The Triton kernels of the course, their wrappers and their float64 definitions. Nothing here knows of the rest.

In the order in which the chapters build them: `first` (copy, softmax, reading memory), `one_row` (one query), `online_softmax`
and `attend` (the loop), `forward` and `backward` (full sequence), `interval` (grouped heads), `merge` (partial states),
`decode` (splits), `paged` (block tables), `work_list` (ragged batches), `append` (writing the cache), `mla` (latents); then
`forward_hopper`, `backward_hopper`, `decode_hopper` and `mla_hopper`, what Hopper GPUs run in place of `forward`, `backward`
and, for many rows or over latents in 16 bits, `decode`, with `hopper`, which they share; then `tiles`, `plan`, `checks` and
`reference`.
"""

from . import backward, checks, first, hopper, plan, reference, tiles
from ._mode import MODE, Device, Unsupported, device_of
from .append import append, mla_append, paged_append, paged_mla_append
from .decode import decode, plan_decode
from .forward import attention
from .merge import merge
from .mla import mla_decode, paged_mla_decode
from .one_row import one_row
from .paged import paged_decode
from .work_list import WorkList, plan_work

__all__ = [
    "Device",
    "MODE",
    "Unsupported",
    "WorkList",
    "append",
    "attention",
    "backward",
    "checks",
    "decode",
    "device_of",
    "first",
    "hopper",
    "merge",
    "mla_append",
    "mla_decode",
    "one_row",
    "paged_append",
    "paged_decode",
    "paged_mla_append",
    "paged_mla_decode",
    "plan",
    "plan_decode",
    "plan_work",
    "reference",
    "tiles",
]
