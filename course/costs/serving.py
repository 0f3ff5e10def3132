"""A model on GPUs: what it needs, how fast a step can be at most, how many sequences fit, and what decides.

Everything is the floor's arithmetic (see `roofline`) for one GPU of a tensor-parallel group: weights and query heads
divided evenly, KV heads as `sharding` says. Left out: launches, norms, sampling, activations, and what the GPUs have to
send to one another. So a figure here bounds what is possible; it promises nothing.
"""

import dataclasses
from dataclasses import dataclass

from .checks import whole
from .gpu_data import Gpu
from .gpu_data import gpu as find_gpu
from .model_data import Model
from .model_data import model as find_model
from .roofline import Floor, floor, step_floor
from .sharding import kv_copies, split_heads


@dataclass(frozen=True)
class Serving:
    """One GPU's part of a decode step. Bytes and seconds; every GPU of the group has the same.

    cache_bytes        caches of all sequences, on this GPU
    sequence_bytes     cache of one sequence, on this GPU
    weight_bytes       this GPU's share of all weights, read or not
    floors             {'weights': …, 'attention': …}, the two parts of a step; they run one after the other
    max_batch          sequences of this context whose caches fit beside the weights; 0 if the weights alone do not fit
    kv_copies          GPUs that keep the same key
    beyond_context     whether the context is longer than the model was published for
    """

    model: Model
    gpu: Gpu
    n_gpus: int
    context_len: int
    batch: int
    cache_bytes: float
    sequence_bytes: float
    weight_bytes: float
    floors: dict[str, Floor]
    max_batch: int
    kv_copies: int
    beyond_context: bool

    @property
    def seconds(self) -> float:
        """Floor of the step: the sum of its parts, each the larger of its two times."""
        return step_floor(self.floors.values())

    @property
    def weights_fit(self) -> bool:
        """Whether the weights fit into the GPU's memory."""
        return self.weight_bytes <= self.gpu.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether weights and caches fit into the GPU's memory together."""
        return self.batch <= self.max_batch


def serve(
    model: Model | str,
    gpu: Gpu | str,
    context_len: int,
    *,
    batch: int = 1,
    n_gpus: int = 1,
    bytes_per_element: float | str = 2,
    weight_bytes_per_element: float | str = 2,
) -> Serving:
    """A decode step of `batch` sequences of `context_len` tokens on `n_gpus` GPUs that share each layer's heads.

    Products are in 16 bits whatever the cache and the weights are kept in. All of the GPU's memory counts as free for
    weights and caches; a server keeps some of it for activations. ValueError where the heads do not divide
    (`split_heads`) or the model's parameters have no source.
    """
    model = find_model(model) if isinstance(model, str) else model
    gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
    part = dataclasses.replace(model, attention=split_heads(model.attention, n_gpus))
    whole("batch", batch), whole("context_len", context_len)

    weights = floor(
        model.weight_bytes_read(batch, weight_bytes_per_element) / n_gpus,
        2 * model.active_params * batch / n_gpus,
        gpu,
        dtype=gpu.half,
    )
    cache = part.cache_bytes(context_len, batch, bytes_per_element)
    attention = floor(cache, part.decode_flops(context_len, batch), gpu, dtype=gpu.half)
    weight_bytes = model.weight_bytes(weight_bytes_per_element) / n_gpus
    free = gpu.memory_bytes - weight_bytes
    return Serving(
        model=model,
        gpu=gpu,
        n_gpus=n_gpus,
        context_len=context_len,
        batch=batch,
        cache_bytes=cache,
        sequence_bytes=part.cache_bytes(context_len, 1, bytes_per_element),
        weight_bytes=weight_bytes,
        floors={"weights": weights, "attention": attention},
        max_batch=part.max_batch(free, context_len, bytes_per_element) if free > 0 else 0,
        kv_copies=kv_copies(model.attention, n_gpus),
        beyond_context=model.beyond_context(context_len),
    )
