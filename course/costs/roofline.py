"""The floor: no kernel is faster than its bytes over the bandwidth, nor than its FLOPs over the peak.

Inside one kernel loads and products overlap, so its floor is the larger of the two times. Kernels that run one after
another cannot overlap, so the floor of a step is the sum of theirs. Mixing the two rules gives wrong answers both ways.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .checks import finite, whole
from .gpu_data import Gpu
from .gpu_data import gpu as find_gpu
from .model_data import Model


@dataclass(frozen=True)
class Floor:
    """Shortest time of one kernel, in seconds: its memory time, its compute time, and the larger of them."""

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """The larger of the two times."""
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        """What sets the floor: 'memory' or 'compute' ('memory' where they are equal)."""
        return "compute" if self.compute_s > self.memory_s else "memory"


def floor(n_bytes: float, flops: float, gpu: Gpu | str, *, dtype: object = "bfloat16") -> Floor:
    """Floor of one kernel that moves `n_bytes` and computes `flops`, by the data sheet of `gpu` (a Gpu or its name).

    `dtype` is that of the products, not of the cache: an FP8 cache whose products stay in bfloat16 has dtype
    bfloat16. Raises ValueError if the GPU has no rate for it.
    """
    if not isinstance(gpu, Gpu):
        gpu = find_gpu(gpu)
    n_bytes, flops = finite("n_bytes", n_bytes, zero=True), finite("flops", flops, zero=True)
    return Floor(float(n_bytes / gpu.bandwidth), float(flops / gpu.peak_flops(dtype)))


def step_floor(floors: Iterable[Floor]) -> float:
    """Floor in seconds of kernels that run one after another: the sum of their floors."""
    return sum(each.seconds for each in floors)


def decode_floors(
    model: Model,
    context_len: int,
    gpu: Gpu | str,
    *,
    batch: int = 1,
    bytes_per_element: float | str = 2,
    weight_bytes_per_element: float | str = 2,
    dtype: object = "bfloat16",
) -> dict[str, Floor]:
    """Floors of the two parts of a decode step of `model`: {'weights': …, 'attention': …}; step_floor adds them.

    'weights' reads each weight once for the whole batch and multiplies it with every token; 'attention' reads the
    cache of every sequence. The figure is bytes over the bandwidth of one memory system: whether the weights fit in
    it is another question. Launches, norms and sampling are left out.
    """
    weights = floor(
        model.weight_bytes_read(batch, weight_bytes_per_element),
        2 * model.active_params * whole("batch", batch),
        gpu,
        dtype=dtype,
    )
    attention = floor(
        model.cache_bytes(context_len, batch=batch, bytes_per_element=bytes_per_element),
        model.decode_flops(context_len, batch=batch),
        gpu,
        dtype=dtype,
    )
    return {"weights": weights, "attention": attention}
